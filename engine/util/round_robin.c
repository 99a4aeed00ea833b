/* round_robin.c - see round_robin.h. */
#include "engine/util/round_robin.h"

#include "engine/util/must.h"

void rr_queue_init(struct rr_queue *q)
{
    list_init(&q->clients);
}

void rr_queue_add(struct rr_queue *q, struct rr_item *item, uint64_t client)
{
    struct list *at;

    *item = (struct rr_item){.client = client, .queued = true};
    list_init(&item->link);
    list_init(&item->more);
    for (at = q->clients.next; at != &q->clients; at = at->next) {
        struct rr_item *first = CONTAINER_OF(at, struct rr_item, link);

        if (first->client == client) {
            list_append(&first->more, &item->link);
            return;
        }
    }
    item->first = true;
    list_append(&q->clients, &item->link);
}

/* Takes out a client's first item; its next one is the first then, in front of `place`. */
static void take_first(struct rr_item *item, struct list *place)
{
    list_remove(&item->link);
    item->first = item->queued = false;
    if (!list_empty(&item->more)) {
        struct rr_item *next = CONTAINER_OF(item->more.next, struct rr_item, link);

        list_remove(&next->link);
        list_move(&next->more, &item->more);
        next->first = true;
        list_append(place, &next->link);
    }
}

struct rr_item *rr_queue_take(struct rr_queue *q)
{
    struct rr_item *item;

    if (rr_queue_empty(q))
        return NULL;
    item = CONTAINER_OF(q->clients.next, struct rr_item, link);
    take_first(item, &q->clients);
    return item;
}

void rr_queue_remove(struct rr_item *item)
{
    must(item->queued);
    if (item->first) {
        take_first(item, item->link.next);
        return;
    }
    list_remove(&item->link);
    item->queued = false;
}
