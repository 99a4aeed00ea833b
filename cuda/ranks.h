/* ranks.h - the ranks of a model, each on its device: one, run by its caller's thread, or several
 * with a thread each, which find a step as soon as it is posted and enqueue it side by side. They
 * may be a part of all: other processes have the rest (cluster.h).
 *
 * Engine thread only; ranks_new may run on another. */
#ifndef NVLLM_CUDA_RANKS_H
#define NVLLM_CUDA_RANKS_H

#include "cuda/cluster.h"
#include "cuda/rank_threads.h"

struct ranks;

/* Opens all, takes their memory and gets them ready for the first step. tp_size, n_devices and
 * devices of the options are set, one device a rank of this process; the same device for all is
 * possible, for tests. */
int ranks_new(struct ranks **out, const struct model *model, const struct backend_options *options,
              struct err *e);
void ranks_free(struct ranks *r); /* waits for steps under way; takes NULL */

/* The first rank: what is measured. Not while a step is under way. */
struct rank *ranks_first(struct ranks *r);
/* Runs a function on all ranks of this process at a time and waits for it, for STEP_SECONDS.
 * Returns the first error. Not while a step is under way. */
int ranks_run(struct ranks *r, rank_fn *run, const void *arg, struct err *e);
const struct rank *ranks_at(const struct ranks *r, int i); /* for tests */

/* With other processes: the leader's sleep, wake, submit and wait tell them to do the same, once
 * all ranks here have enqueued the step before. */
bool ranks_follow(const struct ranks *r); /* this is not the leader */
/* A follower: the next order, which is carried out by these same functions, or by ranks_answer().
 */
int ranks_next_order(struct ranks *r, struct order *out, struct err *e);
int ranks_answer(struct ranks *r, const struct order *order, struct err *e);
/* An idle leader: asks, where that is due, whether all followers are there. */
int ranks_beat(struct ranks *r, struct err *e);

/* Posts a step, whose batch all ranks read until ranks_wait() has returned its result. The next
 * wait returns an error of any of them. */
int ranks_submit(struct ranks *r, const struct batch *batch, int slot, struct err *e);
/* Gives the masks of a step, which is sampled now; it is the only one still under way. */
int ranks_mask(struct ranks *r, const uint32_t *const *masks, int slot, struct err *e);
int ranks_wait(struct ranks *r, int slot, struct step_result *out, struct err *e);

/* As rank.h and backend.h say. Where waking fails all sleep as before. */
int ranks_choose(struct ranks *r, struct err *e);
/* Loads the kernels for products of n_rows rows on all ranks, once. Call it before several ranks
 * launch them in a step. */
int ranks_load_products(struct ranks *r, int n_rows, struct err *e);
int ranks_sleep(struct ranks *r, bool keep_blocks, struct err *e);
int ranks_wake(struct ranks *r, struct err *e);
void ranks_info(struct ranks *r, struct backend_info *out);

/* Begins to pin host memory; waits a millisecond and returns true while it is being pinned. */
bool ranks_pin(struct ranks *r);

/* A look inside an open backend, for tests that are linked with it. */
const struct ranks *cuda_backend_ranks(const struct backend *b);

#endif
