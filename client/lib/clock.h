/* clock.h - deadlines on the monotonic clock, in milliseconds. */
#ifndef NVLLM_CLIENT_LIB_CLOCK_H
#define NVLLM_CLIENT_LIB_CLOCK_H

#include <limits.h>
#include <stdint.h>
#include <time.h>

static inline int64_t clock_ms(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

/* -1 for a negative timeout, which never expires; 0 has always expired. */
static inline int64_t clock_deadline(int timeout_ms)
{
    if (timeout_ms <= 0)
        return timeout_ms < 0 ? -1 : 0;
    return clock_ms() + timeout_ms;
}

/* The time left, as poll() takes it: -1 for no deadline, 0 if it has passed. */
static inline int clock_left_ms(int64_t deadline)
{
    int64_t left;

    if (deadline <= 0)
        return deadline < 0 ? -1 : 0;
    left = deadline - clock_ms();
    return left <= 0 ? 0 : left > INT_MAX ? INT_MAX : (int)left;
}

#endif
