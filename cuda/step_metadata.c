/* step_metadata.c - see step_metadata.h. */
#include "cuda/step_metadata.h"

#include <stdlib.h>
#include <string.h>

#include "engine/util/must.h"

enum {
    INVARIANT_SPLITS = 16, /* of a sequence, at most, where the batch must not decide */
    WAVE_KEYS = 1024,      /* of an item: for longer ones a step takes one more wave of blocks */
    MOST_CUTS = 2 * ATTN_MAX_SPLITS, /* items of the waves that long queries are cut for */
    MAX_GRID_Y = 65535,              /* blocks of a launch, in all but the first dimension */
};

_Static_assert(ATTN_SPLIT_ALIGN % ATTN_UNIT == 0, "splits are of whole units");
_Static_assert((int)INVARIANT_SPLITS <= (int)ATTN_MAX_SPLITS && ATTN_MAX_SPLITS <= UINT8_MAX,
               "an item can hold the number");

static int ceil_div(int a, int b)
{
    return (a + b - 1) / b;
}

/* Least keys of a split where a sequence's own length alone decides: one sequence alone waits for
 * its longest split, among many each split costs. */
static int invariant_keys(int kv_len)
{
    return kv_len <= 640 ? 64 : kv_len <= 768 ? 128 : 512;
}

int step_max_items(const struct step_limits *l, int n_decodes)
{
    const int64_t longest = (int64_t)l->max_blocks * l->block_len * n_decodes;
    const int64_t by_keys = longest / WAVE_KEYS + 1;
    const int cuts = by_keys < MOST_CUTS ? (int)by_keys : MOST_CUTS;
    const int most = n_decodes + cuts + l->target_items, splits = n_decodes * INVARIANT_SPLITS;

    return l->invariant && splits < most ? splits : most;
}

int step_max_partials(const struct step_limits *l, int n_decodes)
{
    return l->invariant ? n_decodes * INVARIANT_SPLITS : step_max_items(l, n_decodes);
}

/* Items of decodes, tiles of prompts and rows that are sampled are each a grid's y. */
int step_most_seqs(const struct step_limits *l)
{
    const int by_items = MAX_GRID_Y - MOST_CUTS - ATTN_MAX_SPLITS;
    const int by_tiles = MAX_GRID_Y - l->max_tokens / ATTN_TILE;
    const int by_tables = INT32_MAX / l->max_blocks;
    int n = by_items < by_tiles ? by_items : by_tiles;

    n = by_tables < n ? by_tables : n;
    return n / 16 * 16;
}

int step_n_seqs(const struct batch *b)
{
    return batch_decode_rows(b) + b->n_seqs - b->n_decodes - b->n_drafted;
}

/* The first sequence of the batch that has a chunk. */
static int first_chunk(const struct batch *b)
{
    return b->n_decodes + b->n_drafted;
}

/* The keys of a decode's or draft's row. */
static int keys_of(const struct batch *b, int row)
{
    return row < b->n_decodes ? batch_kv_len(b)[row] : batch_positions(b)[row] + 1;
}

/* Rows whose attention is planned as one: a decode, or drafts that follow one another. */
struct query {
    int seq, row, n_rows; /* 0: there are no more */
    int keys;             /* of the last row */
};

static struct query query_at(const struct step_limits *l, const struct batch *b, int seq, int row)
{
    struct query q = {.seq = seq, .row = row};

    if (row >= batch_decode_rows(b))
        return q;
    while (row >= b->n_decodes && batch_q_start(b)[q.seq + 1] <= row)
        q.seq++;
    q.n_rows = 1;
    if (row >= b->n_decodes) {
        const int left = batch_q_start(b)[q.seq + 1] - row;

        q.n_rows = left < l->draft_rows ? left : l->draft_rows;
    }
    q.keys = keys_of(b, row + q.n_rows - 1);
    return q;
}

#define QUERY_EACH(q, l, b)                                                                        \
    for (struct query q = query_at(l, b, (b)->n_decodes, 0); q.n_rows > 0;                         \
         q = query_at(l, b, q.seq, q.row + q.n_rows))

