/* cpu_time.h - what a thread has computed, for tests that bound work: a busy machine does not make
 * it more. */
#ifndef NVLLM_TESTS_UNIT_CPU_TIME_H
#define NVLLM_TESTS_UNIT_CPU_TIME_H

#include <time.h>

static inline double cpu_ms(void)
{
    struct timespec t;

    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec / 1e6;
}

#endif
