/* blocks.c - see blocks.h.
 *
 * The free ones are a stack, so that a block just given back is the next to go out; the cached ones
 * are a list in the order they were let go, linked by index. */
#include "engine/core/blocks.h"

#include <errno.h>
#include <stddef.h>
#include <stdlib.h>

#include "engine/util/must.h"

enum { NONE = -1 };

struct block {
    int32_t refs;
    int32_t next, prev; /* while cached: neighbours by age, or NONE */
    bool listed;
};

struct blocks {
    int32_t n_blocks;
    int32_t n_free;
    int32_t n_cached;
    int32_t oldest, newest; /* of the cached ones */
    int32_t *free_ids;      /* [n_free] */
    struct block *block;    /* [n_blocks] */
};

int blocks_new(struct blocks **out, int32_t n_blocks)
{
    struct blocks *b;

    must(n_blocks > 0);
    b = calloc(1, sizeof(*b));
    if (!b)
        goto fail;
    b->free_ids = calloc((size_t)n_blocks, sizeof(*b->free_ids));
    b->block = calloc((size_t)n_blocks, sizeof(*b->block));
    if (!b->free_ids || !b->block)
        goto fail;
    for (int32_t i = 0; i < n_blocks; i++)
        b->free_ids[i] = n_blocks - 1 - i; /* block 0 goes out first */
    b->n_blocks = b->n_free = n_blocks;
    b->oldest = b->newest = NONE;
    *out = b;
    return 0;
fail:
    blocks_free(b);
    return -ENOMEM;
}

void blocks_free(struct blocks *b)
{
    if (!b)
        return;
    free(b->free_ids);
    free(b->block);
    free(b);
}

static struct block *block_at(const struct blocks *b, int32_t id)
{
    must(id >= 0 && id < b->n_blocks);
    return &b->block[id];
}

static void age_append(struct blocks *b, int32_t id)
{
    struct block *k = &b->block[id];

    k->next = NONE;
    k->prev = b->newest;
    if (b->newest == NONE)
        b->oldest = id;
    else
        b->block[b->newest].next = id;
    b->newest = id;
    b->n_cached++;
}

static void age_remove(struct blocks *b, int32_t id)
{
    struct block *k = &b->block[id];

    if (k->prev == NONE)
        b->oldest = k->next;
    else
        b->block[k->prev].next = k->next;
    if (k->next == NONE)
        b->newest = k->prev;
    else
        b->block[k->next].prev = k->prev;
    b->n_cached--;
}

int blocks_take(struct blocks *b, int32_t *block_id)
{
    int32_t id;

    if (b->n_free == 0)
        return BLOCKS_E_EMPTY;
    id = b->free_ids[--b->n_free];
    must(b->block[id].refs == 0 && !b->block[id].listed);
    b->block[id].refs = 1;
    *block_id = id;
    return BLOCKS_OK;
}

void blocks_ref(struct blocks *b, int32_t block_id)
{
    struct block *k = block_at(b, block_id);

    must(k->refs > 0 || k->listed);
    if (k->refs == 0)
        age_remove(b, block_id);
    k->refs++;
}

void blocks_unref(struct blocks *b, int32_t block_id)
{
    struct block *k = block_at(b, block_id);

    must(k->refs > 0);
    if (--k->refs > 0)
        return;
    if (k->listed)
        age_append(b, block_id);
    else
        b->free_ids[b->n_free++] = block_id;
}

void blocks_set_listed(struct blocks *b, int32_t block_id, bool listed)
{
    struct block *k = block_at(b, block_id);

    must(k->listed != listed);
    must(k->refs > 0 || !listed);
    k->listed = listed;
    if (k->refs == 0) {
        age_remove(b, block_id);
        b->free_ids[b->n_free++] = block_id;
    }
}

int32_t blocks_oldest_cached(const struct blocks *b)
{
    return b->oldest;
}

bool blocks_is_listed(const struct blocks *b, int32_t block_id)
{
    return block_at(b, block_id)->listed;
}

int32_t blocks_refs(const struct blocks *b, int32_t block_id)
{
    return block_at(b, block_id)->refs;
}

int32_t blocks_n_free(const struct blocks *b)
{
    return b->n_free;
}

int32_t blocks_n_cached(const struct blocks *b)
{
    return b->n_cached;
}

int32_t blocks_n_used(const struct blocks *b)
{
    return b->n_blocks - b->n_free - b->n_cached;
}

const char *blocks_verify(const struct blocks *b, const int32_t *refs)
{
    int32_t n_cached = 0, n_unused = 0, n_listed_unused = 0;
    int32_t prev = NONE;

    for (int32_t i = 0; i < b->n_blocks; i++) {
        if (b->block[i].refs != refs[i])
            return "the refcount of a block is not the number of tables that hold it";
        n_unused += refs[i] == 0;
        n_listed_unused += refs[i] == 0 && b->block[i].listed;
    }
    for (int32_t i = b->oldest; i != NONE; i = b->block[i].next) {
        if (b->block[i].refs || !b->block[i].listed || b->block[i].prev != prev)
            return "the list of cached blocks holds one that is used or not listed";
        if (++n_cached > b->n_blocks)
            return "the list of cached blocks is a ring";
        prev = i;
    }
    if (n_cached != b->n_cached || n_cached != n_listed_unused || prev != b->newest)
        return "a listed block that nobody holds is not in the list of cached ones";
    for (int32_t i = 0; i < b->n_free; i++)
        if (b->block[b->free_ids[i]].refs || b->block[b->free_ids[i]].listed)
            return "a free block is held or listed";
    if (b->n_free + b->n_cached != n_unused)
        return "free, cached and used blocks are not all blocks";
    return NULL;
}
