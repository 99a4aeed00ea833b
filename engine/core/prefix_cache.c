/* prefix_cache.c - nodes: lookup, listing, removal, and where their copies are; see prefix_cache.h.
 *
 * Nodes lie in a pool, found by digest through chained buckets. All memory but that of namespaces
 * is taken at the start. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "engine/core/prefix_cache_impl.h"
#include "engine/util/checked.h"
#include "engine/util/must.h"
#include "engine/util/plant.h"

static int alloc_nodes(struct prefix_cache *p, size_t n)
{
    size_t n_tokens, digest_bytes = 2 * sizeof(XXH128_hash_t);

    if (n > INT32_MAX || !size_mul(&n_tokens, n, (size_t)p->block_len))
        return -EINVAL;
    p->n_nodes = (int32_t)n;
    p->n_buckets = 16;
    while (p->n_buckets < n * 2)
        p->n_buckets *= 2;
    p->buckets = calloc(p->n_buckets, sizeof(*p->buckets));
    p->nodes = calloc(n, sizeof(*p->nodes));
    p->tokens = calloc(n_tokens, sizeof(*p->tokens));
    p->digest_input = malloc(digest_bytes + (size_t)p->block_len * sizeof(*p->tokens));
    if (!p->buckets || !p->nodes || !p->tokens || !p->digest_input)
        return -ENOMEM;
    while (n-- > 0) {
        p->nodes[n].next = p->free;
        p->free = &p->nodes[n];
    }
    return 0;
}

int prefix_cache_new(struct prefix_cache **out, struct blocks *const tiers[N_TIERS],
                     int32_t block_len, const uint8_t *secret)
{
    struct prefix_cache *p = calloc(1, sizeof(*p));
    size_t n_nodes = 0;
    int rc;

    must(tiers[TIER_DEVICE] && block_len > 0);
    if (!p)
        return -ENOMEM;
    p->block_len = block_len;
    if (secret)
        memcpy(p->secret, secret, sizeof(p->secret));
    for (int t = 0; t < N_TIERS; t++) {
        p->tiers[t] = tiers[t];
        n_nodes += tiers[t] ? (size_t)blocks_n_total(tiers[t]) : 0;
    }
    rc = alloc_nodes(p, n_nodes);
    if (rc < 0)
        prefix_cache_free(p);
    else
        *out = p;
    return rc;
}

void prefix_cache_free(struct prefix_cache *p)
{
    if (!p)
        return;
    for (int32_t i = 0; p->nodes && i < p->n_nodes; i++)
        if (p->nodes[i].ns)
            node_remove(p, &p->nodes[i]); /* the last node of a namespace frees it */
    free(p->buckets);
    free(p->nodes);
    free(p->tokens);
    free(p->digest_input);
    id_map_deinit(&p->namespaces);
    free(p);
}

void prefix_cache_set_time(struct prefix_cache *p, uint64_t now_us)
{
    p->now_us = now_us;
}

/* ---- lookup */

static XXH128_hash_t digest_of(const struct prefix_cache *p, const struct node *parent,
                               const int32_t *tokens)
{
    const size_t half = sizeof(parent->digest), n = (size_t)p->block_len * sizeof(*tokens);
    XXH128_hash_t d;

    memcpy(p->digest_input, &parent->digest, half);
    memcpy(p->digest_input + half, &parent->ns->digest, half);
    memcpy(p->digest_input + 2 * half, tokens, n);
    d = XXH3_128bits_withSecret(p->digest_input, 2 * half + n, p->secret, sizeof(p->secret));
    if (PLANT(PLANT_NO_COMPARE) || PLANT(PLANT_SHORT_HASH) || PLANT(PLANT_NO_PARENT))
        d = (XXH128_hash_t){.low64 = d.low64 & 15};
    return d;
}

static bool has_parent(const struct node *n, const struct node *parent)
{
    return n->parent == parent || PLANT(PLANT_NO_PARENT) ||
           (PLANT(PLANT_NO_NAMESPACE) && !n->parent->parent && !parent->parent);
}

static struct node **bucket_of(const struct prefix_cache *p, XXH128_hash_t digest)
{
    return &p->buckets[digest.low64 & (p->n_buckets - 1)];
}

