/* fair_queue.c - see fair_queue.h.
 *
 * A heap of items for each client and class, a heap of clients for each class, and heaps of the
 * active and the idle clients by virtual time. */
#include "engine/core/fair_queue.h"

#include <errno.h>
#include <stdlib.h>

#include "engine/util/id_map.h"
#include "engine/util/list.h"
#include "engine/util/must.h"
#include "engine/util/plant.h"

enum { MAX_IDLE = 1024 }; /* accounts kept of idle clients */

/* A client's waiting items of one class. */
struct line {
    struct heap_node node; /* in the heap of its class while it is not empty */
    struct heap items;
    struct fair_client *client;
};

struct fair_client {
    uint64_t id;
    struct heap_node by_vtime; /* among the active or the idle */
    uint64_t vtime;            /* UNITS a token of a usual share */
    int32_t share;
    int64_t n_joined;
    struct fair_use use;
    struct line lines[FAIR_QUEUE_CLASSES];
};

struct fair_queue {
    struct id_map clients;
    struct heap classes[FAIR_QUEUE_CLASSES];
    struct heap active;
    struct heap idle;
    int32_t n_active, n_idle;
    int64_t active_shares;     /* all together */
    struct fair_share *shares; /* [n_shares] */
    int32_t n_shares;
};

enum { UNITS = FAIR_MAX_SHARE / FAIR_USUAL_SHARE }; /* so that one token counts for any share */

static struct fair_item *item_of(const struct heap_node *n)
{
    return CONTAINER_OF(n, struct fair_item, node);
}

static bool item_less(const struct heap_node *a, const struct heap_node *b)
{
    const struct fair_item *x = item_of(a), *y = item_of(b);

    return x->front != y->front ? x->front : x->order < y->order;
}

static bool line_less(const struct heap_node *a, const struct heap_node *b)
{
    const struct line *x = CONTAINER_OF(a, struct line, node);
    const struct line *y = CONTAINER_OF(b, struct line, node);

    if (x->client->vtime != y->client->vtime)
        return x->client->vtime < y->client->vtime;
    return item_of(heap_top(&x->items))->order < item_of(heap_top(&y->items))->order;
}

static struct fair_client *client_of(const struct heap_node *n)
{
    return CONTAINER_OF(n, struct fair_client, by_vtime);
}

static bool client_less(const struct heap_node *a, const struct heap_node *b)
{
    return client_of(a)->vtime < client_of(b)->vtime;
}

int fair_queue_new(struct fair_queue **out)
{
    struct fair_queue *q = calloc(1, sizeof(*q));

    if (!q)
        return -ENOMEM;
    for (int k = 0; k < FAIR_QUEUE_CLASSES; k++)
        heap_init(&q->classes[k], line_less);
    heap_init(&q->active, client_less);
    heap_init(&q->idle, client_less);
    *out = q;
    return 0;
}

/* Forgets idle accounts that say nothing any more: not above what a newcomer starts with. */
static void forget_idle(struct fair_queue *q)
{
    const struct heap_node *least = heap_top(&q->active);

    while (heap_top(&q->idle)) {
        struct fair_client *c = client_of(heap_top(&q->idle));

        if (least && c->vtime > client_of(least)->vtime && q->n_idle <= MAX_IDLE)
            break;
        heap_remove(&q->idle, &c->by_vtime);
        q->n_idle--;
        must(id_map_take(&q->clients, c->id) == c);
        free(c);
    }
}

void fair_queue_free(struct fair_queue *q)
{
    if (!q)
        return;
    must(!heap_top(&q->active));
    forget_idle(q);
    id_map_deinit(&q->clients);
    free(q->shares);
    free(q);
}

static int32_t share_of(const struct fair_queue *q, uint64_t client)
{
    for (int32_t i = 0; i < q->n_shares; i++)
        if (q->shares[i].client == client)
            return q->shares[i].share;
    return FAIR_USUAL_SHARE;
}

void fair_queue_set_shares(struct fair_queue *q, struct fair_share *shares, int32_t n)
{
    struct fair_client *c;
    size_t at = 0;

    for (int32_t i = 0; i < n; i++)
        must(shares[i].share >= 1 && shares[i].share <= FAIR_MAX_SHARE);
    free(q->shares);
    q->shares = shares;
    q->n_shares = n;
    q->active_shares = 0;
    while ((c = id_map_next(&q->clients, &at))) {
        c->share = share_of(q, c->id);
        q->active_shares += c->n_joined > 0 ? c->share : 0;
    }
}

static struct fair_client *client_new(struct fair_queue *q, uint64_t id)
{
    struct fair_client *c = calloc(1, sizeof(*c));

