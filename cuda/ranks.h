/* ranks.h - the ranks of a model, each on its device: one, run by its caller's thread, or several
 * with a thread each, which find a step as soon as it is posted and enqueue it side by side.
 *
 * Engine thread only; ranks_new may run on another. */
#ifndef NVLLM_CUDA_RANKS_H
#define NVLLM_CUDA_RANKS_H

#include "cuda/rank.h"

struct ranks;

/* Opens all, takes their memory and gets them ready for the first step. n_devices and devices of
 * the options are set, one device a rank; the same device for all is possible, for tests. */
int ranks_new(struct ranks **out, const struct model *model, const struct backend_options *options,
              struct err *e);
void ranks_free(struct ranks *r); /* waits for steps under way; takes NULL */

/* Rank 0: what is measured. Not while a step is under way. */
struct rank *ranks_first(struct ranks *r);
const struct rank *ranks_at(const struct ranks *r, int i); /* for tests */

/* Posts a step, which all ranks read until ranks_wait() has returned it. An error of one is told by
 * the next wait. */
int ranks_submit(struct ranks *r, const struct batch *batch, int slot, struct err *e);
/* Gives the masks of a step that is the only one under way, or the only one left; it samples now.
 */
int ranks_mask(struct ranks *r, const uint32_t *const *masks, int slot, struct err *e);
int ranks_wait(struct ranks *r, int slot, struct step_result *out, struct err *e);

/* As rank.h and backend.h say. Where waking fails all sleep as before. */
int ranks_choose(struct ranks *r, struct err *e);
int ranks_load_products(struct ranks *r, struct err *e); /* 1 */
int ranks_sleep(struct ranks *r, bool keep_blocks, struct err *e);
int ranks_wake(struct ranks *r, struct err *e);
void ranks_info(struct ranks *r, struct backend_info *out);

/* Begins to pin host memory; waits a millisecond and returns true while it is being pinned. */
bool ranks_pin(struct ranks *r);

/* A look inside an open backend, for tests that are linked with it. */
const struct ranks *cuda_backend_ranks(const struct backend *b);

#endif
