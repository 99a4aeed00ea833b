/* blocks.h - the KV-cache blocks of one tier: which are free, which are held, by how many.
 *
 * A block is block_len token slots; only ids live here, never memory or contents. A block that the
 * prefix cache lists keeps its contents when nobody holds it: it is cached until it is the oldest
 * one and a block is needed. Any other block that nobody holds is free. A block with a copy under
 * way is neither: its contents stay, and nobody can take it. Owned by the engine thread; no locks.
 */
#ifndef NVLLM_ENGINE_CORE_BLOCKS_H
#define NVLLM_ENGINE_CORE_BLOCKS_H

#include <stdbool.h>
#include <stdint.h>

struct blocks;

int blocks_new(struct blocks **out, int32_t n_blocks); /* -ENOMEM */
void blocks_free(struct blocks *b);

enum {
    BLOCKS_OK,
    BLOCKS_E_EMPTY, /* no free block; cached ones may be left */
};

int blocks_take(struct blocks *b, int32_t *block_id);  /* a free block, with one reference */
void blocks_ref(struct blocks *b, int32_t block_id);   /* of a held or a cached block */
void blocks_unref(struct blocks *b, int32_t block_id); /* the last one frees or caches it */

/* While at least one copy reads or writes the block, it stays as it is. */
void blocks_begin_copy(struct blocks *b, int32_t block_id); /* of a held or a cached block */
void blocks_end_copy(struct blocks *b, int32_t block_id);
bool blocks_has_copy(const struct blocks *b, int32_t block_id); /* is one under way? */

/* Lists a held block for a node of the prefix cache, or for NULL unlists a listed one. */
struct node;
void blocks_list(struct blocks *b, int32_t block_id, struct node *node);
struct node *blocks_node(const struct blocks *b, int32_t block_id); /* NULL: it is not listed */

/* The cached block released first after this one, or first of all for -1; -1: none. */
int32_t blocks_next_cached(const struct blocks *b, int32_t block_id);

int32_t blocks_refs(const struct blocks *b, int32_t block_id);
int32_t blocks_n_total(const struct blocks *b);
int32_t blocks_n_free(const struct blocks *b);
int32_t blocks_n_cached(const struct blocks *b);
int32_t blocks_n_used(const struct blocks *b); /* neither free nor cached */

/* NULL, or which invariant is broken; refs [n_blocks]: the references that there should be. */
const char *blocks_verify(const struct blocks *b, const int32_t *refs);

#endif
