/* rank_threads.h - the threads of several ranks, one each. They find a job as soon as it is posted:
 * a function and its argument, the same for all.
 *
 * One thread posts. */
#ifndef NVLLM_CUDA_RANK_THREADS_H
#define NVLLM_CUDA_RANK_THREADS_H

#include "cuda/rank.h"

struct rank_threads;

typedef int rank_fn(struct rank *rank, const void *arg, struct err *e);

/* A rank that has not done a job after so long is lost, and no rank is given another job. Kernels
 * that wait for another rank fail earlier, after PEER_SECONDS. */
enum { STEP_SECONDS = PEER_SECONDS + 2 };

/* A thread for each of the n ranks, which outlive it. */
int rank_threads_new(struct rank_threads **out, struct rank *ranks, int n, struct err *e);
/* Ends them. False: one is lost, and the others may still wait for it; nothing was freed. Takes
 * NULL. */
bool rank_threads_free(struct rank_threads *t);

bool rank_threads_are_lost(const struct rank_threads *t);

/* Runs a function on all ranks at a time, once they have done what was posted before, and waits for
 * it, for so many seconds. Returns the first error. */
int rank_threads_run(struct rank_threads *t, double seconds, rank_fn *run, const void *arg,
                     struct err *e);

/* Posts a step and sets its number. The argument stays valid until all have done it: until wait has
 * returned 0, or poll 1. They return the first error of any step, after which no step is run. */
int rank_threads_post(struct rank_threads *t, rank_fn *run, const void *arg, uint32_t *number,
                      struct err *e);
int rank_threads_wait(struct rank_threads *t, uint32_t number, struct err *e);
/* The number of what was posted last. */
uint32_t rank_threads_posted(const struct rank_threads *t);
/* At once: 1, an error, or 0: not yet. */
int rank_threads_poll(const struct rank_threads *t, uint32_t number, struct err *e);

#endif
