/* cpu_pool.h - threads that share out the tasks of one loop after another.
 *
 * One caller at a time runs loops; it takes part itself as thread 0. Helpers look for the next
 * loop for some microseconds, then sleep: an idle pool costs nothing. */
#ifndef NVLLM_ENGINE_CPU_CPU_POOL_H
#define NVLLM_ENGINE_CPU_CPU_POOL_H

struct cpu_pool;

enum { CPU_POOL_MAX_THREADS = 1024 };

/* n_threads with the caller, 1 .. CPU_POOL_MAX_THREADS. Negative errno: no memory or no threads. */
int cpu_pool_new(struct cpu_pool **out, int n_threads);
void cpu_pool_free(struct cpu_pool *p);
int cpu_pool_threads(const struct cpu_pool *p);

/* Calls run(ctx, task, thread) once for each task 0 .. n_tasks - 1, in about this order, and
 * returns when all are done. What the caller wrote before is seen by the tasks, what they wrote by
 * the caller. No two tasks at a time have the same thread number. */
void cpu_pool_run(struct cpu_pool *p, int n_tasks, void (*run)(void *ctx, int task, int thread),
                  void *ctx);

#endif
