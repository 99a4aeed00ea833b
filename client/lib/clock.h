/* clock.h - the monotonic clock, and deadlines on it in milliseconds. */
#ifndef NVLLM_CLIENT_LIB_CLOCK_H
#define NVLLM_CLIENT_LIB_CLOCK_H

#include <limits.h>
#include <stdint.h>
#include <time.h>

static inline int64_t clock_ns(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static inline int64_t clock_ms(void)
{
    return clock_ns() / 1000000;
}

/* INT64_MAX, never, for a negative timeout. */
static inline int64_t clock_deadline(int64_t timeout_ms)
{
    return timeout_ms < 0 ? INT64_MAX : clock_ms() + timeout_ms;
}

/* The time left, as poll() takes it: -1 for ever, 0 if it has passed. */
static inline int clock_left_ms(int64_t deadline)
{
    int64_t left;

    if (deadline == INT64_MAX)
        return -1;
    left = deadline - clock_ms();
    return left <= 0 ? 0 : left > INT_MAX ? INT_MAX : (int)left;
}

#endif
