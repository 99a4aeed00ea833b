/* blocks.h - the pool of KV-cache blocks: which are free, which are held, by how many.
 *
 * A block is block_len token slots; only ids live here, never device memory nor contents. A block
 * that nobody holds is free, or cached where the prefix cache lists its contents: then it keeps
 * them until it is the oldest and a block is wanted. Owned by the engine thread; no locks. */
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

/* A free block; the caller holds the one reference. */
int blocks_take(struct blocks *b, int32_t *block_id);
void blocks_ref(struct blocks *b, int32_t block_id);   /* a cached one is held again */
void blocks_unref(struct blocks *b, int32_t block_id); /* the last one frees or caches it */

/* Says whether the contents are listed. Unlisting a cached block makes it free. */
void blocks_set_listed(struct blocks *b, int32_t block_id, bool listed);

int32_t blocks_oldest_cached(const struct blocks *b); /* -1: none */

bool blocks_is_listed(const struct blocks *b, int32_t block_id);
int32_t blocks_refs(const struct blocks *b, int32_t block_id);
int32_t blocks_n_free(const struct blocks *b);
int32_t blocks_n_cached(const struct blocks *b);
int32_t blocks_n_used(const struct blocks *b);

/* NULL, or what is broken; refs [n_blocks] is how many hold each block. */
const char *blocks_verify(const struct blocks *b, const int32_t *refs);

#endif
