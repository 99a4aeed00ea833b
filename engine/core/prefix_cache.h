/* prefix_cache.h - which blocks hold the keys and values of which tokens, so that what was computed
 * once is found again.
 *
 * An entry is a full block: its tokens and the identity (serial) of the block before it. Serials
 * are never used twice, and each namespace has one of its own as the root of its chains; so equal
 * tokens and equal parent mean equal prefix and equal namespace. The hash only finds candidates: a
 * collision is a miss. An entry is pending from when the step that writes the block is planned
 * until that step is committed; only then can it be held. What is behind a block that is listed no
 * more cannot be found, and is listed no more either. Owned by the engine thread. */
#ifndef NVLLM_ENGINE_CORE_PREFIX_CACHE_H
#define NVLLM_ENGINE_CORE_PREFIX_CACHE_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/core/blocks.h"
#include "engine/util/text.h"

struct prefix_cache;

/* Who may share with whom. Kept while somebody holds it or an entry is in it. */
struct cache_namespace;

enum { PREFIX_CACHE_READY = -1 }; /* in place of an owner: the block is written */
enum { PREFIX_CACHE_HEAD = 32 };  /* first tokens of a chain that a listing can tell */

/* Blocks are borrowed. -ENOMEM, -EINVAL (sizes that overflow). */
int prefix_cache_new(struct prefix_cache **out, struct blocks *blocks, int32_t n_blocks,
                     int32_t block_len, uint64_t hash_seed);
void prefix_cache_free(struct prefix_cache *p);

/* The namespace of (client, salt), compared byte by byte; the caller holds it. -ENOMEM. */
int prefix_cache_open(struct prefix_cache *p, struct cache_namespace **out, uint64_t client,
                      struct text salt);
/* A namespace for one holder, found by nobody else; its entries go when it is closed. */
int prefix_cache_open_private(struct prefix_cache *p, struct cache_namespace **out);
/* The same if it is there, not held; or NULL. */
struct cache_namespace *prefix_cache_find(const struct prefix_cache *p, uint64_t client,
                                          struct text salt);
void prefix_cache_close(struct prefix_cache *p, struct cache_namespace *ns);

uint64_t prefix_cache_root(const struct cache_namespace *ns); /* the parent of first blocks */

/* Finds the written block of tokens [block_len] after *parent and takes a reference in one; true
 * with *block_id, and *parent the serial of the block found. */
bool prefix_cache_hold(struct prefix_cache *p, uint64_t *parent, const int32_t *tokens,
                       int32_t *block_id);

/* The same without a reference: what it says holds until something changes. */
bool prefix_cache_peek(const struct prefix_cache *p, uint64_t *parent, const int32_t *tokens,
                       int32_t *block_id);

/* The owner of the pending block of tokens after parent, or -1. */
int32_t prefix_cache_pending(const struct prefix_cache *p, uint64_t parent, const int32_t *tokens);

/* Lists a block that the caller holds. Where an equal one is listed already, ready or pending, the
 * caller's stays unlisted. Either way *parent becomes the serial of the listed one. Where the
 * parent is listed no more, nothing happens. */
void prefix_cache_insert(struct prefix_cache *p, struct cache_namespace *ns, uint64_t *parent,
                         int32_t block_id, const int32_t *tokens, int32_t owner);
void prefix_cache_set_ready(struct prefix_cache *p, int32_t block_id); /* nothing if unlisted */
/* With all behind it, and their pins; how many that were, 0 if unlisted. */
int32_t prefix_cache_remove(struct prefix_cache *p, int32_t block_id);
/* All of a client's namespaces, or of all clients. */
int32_t prefix_cache_clear(struct prefix_cache *p, uint64_t client, bool all);

/* Holds a written block and all before it in its chain until it is unpinned or removed; pins that
 * share blocks hold them once. False: a pin ends there already; for unpin: none does. */
bool prefix_cache_pin(struct prefix_cache *p, int32_t block_id);
bool prefix_cache_unpin(struct prefix_cache *p, int32_t block_id);
bool prefix_cache_is_pinned(const struct prefix_cache *p, int32_t block_id); /* held by a pin */
int32_t prefix_cache_n_pinned(const struct prefix_cache *p);                 /* blocks */

/* A block to write: a free one, or else the cached one that was let go first, forgotten. */
int prefix_cache_take(struct prefix_cache *p, int32_t *block_id); /* BLOCKS_OK, BLOCKS_E_EMPTY */

/* What happens from now on happens then. */
void prefix_cache_set_time(struct prefix_cache *p, uint64_t now_us);

bool prefix_cache_is_ready(const struct prefix_cache *p, int32_t block_id);
uint64_t prefix_cache_evictions(const struct prefix_cache *p);

/* A sequence begins with n_blocks > 0 found blocks, the last of which is this. */
void prefix_cache_count_hit(struct prefix_cache *p, int32_t block_id);

/* It is listed for this client, under whatever salt. */
bool prefix_cache_is_of(const struct prefix_cache *p, int32_t block_id, uint64_t client);

/* A listing tells chains: the blocks from a first one to one that nothing continues, or that a pin
 * ends at. */
struct cache_chain {
    int32_t block_id; /* the last */
    int32_t n_blocks;
    uint64_t client; /* whose namespace */
    uint64_t hits, written_us, used_us;
    bool pinned;
};

/* The chains of one client, or all, used last first; private namespaces have none to tell. Returns
 * how many are told, at most max; *total is how many there are. Looks at every block of the pool
 * once. */
int32_t prefix_cache_chains(const struct prefix_cache *p, struct cache_chain *out, int32_t max,
                            uint64_t client, bool all, int32_t *total);

/* The first tokens of the chain that ends with this block; returns how many. */
int32_t prefix_cache_head(const struct prefix_cache *p, int32_t block_id,
                          int32_t out[PREFIX_CACHE_HEAD]);

/* How many of the n < block_len or more tokens are those that a written block after parent begins
 * with, at most block_len; and what comes next in those that begin with as many. */
int32_t prefix_cache_compare(const struct prefix_cache *p, const struct cache_namespace *ns,
                             uint64_t parent, const int32_t *tokens, int32_t n, int32_t *others,
                             int32_t max_others, int32_t *n_others);

/* NULL, or what is broken. */
const char *prefix_cache_verify(const struct prefix_cache *p);

#endif
