/* prefix_cache.c - namespaces, nodes and where their copies are; see prefix_cache.h.
 *
 * Nodes lie in a pool, found by digest through chained buckets. All memory but that of namespaces
 * is taken at the start. */
#include "engine/core/prefix_cache.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "engine/util/checked.h"
#include "engine/util/must.h"
#include "engine/util/plant.h"

static int alloc_nodes(struct prefix_cache *p, size_t n)
{
    size_t n_tokens, digest_bytes = 2 * sizeof(XXH128_hash_t);

    if (n > INT32_MAX || !size_mul(&n_tokens, n, (size_t)p->block_len))
        return -EINVAL;
    p->n_buckets = 16;
    while (p->n_buckets < n * 2)
        p->n_buckets *= 2;
    p->buckets = calloc(p->n_buckets, sizeof(*p->buckets));
    p->nodes = calloc(n, sizeof(*p->nodes));
    p->tokens = calloc(n_tokens, sizeof(*p->tokens));
    p->digest_input = malloc(digest_bytes + (size_t)p->block_len * sizeof(*p->tokens));
    if (!p->buckets || !p->nodes || !p->tokens || !p->digest_input)
        return -ENOMEM;
    p->max_nodes = (int32_t)n;
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
        n_nodes += tiers[t] ? (size_t)tiers[t]->n_blocks : 0;
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
    for (int32_t i = 0; i < p->n_nodes; i++)
        if (p->nodes[i].ns)
            prefix_cache_remove(p, &p->nodes[i]); /* the last node of a namespace frees it */
    free(p->buckets);
    free(p->nodes);
    free(p->tokens);
    free(p->digest_input);
    id_map_deinit(&p->namespaces);
    free(p);
}

/* ---- namespaces */

/* The same in every process with the same secret, but for private ones. */
static XXH128_hash_t namespace_digest(const struct prefix_cache *p, uint64_t client, bool private,
                                      struct text salt)
{
    struct {
        uint64_t client, private;
        XXH128_hash_t salt;
    } input = {client, private, {0, 0}};

    if (PLANT(PLANT_NO_NAMESPACE))
        return input.salt;
    if (salt.len)
        input.salt = XXH3_128bits_withSecret(salt.data, salt.len, p->secret, sizeof(p->secret));
    return XXH3_128bits_withSecret(&input, sizeof(input), p->secret, sizeof(p->secret));
}

struct cache_namespace *prefix_cache_find(const struct prefix_cache *p, uint64_t client,
                                          struct text salt)
{
    XXH128_hash_t digest = namespace_digest(p, client, false, salt);
    struct cache_namespace *ns = id_map_get(&p->namespaces, digest.low64);

    if (!ns || ns->client != client)
        return NULL;
    if (ns->restored)
        return digests_equal(ns->digest, digest) ? ns : NULL;
    return ns->salt_len == salt.len && (salt.len == 0 || memcmp(ns->salt, salt.data, salt.len) == 0)
               ? ns
               : NULL;
}

/* Or NULL: no memory. */
static struct cache_namespace *namespace_new(struct prefix_cache *p, XXH128_hash_t digest,
                                             uint64_t client, struct text salt, bool private)
{
    struct cache_namespace *ns;
    size_t bytes;

    if (!size_add(&bytes, sizeof(*ns), salt.len))
        return NULL;
    ns = calloc(1, bytes);
    if (!ns)
        return NULL;
    ns->root.ns = ns;
    ns->root.depth = -1;
    list_init(&ns->root.children);
    ns->digest = digest;
    ns->client = client;
    ns->private = private;
    ns->salt_len = salt.len;
    if (salt.len)
        memcpy(ns->salt, salt.data, salt.len);
    if (private || id_map_put(&p->namespaces, digest.low64, ns) == 0)
        return ns;
    free(ns);
    return NULL;
}