struct step_room step_room_of(const struct step_limits *l, const struct batch *b)
{
    struct step_room r = {.n_tokens = b->n_tokens,
                          .n_seqs = step_n_seqs(b),
                          .n_items = step_max_items(l, batch_decode_rows(b)),
                          .n_rows = b->n_rows,
                          .n_sums = b->n_sums};

    for (int i = first_chunk(b); i < b->n_seqs; i++)
        r.n_tiles += ceil_div(batch_q_start(b)[i + 1] - batch_q_start(b)[i], ATTN_TILE);
    return r;
}

struct step_room step_room_of_graph(const struct step_limits *l, int n)
{
    return (struct step_room){
        .n_tokens = n, .n_seqs = n, .n_items = step_max_items(l, n), .n_tiles = 0, .n_rows = n};
}

/* Whole waves, as the items are. */
int step_graph_blocks(const struct step_limits *l, int n)
{
    const int waves = ceil_div(n, l->target_items) + 1, most = step_max_items(l, n);

    return waves * l->target_items < most ? waves * l->target_items : most;
}

/* The next n entries of a size, 16-byte aligned. */
static const void *take(const char **at, int n, size_t size)
{
    const char *p = *at;

    *at += ((size_t)n * size + 15) & ~(size_t)15;
    return p;
}

struct step_view step_view_at(const struct step_room *r, const char *base)
{
    struct step_view v = {0};

    v.counts = take(&base, 1, sizeof(*v.counts));
    v.tokens = take(&base, r->n_tokens, sizeof(*v.tokens));
    v.positions = take(&base, r->n_tokens, sizeof(*v.positions));
    v.slots = take(&base, r->n_tokens, sizeof(*v.slots));
    v.kv_len = take(&base, r->n_seqs, sizeof(*v.kv_len));
    v.table_start = take(&base, r->n_seqs, sizeof(*v.table_start));
    v.items = take(&base, r->n_items, sizeof(*v.items));
    v.tiles = take(&base, r->n_tiles, sizeof(*v.tiles));
    v.rows = take(&base, r->n_rows, sizeof(*v.rows));
    v.sums = take(&base, r->n_sums, sizeof(*v.sums));
    v.tables = (const int32_t *)(const void *)base;
    return v;
}

size_t step_max_bytes(const struct step_limits *l)
{
    const struct step_room r = {.n_tokens = l->max_tokens,
                                .n_seqs = l->max_seqs,
                                .n_items = step_max_items(l, l->max_seqs),
                                .n_tiles = l->max_tokens / ATTN_TILE + l->max_seqs,
                                .n_rows = l->max_seqs,
                                .n_sums = l->max_seqs};
    const struct step_view v = step_view_at(&r, NULL);
    const size_t tables = (size_t)l->max_seqs * (size_t)l->max_blocks * sizeof(*v.tables);
    const size_t each = sizeof(*v.sets) + SAMPLING_MAX_BIAS * sizeof(*v.bias);

    return (size_t)(const char *)v.tables + tables + (size_t)l->max_seqs * each + 64;
}

/* Keys of each split of a sequence but its last, where its own length alone decides. */
static int invariant_split(int kv_len)
{
    const int least = invariant_keys(kv_len);
    int length = ceil_div(kv_len, INVARIANT_SPLITS);

    length = length < least ? least : length;
    length = ceil_div(kv_len, ceil_div(kv_len, length)); /* no short split at the end */
    length = ceil_div(length, ATTN_SPLIT_ALIGN) * ATTN_SPLIT_ALIGN;
    return length < kv_len ? length : kv_len;
}

/* Units that a query of so many keys is cut into multiples of. */
static int grain_of(const struct step_limits *l, int keys)
{
    return (l->invariant ? ceil_div(invariant_split(keys), ATTN_SPLIT_ALIGN) : 1) *
           (ATTN_SPLIT_ALIGN / ATTN_UNIT);
}

/* How many grains a query has that is not cut yet. */
static int n_grains(const struct attn_item *query)
{
    return ceil_div(query->kv_len, query->units * ATTN_UNIT);
}

