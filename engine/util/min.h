/* min.h - the lesser of two numbers. */
#ifndef NVLLM_ENGINE_UTIL_MIN_H
#define NVLLM_ENGINE_UTIL_MIN_H

#include <stdint.h>

static inline int32_t min_i32(int32_t a, int32_t b)
{
    return a < b ? a : b;
}

#endif
