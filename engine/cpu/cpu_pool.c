/* cpu_pool.c - see cpu_pool.h.
 *
 * One word describes the current loop: its number in the upper half, the tasks left in the lower. A
 * thread takes a task by decrementing it, so a helper that sleeps through a loop neither takes from
 * it nor delays its end: the caller waits for tasks, not for helpers. The other fields change only
 * while no tasks are left, so values read before a successful decrement belong to that loop. */
#include "engine/cpu/cpu_pool.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>

#include "engine/cpu/cpu_wait.h"
#include "engine/util/must.h"
#include "engine/util/thread.h"

struct cpu_pool {
    _Alignas(64) _Atomic uint64_t loop; /* number << 32 | tasks left */
    _Alignas(64) _Atomic int done;      /* tasks finished */
    struct cpu_wait wait;               /* for a loop, and for its end */
    _Atomic bool stop;
    _Atomic int n_tasks;
    void (*_Atomic run)(void *ctx, int task, int thread);
    void *_Atomic ctx;
    int n_threads, n_helpers;
    _Atomic int n_numbered; /* helpers that have taken their thread number */
    pthread_t helpers[];    /* [n_threads - 1], the first n_helpers run */
};

static bool has_work(void *arg)
{
    struct cpu_pool *p = arg;

    return (uint32_t)p->loop || p->stop;
}

static bool is_done(void *arg)
{
    struct cpu_pool *p = arg;

    return p->done == p->n_tasks;
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
            cpu_wait_wake(&p->wait);
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
        cpu_wait_until(&p->wait, has_work, p);
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
    *p = (struct cpu_pool){.n_threads = n_threads};
    cpu_wait_init(&p->wait);
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
    cpu_wait_wake(&p->wait);
    for (int i = 0; i < p->n_helpers; i++)
        pthread_join(p->helpers[i], NULL);
    cpu_wait_deinit(&p->wait);
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
    cpu_wait_wake(&p->wait);
    while (take_task(p, 0)) {
    }
    cpu_wait_until(&p->wait, is_done, p);
}
