/* bench_attention.h - speed of decode attention alone, over scattered blocks. */
#ifndef NVLLM_TESTS_BENCH_ATTENTION_H
#define NVLLM_TESTS_BENCH_ATTENTION_H

/* One line of key=value a scene. Needs 2 GiB of device 0. */
void bench_attention(void);

#endif
