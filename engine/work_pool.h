/* work_pool.h - a few threads for work that must not hold up the loop: encoding, rendering.
 *
 * Work is round-robin over clients, one item each, and in order of arrival within a client. One
 * thread takes short work only, the others alternate between short and long work: a short text
 * never waits for a long one to end, and waits for one short item of each other client at most. */
#ifndef NVLLM_ENGINE_WORK_POOL_H
#define NVLLM_ENGINE_WORK_POOL_H

#include <stddef.h>

#include "engine/util/round_robin.h"

enum { WORK_SHORT_BYTES = 64 * 1024 }; /* of text: some milliseconds of encoding */

/* Embedded in the caller's job; run may free it. */
struct work {
    struct rr_item item; /* the pool's */
    void (*run)(struct work *w);
};

struct work_pool;

int work_pool_new(struct work_pool **out, int32_t n_threads); /* >= 2; negative errno */

/* From any thread. bytes: of the text. */
void work_pool_push(struct work_pool *p, struct work *w, uint64_t client, size_t bytes);

/* Ends the threads once they have finished their current work; the rest is dropped. Takes NULL. */
void work_pool_free(struct work_pool *p);

#endif
