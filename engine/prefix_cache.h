/* prefix_cache.h - which blocks hold the keys and values of which tokens, so that what was computed
 * once is found again.
 *
 * An entry is a full block: its tokens and the identity (serial) of the block before it. Serials
 * are never used twice, and each namespace has one of its own as the root of its chains; so equal
 * tokens and equal parent mean equal prefix and equal namespace. The hash only finds candidates: a
 * collision is a miss. An entry is pending from when the step that writes the block is planned
 * until that step is committed; only then can it be pinned. Owned by the engine thread. */
#ifndef NVLLM_PREFIX_CACHE_H
#define NVLLM_PREFIX_CACHE_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/blocks.h"
#include "engine/text.h"

struct prefix_cache;

/* Who may share with whom. Kept while somebody holds it or an entry is in it. */
struct cache_namespace;

enum { PREFIX_CACHE_READY = -1 }; /* in place of an owner: the block is written */

/* Blocks are borrowed. -ENOMEM, -EINVAL (sizes that overflow). */
int prefix_cache_new(struct prefix_cache **out, struct blocks *blocks, int32_t n_blocks,
                     int32_t block_len, uint64_t hash_seed);
void prefix_cache_free(struct prefix_cache *p);

/* The namespace of (client, salt), compared byte by byte; the caller holds it. -ENOMEM. */
int prefix_cache_open(struct prefix_cache *p, struct cache_namespace **out, uint64_t client,
                      struct text salt);
/* A namespace for one holder, found by nobody else; its entries go when it is closed. */
int prefix_cache_open_private(struct prefix_cache *p, struct cache_namespace **out);
void prefix_cache_close(struct prefix_cache *p, struct cache_namespace *ns);

uint64_t prefix_cache_root(const struct cache_namespace *ns); /* the parent of first blocks */

/* Finds the written block of tokens [block_len] after *parent and takes a reference in one; true
 * with *block_id, and *parent the serial of the block found. */
bool prefix_cache_pin(struct prefix_cache *p, uint64_t *parent, const int32_t *tokens,
                      int32_t *block_id);

/* The owner of the pending block of tokens after parent, or -1. */
int32_t prefix_cache_pending(const struct prefix_cache *p, uint64_t parent, const int32_t *tokens);

/* Lists a block that the caller holds. Where an equal one is listed already, ready or pending, the
 * caller's stays unlisted. Either way *parent becomes the serial of the listed one. */
void prefix_cache_insert(struct prefix_cache *p, struct cache_namespace *ns, uint64_t *parent,
                         int32_t block_id, const int32_t *tokens, int32_t owner);
void prefix_cache_set_ready(struct prefix_cache *p, int32_t block_id); /* nothing if unlisted */
void prefix_cache_remove(struct prefix_cache *p, int32_t block_id);    /* nothing if unlisted */

/* A block to write: a free one, or else the cached one that was let go first, forgotten. */
int prefix_cache_take(struct prefix_cache *p, int32_t *block_id); /* BLOCKS_OK, BLOCKS_E_EMPTY */

bool prefix_cache_is_ready(const struct prefix_cache *p, int32_t block_id);
uint64_t prefix_cache_evictions(const struct prefix_cache *p);

/* NULL, or what is broken. */
const char *prefix_cache_verify(const struct prefix_cache *p);

#endif
