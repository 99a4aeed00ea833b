/* step_metadata.c - see step_metadata.h. */
#include "cuda/step_metadata.h"

#include <string.h>

#include "engine/util/must.h"

enum {
    INVARIANT_SPLITS = 16, /* of a sequence, at most, where the batch must not decide */
    RUN_KEYS = 256,        /* of a block's share, at least, for runs to pay off */
    SCRAP = 16,            /* less than this part of a share is not split off */
    LONG_SPLIT = 2048,     /* keys; longer splits are cut finer than one wave of blocks needs */
    SIZE_CLASSES = 32,
    MAX_GRID_Y = 65535, /* blocks of a launch, in all but the first dimension */
};

_Static_assert(ATTN_SPLIT_ALIGN % ATTN_UNIT == 0, "splits are of whole units");
_Static_assert((int)INVARIANT_SPLITS <= (int)ATTN_MAX_SPLITS && ATTN_MAX_SPLITS <= UINT8_MAX,
               "an item can hold the number");
_Static_assert((LONG_SPLIT / ATTN_UNIT) * ATTN_MAX_SPLITS <= UINT16_MAX,
               "a step that is cut into runs has no more units than an item can hold");

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
    const int64_t long_splits = longest / LONG_SPLIT + 1;
    const int fine = long_splits < ATTN_MAX_SPLITS ? (int)long_splits : ATTN_MAX_SPLITS;
    const int splits = n_decodes * INVARIANT_SPLITS, few = n_decodes + l->target_items;

    if (l->invariant) /* splits beyond what fills the machine share blocks: splits_per_block() */
        return splits < few ? splits : few;
    return n_decodes + (fine > l->target_items ? fine : l->target_items);
}

int step_max_partials(const struct step_limits *l, int n_decodes)
{
    return l->invariant ? n_decodes * INVARIANT_SPLITS : step_max_items(l, n_decodes);
}

