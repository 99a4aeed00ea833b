/* blocks.c - see blocks.h. */
#include "engine/core/blocks.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

int blocks_new(struct blocks **out, int32_t n_blocks)
{
    const size_t n = (size_t)n_blocks;
    struct blocks *b;

    must(n_blocks > 0);
    b = calloc(1, sizeof(*b) + n * sizeof(*b->block) + n * sizeof(*b->refs));
    if (!b)
        return -ENOMEM;
    b->n_blocks = b->n_free = n_blocks;
    b->refs = (int32_t *)(b->block + n);
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
    *block_id = (int32_t)(k - b->block);
    must(b->refs[*block_id] == 0 && k->n_copies == 0 && !k->node);
    list_remove(&k->link);
    b->n_free--;
    b->refs[*block_id] = 1;
    return BLOCKS_OK;
}

void blocks_ref(struct blocks *b, int32_t block_id)
{
    struct block *k = block_at(b, block_id);

    must(b->refs[block_id] > 0 || k->node);
    if (b->refs[block_id]++ == 0)
        leave_cached(b, k);
}

void blocks_unref(struct blocks *b, int32_t block_id)
{
    struct block *k = block_at(b, block_id);

    must(b->refs[block_id] > 0);
    if (--b->refs[block_id] == 0)
        settle(b, k);
}

void blocks_begin_copy(struct blocks *b, int32_t block_id)
{
    struct block *k = block_at(b, block_id);

    must(b->refs[block_id] > 0 || k->node);
    if (k->n_copies++ == 0 && b->refs[block_id] == 0)
        b->n_cached--;
}

void blocks_end_copy(struct blocks *b, int32_t block_id)
{
    struct block *k = block_at(b, block_id);

    must(k->n_copies > 0);
    if (--k->n_copies > 0 || b->refs[block_id] > 0)
        return;
    if (k->node)
        b->n_cached++; /* it has kept its place in the list */
    else
        settle(b, k);
}

void blocks_list(struct blocks *b, int32_t block_id, struct node *node)
{
    struct block *k = block_at(b, block_id);

    must(!k->node != !node && (b->refs[block_id] > 0 || !node));
    if (b->refs[block_id] == 0)
        leave_cached(b, k);
    k->node = node;
    if (b->refs[block_id] == 0)
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
    int32_t n_held = 0, n_free = 0, n_cached = 0, n_copied = 0;

    if (memcmp(b->refs, refs, (size_t)b->n_blocks * sizeof(*refs)) != 0)
        return "the refcount of a block is not the number of tables that hold it";
    LIST_EACH (const struct block, k, link, &b->free) {
        if (n_free++ == b->n_free || k->node || k->n_copies || b->refs[k - b->block])
            return "the free list has a block that is not free";
    }
    LIST_EACH (const struct block, k, link, &b->cached) {
        if (n_cached + n_copied == b->n_blocks || !k->node || b->refs[k - b->block])
            return "the cached list has a block that is held or not listed";
        n_cached += k->n_copies == 0;
        n_copied += k->n_copies > 0;
    }
    if (n_free != b->n_free || n_cached != b->n_cached)
        return "free and cached blocks are not as many as they are said to be";
    for (int32_t i = 0; i < b->n_blocks; i++)
        n_held += refs[i] > 0;
    if (n_held + n_free + n_cached + n_copied == b->n_blocks)
        return NULL;
    for (int32_t i = 0; i < b->n_blocks; i++) /* what only a copy keeps is in no list */
        n_copied += !refs[i] && !b->block[i].node && b->block[i].n_copies > 0;
    return n_held + n_free + n_cached + n_copied == b->n_blocks
               ? NULL
               : "a block without references is in no list";
}
