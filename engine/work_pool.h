/* work_pool.h - a few threads for work that must not hold up the loop: encoding, rendering.
 *
 * A queue of work is round-robin over clients, one item each, and in order of arrival within a
 * client. One thread takes short work only, the others alternate between short and long work: a
 * short text never waits for a long one to end, and waits for one short item of each other client
 * at most. */
#ifndef NVLLM_ENGINE_WORK_POOL_H
#define NVLLM_ENGINE_WORK_POOL_H

#include <stddef.h>
#include <stdint.h>

#include "engine/util/list.h"

enum { WORK_SHORT_BYTES = 64 * 1024 }; /* of text: some milliseconds of encoding */

/* Embedded in the caller's job; run may free it. */
struct work {
    struct list link; /* while it is queued: list_remove() takes it out */
    uint64_t client, round;
    void (*run)(struct work *w);
};

struct work_queue {
    struct list works; /* by round */
    uint64_t round;    /* of the work taken last */
};

void work_queue_init(struct work_queue *q);
/* Takes time linear in the queue. */
void work_queue_add(struct work_queue *q, struct work *w, uint64_t client);
struct work *work_queue_take(struct work_queue *q); /* or NULL */

struct work_pool;

int work_pool_new(struct work_pool **out, int32_t n_threads); /* >= 2; negative errno */

/* From any thread. bytes: of the text. */
void work_pool_push(struct work_pool *p, struct work *w, uint64_t client, size_t bytes);

/* Ends the threads once they have finished their current work; the rest is dropped. Takes NULL. */
void work_pool_free(struct work_pool *p);

#endif
