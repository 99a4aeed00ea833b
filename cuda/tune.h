/* tune.h - measures what a start chooses from: the algorithm of each product's shape, and how long
 * whole steps of few rows take by each path. Results are for the next start; a start that waits for
 * them (nvllmd tune, cuda.tune = before_ready) may take them at once.
 *
 * Products are measured on the first rank alone, steps on all ranks at a time: they exchange parts.
 * It runs on the ranks' streams and in their activations, which hold nothing between two steps, so
 * only when no step is in flight; it can be left at any call. KV blocks, sampler states and what
 * steps have sampled are not written.
 *
 * Engine thread only. */
#ifndef NVLLM_CUDA_TUNE_H
#define NVLLM_CUDA_TUNE_H

#include "cuda/ranks.h"

struct tune;

/* What the first rank knows is not measured again; new records are appended to the same array. All
 * are written to the cache folder of its options, if there is one. */
int tune_new(struct tune **out, struct ranks *ranks, struct err *e);
/* Before the ranks' memory is given back: what is being measured begins anew. Takes NULL. */
void tune_pause(struct tune *t);
void tune_free(struct tune *t); /* writes what is not yet written; takes NULL */

/* One piece of measuring: at most a few milliseconds, mostly one product. 1 while there is more, 0
 * when all is done and written, or a negative errno: the device has failed. */
int tune_step(struct tune *t, struct err *e);

/* All of it, or for TUNE_SECONDS; the first rank then knows it. */
enum { TUNE_SECONDS = 5 };
int tune_run(struct tune *t, struct err *e);

#endif