/* Longest first, the others as they are in the step. */
static int by_length(const void *a, const void *b)
{
    const struct attn_item *x = a, *y = b;
    const int longer = (y->end - y->begin) - (x->end - x->begin);

    return longer != 0 ? longer : x->seq != y->seq ? x->seq - y->seq : x->begin - y->begin;
}

/* Has queries cut, the longest item first, until there are `left` items more; no cut that would
 * leave the longest as it is. Returns how many items more there are. */
static int cut_longest(struct attn_item *queries, int n, int left)
{
    int n_more = 0;

    while (n > 0) {
        struct attn_item *longest = queries;
        int most = 0, grains, cuts;

        for (struct attn_item *q = queries; q < queries + n; q++) {
            const int units = ceil_div(n_grains(q), q->split) * q->units;

            if (units > most) {
                most = units;
                longest = q;
            }
        }
        grains = n_grains(longest);
        most = ceil_div(grains, longest->split);
        if (most == 1)
            break;
        cuts = ceil_div(grains, most - 1) - longest->split;
        if (n_more + cuts > left || longest->split + cuts > ATTN_MAX_SPLITS)
            break;
        longest->split = (uint8_t)(longest->split + cuts);
        n_more += cuts;
    }
    return n_more;
}

/* Fills the waves of blocks that the step takes, of in_wave each, or if there are more, the last
 * one. Returns the number of items. */
static int fill_waves(struct attn_item *queries, int n, int n_items, int n_waves, int in_wave)
{
    const int last = n_items % in_wave;
    int first = n;

    if (n_items <= n_waves * in_wave)
        return n_items + cut_longest(queries, n, n_waves * in_wave - n_items);
    for (int room = last; first > 0 && queries[first - 1].split <= room;)
        room -= queries[--first].split;
    return n_items + cut_longest(queries + first, n - first, in_wave - last);
}

/* A query as the items that it is cut into. */
static void cut(struct attn_item *items, struct attn_item query, int partial, bool invariant)
{
    const int n = query.split, grain = query.units, grains = n_grains(&query);
    const int most = invariant ? grain : ceil_div(grains, n) * grain;
    const int all = ceil_div(query.kv_len, ATTN_UNIT);

    query.partial = partial;
    query.n_splits = (uint8_t)(invariant ? grains : n);
    query.units = (uint16_t)(most < all ? most : all); /* all fit 16 bits, as STEP_MAX_LEN says */
    for (int i = 0; i < n; i++) {
        const int begin = (int)((int64_t)i * grains / n), end = (int)((i + 1LL) * grains / n);

        query.begin = begin * grain * ATTN_UNIT;
        query.end = i + 1 < n ? end * grain * ATTN_UNIT : query.kv_len;
        query.split = (uint8_t)(invariant ? begin : i);
        items[i] = query;
    }
}

/* The work items of a step, of each of which a block takes a KV head; returns how many.
 *
 * Blocks share the memory's bandwidth, so items may differ in length: when short ones end, long
 * ones get more of it. What costs is a cut, as its parts must be joined, and a last wave of blocks
 * that leaves most of the machine without work. So queries are cut where they are long or the
 * blocks few, and else only those of the last wave; the longest items are first. (A step of 0.6B at
 * 128 to 896 tokens on an H100, 2026-11-27: 17, 32, 64, 128 streams 1.21, 1.55, 2.36 and 3.91 ms;
 * where nearly every query was cut so that all blocks had equally many keys 1.27, 1.60, 2.43 and
 * 4.04.) */
