/* blocks.h - the KV-cache blocks of one tier: which are free, which are held, by how many.
 *
 * A block is block_len token slots; only ids live here, never memory or contents. A block that the
 * prefix cache lists keeps its contents when nobody holds it: it is cached until it is the oldest
 * one and a block is needed. Any other block that nobody holds is free. A block with a copy under
 * way is neither: its contents stay, and nobody can take it.
 *
 * The core reads the fields; blocks.c alone changes them. Owned by the engine thread; no locks. */
#ifndef NVLLM_ENGINE_CORE_BLOCKS_H
#define NVLLM_ENGINE_CORE_BLOCKS_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/util/list.h"
#include "engine/util/must.h"

struct node; /* of the prefix cache */

struct block {
    struct list link;  /* in the free or the cached list */
    int32_t n_copies;  /* under way, reading or writing it */
    struct node *node; /* NULL: not listed */
};

/* The free list is a stack: the block released last goes out first. The cached list is in order of
 * release; a cached block with a copy under way keeps its place there. */
struct blocks {
    int32_t n_blocks, n_free;
    int32_t n_cached; /* without those that a copy keeps */
    struct list free;
    struct list cached;
    int32_t *refs;        /* [n_blocks] apart, so that they are quickly compared */
    struct block block[]; /* [n_blocks] */
};

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

/* Lists a held block for a node of the prefix cache, or for NULL unlists a listed one. */
void blocks_list(struct blocks *b, int32_t block_id, struct node *node);

/* The cached block released first after this one, or first of all for -1; -1: none. */
int32_t blocks_next_cached(const struct blocks *b, int32_t block_id);

static inline const struct block *blocks_at(const struct blocks *b, int32_t block_id)
{
    must(block_id >= 0 && block_id < b->n_blocks);
    return &b->block[block_id];
}

static inline int32_t blocks_refs(const struct blocks *b, int32_t block_id)
{
    return b->refs[blocks_at(b, block_id) - b->block];
}

static inline struct node *blocks_node(const struct blocks *b, int32_t block_id)
{
    return blocks_at(b, block_id)->node;
}

/* Neither free nor cached. */
static inline int32_t blocks_n_used(const struct blocks *b)
{
    return b->n_blocks - b->n_free - b->n_cached;
}

/* NULL, or which invariant is broken; refs [n_blocks]: the references that there should be. */
const char *blocks_verify(const struct blocks *b, const int32_t *refs);

#endif