int prefix_cache_open(struct prefix_cache *p, struct cache_namespace **out, uint64_t client,
                      struct text salt, bool private)
{
    struct cache_namespace *ns = private ? NULL : prefix_cache_find(p, client, salt);
    XXH128_hash_t digest = namespace_digest(p, client, false, salt);

    if (!ns && !private && !id_map_get(&p->namespaces, digest.low64))
        ns = namespace_new(p, digest, client, salt, false);
    else if (!ns) /* a collision shares nothing */
        ns = namespace_new(p, namespace_digest(p, ++p->n_private, true, (struct text){NULL, 0}),
                           client, salt, true);
    if (!ns)
        return -ENOMEM;
    ns->n_holders++;
    *out = ns;
    return 0;
}

/* Frees a namespace without holders and nodes. */
static void drop_unused(struct prefix_cache *p, struct cache_namespace *ns)
{
    if (ns->n_holders > 0 || !list_empty(&ns->root.children))
        return;
    if (!ns->private)
        must(id_map_take(&p->namespaces, ns->digest.low64) == ns);
    free(ns);
}

void prefix_cache_close(struct prefix_cache *p, struct cache_namespace *ns)
{
    must(ns->n_holders > 0);
    /* The holder still counts, so that removing the last node does not free the namespace. */
    while (ns->private && !list_empty(&ns->root.children))
        prefix_cache_remove(p, CONTAINER_OF(ns->root.children.next, struct node, sibling));
    ns->n_holders--;
    drop_unused(p, ns);
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

static bool is_equal(const struct prefix_cache *p, const struct node *n, XXH128_hash_t digest,
                     const struct node *parent, const int32_t *tokens)
{
    return digests_equal(n->digest, digest) &&
           (PLANT(PLANT_NO_COMPARE) ||
            (has_parent(n, parent) && memcmp(prefix_cache_tokens(p, n), tokens,
                                             (size_t)p->block_len * sizeof(*tokens)) == 0));
}

static struct node *find(const struct prefix_cache *p, XXH128_hash_t digest,
                         const struct node *parent, const int32_t *tokens)
{
    struct node *n = *bucket_of(p, digest);

    while (n && !is_equal(p, n, digest, parent, tokens))
        n = n->next;
    return n;
}

struct node *prefix_cache_lookup(const struct prefix_cache *p, uint64_t chain,
                                 const int32_t *tokens)
{
    const struct node *parent = prefix_cache_node(p, chain);

    return parent ? find(p, digest_of(p, parent, tokens), parent, tokens) : NULL;
}

bool prefix_cache_hold(struct prefix_cache *p, uint64_t *chain, const int32_t *tokens,
                       enum tier tier, int32_t *block_id)
{
    struct node *n = prefix_cache_lookup(p, *chain, tokens);
    const int32_t id = n ? n->location[tier] : -1;

    if (id < 0)
        return false;
    if (!PLANT(PLANT_SHARE_NO_REF) || blocks_refs(p->tiers[tier], id) == 0)
        blocks_ref(p->tiers[tier], id);
    n->used_us = p->now_us;
    *chain = prefix_cache_chain(p, n);
    *block_id = id;
    return true;
}

/* ---- copies of a node */

bool prefix_cache_place(struct prefix_cache *p, uint64_t chain, enum tier tier, int32_t block_id)
{
    struct node *n = prefix_cache_node(p, chain);

    must(!n || n->parent);
    if (!n || (n->location[tier] >= 0 && !PLANT(PLANT_PLACE_TWICE)))
        return false;
    blocks_list(p->tiers[tier], block_id, n);
    n->location[tier] = block_id;
    return true;
}

/* The node has a copy in one of the tiers [from, to). */
static bool is_in(const struct node *n, int from, int to)
{
    for (int t = from; t < to; t++)
        if (n->location[t] >= 0)
            return true;
    return false;
}

void prefix_cache_drop(struct prefix_cache *p, struct node *n, enum tier tier)
{
    must(n->location[tier] >= 0 && (tier != TIER_DEVICE || n->n_pins == 0));
    if (!is_in(n, TIER_DEVICE, tier) && !is_in(n, tier + 1, N_TIERS) &&
        !PLANT(PLANT_DROP_KEEPS_NODE)) {
        prefix_cache_remove(p, n);
        return;
    }
    blocks_list(p->tiers[tier], n->location[tier], NULL);
    if (!PLANT(PLANT_STALE_LOCATION))
        n->location[tier] = -1;
}

bool prefix_cache_take(struct prefix_cache *p, enum tier tier, int32_t within, int32_t *block_id)
{
    struct blocks *b = p->tiers[tier];
    int32_t id;

    if (blocks_take(b, block_id))
        return true;
    for (; within > 0 && (id = blocks_id(b, b->cached.next)) >= 0; within--) {
        if (is_in(blocks_node(b, id), TIER_DEVICE, tier)) {
            blocks_ref(b, id);
            blocks_unref(b, id); /* to the end */
            continue;
        }
        prefix_cache_drop(p, blocks_node(b, id), tier);
        p->n_evicted += tier == TIER_DEVICE;
        return blocks_take(b, block_id);
    }
    return false;
}

struct node *prefix_cache_next_copy(struct prefix_cache *p, enum tier from, enum tier to,
                                    int32_t n_clean)
{
    struct blocks *b = p->tiers[from];
    int32_t id;

    for (; b->n_clean < n_clean && (id = blocks_id(b, b->dirty)) >= 0; blocks_set_clean(b)) {
        struct node *n = blocks_node(b, id);

        if (n->location[to] < 0 && !n->ns->private)
            return n;
    }
    return NULL;
}

/* ---- insertion and removal */

static struct node *node_new(struct prefix_cache *p, struct node *parent, const int32_t *tokens,
                             XXH128_hash_t digest)
{
    struct node *n = p->free;

    if (n) {
        p->free = n->next;
    } else {
        must(p->n_nodes < p->max_nodes); /* a block that no node has is about to be listed */
        n = &p->nodes[p->n_nodes++];
    }
    *n = (struct node){
        .parent = parent,
        .ns = parent->ns,
        .next = *bucket_of(p, digest),
        .digest = digest,
        .generation = n->generation,
        .depth = parent->depth + 1,
    };
    for (int t = 0; t < N_TIERS; t++)
        n->location[t] = -1;
    list_init(&n->children);
    list_append(&parent->children, &n->sibling);
    memcpy(p->tokens + (n - p->nodes) * p->block_len, tokens,
           (size_t)p->block_len * sizeof(*tokens));
    *bucket_of(p, digest) = n;
    return n;
}

void prefix_cache_insert(struct prefix_cache *p, uint64_t *chain, const int32_t *tokens,
                         enum tier tier, int32_t block_id)
{
    struct node *parent = prefix_cache_node(p, *chain), *n;
    XXH128_hash_t digest;

    if (!parent)
        return;
    digest = digest_of(p, parent, tokens);
    n = find(p, digest, parent, tokens);
    if (!n)
        n = node_new(p, parent, tokens, digest);
    *chain = prefix_cache_chain(p, n);
    if (prefix_cache_place(p, *chain, tier, block_id))
        n->written_us = n->used_us = p->now_us;
}

/* A node with pins has one reference to its device block. */
void prefix_cache_set_pin(struct prefix_cache *p, struct node *n, bool pinned)
{
    if (n->pinned == pinned)
        return;
    n->pinned = pinned;
    for (; n->parent; n = n->parent) {
        n->n_pins += pinned ? 1 : -1;
        must(n->n_pins >= 0);
        if (n->n_pins > pinned) /* others hold it */
            continue;
        p->n_pinned += pinned ? 1 : -1;
        if (!pinned)
            blocks_unref(p->tiers[TIER_DEVICE], n->location[TIER_DEVICE]);
        else if (!PLANT(PLANT_PIN_NO_REF))
            blocks_ref(p->tiers[TIER_DEVICE], n->location[TIER_DEVICE]);
    }
}

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
    prefix_cache_set_pin(p, n, false);
    for (int t = 0; t < N_TIERS; t++)
        if (n->location[t] >= 0)
            blocks_list(p->tiers[t], n->location[t], NULL);
    n->generation++;
    n->ns = NULL;
    n->next = p->free;
    p->free = n;
    drop_unused(p, ns);
}

