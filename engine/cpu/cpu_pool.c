/* cpu_pool.c - see cpu_pool.h.
 *
 * One word describes the current loop: its number in the upper half, the tasks left in the lower. A
 * thread takes a task by decrementing it, so a helper that sleeps through a loop neither takes from
 * it nor delays its end: the caller waits for tasks, not for helpers. The other fields change only
 * while no tasks are left, so values read before a successful decrement belong to that loop.
 *
 * Who waits spins first, then counts itself among the sleepers and looks once more; who changes
 * what is waited for then looks for sleepers. So no wake-up is lost, and without sleepers none
 * costs a system call. */
#include "engine/cpu/cpu_pool.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>

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
    _Alignas(64) _Atomic int done;      /* tasks finished */
    _Alignas(64) _Atomic int sleepers;
    _Atomic bool stop;
    _Atomic int n_tasks;
    void (*_Atomic run)(void *ctx, int task, int thread);
    void *_Atomic ctx;
    pthread_mutex_t lock; /* of sleeping */
    pthread_cond_t changed;
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

static bool has_work(struct cpu_pool *p)
{
    return (uint32_t)atomic_load(&p->loop) || atomic_load(&p->stop);
}

static bool is_done(struct cpu_pool *p)
{
    return atomic_load(&p->done) == atomic_load(&p->n_tasks);
}

static void wait_until(struct cpu_pool *p, bool (*ready)(struct cpu_pool *p))
{
    for (int spins = 0; spins < SPINS; spins++) {
        if (ready(p))
            return;
        relax();
    }
    pthread_mutex_lock(&p->lock);
    atomic_fetch_add(&p->sleepers, 1);
    while (!ready(p))
        pthread_cond_wait(&p->changed, &p->lock);
    atomic_fetch_sub(&p->sleepers, 1);
    pthread_mutex_unlock(&p->lock);
}

static void wake_sleepers(struct cpu_pool *p)
{
    if (!atomic_load(&p->sleepers))
        return;
    pthread_mutex_lock(&p->lock);
    pthread_cond_broadcast(&p->changed);
    pthread_mutex_unlock(&p->lock);
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
        if (atomic_fetch_add(&p->done, 1) + 1 == n_tasks)
            wake_sleepers(p);
        return true;
    }
    return false;
}

static void *helper_main(void *arg)
{
    struct helper *h = arg;

    while (!atomic_load(&h->pool->stop)) {
        while (take_task(h->pool, h->number)) {
        }
        wait_until(h->pool, has_work);
    }
    return NULL;
}

int cpu_pool_new(struct cpu_pool **out, int n_threads)
{
    struct cpu_pool *p;
    int r = -ENOMEM;

    must(n_threads >= 1 && n_threads <= CPU_POOL_MAX_THREADS);
    p = aligned_alloc(_Alignof(struct cpu_pool), sizeof(*p));
    if (!p)
        return -ENOMEM;
    *p = (struct cpu_pool){.n_threads = n_threads,
                           .lock = PTHREAD_MUTEX_INITIALIZER,
                           .changed = PTHREAD_COND_INITIALIZER};
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
    wake_sleepers(p);
    for (int i = 0; i < p->n_helpers; i++)
        pthread_join(p->helpers[i].thread, NULL);
    pthread_cond_destroy(&p->changed);
    pthread_mutex_destroy(&p->lock);
    free(p->helpers);
    free(p);
}

int cpu_pool_threads(const struct cpu_pool *p)
{
    return p->n_threads;
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
    wake_sleepers(p);
    while (take_task(p, 0)) {
    }
    wait_until(p, is_done);
}
