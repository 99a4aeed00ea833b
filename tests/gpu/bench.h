/* bench.h - the benchmarks of kernels alone. Each prints lines of key=value. */
#ifndef NVLLM_TESTS_GPU_BENCH_H
#define NVLLM_TESTS_GPU_BENCH_H

#include <stdbool.h>

static const double H200_BYTES_PER_SECOND = 4.54e12; /* what plain reads reach there */

/* Attention over scattered blocks; whether every bar was reached. Needs 4 GiB of device 0. */
bool bench_attention(void);

/* The FFN of a mixture of experts, on Qwen3-30B-A3B's shape. Needs 3 GiB of device 0. */
void bench_experts(void);

/* The all-reduce of several ranks, over all devices; or of two on one device, where nothing goes
 * over a link, to see what barriers cost. */
void bench_ranks(void);

/* The sampler, on Qwen's vocabulary. Needs 1 GiB of device 0. */
void bench_sampler(void);

#endif
