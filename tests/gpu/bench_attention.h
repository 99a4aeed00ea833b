/* bench_attention.h - speed of attention alone, over scattered blocks. */
#ifndef NVLLM_TESTS_GPU_BENCH_ATTENTION_H
#define NVLLM_TESTS_GPU_BENCH_ATTENTION_H

#include <stdbool.h>

/* One line of key=value a scene; whether every bar was reached. Needs 2 GiB of device 0. */
bool bench_attention(void);

#endif
