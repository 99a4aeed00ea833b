/* prefix_cache_look.c - what people see of the prefix cache and change in it by hand: pins, clear,
 * listings; see prefix_cache.h.
 *
 * A pin is a mark on the node at which it ends and a count on each node up to there; a node with a
 * count has one reference to its device block, by however many pins. */
#include <errno.h>
#include <stdlib.h>

#include "engine/core/prefix_cache_impl.h"
#include "engine/util/must.h"
#include "engine/util/plant.h"

/* ---- pins */

/* Changes the count of a node and all before it. */
static void count_pins(struct prefix_cache *p, struct node *n, int32_t change)
{
    for (; n->parent; n = n->parent) {
        bool was_held = n->n_pins > 0;

        n->n_pins += change;
        must(n->n_pins >= 0);
        if (was_held == (n->n_pins > 0))
            continue;
        p->n_pinned += was_held ? -1 : 1;
        if (was_held)
            blocks_unref(p->tiers[TIER_DEVICE], n->location[TIER_DEVICE]);
        else if (!PLANT(PLANT_PIN_NO_REF))
            blocks_ref(p->tiers[TIER_DEVICE], n->location[TIER_DEVICE]);
    }
}

void node_forget_pins(struct prefix_cache *p, struct node *n)
{
    if (n->n_pins > 0)
        count_pins(p, n->parent, -n->n_pins);
}

bool prefix_cache_pin(struct prefix_cache *p, int32_t block_id)
{
    struct node *n = blocks_node(p->tiers[TIER_DEVICE], block_id);

    must(n && node_is_ready(n));
    if (n->pinned)
        return false;
    n->pinned = true;
    count_pins(p, n, 1);
    return true;
}

bool prefix_cache_unpin(struct prefix_cache *p, int32_t block_id)
{
    struct node *n = blocks_node(p->tiers[TIER_DEVICE], block_id);

    if (!n || !n->pinned)
        return false;
    n->pinned = false;
    count_pins(p, n, -1);
    return true;
}

bool prefix_cache_is_pinned(const struct prefix_cache *p, int32_t block_id)
{
    const struct node *n = blocks_node(p->tiers[TIER_DEVICE], block_id);

    return n && n->n_pins > 0;
}

int32_t prefix_cache_n_pinned(const struct prefix_cache *p)
{
    return p->n_pinned;
}

/* ---- clear and listings */

static bool is_in_reach(const struct node *n, uint64_t client, bool all)
{
    return n->ns && !n->ns->private && (all || n->ns->client == client);
}

int32_t prefix_cache_clear(struct prefix_cache *p, uint64_t client, bool all)
{
    int32_t n_removed = 0;

    for (int32_t i = 0; i < p->n_nodes; i++) {
        struct node *n = &p->nodes[i];
        int32_t id = n->location[TIER_DEVICE];

        if (!is_in_reach(n, client, all) || (PLANT(PLANT_CLEAR_KEEPS_HELD) && id >= 0 &&
                                             blocks_refs(p->tiers[TIER_DEVICE], id) > 0))
            continue;
        n_removed += node_remove(p, n);
    }
    return n_removed;
}

bool prefix_cache_is_of(const struct prefix_cache *p, int32_t block_id, uint64_t client)
{
    const struct node *n = blocks_node(p->tiers[TIER_DEVICE], block_id);

    return n && is_in_reach(n, client, false);
}

static struct node *first_of(const struct node *n)
{
    for (n = n->head; n->parent->parent; n = n->parent)
        ;
    return (struct node *)n;
}

void prefix_cache_count_hit(struct prefix_cache *p, int32_t block_id)
{
    first_of(blocks_node(p->tiers[TIER_DEVICE], block_id))->hits++;
}

static struct cache_chain chain_of(const struct prefix_cache *p, const struct node *n)
{
    int32_t id = n->location[TIER_DEVICE];

    return (struct cache_chain){
        .last = node_chain(p, n),
        .n_blocks = n->depth + 1,
        .holders = id < 0 ? 0 : blocks_refs(p->tiers[TIER_DEVICE], id) - (n->n_pins > 0),
        .client = n->ns->client,
        .hits = first_of(n)->hits,
        .written_us = n->written_us,
        .used_us = n->used_us,
        .pinned = n->pinned,
    };
}

/* Used last first; what was used together, in any fixed order. */
static int compare_chains(const void *a, const void *b)
{
    const struct cache_chain *x = a, *y = b;

    if (x->used_us != y->used_us)
        return x->used_us < y->used_us ? 1 : -1;
    return x->last < y->last ? -1 : x->last > y->last;
}

int prefix_cache_chains(const struct prefix_cache *p, struct cache_chain **out, int32_t *n,
                        int32_t max, uint64_t client, bool all, int32_t *total)
{
    size_t room = 2 * (size_t)(max < p->n_nodes ? max : p->n_nodes), n_kept = 0;
    struct cache_chain *chains = malloc(room * sizeof(*chains));
    uint64_t last_us = 0; /* a chain used no later is not among the first max */

    if (!chains)
        return -ENOMEM;
    *total = 0;
    for (int32_t i = 0; i < p->n_nodes; i++) {
        const struct node *last = &p->nodes[i];

        if (!is_in_reach(last, client, all) || (!list_empty(&last->children) && !last->pinned))
            continue;
        if ((*total)++ >= max && last->used_us <= last_us)
            continue;
        chains[n_kept++] = chain_of(p, last);
        if (n_kept == room) {
            qsort(chains, n_kept, sizeof(*chains), compare_chains);
            n_kept = (size_t)max;
            last_us = chains[max - 1].used_us;
        }
    }
    qsort(chains, n_kept, sizeof(*chains), compare_chains);
    *n = *total < max ? *total : max;
    *out = chains;
    return 0;
}

int32_t prefix_cache_head(const struct prefix_cache *p, uint64_t node,
                          int32_t out[PREFIX_CACHE_HEAD])
{
    const struct node *n = chain_node(p, node)->head;
    int32_t n_head = (n->depth + 1) * p->block_len;

    if (n_head > PREFIX_CACHE_HEAD)
        n_head = PREFIX_CACHE_HEAD;
    for (; n->parent; n = n->parent)
        for (int32_t i = 0, pos = n->depth * p->block_len; i < p->block_len && pos < n_head;
             i++, pos++)
            out[pos] = node_tokens(p, n)[i];
    return n_head;
}

int32_t prefix_cache_compare(const struct prefix_cache *p, uint64_t chain, const int32_t *tokens,
                             int32_t n, int32_t *others, int32_t max_others, int32_t *n_others)
{
    const struct node *parent = chain_node(p, chain);
    int32_t most = 0;

    *n_others = 0;
    for (const struct list *l = parent->children.next; l != &parent->children; l = l->next) {
        const int32_t *there = node_tokens(p, node_of_sibling(l));
        int32_t same = 0, k = 0;

        if (node_of_sibling(l)->owner != PREFIX_CACHE_READY)
            continue;
        while (same < n && same < p->block_len && there[same] == tokens[same])
            same++;
        if (same < most)
            continue;
        if (same > most)
            *n_others = 0;
        most = same;
        while (same < p->block_len && k < *n_others && others[k] != there[same])
            k++;
        if (same < p->block_len && k == *n_others && k < max_others)
            others[(*n_others)++] = there[same];
    }
    return most;
}
