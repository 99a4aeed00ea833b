/* prefix_cache_impl.h - the prefix cache's own state: for prefix_cache*.c alone.
 *
 * The nodes of a namespace are a tree below a root that stands for no block. */
#ifndef NVLLM_ENGINE_CORE_PREFIX_CACHE_IMPL_H
#define NVLLM_ENGINE_CORE_PREFIX_CACHE_IMPL_H

#include <xxhash.h>

#include "engine/core/prefix_cache.h"
#include "engine/util/id_map.h"
#include "engine/util/list.h"

struct node {
    struct node *parent;        /* NULL: a root */
    struct cache_namespace *ns; /* NULL: not in use */
    struct node *next;          /* in its bucket, or in the free list */
    struct list sibling;        /* in the parent's children */
    struct list children;       /* any order */
    XXH128_hash_t digest;       /* a root's is zero */
    uint32_t generation;        /* how often this memory has been another node */
    int32_t depth;              /* nodes before it, the root not counted */
    int32_t location[N_TIERS];  /* block id, or -1 */
    int32_t owner;              /* of the pending device block, or PREFIX_CACHE_READY */
    int32_t n_pins;             /* that end here or behind; with one the device block is held */
    bool pinned;                /* a pin ends here */
    struct node *head;          /* the node of its chain where the head of a listing ends */
    uint64_t hits;              /* of a first node: sequences that began with it */
    uint64_t written_us, used_us;
};

struct cache_namespace {
    struct node root;
    XXH128_hash_t digest;
    uint64_t client;
    int64_t n_holders;
    bool private; /* in no map */
    size_t salt_len;
    char salt[];
};

struct prefix_cache {
    struct blocks *tiers[N_TIERS];
    int32_t n_nodes;
    int32_t block_len;
    uint64_t now_us;
    uint64_t n_evicted;
    uint64_t n_private; /* private namespaces so far */
    int32_t n_pinned;   /* blocks held by pins */
    struct node *nodes; /* [n_nodes] */
    struct node *free;
    int32_t *tokens; /* [n_nodes, block_len] */
    size_t n_buckets;
    struct node **buckets;    /* [n_buckets], a power of two, by digest */
    struct id_map namespaces; /* by the low half of the digest */
    uint8_t *digest_input;    /* scratch: what a digest is made of */
    uint8_t secret[PREFIX_CACHE_SECRET];
};

/* A chain's number is the address of a root, which is even, or an odd number of a node's place in
 * the pool and its generation. */
static inline uint64_t node_chain(const struct prefix_cache *p, const struct node *n)
{
    if (!n->parent)
        return (uintptr_t)n;
    return (uint64_t)n->generation << 32 | (uint64_t)(n - p->nodes) << 1 | 1;
}

/* NULL: the node is gone. */
static inline struct node *chain_node(const struct prefix_cache *p, uint64_t chain)
{
    struct node *n;

    if (!(chain & 1))
        return (struct node *)(uintptr_t)chain;
    n = &p->nodes[(uint32_t)chain >> 1];
    return n->ns && n->generation == chain >> 32 ? n : NULL;
}

static inline const int32_t *node_tokens(const struct prefix_cache *p, const struct node *n)
{
    return p->tokens + (size_t)(n - p->nodes) * (size_t)p->block_len;
}

static inline bool node_is_ready(const struct node *n)
{
    return n->location[TIER_DEVICE] >= 0 && n->owner == PREFIX_CACHE_READY;
}

static inline struct node *node_of_sibling(const struct list *l)
{
    return CONTAINER_OF(l, struct node, sibling);
}

/* prefix_cache.c: removes a node and all behind it; how many. */
int32_t node_remove(struct prefix_cache *p, struct node *n);

/* prefix_cache_pin.c: takes the pins that end at a node or behind it from those before it. */
void node_forget_pins(struct prefix_cache *p, struct node *n);

/* prefix_cache_namespace.c: frees a namespace without holders and nodes. */
void namespace_drop_unused(struct prefix_cache *p, struct cache_namespace *ns);

#endif
