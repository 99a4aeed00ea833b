/* work_pool.h - a few threads for work that must not hold up the loop: encoding, rendering.
 *
 * First come, first served, but one thread takes short work only: so a short text waits behind
 * short ones, never behind a long one. */
#ifndef NVLLM_WORK_POOL_H
#define NVLLM_WORK_POOL_H

#include <stddef.h>
#include <stdint.h>

enum { WORK_SHORT_BYTES = 64 * 1024 }; /* of text: some milliseconds of encoding */

/* Embedded in the caller's job; must stay until run has been called. */
struct work {
    struct work *next;
    uint64_t order; /* the pool's own */
    size_t cost;    /* bytes of text */
    void (*run)(struct work *w);
};

struct work_pool;

int work_pool_new(struct work_pool **out, int32_t n_threads); /* >= 2; negative errno */
void work_pool_push(struct work_pool *p, struct work *w);     /* any thread */

/* Ends the threads after the work under way; what was not begun comes back as a list. */
struct work *work_pool_free(struct work_pool *p);

#endif
