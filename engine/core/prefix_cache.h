/* prefix_cache.h - finds the KV blocks of a prefix that was computed before.
 *
 * A node is one full block of a prefix: its tokens and the node before it. It knows in which tiers
 * its bytes are, and lives as long as one tier has them; with it go all nodes behind it, which
 * nothing could find any more. A device block is listed only once the step that wrote it has been
 * committed, a copy in another tier only once it is done: so whatever is found can be read.
 *
 * A node's digest is XXH3-128 over the digest of the node before it, that of the namespace and the
 * token ids, under a secret: two processes with one secret give a prefix the same digest. The
 * digest only finds candidates. Tokens and parent are compared, so a collision is a miss and never
 * a wrong answer. After a restart the digest alone says which node a record's node follows.
 *
 * A chain is named by its last node, or by the root of its namespace, as one number. The number of
 * a node that is gone is not used again: a chain with that name finds nothing.
 *
 * The core reads the fields; prefix_cache.c changes them, and admission counts hits. Owned by the
 * engine thread. */
#ifndef NVLLM_ENGINE_CORE_PREFIX_CACHE_H
#define NVLLM_ENGINE_CORE_PREFIX_CACHE_H

#include <stdbool.h>
#include <stdint.h>
#include <xxhash.h>

#include "engine/batch.h"
#include "engine/core/blocks.h"
#include "engine/util/id_map.h"
#include "engine/util/list.h"
#include "engine/util/text.h"

enum { PREFIX_CACHE_SECRET = 192 }; /* bytes */

static inline bool digests_equal(XXH128_hash_t a, XXH128_hash_t b)
{
    return a.low64 == b.low64 && a.high64 == b.high64;
}

/* The nodes of a namespace are a tree below a root that stands for no block. */
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
    int32_t n_pins;             /* that end here or behind; with one the device block is held */
    bool pinned;                /* a pin ends here */
    bool loading;               /* a copy up is under way */
    uint64_t hits;              /* of a first node: sequences that began with it */
    uint64_t written_us, used_us;
};

/* Who may share with whom. Kept while somebody holds it or a node is in it. */
struct cache_namespace {
    struct node root;
    XXH128_hash_t digest;
    uint64_t client;
    int64_t n_holders;
    bool private;  /* in no map, and its nodes go when it is closed */
    bool restored; /* its salt is not known: the digest decides */
    size_t salt_len;
    char salt[];
};

/* A node as it is kept beside its block on disk, in the byte order of this machine. */
struct node_record {
    XXH128_hash_t sum;   /* of what follows, under the secret */
    XXH128_hash_t check; /* of the block's bytes */
    XXH128_hash_t digest, parent, namespace;
    uint64_t client;
    int32_t depth;
    int32_t reserved; /* 0 */
    int32_t tokens[]; /* [block_len] */
};

struct prefix_cache {
    struct blocks *tiers[N_TIERS];
    int32_t n_nodes, max_nodes; /* n_nodes: used so far, so a start touches none */
    int32_t block_len;
    uint64_t now_us;    /* the time of what follows; the core sets it */
    uint64_t n_evicted; /* device blocks taken from their nodes */
    uint64_t n_private; /* private namespaces so far */
    int32_t n_pinned;   /* blocks held by pins */
    struct node *nodes; /* [max_nodes] */
    struct node *free;
    int32_t *tokens; /* [max_nodes, block_len] */
    size_t n_buckets;
    struct node **buckets;    /* [n_buckets], a power of two, by digest */
    struct id_map namespaces; /* by the low half of the digest */
    uint8_t *digest_input;    /* scratch: what a digest is made of */
    uint8_t secret[PREFIX_CACHE_SECRET];
};

/* tiers: the blocks of each tier, borrowed; NULL: no such tier, but there is always a device. There
 * is room for one node a block. secret is copied; NULL, for tests: zeros. -ENOMEM, -EINVAL. */
int prefix_cache_new(struct prefix_cache **out, struct blocks *const tiers[N_TIERS],
                     int32_t block_len, const uint8_t *secret);
void prefix_cache_free(struct prefix_cache *p);

/* ---- namespaces */

/* The namespace of (client, salt), compared byte by byte, or a private one that nobody else finds;
 * the caller holds it. -ENOMEM. */
int prefix_cache_open(struct prefix_cache *p, struct cache_namespace **out, uint64_t client,
                      struct text salt, bool private);
/* The namespace of (client, salt) if it exists, not held; or NULL. */
struct cache_namespace *prefix_cache_find(const struct prefix_cache *p, uint64_t client,
                                          struct text salt);
void prefix_cache_close(struct prefix_cache *p, struct cache_namespace *ns);

/* ---- chains */

/* A chain's number is the address of a root, which is even, or an odd number of a node's place in
 * the pool and its generation. */