/* Items of decodes, tiles of prompts and rows that are sampled are each a grid's y. */
int step_most_seqs(const struct step_limits *l)
{
    const int by_items = MAX_GRID_Y - ATTN_MAX_SPLITS;
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

/* Keys of each split of a sequence but its last. Splits of all sequences are about equal, so that
 * short and long ones fill the machine together: in one wave of blocks if that makes splits no
 * longer than LONG_SPLIT; else in several waves, of which the last must leave little idle. */
static int split_length(const struct step_limits *l, int64_t total, int kv_len)
{
    int64_t length = (total + l->target_items - 1) / l->target_items;

    if (l->invariant) {
        const int least = invariant_keys(kv_len);

        length = ceil_div(kv_len, INVARIANT_SPLITS);
        length = length < least ? least : length;
    } else if (length > LONG_SPLIT) {
        length = (total + ATTN_MAX_SPLITS - 1) / ATTN_MAX_SPLITS;
        length = length < LONG_SPLIT ? LONG_SPLIT : length;
    }
    if (length > 0) /* no short split at the end */
        length = ceil_div(kv_len, (int)((kv_len + length - 1) / length));
    length = (length + ATTN_SPLIT_ALIGN - 1) / ATTN_SPLIT_ALIGN * ATTN_SPLIT_ALIGN;
    return length < kv_len ? (int)length : kv_len;
}

/* 0 for the longest items of a step. */
static int size_class(int length, int longest)
{
    return (int)((int64_t)(longest - length) * SIZE_CLASSES / longest);
}

/* Split-KV work items as equal runs, as many as blocks fit the machine at once: a run is the end of
 * one sequence, some whole ones and the beginning of another; of whole splits where a sequence's
 * own length alone decides. Returns the number of runs. */
static int plan_runs(struct attn_item *items, const int32_t *table_start,
                     const struct step_limits *l, const struct batch *b)
{
    int left = 0, share = 0, room = 0, n_runs = 0, n_partial = 0, last = 0;
    int n = l->target_items; /* where items go that do not begin a run */

    QUERY_EACH (q, l, b)
        left += ceil_div(q.keys, ATTN_UNIT);
    QUERY_EACH (q, l, b) {
        const int n_units = ceil_div(q.keys, ATTN_UNIT);
        const int split_units = l->invariant ? ceil_div(split_length(l, 0, q.keys), ATTN_UNIT) : 0;
        int at[ATTN_MAX_SPLITS], n_items = 0;

        for (int unit = 0; unit < n_units; n_items++) {
            const bool begins = room <= share / SCRAP && n_runs < l->target_items;
            int take = n_units - unit;

            if (begins)
                room = share = ceil_div(left, l->target_items - n_runs);
            if (take > room + share / SCRAP && (n_runs + begins < l->target_items))
                take = room;
            if (split_units && unit + take < n_units) /* whole splits */
                take = ceil_div(take, split_units) * split_units;
            if (take > n_units - unit)
                take = n_units - unit;
            must(n_items < ATTN_MAX_SPLITS);
            at[n_items] = begins ? n_runs++ : n++;
            if (!begins)
                items[last].next = (uint16_t)at[n_items];
            last = at[n_items];
            items[last] =
                (struct attn_item){.seq = q.row,
                                   .n_rows = (uint16_t)q.n_rows,
                                   .begin = unit * ATTN_UNIT,
                                   .end =
                                       unit + take < n_units ? (unit + take) * ATTN_UNIT : q.keys,
                                   .split = (uint8_t)(split_units ? unit / split_units : n_items),
                                   .units = (uint16_t)(split_units ? split_units : take),
                                   .partial = n_partial,
                                   .table = table_start[q.row],
                                   .kv_len = q.keys};
            unit += take;
            room -= take;
            left -= take;
        }
        const int n_splits = split_units ? ceil_div(n_units, split_units) : n_items;

        for (int j = 0; j < n_items; j++)
            items[at[j]].n_splits = (uint8_t)n_splits;
        n_partial += n_splits;
    }
    return n_runs;
}

/* Splits that a block takes one after another where a sequence's own length alone decides: as many
 * as leave no block without one. */
static int splits_per_block(const struct step_limits *l, const struct batch *b)
{
    int n = 0;

    QUERY_EACH (q, l, b)
        n += ceil_div(q.keys, split_length(l, 0, q.keys));
    n = ceil_div(n, l->target_items);
    return n < INVARIANT_SPLITS ? n : INVARIANT_SPLITS;
}

/* Split-KV work items of about equal length; returns how many. Long items come first: a block that
 * starts late with much to do would keep all others waiting. */
static int plan_splits(struct attn_item *items, const int32_t *table_start,
                       const struct step_limits *l, int64_t total, const struct batch *b)
{
    const int n_decodes = batch_decode_rows(b);
    const int per_block = l->invariant ? splits_per_block(l, b) : 1;
    int at[SIZE_CLASSES + 1] = {0};
    int n_partial = 0, longest = 1;

    QUERY_EACH (q, l, b) {
        const int length = split_length(l, total, q.keys) * per_block;

        longest = length > longest ? length : longest;
    }
    QUERY_EACH (q, l, b) {
        const int kv_len = q.keys, length = split_length(l, total, kv_len) * per_block;
        const int n_whole = kv_len / length;

        at[size_class(length, longest) + 1] += n_whole;
        if (kv_len % length)
            at[size_class(kv_len % length, longest) + 1]++;
    }
    for (int i = 1; i <= SIZE_CLASSES; i++)
        at[i] += at[i - 1]; /* where class i begins */
    must(at[SIZE_CLASSES] <= step_max_items(l, n_decodes));
    QUERY_EACH (q, l, b) {
        const int kv_len = q.keys, split_keys = split_length(l, total, kv_len);
        const int n_splits = ceil_div(kv_len, split_keys), length = split_keys * per_block;

        must(n_splits <= ATTN_MAX_SPLITS);
        for (int begin = 0; begin < kv_len; begin += length) {
            const int end = begin + length < kv_len ? begin + length : kv_len;

            items[at[size_class(end - begin, longest)]++] =
                (struct attn_item){.seq = q.row,
                                   .n_rows = (uint16_t)q.n_rows,
                                   .begin = begin,
                                   .end = end,
                                   .split = (uint8_t)(begin / split_keys),
                                   .n_splits = (uint8_t)n_splits,
                                   .units = (uint16_t)ceil_div(split_keys, ATTN_UNIT),
                                   .partial = n_partial,
                                   .table = table_start[q.row],
                                   .kv_len = kv_len};
        }
        n_partial += n_splits;
    }
    return at[SIZE_CLASSES - 1];
}

/* Runs where a block's share is neither short nor longer than LONG_SPLIT. */
static int plan_items(struct attn_item *items, const int32_t *table_start,
                      const struct step_limits *l, const struct batch *b)
{
    const int n_decodes = batch_decode_rows(b);
    int64_t total = 0;

    QUERY_EACH (q, l, b)
        total += q.keys;
    return l->target_items + n_decodes <= step_max_items(l, n_decodes) &&
                   total >= (int64_t)RUN_KEYS * l->target_items &&
                   total <= (int64_t)LONG_SPLIT * l->target_items
               ? plan_runs(items, table_start, l, b)
               : plan_splits(items, table_start, l, total, b);
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