static struct node *find_digest(const struct prefix_cache *p, XXH128_hash_t digest,
                                const struct node *parent, const int32_t *tokens)
{
    size_t bytes = (size_t)p->block_len * sizeof(*tokens);
    struct node *n = *bucket_of(p, digest);

    for (; n; n = n->next) {
        if (n->digest.low64 != digest.low64 || n->digest.high64 != digest.high64)
            continue;
        if (PLANT(PLANT_NO_COMPARE) || node_tokens(p, n) == tokens ||
            (has_parent(n, parent) && memcmp(node_tokens(p, n), tokens, bytes) == 0))
            break;
    }
    return n;
}

/* The node of tokens behind chain, in whatever state; or NULL. */
static struct node *find(const struct prefix_cache *p, uint64_t chain, const int32_t *tokens)
{
    const struct node *parent = chain_node(p, chain);

    return parent ? find_digest(p, digest_of(p, parent, tokens), parent, tokens) : NULL;
}

bool prefix_cache_lookup(const struct prefix_cache *p, uint64_t *chain, const int32_t *tokens,
                         int32_t location[N_TIERS])
{
    const struct node *n = find(p, *chain, tokens);
    bool found = false;

    if (!n)
        return false;
    for (int t = 0; t < N_TIERS; t++) {
        bool pending = t == TIER_DEVICE && !node_is_ready(n) && !PLANT(PLANT_EARLY_VISIBLE);

        location[t] = pending ? -1 : n->location[t];
        found |= location[t] >= 0;
    }
    if (found)
        *chain = node_chain(p, n);
    return found;
}

bool prefix_cache_peek(const struct prefix_cache *p, uint64_t *chain, const int32_t *tokens,
                       int32_t *block_id)
{
    int32_t location[N_TIERS];
    uint64_t at = *chain;

    if (!prefix_cache_lookup(p, &at, tokens, location) || location[TIER_DEVICE] < 0)
        return false;
    *chain = at;
    *block_id = location[TIER_DEVICE];
    return true;
}

bool prefix_cache_hold(struct prefix_cache *p, uint64_t *chain, const int32_t *tokens,
                       int32_t *block_id)
{
    if (!prefix_cache_peek(p, chain, tokens, block_id))
        return false;
    if (!PLANT(PLANT_SHARE_NO_REF) || blocks_refs(p->tiers[TIER_DEVICE], *block_id) == 0)
        blocks_ref(p->tiers[TIER_DEVICE], *block_id);
    chain_node(p, *chain)->used_us = p->now_us;
    return true;
}

int32_t prefix_cache_pending(const struct prefix_cache *p, uint64_t chain, const int32_t *tokens)
{
    const struct node *n = find(p, chain, tokens);

    return n ? n->owner : -1;
}

/* ---- copies of a node */

static void unlist_copy(struct prefix_cache *p, struct node *n, enum tier tier)
{
    blocks_list(p->tiers[tier], n->location[tier], NULL);
    n->location[tier] = -1;
}

static int n_copies(const struct node *n)
{
    int n_tiers = 0;

    for (int t = 0; t < N_TIERS; t++)
        n_tiers += n->location[t] >= 0;
    return n_tiers;
}

bool prefix_cache_place(struct prefix_cache *p, uint64_t node, enum tier tier, int32_t block_id,
                        int32_t owner)
{
    struct node *n = chain_node(p, node);

    must(owner == PREFIX_CACHE_READY || tier == TIER_DEVICE);
    must(!n || n->parent);
    if (!n || n->location[tier] >= 0)
        return false;
    blocks_list(p->tiers[tier], block_id, n);
    n->location[tier] = block_id;
    if (tier == TIER_DEVICE)
        n->owner = owner;
    return true;
}

void prefix_cache_drop(struct prefix_cache *p, uint64_t node, enum tier tier)
{
    struct node *n = chain_node(p, node);
    int32_t stale;

    if (!n || n->location[tier] < 0)
        return;
    stale = n->location[tier];
    must(tier != TIER_DEVICE || n->n_pins == 0);
    if (n_copies(n) == 1) {
        node_remove(p, n);
        return;
    }
    unlist_copy(p, n, tier);
    if (tier == TIER_DEVICE)
        n->owner = PREFIX_CACHE_READY;
    if (PLANT(PLANT_STALE_LOCATION))
        n->location[tier] = stale;
}

