/* bpe.c - see bpe.h. */
#include "engine/text/bpe.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "engine/util/must.h"

enum {
    BPE_SHORT = 40,            /* symbols: up to here the plain loop is faster than the heap */
    BPE_NO_RANK = INT32_MAX,   /* of a pair that does not merge */
    BPE_LIST_END = UINT32_MAX, /* no symbol before or after */
    BPE_HEAP_WAYS = 4,         /* children of a heap node */
};

int bpe_init(struct bpe *b, size_t n_merges)
{
    size_t slots = 16;

    must(n_merges <= BPE_MAX_MERGES);
    while (slots < n_merges + n_merges / 2)
        slots *= 2;
    b->table = malloc(slots * sizeof(*b->table));
    if (!b->table)
        return -ENOMEM;
    for (size_t i = 0; i < slots; i++)
        b->table[i] = (struct bpe_merge){-1, -1, BPE_NO_RANK, -1};
    b->mask = (uint32_t)(slots - 1);
    return 0;
}

void bpe_deinit(struct bpe *b)
{
    free(b->table);
    b->table = NULL;
}

/* The merge of a pair, or an empty slot: rank BPE_NO_RANK, id -1. */
static inline struct bpe_merge *find(const struct bpe *b, int32_t left, int32_t right)
{
    const uint64_t key = (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
    uint32_t slot = (uint32_t)(key * UINT64_C(0x9e3779b97f4a7c15) >> 32) & b->mask;

    while (b->table[slot].id >= 0 && (b->table[slot].left != left || b->table[slot].right != right))
        slot = (slot + 1) & b->mask;
    return &b->table[slot];
}

void bpe_add(struct bpe *b, struct bpe_merge merge)
{
    *find(b, merge.left, merge.right) = merge;
}

static size_t encode_short(const struct bpe *b, int32_t *ids, size_t n)
{
    int32_t ranks[BPE_SHORT];  /* of symbol i with i + 1 */
    int32_t merged[BPE_SHORT]; /* and their merged id */

    for (size_t i = 0; i + 1 < n; i++) {
        const struct bpe_merge *m = find(b, ids[i], ids[i + 1]);

        ranks[i] = m->rank;
        merged[i] = m->id;
    }
    while (n > 1) {
        size_t best = 0;

        for (size_t i = 1; i + 1 < n; i++)
            if (ranks[i] < ranks[best])
                best = i;
        if (ranks[best] == BPE_NO_RANK)
            break;
        ids[best] = merged[best];
        n--;
        memmove(ids + best + 1, ids + best + 2, (n - best - 1) * sizeof(*ids));
        memmove(ranks + best, ranks + best + 1, (n - best) * sizeof(*ranks));
        memmove(merged + best, merged + best + 1, (n - best) * sizeof(*merged));
        for (size_t i = best ? best - 1 : 0; i <= best && i + 1 < n; i++) {
            const struct bpe_merge *m = find(b, ids[i], ids[i + 1]);

            ranks[i] = m->rank;
            merged[i] = m->id;
        }
    }
    return n;
}

/* The heap is of keys: the rank of a pair, then the position of its first symbol. */
static void heap_push(struct bpe_work *w, uint64_t key)
{
    size_t at = w->n_heap++;

    must(w->n_heap <= 3 * w->cap);
    for (; at && w->heap[(at - 1) / BPE_HEAP_WAYS] > key; at = (at - 1) / BPE_HEAP_WAYS)
        w->heap[at] = w->heap[(at - 1) / BPE_HEAP_WAYS];
    w->heap[at] = key;
}

static uint64_t heap_pop(struct bpe_work *w)
{
    uint64_t *heap = w->heap, top = heap[0], key = heap[--w->n_heap];
    size_t at = 0;

    for (;;) {
        size_t first = at * BPE_HEAP_WAYS + 1, best = first;

        for (size_t i = first + 1; i < w->n_heap && i < first + BPE_HEAP_WAYS; i++)
            if (heap[i] < heap[best])
                best = i;
        if (first >= w->n_heap || heap[best] >= key)
            break;
        heap[at] = heap[best];
        at = best;
    }
    heap[at] = key;
    return top;
}

/* The merge of the symbol at pos with the next one, and its heap key. False: they do not merge. */
static bool pair_at(const struct bpe *b, const struct bpe_work *w, uint32_t pos, uint64_t *key,
                    int32_t *id)
{
    const struct bpe_symbol *s = &w->symbols[pos];
    const struct bpe_merge *m;

    if (s->id < 0 || s->next == BPE_LIST_END)
        return false;
    m = find(b, s->id, w->symbols[s->next].id);
    *key = (uint64_t)m->rank << 32 | pos;
    *id = m->id;
    return m->id >= 0;
}

static void push_pair(const struct bpe *b, struct bpe_work *w, uint32_t pos)
{
    uint64_t key;
    int32_t id;

    if (pos != BPE_LIST_END && pair_at(b, w, pos, &key, &id))
        heap_push(w, key);
}

void bpe_work_deinit(struct bpe_work *w)
{
    free(w->symbols);
    free(w->heap);
    memset(w, 0, sizeof(*w));
}

static int work_reserve(struct bpe_work *w, size_t n)
{
    if (n <= w->cap)
        return 0;
    bpe_work_deinit(w);
    w->symbols = malloc(n * sizeof(*w->symbols));
    /* n - 1 pairs at first; each of at most n - 1 merges removes one and adds two */
    w->heap = malloc(3 * n * sizeof(*w->heap));
    if (!w->symbols || !w->heap)
        return -ENOMEM;
    w->cap = n;
    return 0;
}

static int encode_long(const struct bpe *b, struct bpe_work *w, int32_t *ids, size_t *n_ids)
{
    const size_t n = *n_ids;
    struct bpe_symbol *s;
    int r = work_reserve(w, n);

    if (r)
        return r;
    s = w->symbols;
    for (uint32_t i = 0; i < n; i++)
        s[i] =
            (struct bpe_symbol){ids[i], i ? i - 1 : BPE_LIST_END, i + 1 < n ? i + 1 : BPE_LIST_END};
    w->n_heap = 0;
    for (uint32_t i = 0; i < n; i++)
        push_pair(b, w, i);
    while (w->n_heap) {
        uint64_t key = heap_pop(w), now;
        uint32_t pos = (uint32_t)key, gone = s[pos].next;
        int32_t id;

        if (!pair_at(b, w, pos, &now, &id) || now != key)
            continue; /* its symbols have changed since */
        s[pos].id = id;
        s[pos].next = s[gone].next;
        s[gone].id = -1;
        if (s[pos].next != BPE_LIST_END)
            s[s[pos].next].prev = pos;
        push_pair(b, w, pos);
        push_pair(b, w, s[pos].prev);
    }
    *n_ids = 0;
    for (uint32_t pos = 0; pos != BPE_LIST_END; pos = s[pos].next)
        ids[(*n_ids)++] = s[pos].id;
    return 0;
}

int bpe_encode(const struct bpe *b, struct bpe_work *w, int32_t *ids, size_t *n)
{
    must(*n > 0 && *n < BPE_LIST_END);
    if (*n > BPE_SHORT)
        return encode_long(b, w, ids, n);
    *n = encode_short(b, ids, *n);
    return 0;
}
