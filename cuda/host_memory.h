/* host_memory.h - pinned host memory for KV blocks, one behind the other: what all ranks' host
 * tiers copy to and from.
 *
 * The memory is mapped at open and pinned afterwards, piece after piece, by threads of its own: a
 * start does not wait for that, a copy to a block that is not pinned yet does. Any thread may call
 * these functions, but for host_memory_pin and host_memory_wait: they are the engine thread's. */
#ifndef NVLLM_CUDA_HOST_MEMORY_H
#define NVLLM_CUDA_HOST_MEMORY_H

#include "cuda/device.h"

struct host_memory;

/* As many whole blocks as the bytes hold. -ENOMEM names the option. */
int host_memory_new(struct host_memory **out, int device, uint64_t bytes, uint64_t block_bytes,
                    struct err *e);
void host_memory_free(struct host_memory *h); /* no copy is under way; takes NULL */

/* Begins to pin, if that has not begun: the first step calls it at the latest. Meanwhile whatever
 * takes the driver's lock may wait for it, 2 ms at a time. */
void host_memory_pin(struct host_memory *h);

/* Waits a millisecond and returns true while memory is being pinned, else false at once. */
bool host_memory_wait(struct host_memory *h);

bool host_memory_is_pinned(const struct host_memory *h); /* all of it, so kernels can read it */
/* Whether a block's memory has been pinned, or could not be: it can be copied. */
bool host_memory_may_copy(const struct host_memory *h, int32_t block);

int32_t host_memory_blocks(const struct host_memory *h);
char *host_memory_base(const struct host_memory *h);
uint64_t host_memory_pinned_bytes(const struct host_memory *h); /* so far */

#endif
