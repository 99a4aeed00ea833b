/* scatter.h - an order of blocks in which neighbours of a sequence are none in memory. */
#ifndef NVLLM_TESTS_GPU_SCATTER_H
#define NVLLM_TESTS_GPU_SCATTER_H

#include <stdint.h>

/* Number i of a fixed permutation of 0 .. n - 1: by a stride that shares no divisor with n. */
static inline int32_t scattered(uint32_t i, uint32_t n)
{
    uint32_t stride = 7918, a = 0;

    while (a != 1) {
        a = ++stride;
        for (uint32_t b = n; b != 0;) {
            const uint32_t rest = a % b;

            a = b;
            b = rest;
        }
    }
    return (int32_t)((uint64_t)i * stride % n);
}

#endif