static int plan_items(struct attn_item *items, const int32_t *table_start,
                      const struct step_limits *l, const struct batch *b)
{
    const int most_waves = MOST_CUTS / l->target_items;
    int64_t total = 0, n_waves, most;
    int n = 0, n_items = 0, n_partials = 0;

    QUERY_EACH (q, l, b)
        total += q.keys;
    n_waves = total / ((int64_t)WAVE_KEYS * l->target_items) + 1;
    n_waves = n_waves < most_waves ? n_waves : most_waves;
    most = total / ATTN_MAX_SPLITS + 1;
    most = most < 2 * WAVE_KEYS ? 2 * WAVE_KEYS : most;
    /* First an item a query; into how many it is cut is its split, of what multiples its units. */
    QUERY_EACH (q, l, b) {
        struct attn_item *item = &items[n++];
        const int wanted = ceil_div(q.keys, (int)most);
        int grains;

        *item = (struct attn_item){.seq = q.row,
                                   .end = q.keys,
                                   .units = (uint16_t)grain_of(l, q.keys),
                                   .table = table_start[q.row],
                                   .kv_len = q.keys,
                                   .n_rows = (uint16_t)q.n_rows};
        grains = n_grains(item);
        item->split = (uint8_t)(wanted < grains ? wanted : grains);
        n_items += item->split;
    }
    qsort(items, (size_t)n, sizeof(*items), by_length);
    n_items = fill_waves(items, n, n_items, (int)n_waves, l->target_items);
    must(n_items <= step_max_items(l, batch_decode_rows(b)));
    /* They move to the end of the room, and are cut from there to its beginning. */
    memmove(items + n_items - n, items, (size_t)n * sizeof(*items));
    for (int i = n_items - n, at = 0; i < n_items; i++) {
        const struct attn_item query = items[i];

        cut(items + at, query, n_partials, l->invariant);
        n_partials += items[at].n_splits;
        at += query.split;
    }
    must(n_partials <= step_max_partials(l, batch_decode_rows(b)));
    qsort(items, (size_t)n_items, sizeof(*items), by_length);
    return n_items;
}

bool step_chunk_is_offloaded(const struct step_limits *l, const struct batch *b)
{
    return b->n_offloaded > 0 && b->n_seqs > first_chunk(b) &&
           batch_block_table(b)[(size_t)first_chunk(b) * (size_t)b->max_blocks] >= l->n_blocks;
}

static int plan_tiles(struct attn_tile *tiles, const int32_t *table_start,
                      const struct step_limits *l, const struct batch *b)
{
    const bool offloaded = step_chunk_is_offloaded(l, b);
    int n = 0;

    table_start += batch_decode_rows(b);
    for (int i = first_chunk(b); i < b->n_seqs; i++, table_start++) {
        const int rows = batch_q_start(b)[i + 1] - batch_q_start(b)[i];

        for (int at = 0; at < rows; at += ATTN_TILE)
            tiles[n++] = (struct attn_tile){.row0 = batch_q_start(b)[i] + at,
                                            .n_rows = rows - at < ATTN_TILE ? rows - at : ATTN_TILE,
                                            .position = batch_kv_len(b)[i] - rows + at,
                                            .table = offloaded ? 0 : *table_start,
                                            .kv_len = batch_kv_len(b)[i]};
    }
    return n;
}

static struct sampler_set set_of(const struct sampling *s, int state, int bias_first)
{
    struct sampler_set set = {
        .state = state,
        .bias_first = bias_first,
        .to = {.temperature = s->temperature,
               .top_p = s->top_p,
               .min_p = s->min_p,
               .repetition = s->repetition_penalty,
               .presence = s->presence_penalty,
               .frequency = s->frequency_penalty,
               .top_k = s->top_k,
               .n_logprobs = s->n_logprobs,
               .n_bias = s->n_bias,
               .n_stop_ids = s->n_stop_ids,
               .history = sampling_needs_history(s),
               .seed_low = (uint32_t)s->seed,
               .seed_high = (uint32_t)(s->seed >> 32)},
    };

    must(s->n_bias >= 0 && s->n_bias <= SAMPLING_MAX_BIAS);
    must(s->n_stop_ids >= 0 && s->n_stop_ids <= SAMPLING_MAX_STOP_IDS);
    if (s->n_stop_ids > 0)
        memcpy(set.to.stop_ids, s->stop_ids, (size_t)s->n_stop_ids * sizeof(*s->stop_ids));
    return set;
}

static void fill(void *to, const void *from, int n, size_t size)
{
    if (n > 0)
        memcpy(to, from, (size_t)n * size);
}

/* Block tables one after another without their unused ends, and the keys and the table of each
 * sequence as kernels know it; returns the number of entries. */