int32_t prefix_cache_remove(struct prefix_cache *p, struct node *n)
{
    struct node *at = n, *parent;

    for (int32_t n_removed = 1;; n_removed++, at = parent) {
        while (!list_empty(&at->children))
            at = CONTAINER_OF(at->children.next, struct node, sibling);
        parent = at->parent;
        remove_leaf(p, at);
        if (at == n)
            return n_removed;
    }
}

/* ---- records */

bool prefix_cache_record(const struct prefix_cache *p, const struct node *n,
                         struct node_record *out)
{
    if (n->ns->private)
        return false;
    out->digest = n->digest;
    out->parent = n->parent->digest;
    out->namespace = n->ns->digest;
    out->client = n->ns->client;
    out->depth = n->depth;
    out->reserved = 0;
    memcpy(out->tokens, prefix_cache_tokens(p, n), (size_t)p->block_len * sizeof(*out->tokens));
    return true;
}

/* The node of a namespace with this digest and depth. */
static struct node *find_parent(const struct prefix_cache *p, struct cache_namespace *ns,
                                XXH128_hash_t digest, int32_t depth)
{
    struct node *n = depth < 0 ? &ns->root : *bucket_of(p, digest);

    while (n && (n->ns != ns || n->depth != depth || !digests_equal(n->digest, digest)))
        n = n->next;
    return n;
}

