/* cpu_pool.h - threads that share the tasks of one parallel loop after another.
 *
 * One caller at a time runs loops and takes part as thread 0. Helpers spin for some microseconds,
 * then sleep: an idle pool costs nothing. */
#ifndef NVLLM_ENGINE_CPU_CPU_POOL_H
#define NVLLM_ENGINE_CPU_CPU_POOL_H

struct cpu_pool;

enum { CPU_POOL_MAX_THREADS = 1024 };

/* n_threads: 1 .. CPU_POOL_MAX_THREADS, the caller included. -ENOMEM, -EAGAIN. */
int cpu_pool_new(struct cpu_pool **out, int n_threads);
void cpu_pool_free(struct cpu_pool *p);
int cpu_pool_threads(const struct cpu_pool *p);

/* Calls run(ctx, task, thread) for each task 0 .. n_tasks - 1, started in this order, and returns
 * when all have finished. Tasks see what the caller wrote before, the caller what the tasks wrote.
 * Tasks that run at the same time have different thread numbers. Tasks may wait for each other if
 * there are no more of them than threads. */
void cpu_pool_run(struct cpu_pool *p, int n_tasks, void (*run)(void *ctx, int task, int thread),
                  void *ctx);

#endif
