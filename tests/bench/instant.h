/* instant.h - what the end-to-end tests and bench_streams share with the backend of their nvllmd: a
 * mapped file.
 *
 * The backend finds it as INSTANT_FILE in its cache folder. */
#ifndef NVLLM_TESTS_BENCH_INSTANT_H
#define NVLLM_TESTS_BENCH_INSTANT_H

#include <stdatomic.h>
#include <stdint.h>
#include <time.h>

#define INSTANT_FILE "instant"

enum { INSTANT_IDS = 94 }; /* tokens are 0 .. 93, one printable character each */

struct instant {
    /* Written by the benchmark: how long a step takes, and each of its rows besides. step_us 0: no
     * time. */
    atomic_uint_fast64_t step_us, row_us;
    /* Written by the backend: when the last step that gave token i was over. */
    atomic_uint_fast64_t ended_ns[INSTANT_IDS];
};

static inline uint64_t instant_now_ns(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

#endif