int prefix_cache_take(struct prefix_cache *p, enum tier tier, int32_t *block_id)
{
    int32_t oldest;

    if (blocks_take(p->tiers[tier], block_id) == BLOCKS_OK)
        return BLOCKS_OK;
    oldest = blocks_next_cached(p->tiers[tier], -1);
    if (oldest < 0)
        return BLOCKS_E_EMPTY;
    prefix_cache_drop(p, node_chain(p, blocks_node(p->tiers[tier], oldest)), tier);
    p->n_evicted += tier == TIER_DEVICE;
    return blocks_take(p->tiers[tier], block_id);
}

static bool is_above(const struct node *n, enum tier tier)
{
    for (int t = TIER_DEVICE; t < (int)tier; t++)
        if (n->location[t] >= 0)
            return true;
    return false;
}

int prefix_cache_take_below(struct prefix_cache *p, enum tier tier, int32_t within,
                            int32_t *block_id)
{
    int32_t id = -1;

    if (blocks_take(p->tiers[tier], block_id) == BLOCKS_OK)
        return BLOCKS_OK;
    for (int32_t i = 0; i < within; i++) {
        id = blocks_next_cached(p->tiers[tier], id);
        if (id < 0)
            break;
        if (is_above(blocks_node(p->tiers[tier], id), tier))
            continue;
        prefix_cache_drop(p, node_chain(p, blocks_node(p->tiers[tier], id)), tier);
        return blocks_take(p->tiers[tier], block_id);
    }
    return BLOCKS_E_EMPTY;
}

uint64_t prefix_cache_evictions(const struct prefix_cache *p)
{
    return p->n_evicted;
}

bool prefix_cache_next_copy(const struct prefix_cache *p, enum tier from, enum tier to,
                            int32_t within, uint64_t *node, int32_t *block_id)
{
    int32_t id = -1;

    for (int32_t i = 0; i < within; i++) {
        const struct node *n;

        id = blocks_next_cached(p->tiers[from], id);
        if (id < 0)
            return false;
        n = blocks_node(p->tiers[from], id);
        if (n->location[to] >= 0 || n->ns->private)
            continue;
        *node = node_chain(p, n);
        *block_id = id;
        return true;
    }
    return false;
}

bool prefix_cache_digest(const struct prefix_cache *p, uint64_t node,
                         uint8_t out[PREFIX_CACHE_DIGEST])
{
    const struct node *n = chain_node(p, node);
    XXH128_canonical_t bytes;

    if (!n)
        return false;
    XXH128_canonicalFromHash(&bytes, n->digest);
    memcpy(out, bytes.digest, PREFIX_CACHE_DIGEST);
    return true;
}

/* ---- device blocks */

static struct node *node_new(struct prefix_cache *p, struct node *parent, const int32_t *tokens,
                             XXH128_hash_t digest)
{
    struct node *n = p->free;

    must(n); /* a block that no node has is about to be listed */
    p->free = n->next;
    *n = (struct node){
        .parent = parent,
        .ns = parent->ns,
        .next = *bucket_of(p, digest),
        .digest = digest,
        .generation = n->generation,
        .depth = parent->depth + 1,
        .owner = PREFIX_CACHE_READY,
    };
    for (int t = 0; t < N_TIERS; t++)
        n->location[t] = -1;
    n->head = (int64_t)n->depth * p->block_len < PREFIX_CACHE_HEAD ? n : parent->head;
    list_init(&n->children);
    list_append(&parent->children, &n->sibling);
    memcpy(p->tokens + (n - p->nodes) * p->block_len, tokens,
           (size_t)p->block_len * sizeof(*tokens));
    *bucket_of(p, digest) = n;
    return n;
}

void prefix_cache_insert(struct prefix_cache *p, uint64_t *chain, int32_t block_id,
                         const int32_t *tokens, int32_t owner)
{
    struct node *parent = chain_node(p, *chain), *n;
    XXH128_hash_t digest;

    if (!parent)
        return;
    digest = digest_of(p, parent, tokens);
    n = find_digest(p, digest, parent, tokens);
    if (!n)
        n = node_new(p, parent, tokens, digest);
    *chain = node_chain(p, n);
    if (prefix_cache_place(p, *chain, TIER_DEVICE, block_id, owner))
        n->written_us = n->used_us = p->now_us;
}

