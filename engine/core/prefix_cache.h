/* prefix_cache.h - finds the KV blocks of a prefix that was computed before.
 *
 * A node is one full block of a prefix: its tokens and the node before it. It knows in which tiers
 * its bytes are, and lives as long as one tier has them; with it go all nodes behind it, which
 * nothing could find any more. Its digest is XXH3-128 over the digest of the node before it, that
 * of the namespace and the token ids, under a secret: two processes with one secret give a prefix
 * the same digest. The digest only finds candidates. Tokens and parent are compared, so a collision
 * is a miss and never a wrong answer.
 *
 * A node's device block is pending from when the step that writes it is planned until that step is
 * committed, and is not found until then.
 *
 * A chain is named by its last node, or by the root of its namespace, as one number. The number of
 * a node that is gone is not used again: a chain with that name finds nothing.
 *
 * Owned by the engine thread. */
#ifndef NVLLM_ENGINE_CORE_PREFIX_CACHE_H
#define NVLLM_ENGINE_CORE_PREFIX_CACHE_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/batch.h"
#include "engine/core/blocks.h"
#include "engine/util/text.h"

struct prefix_cache;

/* Who may share with whom. Kept while somebody holds it or a node is in it. */
struct cache_namespace;

enum {
    PREFIX_CACHE_READY = -1,   /* in place of an owner: the block is written */
    PREFIX_CACHE_HEAD = 32,    /* first tokens of a chain that a listing can show */
    PREFIX_CACHE_SECRET = 192, /* bytes */
    PREFIX_CACHE_DIGEST = 16,  /* bytes */
};

/* tiers: the blocks of each tier, borrowed; NULL: no such tier, but there is always a device. There
 * is room for one node a block. secret is copied; NULL, for tests: zeros. -ENOMEM, -EINVAL. */
int prefix_cache_new(struct prefix_cache **out, struct blocks *const tiers[N_TIERS],
                     int32_t block_len, const uint8_t *secret);
void prefix_cache_free(struct prefix_cache *p);

/* The time of what follows. */
void prefix_cache_set_time(struct prefix_cache *p, uint64_t now_us);

/* ---- namespaces */

/* The namespace of (client, salt), compared byte by byte; the caller holds it. -ENOMEM. */
int prefix_cache_open(struct prefix_cache *p, struct cache_namespace **out, uint64_t client,
                      struct text salt);
/* A namespace for one holder, found by nobody else; its nodes go when it is closed. */
int prefix_cache_open_private(struct prefix_cache *p, struct cache_namespace **out);
/* The namespace of (client, salt) if it exists, not held; or NULL. */
struct cache_namespace *prefix_cache_find(const struct prefix_cache *p, uint64_t client,
                                          struct text salt);
void prefix_cache_close(struct prefix_cache *p, struct cache_namespace *ns);
uint64_t prefix_cache_root(const struct cache_namespace *ns); /* where its chains begin */

/* ---- lookup: of tokens [block_len] behind *chain; on success *chain becomes the node found */

/* Finds the written device block and takes a reference to it. */
bool prefix_cache_hold(struct prefix_cache *p, uint64_t *chain, const int32_t *tokens,
                       int32_t *block_id);
/* The same without a reference: valid until the next change. */
bool prefix_cache_peek(const struct prefix_cache *p, uint64_t *chain, const int32_t *tokens,
                       int32_t *block_id);
/* Finds a node in whatever tiers; location[tier] is a written block, or -1. */
bool prefix_cache_lookup(const struct prefix_cache *p, uint64_t *chain, const int32_t *tokens,
                         int32_t location[N_TIERS]);
/* The owner of the pending block of tokens behind chain, or -1. */
int32_t prefix_cache_pending(const struct prefix_cache *p, uint64_t chain, const int32_t *tokens);

/* ---- device blocks */

/* Lists a device block that the caller holds; with an owner it is pending. If the node has a device
 * block already, ready or pending, the caller's stays unlisted. Either way *chain becomes the node.
 * If the end of the chain is gone, nothing happens. */
void prefix_cache_insert(struct prefix_cache *p, uint64_t *chain, int32_t block_id,
                         const int32_t *tokens, int32_t owner);