static inline uint64_t prefix_cache_chain(const struct prefix_cache *p, const struct node *n)
{
    if (!n->parent)
        return (uintptr_t)n;
    return (uint64_t)n->generation << 32 | (uint64_t)(n - p->nodes) << 1 | 1;
}

/* The last node or root of a chain; NULL: it is gone, or the chain is 0. */
static inline struct node *prefix_cache_node(const struct prefix_cache *p, uint64_t chain)
{
    struct node *n;

    if (!(chain & 1))
        return (struct node *)(uintptr_t)chain;
    n = &p->nodes[(uint32_t)chain >> 1];
    return n->ns && n->generation == chain >> 32 ? n : NULL;
}

static inline const int32_t *prefix_cache_tokens(const struct prefix_cache *p, const struct node *n)
{
    return p->tokens + (size_t)(n - p->nodes) * (size_t)p->block_len;
}

/* The highest tier, from one down, that has the node's bytes; N_TIERS: none. */
static inline enum tier prefix_cache_from(const struct node *n, enum tier from)
{
    int t = (int)from;

    while (t < N_TIERS && n->location[t] < 0)
        t++;
    return (enum tier)t;
}

/* Where a node's bytes are read from. */
static inline enum tier prefix_cache_highest(const struct node *n)
{
    return prefix_cache_from(n, TIER_DEVICE);
}

/* The first node of the chain that a node is in. */
static inline struct node *prefix_cache_first(const struct node *n)
{
    while (n->depth > 0)
        n = n->parent;
    return (struct node *)n;
}

/* The node of tokens [block_len] behind a chain; or NULL. */
struct node *prefix_cache_lookup(const struct prefix_cache *p, uint64_t chain,
                                 const int32_t *tokens);
/* Finds a tier's block of tokens behind *chain, which then becomes its node, and takes a reference
 * to it. */
bool prefix_cache_hold(struct prefix_cache *p, uint64_t *chain, const int32_t *tokens,
                       enum tier tier, int32_t *block_id);

/* Lists a written block of a tier that the caller holds. If the node has a block there already, the
 * caller's stays unlisted. Either way *chain becomes the node. If the end of the chain is gone,
 * nothing happens. */
void prefix_cache_insert(struct prefix_cache *p, uint64_t *chain, const int32_t *tokens,
                         enum tier tier, int32_t block_id);
/* Removes the node and all behind it, with their pins; how many nodes that were. */
int32_t prefix_cache_remove(struct prefix_cache *p, struct node *n);

/* ---- tiers */

/* Takes a block of the tier to write to, with one reference: a free one, or else a cached one,
 * which is dropped from its node: the oldest that no tier above has, among the `within` oldest.
 * Those that are passed over go to the end: they are in use. False: none. */
bool prefix_cache_take(struct prefix_cache *p, enum tier tier, int32_t within, int32_t *block_id);

/* Lists a block that the caller holds as the copy in the tier of a chain's last node. False, and
 * the block stays unlisted: the node is gone or has a copy there. */
bool prefix_cache_place(struct prefix_cache *p, uint64_t chain, enum tier tier, int32_t block_id);
/* Forgets the node's copy in a tier that has one; it must not be pinned there. */
void prefix_cache_drop(struct prefix_cache *p, struct node *n, enum tier tier);
/* While fewer than n_clean blocks of a tier can be evicted without a loss: the node of the first
 * cached one that has no copy in another tier; or NULL. Private nodes are not copied. */
struct node *prefix_cache_next_copy(struct prefix_cache *p, enum tier from, enum tier to,
                                    int32_t n_clean);

/* ---- records: sum and check are the caller's */

/* Fills in the record of a node. False: it must not outlive this process. */
bool prefix_cache_record(const struct prefix_cache *p, const struct node *n,
                         struct node_record *out);
/* Lists a free block of the disk tier, which becomes the oldest, for the node of a record, which
 * follows that of the node before it. False: that is not there, or the node has a copy on disk. */
bool prefix_cache_restore(struct prefix_cache *p, const struct node_record *r, int32_t block_id);

/* ---- pins and clearing */

/* Holds a node's device block and those of all nodes before it until the pin is taken out or the
 * node removed; blocks shared by pins are held once. */
void prefix_cache_set_pin(struct prefix_cache *p, struct node *n, bool pinned);
/* Removes the nodes of a client, or of all clients, but no private ones; how many. */
int32_t prefix_cache_clear(struct prefix_cache *p, uint64_t client, bool all);

/* A node of this client, under whatever salt, or of all clients; but no private one. */
static inline bool prefix_cache_is_in_reach(const struct node *n, uint64_t client, bool all)
{
    return n->ns && !n->ns->private && (all || n->ns->client == client);
}

#endif
