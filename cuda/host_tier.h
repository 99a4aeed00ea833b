/* host_tier.h - copies of a rank's part of KV blocks between its device and host memory.
 *
 * Each direction has a stream and its copies their order; they wait for the step that asks for
 * them, and no step waits for them: the core uses a block only once it has been told that its copy
 * has ended, on all ranks.
 *
 * Called by the rank's thread; host_tier_least_ended and host_tier_take_ended by the engine's,
 * while no rank is at work. */
#ifndef NVLLM_CUDA_HOST_TIER_H
#define NVLLM_CUDA_HOST_TIER_H

#include "cuda/device.h"
#include "cuda/host_memory.h"
#include "engine/batch.h"

struct host_tier;

/* The rank's part of a block: block_bytes at `offset` of each `stride` bytes of host memory, one
 * behind the other at device_base. Call host_tier_free() after a failure too. */
int host_tier_new(struct host_tier **out, const struct host_memory *m, size_t offset,
                  size_t block_bytes, size_t stride, char *device_base, int32_t n_device_blocks,
                  struct err *e);
void host_tier_free(struct host_tier *h); /* waits for copies under way; takes NULL */

/* The device's blocks are there now; no copy is under way if they have moved. */
void host_tier_move_device(struct host_tier *h, char *device_base);

/* Takes the copies of a step and starts what can start. The event is recorded where the step ends;
 * it, or one recorded later in its place, stays valid. */
int host_tier_submit(struct host_tier *h, const struct batch *b, cudaEvent_t step, struct err *e);

/* Notes which copies have ended, and starts those whose memory has been pinned since. */
int host_tier_poll(struct host_tier *h, struct err *e);

/* Lowers ended[] to the number of the rank's copies that have ended so far, of each direction. */
void host_tier_least_ended(const struct host_tier *h, int64_t ended[2]);

/* Fills in the copies from the last call's `ended` to this one's; they hold until the next call.
 * Called for one rank: all have the same copies, in the same order. */
void host_tier_take_ended(struct host_tier *h, const int64_t ended[2], struct step_result *out);

#endif
