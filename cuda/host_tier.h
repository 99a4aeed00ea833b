/* host_tier.h - KV blocks in pinned host memory, and the copies between them and the device's.
 *
 * The memory is mapped at open and pinned afterwards, piece after piece, by threads of its own: a
 * start does not wait for that, a copy to a block that is not pinned yet does. Each direction has a
 * stream and its copies their order; they wait for the step that asks for them, and no step waits
 * for them: the core uses a block only once it has been told that its copy has ended.
 *
 * Engine thread only; host_tier_new may run on another. */
#ifndef NVLLM_CUDA_HOST_TIER_H
#define NVLLM_CUDA_HOST_TIER_H

#include "cuda/device.h"
#include "engine/batch.h"

struct host_tier;

/* As many whole blocks as the bytes hold, for those of a device at device_base. -ENOMEM names the
 * option. Call host_tier_free() after a failure too. */
int host_tier_new(struct host_tier **out, const struct device *d, uint64_t bytes,
                  uint64_t block_bytes, char *device_base, int32_t n_device_blocks, struct err *e);
void host_tier_free(struct host_tier *h); /* waits for copies under way; takes NULL */

/* Begins to pin, once; as the first step does. Meanwhile whatever takes the driver's lock may wait
 * for it, 2 ms at a time. */
void host_tier_pin(struct host_tier *h);

/* The device's blocks are there now; no copy is under way if they have moved. */
void host_tier_move_device(struct host_tier *h, char *device_base);

/* All of it is, so kernels can read it. */
bool host_tier_is_pinned(const struct host_tier *h);

bool host_tier_wait(
    struct host_tier *h); /* a millisecond, while memory is being pinned; else false */

int32_t host_tier_blocks(const struct host_tier *h);
char *host_tier_memory(const struct host_tier *h);
uint64_t host_tier_pinned_bytes(const struct host_tier *h); /* so far */

/* Takes the copies of a step and starts what can start. The event is recorded where the step ends;
 * it, or one recorded later in its place, stays valid. */
int host_tier_submit(struct host_tier *h, const struct batch *b, cudaEvent_t step, struct err *e);

/* Starts copies whose memory has been pinned since, and fills in the copies that have ended since
 * the last call; they hold until the next. */
int host_tier_poll(struct host_tier *h, struct step_result *out, struct err *e);

#endif
