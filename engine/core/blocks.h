/* blocks.h - the KV-cache blocks of one tier: which are free, which are held, by how many.
 *
 * A block is block_len token slots; only ids live here, never memory or contents. A block that the
 * prefix cache lists keeps its contents when nobody holds it: it is cached until it is the oldest
 * one and a block is needed. Any other block that nobody holds is free.
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
    struct list link; /* in the free or the cached list */
    int32_t refs;
    struct node *node; /* NULL: not listed */
    uint64_t released; /* when it was cached, counted in releases */
};

struct blocks {
    int32_t n_blocks, n_free, n_cached;
    int32_t n_touched; /* used so far; the others are free, but in no list: a start touches none */
    uint64_t n_released, n_oldest; /* releases are numbered: the highest number, and the lowest */
    struct list free;              /* the block released last goes out first, one never used last */
    struct list cached;            /* in order of release */
    /* The first n_clean cached blocks can be evicted without loss: a lower tier has a copy, or must
     * not have one. The others have not been checked. */
    int32_t n_clean;
    struct list *dirty;   /* the first of the others; &cached: there is none */
    struct block block[]; /* [n_blocks] */
};

int blocks_new(struct blocks **out, int32_t n_blocks); /* -ENOMEM */
void blocks_free(struct blocks *b);

/* A free block, with one reference. False: there is none; cached ones may be left. */
bool blocks_take(struct blocks *b, int32_t *block_id);
/* Takes this free block. When it is cached it will be the oldest. */
void blocks_take_oldest(struct blocks *b, int32_t block_id);
void blocks_ref(struct blocks *b, int32_t block_id);   /* of a held or a cached block */
void blocks_unref(struct blocks *b, int32_t block_id); /* the last one frees or caches it: dirty */
/* The same, but a block that is then cached takes the place that it had before it was held. */
void blocks_put_back(struct blocks *b, int32_t block_id, bool clean);

/* Lists a held block for a node of the prefix cache, or for NULL unlists a listed one. */
void blocks_list(struct blocks *b, int32_t block_id, struct node *node);

/* The block at a place in the cached list, such as cached.next or dirty; -1: its end. */
int32_t blocks_id(const struct blocks *b, const struct list *cached);

void blocks_set_clean(struct blocks *b); /* the first dirty one */

static inline const struct block *blocks_at(const struct blocks *b, int32_t block_id)
{
    must(block_id >= 0 && block_id < b->n_blocks);
    return &b->block[block_id];
}

static inline int32_t blocks_refs(const struct blocks *b, int32_t block_id)
{
    return blocks_at(b, block_id)->refs;
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

#endif
