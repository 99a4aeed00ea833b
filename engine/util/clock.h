/* clock.h - the monotonic clock, in microseconds. Any thread. */
#ifndef NVLLM_ENGINE_UTIL_CLOCK_H
#define NVLLM_ENGINE_UTIL_CLOCK_H

#include <stdint.h>
#include <time.h>

static inline uint64_t clock_us(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000u + (uint64_t)t.tv_nsec / 1000u;
}

#endif
