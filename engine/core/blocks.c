/* blocks.c - see blocks.h. */
#include "engine/core/blocks.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "engine/util/plant.h"

int blocks_new(struct blocks **out, int32_t n_blocks)
{
    const size_t n = (size_t)n_blocks;
    struct blocks *b;

    must(n_blocks > 0);
    b = calloc(1, sizeof(*b) + n * sizeof(*b->block));
    if (!b)
        return -ENOMEM;
    b->n_blocks = b->n_free = n_blocks;
    b->n_released = b->n_oldest = (uint64_t)n_blocks + 1;
    list_init(&b->free);
    list_init(&b->cached);
    b->dirty = &b->cached;
    *out = b;
    return 0;
}

void blocks_free(struct blocks *b)
{
    free(b);
}

static struct block *block_at(struct blocks *b, int32_t id)
{
    return (struct block *)blocks_at(b, id);
}

static struct block *block_of(const struct list *l)
{
    return CONTAINER_OF(l, struct block, link);
}

static bool is_older(const struct list *a, const struct list *b)
{
    return block_of(a)->released < block_of(b)->released;
}

/* Puts a block in its place among the cached ones, which is the last one or near the first dirty
 * one. What is behind a dirty one does not count as clean. */
static void cache(struct blocks *b, struct block *k, bool clean)
{
    const bool ahead = b->dirty == &b->cached || is_older(&k->link, b->dirty);
    struct list *at = ahead ? b->dirty : &b->cached;
    int32_t n_behind = 0;

    for (; at->prev != &b->cached && is_older(&k->link, at->prev); n_behind++)
        at = at->prev;
    list_append(at, &k->link);
    b->n_cached++;
    if (ahead && !clean) {
        b->n_clean -= n_behind;
        b->dirty = &k->link;
    } else if (ahead) {
        b->n_clean++;
    }
}

static void uncache(struct blocks *b, struct block *k)
{
    if (&k->link == b->dirty && !PLANT(PLANT_DIRTY_FORGOTTEN))
        b->dirty = k->link.next;
    else if (b->dirty == &b->cached || is_older(&k->link, b->dirty))
        b->n_clean -= !PLANT(PLANT_CLEAN_LOST);
    list_remove(&k->link);
    b->n_cached--;
}

/* Puts a block without references where it belongs. */
static void settle(struct blocks *b, struct block *k, bool clean)
{
    if (k->node) {
        cache(b, k, clean);
    } else {
        list_append(&b->free, &k->link);
        b->n_free++;
    }
}

bool blocks_take(struct blocks *b, int32_t *block_id)
{
    struct block *k;

    if (b->n_free == 0)
        return false;
    if (list_empty(&b->free)) {
        must(b->n_touched < b->n_blocks);
        k = &b->block[b->n_touched++];
    } else {
        k = block_of(b->free.prev);
        list_remove(&k->link);
    }
    *block_id = (int32_t)(k - b->block);
    must(k->refs == 0 && !k->node);
    b->n_free--;
    k->refs = 1;
    return true;
}

void blocks_take_oldest(struct blocks *b, int32_t block_id)
{
    struct block *k = block_at(b, block_id);

    while (b->n_touched <= block_id)
        list_append(&b->free, &b->block[b->n_touched++].link);
    must(k->refs == 0 && !k->node);
    if (!PLANT(PLANT_RESTORE_TAKEN))
        list_remove(&k->link);
    b->n_free -= !PLANT(PLANT_RESTORE_TAKEN);
    k->refs = 1;
    k->released = --b->n_oldest;
}

void blocks_ref(struct blocks *b, int32_t block_id)
{
    struct block *k = block_at(b, block_id);

    must(k->refs > 0 || k->node);
    if (k->refs++ == 0)
        uncache(b, k);
}

void blocks_put_back(struct blocks *b, int32_t block_id, bool clean)
{
    struct block *k = block_at(b, block_id);

    must(k->refs > 0);
    if (--k->refs == 0)
        settle(b, k, clean);
}

void blocks_unref(struct blocks *b, int32_t block_id)
{
    if (blocks_refs(b, block_id) == 1)
        block_at(b, block_id)->released = ++b->n_released;
    blocks_put_back(b, block_id, false);
}

void blocks_list(struct blocks *b, int32_t block_id, struct node *node)
{
    struct block *k = block_at(b, block_id);

    must(!k->node != !node && (k->refs > 0 || !node));
    k->node = node;
    if (k->refs > 0)
        return;
    uncache(b, k);
    settle(b, k, false);
}

int32_t blocks_id(const struct blocks *b, const struct list *cached)
{
    return cached == &b->cached ? -1 : (int32_t)(block_of(cached) - b->block);
}

void blocks_set_clean(struct blocks *b)
{
    must(b->dirty != &b->cached);
    b->dirty = b->dirty->next;
    b->n_clean++;
}
