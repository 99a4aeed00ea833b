/* prefix_cache_look.c - what is in the prefix cache, told to people; see prefix_cache.h.
 *
 * Changes nothing but the count of hits. */
#include "engine/util/must.h"
#include "engine/core/prefix_cache_impl.h"

enum { NONE = PREFIX_CACHE_NONE };

static int32_t first_of(const struct prefix_cache *p, int32_t block_id)
{
    int32_t at = p->entries[block_id].head, before;

    while ((before = cache_parent(p, at)) != NONE)
        at = before;
    return at;
}

void prefix_cache_count_hit(struct prefix_cache *p, int32_t block_id)
{
    p->entries[first_of(p, block_id)].hits++;
}

bool prefix_cache_is_of(const struct prefix_cache *p, int32_t block_id, uint64_t client)
{
    const struct entry *e = &p->entries[block_id];

    return e->state != ENTRY_NONE && !e->ns->private && e->ns->client == client;
}

/* Used later, then the lower id: what is told first. */
static bool goes_before(const struct cache_chain *a, const struct cache_chain *b)
{
    return a->used_us != b->used_us ? a->used_us > b->used_us : a->block_id < b->block_id;
}

/* Of a heap with the last to be told on top, moves the one at i down to its place. */
static void sift_down(struct cache_chain *heap, int32_t n, int32_t i)
{
    struct cache_chain moved = heap[i];

    for (int64_t child; (child = 2 * (int64_t)i + 1) < n; i = (int32_t)child) {
        if (child + 1 < n && goes_before(&heap[child], &heap[child + 1]))
            child++;
        if (!goes_before(&moved, &heap[child]))
            break;
        heap[i] = heap[child];
    }
    heap[i] = moved;
}

int32_t prefix_cache_chains(const struct prefix_cache *p, struct cache_chain *out, int32_t max,
                            uint64_t client, bool all, int32_t *total)
{
    int32_t n = 0, n_all = 0;

    for (int32_t i = 0; i < p->n_blocks; i++) {
        const struct entry *e = &p->entries[i];
        struct cache_chain chain = {.block_id = i, .used_us = e->used_us};

        if (e->state == ENTRY_NONE || (!list_empty(&e->children) && !e->pinned) || e->ns->private ||
            (!all && e->ns->client != client))
            continue;
        n_all++;
        if (n < max) {
            out[n++] = chain;
            for (int32_t k = n / 2 - 1; n == max && k >= 0; k--)
                sift_down(out, n, k);
        } else if (max > 0 && goes_before(&chain, &out[0])) {
            out[0] = chain;
            sift_down(out, n, 0);
        }
    }
    for (int32_t k = n / 2 - 1; n < max && k >= 0; k--)
        sift_down(out, n, k);
    for (int32_t k = n - 1; k > 0; k--) { /* the last to be told goes to the end */
        struct cache_chain last = out[0];

        out[0] = out[k];
        out[k] = last;
        sift_down(out, k, 0);
    }
    for (int32_t k = 0; k < n; k++) {
        const struct entry *e = &p->entries[out[k].block_id];

        out[k].n_blocks = e->depth + 1;
        out[k].client = e->ns->client;
        out[k].hits = p->entries[first_of(p, out[k].block_id)].hits;
        out[k].written_us = e->written_us;
        out[k].pinned = e->pinned;
    }
    *total = n_all;
    return n;
}

int32_t prefix_cache_compare(const struct prefix_cache *p, const struct cache_namespace *ns,
                             uint64_t parent, const int32_t *tokens, int32_t n, int32_t *others,
                             int32_t max_others, int32_t *n_others)
{
    const struct list *head = &ns->firsts;
    int32_t most = 0;

    if (parent != ns->root)
        head = &p->entries[parent & ((1ull << p->id_bits) - 1)].children;
    *n_others = 0;
    for (const struct list *l = head->next; l != head; l = l->next) {
        const struct entry *e = CONTAINER_OF(l, struct entry, sibling);
        const int32_t *there = cache_tokens(p, (int32_t)(e - p->entries));
        int32_t same = 0, k = 0;

        if (e->state != ENTRY_READY)
            continue;
        while (same < n && same < p->block_len && there[same] == tokens[same])
            same++;
        if (same < most)
            continue;
        if (same > most)
            *n_others = 0;
        most = same;
        while (same < p->block_len && k < *n_others && others[k] != there[same])
            k++;
        if (same < p->block_len && k == *n_others && k < max_others)
            others[(*n_others)++] = there[same];
    }
    return most;
}

int32_t prefix_cache_head(const struct prefix_cache *p, int32_t block_id,
                          int32_t out[PREFIX_CACHE_HEAD])
{
    int32_t at = p->entries[block_id].head;
    int32_t n = (p->entries[at].depth + 1) * p->block_len;

    if (n > PREFIX_CACHE_HEAD)
        n = PREFIX_CACHE_HEAD;
    for (; at != NONE; at = cache_parent(p, at))
        for (int32_t i = 0, pos; i < p->block_len; i++)
            if ((pos = p->entries[at].depth * p->block_len + i) < n)
                out[pos] = cache_tokens(p, at)[i];
    return n;
}
