/* round_robin.h - a queue that alternates between clients, one item each; a client's own items
 * come in order of arrival. The links lie inside the items: nothing to allocate.
 *
 * Adding an item takes time linear in the clients that wait (they are users, so few). */
#ifndef NVLLM_ENGINE_UTIL_ROUND_ROBIN_H
#define NVLLM_ENGINE_UTIL_ROUND_ROBIN_H

#include <stdint.h>

#include "engine/util/list.h"

struct rr_queue {
    struct list clients; /* the first item of each, next one first */
};

struct rr_item {
    struct list link; /* in the queue's clients, or in `more` of its client's first item */
    struct list more; /* of a client's first item: its other items */
    uint64_t client;
    bool first, queued;
};

void rr_queue_init(struct rr_queue *q);
void rr_queue_add(struct rr_queue *q, struct rr_item *item, uint64_t client);

/* Takes the next item; its client comes again after all others. NULL: the queue is empty. */
struct rr_item *rr_queue_take(struct rr_queue *q);

/* Takes out an item that is in a queue, wherever; its client keeps its place. */
void rr_queue_remove(struct rr_item *item);

static inline bool rr_queue_empty(const struct rr_queue *q)
{
    return list_empty(&q->clients);
}

#endif
