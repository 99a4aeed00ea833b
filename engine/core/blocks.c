/* blocks.c - see blocks.h. */
#include "engine/core/blocks.h"

#include <errno.h>
#include <stdlib.h>

int blocks_new(struct blocks **out, int32_t n_blocks)
{
    struct blocks *b;

    must(n_blocks > 0);
    b = calloc(1, sizeof(*b) + (size_t)n_blocks * sizeof(*b->block));
    if (!b)
        return -ENOMEM;
    b->n_blocks = b->n_free = n_blocks;
    list_init(&b->free);
    list_init(&b->cached);
    for (int32_t i = n_blocks; i-- > 0;) /* block 0 goes out first */
        list_append(&b->free, &b->block[i].link);
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

/* Puts a block without references where it belongs. */
static void settle(struct blocks *b, struct block *k)
{
    if (k->node) {
        list_append(&b->cached, &k->link);
        b->n_cached += k->n_copies == 0;
    } else if (k->n_copies == 0) {
        list_append(&b->free, &k->link);
        b->n_free++;
    }
}

static void leave_cached(struct blocks *b, struct block *k)
{
    list_remove(&k->link);
    b->n_cached -= k->n_copies == 0;
}

int blocks_take(struct blocks *b, int32_t *block_id)
{
    struct block *k;

    if (b->n_free == 0)
        return BLOCKS_E_EMPTY;
    k = block_of(b->free.prev);
    must(k->refs == 0 && k->n_copies == 0 && !k->node);
    list_remove(&k->link);
    b->n_free--;
    k->refs = 1;
    *block_id = (int32_t)(k - b->block);
    return BLOCKS_OK;
}

void blocks_ref(struct blocks *b, int32_t block_id)
{
    struct block *k = block_at(b, block_id);

    must(k->refs > 0 || k->node);
    if (k->refs++ == 0)
        leave_cached(b, k);
}

void blocks_unref(struct blocks *b, int32_t block_id)
{
    struct block *k = block_at(b, block_id);

    must(k->refs > 0);
    if (--k->refs == 0)
        settle(b, k);
}

void blocks_begin_copy(struct blocks *b, int32_t block_id)
{
    struct block *k = block_at(b, block_id);

    must(k->refs > 0 || k->node);
    if (k->n_copies++ == 0 && k->refs == 0)
        b->n_cached--;
}

void blocks_end_copy(struct blocks *b, int32_t block_id)
{
    struct block *k = block_at(b, block_id);

    must(k->n_copies > 0);
    if (--k->n_copies > 0 || k->refs > 0)
        return;
    if (k->node)
        b->n_cached++; /* it has kept its place in the list */
    else
        settle(b, k);
}

void blocks_list(struct blocks *b, int32_t block_id, struct node *node)
{
    struct block *k = block_at(b, block_id);

    must(!k->node != !node && (k->refs > 0 || !node));
    if (k->refs == 0)
        leave_cached(b, k);
    k->node = node;
    if (k->refs == 0)
        settle(b, k);
}

int32_t blocks_next_cached(const struct blocks *b, int32_t block_id)
{
    const struct list *l = block_id < 0 ? &b->cached : &blocks_at(b, block_id)->link;

    for (l = l->next; l != &b->cached; l = l->next)
        if (block_of(l)->n_copies == 0)
            return (int32_t)(block_of(l) - b->block);
    return -1;
}

const char *blocks_verify(const struct blocks *b, const int32_t *refs)
{
    int32_t n_free = 0, n_cached = 0, n_listed = 0;

    for (int32_t i = 0; i < b->n_blocks; i++) {
        const struct block *k = &b->block[i];

        if (k->refs != refs[i])
            return "the refcount of a block is not the number of tables that hold it";
        if (k->refs > 0)
            continue;
        n_free += !k->node && k->n_copies == 0;
        n_cached += k->node && k->n_copies == 0;
        n_listed += k->node != NULL;
    }
    if (n_free != b->n_free || n_cached != b->n_cached)
        return "free, cached and used blocks are not all blocks";
    LIST_EACH (const struct block, k, link, &b->free)
        if (n_free-- == 0 || k->refs || k->node || k->n_copies)
            return "the free list has a block that is not free";
    LIST_EACH (const struct block, k, link, &b->cached)
        if (n_listed-- == 0 || k->refs || !k->node)
            return "the cached list has a block that is held or not listed";
    return n_free || n_listed ? "a block without references is in no list" : NULL;
}
