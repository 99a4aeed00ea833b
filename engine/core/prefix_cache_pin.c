/* prefix_cache_pin.c - chains that people keep in the cache by hand, and what they take out of it;
 * see prefix_cache.h.
 *
 * A pin is nothing but a mark on the block that it ends at, and a count on each block before it; a
 * block with a count is held once, by however many pins. */
#include "engine/util/must.h"
#include "engine/util/plant.h"
#include "engine/core/prefix_cache_impl.h"

enum { NONE = PREFIX_CACHE_NONE };

/* From a block to the first of its chain, n pins more or less. */
static void count_pins(struct prefix_cache *p, int32_t block_id, int32_t n)
{
    for (int32_t at = block_id, before; at != NONE; at = before) {
        struct entry *e = &p->entries[at];
        bool was_held = e->n_pins > 0;

        before = cache_parent(p, at);
        e->n_pins += n;
        must(e->n_pins >= 0);
        if (was_held == (e->n_pins > 0))
            continue;
        p->n_pinned += was_held ? -1 : 1;
        if (was_held)
            blocks_unref(p->blocks, at);
        else if (!PLANT(PLANT_PIN_NO_REF))
            blocks_ref(p->blocks, at);
    }
}

bool prefix_cache_pin(struct prefix_cache *p, int32_t block_id)
{
    struct entry *e = &p->entries[block_id];

    must(e->state == ENTRY_READY);
    if (e->pinned)
        return false;
    e->pinned = true;
    count_pins(p, block_id, 1);
    return true;
}

bool prefix_cache_unpin(struct prefix_cache *p, int32_t block_id)
{
    struct entry *e = &p->entries[block_id];

    if (e->state == ENTRY_NONE || !e->pinned)
        return false;
    e->pinned = false;
    count_pins(p, block_id, -1);
    return true;
}

void cache_forget_pins(struct prefix_cache *p, int32_t block_id)
{
    struct entry *e = &p->entries[block_id];
    int32_t before = cache_parent(p, block_id), n = e->n_pins;

    if (n == 0)
        return;
    if (before != NONE)
        count_pins(p, before, -n);
}

bool prefix_cache_is_pinned(const struct prefix_cache *p, int32_t block_id)
{
    return p->entries[block_id].state != ENTRY_NONE && p->entries[block_id].n_pins > 0;
}

int32_t prefix_cache_n_pinned(const struct prefix_cache *p)
{
    return p->n_pinned;
}

int32_t prefix_cache_clear(struct prefix_cache *p, uint64_t client, bool all)
{
    int32_t n = 0;

    for (int32_t i = 0; i < p->n_blocks; i++) {
        const struct entry *e = &p->entries[i];

        if (e->state == ENTRY_NONE || e->ns->private || (!all && e->ns->client != client))
            continue;
        if (PLANT(PLANT_CLEAR_KEEPS_HELD) && blocks_refs(p->blocks, i) > 0)
            continue;
        n += prefix_cache_remove(p, i);
    }
    return n;
}
