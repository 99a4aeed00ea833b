/* cpu_pool.c - see cpu_pool.h.
 *
 * One word describes the current loop: its number in the upper half, the tasks left in the lower. A
 * thread takes a task by decrementing it, so a helper that sleeps through a loop neither takes from
 * it nor delays its end: the caller waits for tasks, not for helpers. The other fields change only
 * while no tasks are left, so values read before a successful decrement belong to that loop. */
#include "engine/cpu/cpu_pool.h"

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "engine/util/must.h"
#include "engine/util/thread.h"

enum { SPINS = 2000 }; /* before sleeping: some tens of microseconds */

struct helper {
    struct cpu_pool *pool;
    pthread_t thread;
    int number;
};

struct cpu_pool {
    _Alignas(64) _Atomic uint64_t loop; /* number << 32 | tasks left */
    _Alignas(64) _Atomic uint32_t done; /* tasks finished */
    _Atomic uint32_t caller_sleeps;
    _Alignas(64) _Atomic uint32_t wake; /* futex of the sleepers */
    _Atomic uint32_t sleepers;
    _Atomic bool stop;
    _Atomic int n_tasks;
    void (*_Atomic run)(void *ctx, int task, int thread);
    void *_Atomic ctx;
    int n_threads, n_helpers;
    struct helper *helpers; /* [n_threads - 1], the first n_helpers run */
};

static void relax(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

static void futex_wait(_Atomic uint32_t *word, uint32_t value)
{
    syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, value, NULL, NULL, 0);
}

static void futex_wake(_Atomic uint32_t *word)
{
    syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}

/* Runs one task; false if none is left. */
static bool take_task(struct cpu_pool *p, int thread)
{
    uint64_t loop = atomic_load_explicit(&p->loop, memory_order_acquire);

    while ((uint32_t)loop) {
        const int n_tasks = atomic_load_explicit(&p->n_tasks, memory_order_relaxed);
        void (*const run)(void *, int, int) = atomic_load_explicit(&p->run, memory_order_relaxed);
        void *const ctx = atomic_load_explicit(&p->ctx, memory_order_relaxed);

        if (!atomic_compare_exchange_weak_explicit(&p->loop, &loop, loop - 1, memory_order_acquire,
                                                   memory_order_acquire))
            continue;
        run(ctx, n_tasks - (int)(uint32_t)loop, thread);
        atomic_fetch_add(&p->done, 1);
        if (atomic_load(&p->caller_sleeps))
            futex_wake(&p->done);
        return true;
    }
    return false;
}

static bool has_work(struct cpu_pool *p)
{
    return (uint32_t)atomic_load(&p->loop) || atomic_load(&p->stop);
}

static void sleep_until_work(struct cpu_pool *p)
{
    const uint32_t wake = atomic_load(&p->wake);

    atomic_fetch_add(&p->sleepers, 1);
    if (!has_work(p))
        futex_wait(&p->wake, wake);
    atomic_fetch_sub(&p->sleepers, 1);
}

static void *helper_main(void *arg)
{
    struct helper *h = arg;
    struct cpu_pool *p = h->pool;

    while (!atomic_load(&p->stop)) {
        int spins = 0;

        while (take_task(p, h->number)) {
        }
        while (!has_work(p) && ++spins < SPINS)
            relax();
        if (spins == SPINS)
            sleep_until_work(p);
    }
    return NULL;
}

static void wake_helpers(struct cpu_pool *p)
{
    if (!atomic_load(&p->sleepers))
        return;
    atomic_fetch_add(&p->wake, 1);
    futex_wake(&p->wake);
}

int cpu_pool_new(struct cpu_pool **out, int n_threads)
{
    struct cpu_pool *p;
    int r = -ENOMEM;

    must(n_threads >= 1 && n_threads <= CPU_POOL_MAX_THREADS);
    p = aligned_alloc(_Alignof(struct cpu_pool), sizeof(*p));
    if (!p)
        return -ENOMEM;
    *p = (struct cpu_pool){.n_threads = n_threads};
    p->helpers = calloc((size_t)n_threads, sizeof(*p->helpers));
    if (!p->helpers)
        goto fail;
    for (int i = 0; i < n_threads - 1; i++) {
        struct helper *h = &p->helpers[i];

        *h = (struct helper){.pool = p, .number = i + 1};
        r = thread_start(&h->thread, NULL, helper_main, h);
        if (r < 0)
            goto fail;
        p->n_helpers++;
    }
    *out = p;
    return 0;
fail:
    cpu_pool_free(p);
    return r;
}

void cpu_pool_free(struct cpu_pool *p)
{
    if (!p)
        return;
    atomic_store(&p->stop, true);
    wake_helpers(p);
    for (int i = 0; i < p->n_helpers; i++)
        pthread_join(p->helpers[i].thread, NULL);
    free(p->helpers);
    free(p);
}

int cpu_pool_threads(const struct cpu_pool *p)
{
    return p->n_threads;
}

static void wait_until_done(struct cpu_pool *p, uint32_t n_tasks)
{
    uint32_t done;

    for (int spins = 0; spins < SPINS; spins++) {
        if (atomic_load_explicit(&p->done, memory_order_acquire) == n_tasks)
            return;
        relax();
    }
    atomic_store(&p->caller_sleeps, 1);
    while ((done = atomic_load(&p->done)) != n_tasks)
        futex_wait(&p->done, done);
    atomic_store(&p->caller_sleeps, 0);
}

void cpu_pool_run(struct cpu_pool *p, int n_tasks, void (*run)(void *ctx, int task, int thread),
                  void *ctx)
{
    uint64_t number;

    must(n_tasks >= 0);
    if (p->n_threads == 1 || n_tasks <= 1) {
        for (int task = 0; task < n_tasks; task++)
            run(ctx, task, 0);
        return;
    }
    atomic_store_explicit(&p->n_tasks, n_tasks, memory_order_relaxed);
    atomic_store_explicit(&p->run, run, memory_order_relaxed);
    atomic_store_explicit(&p->ctx, ctx, memory_order_relaxed);
    atomic_store_explicit(&p->done, 0, memory_order_relaxed);
    number = (atomic_load_explicit(&p->loop, memory_order_relaxed) >> 32) + 1;
    atomic_store(&p->loop, number << 32 | (uint32_t)n_tasks);
    wake_helpers(p);
    while (take_task(p, 0)) {
    }
    wait_until_done(p, (uint32_t)n_tasks);
}
