/* work_pool.h - a few threads for work that must not hold up the loop: encoding, rendering.
 *
 * Whose turn it is goes by clients: each has the same share of the threads, by cost, and its own
 * work is done in order. One thread takes short work only: so a short text waits behind short ones,
 * never behind a long one, and behind few of any other client. */
#ifndef NVLLM_ENGINE_WORK_POOL_H
#define NVLLM_ENGINE_WORK_POOL_H

#include <stddef.h>
#include <stdint.h>

#include "engine/util/heap.h"

enum { WORK_SHORT_BYTES = 64 * 1024 }; /* of text: some milliseconds of encoding */

struct work_flow;

/* Embedded in the caller's job; must stay until run has been called. */
struct work {
    struct work *next; /* of work_pool_free */
    uint64_t client;
    size_t cost; /* bytes of text */
    void (*run)(struct work *w);
    struct heap_node node;  /* the pool's own, as what follows */
    struct work_flow *flow; /* NULL: there was no memory for one */
    uint64_t turn, order;   /* it goes by turn, then by arrival */
};

struct work_pool;

int work_pool_new(struct work_pool **out, int32_t n_threads); /* >= 2; negative errno */
void work_pool_push(struct work_pool *p, struct work *w);     /* any thread */

/* Ends the threads after the work under way; what was not begun comes back as a list. */
struct work *work_pool_free(struct work_pool *p);

#endif