static int pack_tables(const struct step_view *v, const struct step_limits *l,
                       const struct batch *b)
{
    int32_t *tables = (int32_t *)v->tables, *starts = (int32_t *)v->table_start;
    int32_t *kv_len = (int32_t *)v->kv_len;
    int n = 0, n_seqs = 0;

    for (int i = 0; i < b->n_seqs; i++) {
        const int n_blocks = ceil_div(batch_kv_len(b)[i], l->block_len);
        const bool drafted = i >= b->n_decodes && i < first_chunk(b);
        const int end = drafted ? batch_q_start(b)[i + 1] : n_seqs + 1;

        must(batch_kv_len(b)[i] > 0 && n_blocks <= b->max_blocks && n_blocks <= l->max_blocks);
        for (; n_seqs < end; n_seqs++) {
            starts[n_seqs] = n;
            kv_len[n_seqs] = drafted ? keys_of(b, n_seqs) : batch_kv_len(b)[i];
        }
        fill(tables + n, batch_block_table(b) + (size_t)i * (size_t)b->max_blocks, n_blocks,
             sizeof(*tables));
        n += n_blocks;
    }
    return n;
}

/* Rows that only pad a graph: token 0 at position 0, stored nowhere. */
static void pack_tokens(const struct step_view *v, const struct step_room *r, const struct batch *b)
{
    fill((int32_t *)v->tokens, batch_tokens(b), b->n_tokens, sizeof(int32_t));
    fill((int32_t *)v->positions, batch_positions(b), b->n_tokens, sizeof(int32_t));
    fill((int32_t *)v->slots, batch_slots(b), b->n_tokens, sizeof(int32_t));
    for (int i = b->n_tokens; i < r->n_tokens; i++) {
        ((int32_t *)v->tokens)[i] = 0;
        ((int32_t *)v->positions)[i] = 0;
        ((int32_t *)v->slots)[i] = -1;
    }
}

static void pack_rows(struct sampler_row *to, const struct batch *b)
{
    const struct batch_row *from = batch_rows(b);

    for (int i = 0; i < b->n_rows; i++)
        to[i] = (struct sampler_row){.row = from[i].row,
                                     .state = from[i].state,
                                     .counter = from[i].counter,
                                     .flags = (from[i].mask + 1) * 2 + (from[i].ban_stops != 0)};
}

/* What varies in length comes last: block tables, sampler updates, their bias. */
size_t step_pack(char *host, struct step_view *on_device, const char *device,
                 const struct step_limits *l, const struct step_room *r, const struct batch *b,
                 int slot)
{
    struct step_view v = step_view_at(r, host);
    const char *at = (const char *)v.tables;
    int n_bias = 0;

    pack_tokens(&v, r, b);
    (void)take(&at, pack_tables(&v, l, b), sizeof(*v.tables));
    pack_rows((struct sampler_row *)v.rows, b);
    fill((struct batch_sum *)v.sums, batch_sums(b), b->n_sums, sizeof(*v.sums));
    v.sets = take(&at, b->n_updates, sizeof(*v.sets));
    v.bias = take(&at, b->n_bias, sizeof(*v.bias));
    for (int i = 0; i < b->n_updates; i++) {
        const struct sampler_update *u = &batch_updates(b)[i];
        const struct sampling s = batch_sampling(b, u);

        ((struct sampler_set *)v.sets)[i] = set_of(&s, u->state, n_bias);
        fill((struct logit_bias *)v.bias + n_bias, s.bias, s.n_bias, sizeof(*s.bias));
        n_bias += s.n_bias;
    }
    *(struct step_counts *)v.counts = (struct step_counts){
        .n_tokens = b->n_tokens,
        .n_seqs = step_n_seqs(b),
        .n_decodes = batch_decode_rows(b),
        .n_rows = b->n_rows,
        .n_items = plan_items((struct attn_item *)v.items, v.table_start, l, b),
        .n_tiles = plan_tiles((struct attn_tile *)v.tiles, v.table_start, l, b),
        .slot = slot,
        .n_updates = b->n_updates,
    };
    *on_device = step_view_at(r, device);
    on_device->sets = (const struct sampler_set *)(device + ((const char *)v.sets - host));
    on_device->bias = (const struct logit_bias *)(device + ((const char *)v.bias - host));
    return (size_t)(at - host);
}