void prefix_cache_set_ready(struct prefix_cache *p, int32_t block_id); /* if it is listed */
/* Removes the node and all behind it, with their pins; how many nodes that were. */
int32_t prefix_cache_remove(struct prefix_cache *p, int32_t block_id);
/* Removes the nodes of a client, or of all clients; how many. */
int32_t prefix_cache_clear(struct prefix_cache *p, uint64_t client, bool all);

bool prefix_cache_is_ready(const struct prefix_cache *p, int32_t block_id);
/* It is listed for this client, under whatever salt. */
bool prefix_cache_is_of(const struct prefix_cache *p, int32_t block_id, uint64_t client);
/* A sequence begins with a found prefix, of which this is the last block. */
void prefix_cache_count_hit(struct prefix_cache *p, int32_t block_id);

/* ---- tiers */

/* A block of the tier to write to, with one reference: a free one, or else the cached one released
 * first, dropped from its node. BLOCKS_OK, BLOCKS_E_EMPTY. */
int prefix_cache_take(struct prefix_cache *p, enum tier tier, int32_t *block_id);
/* As prefix_cache_take, of a tier that is not the device. Of its cached blocks it gives up one that
 * no tier above has, if there is one among the `within` released first: a block that is copied down
 * never displaces one that would be copied down again. */
int prefix_cache_take_below(struct prefix_cache *p, enum tier tier, int32_t within,
                            int32_t *block_id);
uint64_t prefix_cache_evictions(const struct prefix_cache *p); /* device blocks so dropped */

/* Lists a block that the caller holds as the node's copy in the tier; on the device it may be
 * pending. False, and the block stays unlisted: the node is gone or has a copy there. */
bool prefix_cache_place(struct prefix_cache *p, uint64_t node, enum tier tier, int32_t block_id,
                        int32_t owner);
/* Forgets the node's copy in a tier, if there is one; it must not be pinned there. */
void prefix_cache_drop(struct prefix_cache *p, uint64_t node, enum tier tier);
/* Among the `within` cached blocks that go next from one tier, finds the first whose node has no
 * copy in another one. Nodes of private namespaces are not copied. */
bool prefix_cache_next_copy(const struct prefix_cache *p, enum tier from, enum tier to,
                            int32_t within, uint64_t *node, int32_t *block_id);
/* False: the node is gone. */
bool prefix_cache_digest(const struct prefix_cache *p, uint64_t node,
                         uint8_t out[PREFIX_CACHE_DIGEST]);

/* ---- pins */

/* Holds a written device block and all before it in its chain until it is unpinned or removed;
 * blocks shared by pins are held once. False: a pin ends there already; for unpin: none does. */
bool prefix_cache_pin(struct prefix_cache *p, int32_t block_id);
bool prefix_cache_unpin(struct prefix_cache *p, int32_t block_id);
bool prefix_cache_is_pinned(const struct prefix_cache *p, int32_t block_id); /* held by a pin */
int32_t prefix_cache_n_pinned(const struct prefix_cache *p);                 /* blocks */

/* ---- listing */

/* The nodes from a first one to one that has none behind it, or at which a pin ends. */
struct cache_chain {
    uint64_t last; /* node */
    int32_t n_blocks;
    int32_t holders; /* of the last one's device block, without pins */
    uint64_t client; /* of the namespace */
    uint64_t hits;
    uint64_t written_us, used_us;
    bool pinned;
};

/* Lists the chains of one client, or of all, without those of private namespaces, last used first:
 * the first max of them in *out [*n], malloc'ed; *total is how many there are. Looks at every node
 * once. -ENOMEM. */
int prefix_cache_chains(const struct prefix_cache *p, struct cache_chain **out, int32_t *n,
                        int32_t max, uint64_t client, bool all, int32_t *total);

/* The first tokens of the chain that ends with a node; how many. */
int32_t prefix_cache_head(const struct prefix_cache *p, uint64_t node,
                          int32_t out[PREFIX_CACHE_HEAD]);

/* The longest beginning of tokens [n] that a ready block behind chain begins with, and up to
 * max_others tokens by which such blocks go on instead. */
int32_t prefix_cache_compare(const struct prefix_cache *p, uint64_t chain, const int32_t *tokens,
                             int32_t n, int32_t *others, int32_t max_others, int32_t *n_others);

/* NULL, or which invariant is broken. */
const char *prefix_cache_verify(const struct prefix_cache *p);

#endif
