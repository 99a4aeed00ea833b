/* bench_sampler.h - speed of the sampler's kernels alone, on Qwen's vocabulary. */
#ifndef NVLLM_TESTS_GPU_BENCH_SAMPLER_H
#define NVLLM_TESTS_GPU_BENCH_SAMPLER_H

/* One line of key=value a setting and number of rows. Needs 1 GiB of device 0. */
void bench_sampler(void);

#endif
