/* common.h - the small things that programs for a GPU share. */
#ifndef NVLLM_TESTS_GPU_COMMON_H
#define NVLLM_TESTS_GPU_COMMON_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include "engine/util/err.h"

/* Prints why and ends the program where r is negative. */
static inline void err_must(int r, const struct err *e)
{
    if (r >= 0)
        return;
    fprintf(stderr, "%s\n", e->text);
    exit(1);
}

/* Ranks on one device wait for each other there: loading a kernel must not wait for that, and each
 * stream needs a queue of its own. Before the first call of CUDA. */
static inline void ranks_may_share_devices(void)
{
    (void)setenv("CUDA_MODULE_LOADING", "EAGER", 1);
    (void)setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 1);
}

/* Number i of a fixed permutation of 0 .. n - 1, by a stride that shares no divisor with n: blocks
 * in this order are no neighbours in memory where they are in a sequence. */
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