void prefix_cache_set_ready(struct prefix_cache *p, int32_t block_id)
{
    struct node *n = blocks_node(p->tiers[TIER_DEVICE], block_id);

    if (!n || node_is_ready(n))
        return;
    n->owner = PREFIX_CACHE_READY;
    n->written_us = n->used_us = p->now_us;
}

bool prefix_cache_is_ready(const struct prefix_cache *p, int32_t block_id)
{
    const struct node *n = blocks_node(p->tiers[TIER_DEVICE], block_id);

    return n && node_is_ready(n);
}

/* ---- removal */

static void remove_leaf(struct prefix_cache *p, struct node *n)
{
    struct cache_namespace *ns = n->ns;
    struct node **at = bucket_of(p, n->digest);

    while (*at != n) {
        must(*at);
        at = &(*at)->next;
    }
    *at = n->next;
    list_remove(&n->sibling);
    if (n->n_pins > 0) {
        p->n_pinned--;
        blocks_unref(p->tiers[TIER_DEVICE], n->location[TIER_DEVICE]);
    }
    for (int t = 0; t < N_TIERS; t++)
        if (n->location[t] >= 0)
            unlist_copy(p, n, t);
    n->generation++;
    n->ns = NULL;
    n->next = p->free;
    p->free = n;
    namespace_drop_unused(p, ns);
}

int32_t node_remove(struct prefix_cache *p, struct node *n)
{
    struct node *at = n, *parent;

    node_forget_pins(p, n);
    for (int32_t n_removed = 1;; n_removed++, at = parent) {
        while (!list_empty(&at->children))
            at = node_of_sibling(at->children.next);
        parent = at->parent;
        remove_leaf(p, at);
        if (at == n)
            return n_removed;
    }
}

int32_t prefix_cache_remove(struct prefix_cache *p, int32_t block_id)
{
    struct node *n = blocks_node(p->tiers[TIER_DEVICE], block_id);

    return n ? node_remove(p, n) : 0;
}

/* ---- invariants */

static const char *verify_copies(const struct prefix_cache *p, const struct node *n)
{
    int32_t device = n->location[TIER_DEVICE];
    bool somewhere = false;

    for (int t = 0; t < N_TIERS; t++) {
        if (n->location[t] < 0)
            continue;
        somewhere = true;
        if (blocks_node(p->tiers[t], n->location[t]) != n)
            return "a node names a block that is not its own";
    }
    if (!somewhere)
        return "a node is in no tier";
    if (n->owner != PREFIX_CACHE_READY &&
        (device < 0 || blocks_refs(p->tiers[TIER_DEVICE], device) == 0))
        return "a block that is not written yet is held by nobody";
    return NULL;
}

static const char *verify_node(const struct prefix_cache *p, const struct node *n)
{
    int32_t n_pins = n->pinned;

    for (const struct list *l = n->children.next; l != &n->children; l = l->next)
        n_pins += node_of_sibling(l)->n_pins;
    if (n_pins != n->n_pins)
        return "the pins that hold a block are not as many as it counts";
    if (n_pins > 0 && !node_is_ready(n))
        return "a pinned node has no written device block";
    if (!n->parent->ns || n->parent->ns != n->ns || n->depth != n->parent->depth + 1)
        return "a node does not continue the one before it";
    if (find_digest(p, n->digest, n->parent, node_tokens(p, n)) != n)
        return "a node is not found, or an equal one is";
    return verify_copies(p, n);
}

const char *prefix_cache_verify(const struct prefix_cache *p)
{
    const char *broken = NULL;
    int32_t n_pinned = 0;

    for (int32_t i = 0; !broken && i < p->n_nodes; i++) {
        if (!p->nodes[i].ns)
            continue;
        n_pinned += p->nodes[i].n_pins > 0;
        broken = verify_node(p, &p->nodes[i]);
    }
    if (!broken && n_pinned != p->n_pinned)
        broken = "the pinned blocks are not as many as they are said to be";
    return broken;
}