bool prefix_cache_restore(struct prefix_cache *p, const struct node_record *r, int32_t block_id)
{
    struct cache_namespace *ns = id_map_get(&p->namespaces, r->namespace.low64);
    struct node *parent, *n = NULL;

    if (!ns && r->depth == 0) {
        ns = namespace_new(p, r->namespace, r->client, (struct text){NULL, 0}, false);
        if (ns)
            ns->restored = true;
    }
    if (!ns || ns->client != r->client || !digests_equal(ns->digest, r->namespace))
        return false;
    parent = find_parent(p, ns, r->parent, r->depth - 1);
    if (parent)
        n = find(p, r->digest, parent, r->tokens);
    if (parent && !n) {
        n = node_new(p, parent, r->tokens, r->digest);
        n->written_us = n->used_us = p->now_us;
    }
    if (!n || n->location[TIER_DISK] >= 0)
        return false;
    blocks_take_oldest(p->tiers[TIER_DISK], block_id);
    must(prefix_cache_place(p, prefix_cache_chain(p, n), TIER_DISK, block_id));
    blocks_put_back(p->tiers[TIER_DISK], block_id, false);
    return true;
}

int32_t prefix_cache_clear(struct prefix_cache *p, uint64_t client, bool all)
{
    int32_t n_removed = 0;

    for (int32_t i = 0; i < p->n_nodes; i++) {
        struct node *n = &p->nodes[i];
        int32_t id = n->location[TIER_DEVICE];

        if (prefix_cache_is_in_reach(n, client, all) &&
            !(PLANT(PLANT_CLEAR_KEEPS_HELD) && id >= 0 &&
              blocks_refs(p->tiers[TIER_DEVICE], id) > 0) &&
            !(PLANT(PLANT_CLEAR_KEEPS_LOWER) && id < 0))
            n_removed += prefix_cache_remove(p, n);
    }
    return n_removed;
}
