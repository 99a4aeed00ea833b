/* work_pool.h - a few threads for work that must not hold up the loop: encoding, rendering.
 *
 * Clients are served in turn, one piece each; a client's own work is begun in order. One thread
 * takes short work only, the others take short and long work alternately: so a short text never
 * waits behind a long one alone, and waits for one other piece of each other client at most. */
#ifndef NVLLM_ENGINE_WORK_POOL_H
#define NVLLM_ENGINE_WORK_POOL_H

#include <stddef.h>

#include "engine/util/round_robin.h"

enum { WORK_SHORT_BYTES = 64 * 1024 }; /* of text: some milliseconds of encoding */

/* Embedded in the caller's job; must stay until run is called, which may free it. */
struct work {
    struct rr_item item; /* the pool's */
    void (*run)(struct work *w);
};

struct work_pool;

int work_pool_new(struct work_pool **out, int32_t n_threads); /* >= 2; negative errno */

/* From any thread. bytes: of the text. */
void work_pool_push(struct work_pool *p, struct work *w, uint64_t client, size_t bytes);

/* Ends the threads after the work that they have begun; the rest is never run. Takes NULL. */
void work_pool_free(struct work_pool *p);

#endif