    if (!c)
        return NULL;
    if (id_map_put(&q->clients, id, c) < 0) {
        free(c);
        return NULL;
    }
    c->id = id;
    c->share = share_of(q, id);
    for (int k = 0; k < FAIR_QUEUE_CLASSES; k++) {
        heap_init(&c->lines[k].items, item_less);
        c->lines[k].client = c;
    }
    return c;
}

int fair_queue_join(struct fair_queue *q, struct fair_client **out, uint64_t client)
{
    struct fair_client *c = id_map_get(&q->clients, client);
    bool known = c != NULL;

    if (!known) {
        c = client_new(q, client);
        if (!c)
            return -ENOMEM;
    }
    if (c->n_joined++ == 0) {
        const struct heap_node *least = heap_top(&q->active);

        if (known) {
            heap_remove(&q->idle, &c->by_vtime);
            q->n_idle--;
        }
        if (least && c->vtime < client_of(least)->vtime)
            c->vtime = client_of(least)->vtime - 1;
        heap_insert(&q->active, &c->by_vtime);
        q->n_active++;
        q->active_shares += c->share;
        forget_idle(q);
    }
    *out = c;
    return 0;
}

void fair_queue_leave(struct fair_queue *q, struct fair_client *client)
{
    must(client->n_joined > 0);
    if (--client->n_joined > 0)
        return;
    must(client->use.n_running == 0 && client->use.n_waiting == 0 && client->use.n_blocks == 0);
    heap_remove(&q->active, &client->by_vtime);
    q->n_active--;
    q->active_shares -= client->share;
    heap_insert(&q->idle, &client->by_vtime);
    q->n_idle++;
    forget_idle(q);
}

/* A line's place depends on its client's time and its first item: it is taken out before either
 * changes and put back after. */
static void line_out(struct fair_queue *q, struct fair_client *c, int32_t klass)
{
    if (heap_top(&c->lines[klass].items))
        heap_remove(&q->classes[klass], &c->lines[klass].node);
}

static void line_in(struct fair_queue *q, struct fair_client *c, int32_t klass)
{
    if (heap_top(&c->lines[klass].items))
        heap_insert(&q->classes[klass], &c->lines[klass].node);
}

void fair_queue_push(struct fair_queue *q, struct fair_item *item)
{
    must(item->klass >= 0 && item->klass < FAIR_QUEUE_CLASSES);
    line_out(q, item->client, item->klass);
    heap_insert(&item->client->lines[item->klass].items, &item->node);
    line_in(q, item->client, item->klass);
    item->client->use.n_waiting++;
}

void fair_queue_remove(struct fair_queue *q, struct fair_item *item)
{
    line_out(q, item->client, item->klass);
    heap_remove(&item->client->lines[item->klass].items, &item->node);
    line_in(q, item->client, item->klass);
    item->client->use.n_waiting--;
}

struct fair_item *fair_queue_top(const struct fair_queue *q)
{
    for (int k = FAIR_QUEUE_CLASSES - 1; k >= 0; k--) {
        const struct heap_node *n = heap_top(&q->classes[k]);

        if (n)
            return item_of(heap_top(&CONTAINER_OF(n, struct line, node)->items));
    }
    return NULL;
}

int32_t fair_client_part(const struct fair_queue *q, const struct fair_client *client, int32_t n)
{
    int64_t part;

    if (q->n_active < 2)
        return n;
    part = (int64_t)n * client->share / q->active_shares;
    return part > 1 ? (int32_t)part : 1;
}

double fair_client_share(const struct fair_queue *q, const struct fair_client *client)
{
    return (double)client->share / (double)q->active_shares;
}

struct fair_use *fair_client_use(struct fair_client *client)
{
    return &client->use;
}

int32_t fair_queue_n_active(const struct fair_queue *q)
{
    return q->n_active;
}

uint64_t fair_client_time(const struct fair_client *client)
{
    return client->vtime / UNITS;
}

static uint64_t units_of(const struct fair_client *client, uint64_t n_tokens)
{
    return n_tokens * FAIR_MAX_SHARE / (uint64_t)client->share;
}

uint64_t fair_client_cost(const struct fair_client *client, uint64_t n_tokens)
{
    return units_of(client, n_tokens) / UNITS;
}

void fair_queue_charge(struct fair_queue *q, struct fair_client *client, uint64_t n_tokens)
{
    must(client->n_joined > 0);
    for (int k = 0; k < FAIR_QUEUE_CLASSES; k++)
        line_out(q, client, k);
    heap_remove(&q->active, &client->by_vtime);
    client->vtime += PLANT(PLANT_NO_FAIRNESS) ? 0 : units_of(client, n_tokens);
    heap_insert(&q->active, &client->by_vtime);
    for (int k = 0; k < FAIR_QUEUE_CLASSES; k++)
        line_in(q, client, k);
}
