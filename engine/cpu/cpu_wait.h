/* cpu_wait.h - waiting for what other threads compute: it takes microseconds while they do and has
 * no end while there is nothing to do, so who waits spins first, then sleeps. */
#ifndef NVLLM_ENGINE_CPU_CPU_WAIT_H
#define NVLLM_ENGINE_CPU_CPU_WAIT_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

struct cpu_wait {
    _Alignas(64) _Atomic int sleepers;
    pthread_mutex_t lock; /* of sleeping */
    pthread_cond_t changed;
};

void cpu_wait_init(struct cpu_wait *w);
void cpu_wait_deinit(struct cpu_wait *w);

/* Returns once ready(arg). What it reads is atomic, and who changes that calls cpu_wait_wake(). */
void cpu_wait_until(struct cpu_wait *w, bool (*ready)(void *arg), void *arg);
void cpu_wait_wake(struct cpu_wait *w); /* no system call if nobody sleeps */

/* n threads meet: each waits until all have arrived, and then sees what they wrote before. */
struct cpu_barrier {
    _Alignas(64) _Atomic int arrived;
    _Alignas(64) _Atomic uint32_t round;
    struct cpu_wait wait;
    int n;
};

void cpu_barrier_init(struct cpu_barrier *b, int n);
void cpu_barrier_deinit(struct cpu_barrier *b);
void cpu_barrier_wait(struct cpu_barrier *b);

#endif
