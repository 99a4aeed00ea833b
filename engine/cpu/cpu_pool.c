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
    _Atomic int n_numbered; /* helpers that have taken their thread number */
    pthread_t helpers[];    /* [n_threads - 1], the first n_helpers run */
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
    return (uint32_t)p->loop || p->stop;
}

static bool is_done(struct cpu_pool *p)
{
    return p->done == p->n_tasks;
}

static void wait_until(struct cpu_pool *p, bool (*ready)(struct cpu_pool *p))
{
    for (int spins = 0; spins < SPINS; spins++) {
        if (ready(p))
            return;
        relax();
    }
    pthread_mutex_lock(&p->lock);
    p->sleepers++;
    while (!ready(p))
        pthread_cond_wait(&p->changed, &p->lock);
    p->sleepers--;
    pthread_mutex_unlock(&p->lock);
}

static void wake_sleepers(struct cpu_pool *p)
{
    if (p->sleepers == 0)
        return;
    pthread_mutex_lock(&p->lock);
    pthread_cond_broadcast(&p->changed);
    pthread_mutex_unlock(&p->lock);
}

/* Runs one task; false if none is left. */
static bool take_task(struct cpu_pool *p, int thread)
{
    uint64_t loop = p->loop;

    while ((uint32_t)loop) {
        const int n_tasks = p->n_tasks;
        void (*const run)(void *, int, int) = p->run;
        void *const ctx = p->ctx;

        if (!atomic_compare_exchange_weak(&p->loop, &loop, loop - 1))
            continue;
        run(ctx, n_tasks - (int)(uint32_t)loop, thread);
        if (++p->done == n_tasks)
            wake_sleepers(p);
        return true;
    }
    return false;
}

static void *helper_main(void *arg)
{
    struct cpu_pool *p = arg;
    const int number = ++p->n_numbered;

    while (!p->stop) {
        while (take_task(p, number)) {
        }
        wait_until(p, has_work);
    }
    return NULL;
}

int cpu_pool_new(struct cpu_pool **out, int n_threads)
{
    struct cpu_pool *p;
    void *memory;

    must(n_threads >= 1 && n_threads <= CPU_POOL_MAX_THREADS);
    if (posix_memalign(&memory, _Alignof(struct cpu_pool),
                       sizeof(*p) + (size_t)(n_threads - 1) * sizeof(p->helpers[0])))
        return -ENOMEM;
    p = memory;
    *p = (struct cpu_pool){.n_threads = n_threads,
                           .lock = PTHREAD_MUTEX_INITIALIZER,
                           .changed = PTHREAD_COND_INITIALIZER};
    for (; p->n_helpers < n_threads - 1; p->n_helpers++) {
        int r = thread_start(&p->helpers[p->n_helpers], "cpu", helper_main, p);

        if (r < 0) {
            cpu_pool_free(p);
            return r;
        }
    }
    *out = p;
    return 0;
}

void cpu_pool_free(struct cpu_pool *p)
{
    if (!p)
        return;
    p->stop = true;
    wake_sleepers(p);
    for (int i = 0; i < p->n_helpers; i++)
        pthread_join(p->helpers[i], NULL);
    pthread_cond_destroy(&p->changed);
    pthread_mutex_destroy(&p->lock);
    free(p);
}

int cpu_pool_threads(const struct cpu_pool *p)
{
    return p->n_threads;
}

void cpu_pool_run(struct cpu_pool *p, int n_tasks, void (*run)(void *ctx, int task, int thread),
                  void *ctx)
{
    must(n_tasks >= 0);
    if (p->n_threads == 1 || n_tasks <= 1) {
        for (int task = 0; task < n_tasks; task++)
            run(ctx, task, 0);
        return;
    }
    p->n_tasks = n_tasks;
    p->run = run;
    p->ctx = ctx;
    p->done = 0;
    p->loop = ((p->loop >> 32) + 1) << 32 | (uint32_t)n_tasks;
    wake_sleepers(p);
    while (take_task(p, 0)) {
    }
    wait_until(p, is_done);
}
