/* step.c - see step.h. */
#include "cuda/step.h"

#include <string.h>

#include "engine/util/must.h"

enum {
    INVARIANT_SPLITS = 16, /* of a sequence, at most, where the batch may not decide */
    RUN_KEYS = 256,        /* of a block's share, at least, for runs to be worth their many ends */
    SCRAP = 16,            /* pieces under this part of a block's share go with their neighbours */
    LONG_PIECE = 2048,     /* keys; above it pieces are cut finer than one wave of blocks needs */
    SIZE_CLASSES = 32,
    MAX_GRID_Y = 65535, /* blocks of a launch, in all but the first dimension */
};

_Static_assert(ATTN_SPLIT_ALIGN % ATTN_TURN == 0, "pieces are of whole turns");
_Static_assert((int)INVARIANT_SPLITS <= (int)ATTN_MAX_SPLITS && ATTN_MAX_SPLITS <= UINT8_MAX,
               "an item can say how many");
_Static_assert((LONG_PIECE / ATTN_TURN) * ATTN_MAX_SPLITS <= UINT16_MAX,
               "all of a step that is cut into runs has fewer turns than an item can say");

static int ceil_div(int a, int b)
{
    return (a + b - 1) / b;
}

/* Keys of a piece, at least, where a sequence's own length alone cuts it: one that is alone has
 * each of its pieces in another block and waits for the longest, of many each piece costs. */
static int invariant_keys(int kv_len)
{
    return kv_len <= 640 ? 64 : kv_len <= 768 ? 128 : 512;
}

int step_max_items(const struct step_limits *l, int n_decodes)
{
    const int64_t longest = (int64_t)l->max_blocks * l->block_len * n_decodes;
    const int64_t long_pieces = longest / LONG_PIECE + 1;
    const int fine = long_pieces < ATTN_MAX_SPLITS ? (int)long_pieces : ATTN_MAX_SPLITS;
    const int pieces = n_decodes * INVARIANT_SPLITS, few = n_decodes + l->target_items;

    if (l->invariant) /* more pieces than fill the machine go together, see together() */
        return pieces < few ? pieces : few;
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

struct step_room step_room_of(const struct step_limits *l, const struct batch *b)
{
    struct step_room r = {.n_tokens = b->n_tokens,
                          .n_seqs = b->n_seqs,
                          .n_items = step_max_items(l, b->n_decodes),
                          .n_rows = b->n_rows};

    for (int i = b->n_decodes; i < b->n_seqs; i++)
        r.n_tiles += ceil_div(b->q_start[i + 1] - b->q_start[i], ATTN_TILE);
    return r;
}

struct step_room step_room_of_graph(const struct step_limits *l, int n)
{
    return (struct step_room){
        .n_tokens = n, .n_seqs = n, .n_items = step_max_items(l, n), .n_tiles = 0, .n_rows = n};
}

/* Hands out n entries of a size behind what is taken, 16-byte aligned. */
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
    v.q_start = take(&base, r->n_seqs + 1, sizeof(*v.q_start));
    v.kv_len = take(&base, r->n_seqs, sizeof(*v.kv_len));
    v.table_start = take(&base, r->n_seqs, sizeof(*v.table_start));
    v.items = take(&base, r->n_items, sizeof(*v.items));
    v.tiles = take(&base, r->n_tiles, sizeof(*v.tiles));
    v.rows = take(&base, r->n_rows, sizeof(*v.rows));
    v.tables = (const int32_t *)(const void *)base;
    return v;
}

size_t step_max_bytes(const struct step_limits *l)
{
    const struct step_room r = {.n_tokens = l->max_tokens,
                                .n_seqs = l->max_seqs,
                                .n_items = step_max_items(l, l->max_seqs),
                                .n_tiles = l->max_tokens / ATTN_TILE + l->max_seqs,
                                .n_rows = l->max_seqs};
    const struct step_view v = step_view_at(&r, NULL);
    const size_t tables = (size_t)l->max_seqs * (size_t)l->max_blocks * sizeof(*v.tables);
    const size_t loads = (size_t)l->max_seqs * sizeof(*v.loads);
    const size_t bias = (size_t)l->max_seqs * SAMPLING_MAX_BIAS * sizeof(*v.bias);

    return (size_t)(const char *)v.tables + tables + loads + bias + 64;
}

/* Keys of each piece of a sequence but its last. Pieces of all sequences are about as long, so that
 * short and long ones fill the machine together: one wave of blocks where that makes them no longer
 * than LONG_PIECE. Else there are several waves, and what the last one lacks must be little. */
static int piece_length(const struct step_limits *l, int64_t total, int kv_len)
{
    int64_t length = (total + l->target_items - 1) / l->target_items;

    if (l->invariant) {
        const int least = invariant_keys(kv_len);

        length = ceil_div(kv_len, INVARIANT_SPLITS);
        length = length < least ? least : length;
    } else if (length > LONG_PIECE) {
        length = (total + ATTN_MAX_SPLITS - 1) / ATTN_MAX_SPLITS;
        length = length < LONG_PIECE ? LONG_PIECE : length;
    }
    if (length > 0) /* no short piece at the end */
        length = ceil_div(kv_len, (int)((kv_len + length - 1) / length));
    length = (length + ATTN_SPLIT_ALIGN - 1) / ATTN_SPLIT_ALIGN * ATTN_SPLIT_ALIGN;
    return length < kv_len ? (int)length : kv_len;
}

/* 0 for the longest pieces of a step. */
static int size_class(int length, int longest)
{
    return (int)((int64_t)(longest - length) * SIZE_CLASSES / longest);
}

/* Cuts the decodes' keys into as many equal runs as blocks of threads are there at once: a run is
 * the end of one sequence, some whole ones and the beginning of another; of whole pieces where a
 * sequence's own length alone cuts it. Returns how many. */
static int plan_runs(struct attn_item *items, const int32_t *table_start,
                     const struct step_limits *l, const struct batch *b)
{
    int left = 0, share = 0, room = 0, n_runs = 0, n_partial = 0, last = 0;
    int n = l->target_items; /* where those go that do not begin a run */

    for (int i = 0; i < b->n_decodes; i++)
        left += ceil_div(b->kv_len[i], ATTN_TURN);
    for (int i = 0; i < b->n_decodes; i++) {
        const int n_turns = ceil_div(b->kv_len[i], ATTN_TURN);
        const int piece = l->invariant ? ceil_div(piece_length(l, 0, b->kv_len[i]), ATTN_TURN) : 0;
        int at[ATTN_MAX_SPLITS], n_items = 0;

        for (int turn = 0; turn < n_turns; n_items++) {
            const bool begins = room <= share / SCRAP && n_runs < l->target_items;
            int take = n_turns - turn;

            if (begins)
                room = share = ceil_div(left, l->target_items - n_runs);
            if (take > room + share / SCRAP && (n_runs + begins < l->target_items))
                take = room;
            if (piece && turn + take < n_turns) /* whole pieces */
                take = ceil_div(take, piece) * piece;
            if (take > n_turns - turn)
                take = n_turns - turn;
            must(n_items < ATTN_MAX_SPLITS);
            at[n_items] = begins ? n_runs++ : n++;
            if (!begins)
                items[last].next = at[n_items];
            last = at[n_items];
            items[last] =
                (struct attn_item){.seq = i,
                                   .begin = turn * ATTN_TURN,
                                   .end = turn + take < n_turns ? (turn + take) * ATTN_TURN
                                                                : b->kv_len[i],
                                   .split = (uint8_t)(piece ? turn / piece : n_items),
                                   .turns = (uint16_t)(piece ? piece : take),
                                   .partial = n_partial,
                                   .table = table_start[i],
                                   .kv_len = b->kv_len[i]};
            turn += take;
            room -= take;
            left -= take;
        }
        const int n_splits = piece ? ceil_div(n_turns, piece) : n_items;

        for (int j = 0; j < n_items; j++)
            items[at[j]].n_splits = (uint8_t)n_splits;
        n_partial += n_splits;
    }
    return n_runs;
}

/* Pieces that a block of threads takes one after another where a sequence's own length alone cuts
 * it: as many as leave no block without any. */
static int together(const struct step_limits *l, const struct batch *b)
{
    int n = 0;

    for (int i = 0; i < b->n_decodes; i++)
        n += ceil_div(b->kv_len[i], piece_length(l, 0, b->kv_len[i]));
    n = ceil_div(n, l->target_items);
    return n < INVARIANT_SPLITS ? n : INVARIANT_SPLITS;
}

/* Cuts the decodes' keys into pieces; returns how many items. Long items come first: a block that
 * begins late and has much to do would keep all others waiting. */
static int plan_pieces(struct attn_item *items, const int32_t *table_start,
                       const struct step_limits *l, const struct batch *b)
{
    int at[SIZE_CLASSES + 1] = {0};
    int64_t total = 0;
    int n_partial = 0, longest = 1, n_together = 1;

    for (int i = 0; i < b->n_decodes; i++)
        total += b->kv_len[i];
    if (l->invariant)
        n_together = together(l, b);
    for (int i = 0; i < b->n_decodes; i++) {
        const int length = piece_length(l, total, b->kv_len[i]) * n_together;

        longest = length > longest ? length : longest;
    }
    for (int i = 0; i < b->n_decodes; i++) {
        const int kv_len = b->kv_len[i], length = piece_length(l, total, kv_len) * n_together;
        const int n_whole = kv_len / length;

        at[size_class(length, longest) + 1] += n_whole;
        if (kv_len % length)
            at[size_class(kv_len % length, longest) + 1]++;
    }
    for (int i = 1; i <= SIZE_CLASSES; i++)
        at[i] += at[i - 1]; /* where class i begins */
    must(at[SIZE_CLASSES] <= step_max_items(l, b->n_decodes));
    for (int i = 0; i < b->n_decodes; i++) {
        const int kv_len = b->kv_len[i], piece = piece_length(l, total, kv_len);
        const int n_splits = ceil_div(kv_len, piece), length = piece * n_together;

        must(n_splits <= ATTN_MAX_SPLITS);
        for (int begin = 0; begin < kv_len; begin += length) {
            const int end = begin + length < kv_len ? begin + length : kv_len;

            items[at[size_class(end - begin, longest)]++] =
                (struct attn_item){.seq = i,
                                   .begin = begin,
                                   .end = end,
                                   .split = (uint8_t)(begin / piece),
                                   .n_splits = (uint8_t)n_splits,
                                   .turns = (uint16_t)ceil_div(piece, ATTN_TURN),
                                   .partial = n_partial,
                                   .table = table_start[i],
                                   .kv_len = kv_len};
        }
        n_partial += n_splits;
    }
    return at[SIZE_CLASSES - 1];
}

/* One wave of blocks where their shares are neither short nor longer than LONG_PIECE. */
static int plan_items(struct attn_item *items, const int32_t *table_start,
                      const struct step_limits *l, const struct batch *b)
{
    int64_t total = 0;

    for (int i = 0; i < b->n_decodes; i++)
        total += b->kv_len[i];
    return l->target_items + b->n_decodes <= step_max_items(l, b->n_decodes) &&
                   total >= (int64_t)RUN_KEYS * l->target_items &&
                   total <= (int64_t)LONG_PIECE * l->target_items
               ? plan_runs(items, table_start, l, b)
               : plan_pieces(items, table_start, l, b);
}

static int plan_tiles(struct attn_tile *tiles, const int32_t *table_start, const struct batch *b)
{
    int n = 0;

    for (int i = b->n_decodes; i < b->n_seqs; i++) {
        const int rows = b->q_start[i + 1] - b->q_start[i];

        for (int at = 0; at < rows; at += ATTN_TILE)
            tiles[n++] = (struct attn_tile){.seq = i,
                                            .first = at,
                                            .row0 = b->q_start[i] + at,
                                            .n_rows = rows - at < ATTN_TILE ? rows - at : ATTN_TILE,
                                            .position = b->kv_len[i] - rows + at,
                                            .table = table_start[i],
                                            .kv_len = b->kv_len[i]};
    }
    return n;
}

static struct sampler_load load_of(const struct batch_load *from, int bias_first)
{
    const struct sampling *s = from->sampling;
    struct sampler_load l = {
        .state = from->state,
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
        memcpy(l.to.stop_ids, s->stop_ids, (size_t)s->n_stop_ids * sizeof(*s->stop_ids));
    return l;
}

static void fill(void *to, const void *from, int n, size_t size)
{
    if (n > 0)
        memcpy(to, from, (size_t)n * size);
}

/* Block tables one behind another without their unused ends; returns the entries. */
static int pack_tables(int32_t *tables, int32_t *starts, const struct step_limits *l,
                       const struct batch *b)
{
    int n = 0;

    for (int i = 0; i < b->n_seqs; i++) {
        const int n_blocks = ceil_div(b->kv_len[i], l->block_len);

        must(b->kv_len[i] > 0 && n_blocks <= b->max_blocks && n_blocks <= l->max_blocks);
        starts[i] = n;
        fill(tables + n, b->block_table + (size_t)i * (size_t)b->max_blocks, n_blocks,
             sizeof(*tables));
        n += n_blocks;
    }
    return n;
}

/* Rows that only fill a graph up: token 0 at position 0, stored nowhere. */
static void pack_tokens(const struct step_view *v, const struct step_room *r, const struct batch *b)
{
    fill((int32_t *)v->tokens, b->tokens, b->n_tokens, sizeof(*b->tokens));
    fill((int32_t *)v->positions, b->positions, b->n_tokens, sizeof(*b->positions));
    fill((int32_t *)v->slots, b->slots, b->n_tokens, sizeof(*b->slots));
    for (int i = b->n_tokens; i < r->n_tokens; i++) {
        ((int32_t *)v->tokens)[i] = 0;
        ((int32_t *)v->positions)[i] = 0;
        ((int32_t *)v->slots)[i] = -1;
    }
}

size_t step_pack(char *host, struct step_view *on_device, const char *device,
                 const struct step_limits *l, const struct step_room *r, const struct batch *b,
                 int slot)
{
    struct step_view v = step_view_at(r, host);
    const char *end;
    int n_tables, n_bias = 0;

    pack_tokens(&v, r, b);
    fill((int32_t *)v.q_start, b->q_start, b->n_seqs + 1, sizeof(*b->q_start));
    fill((int32_t *)v.kv_len, b->kv_len, b->n_seqs, sizeof(*b->kv_len));
    n_tables = pack_tables((int32_t *)v.tables, (int32_t *)v.table_start, l, b);
    for (int i = 0; i < b->n_rows; i++)
        ((struct sampler_row *)v.rows)[i] = (struct sampler_row){.row = b->rows[i].row,
                                                                 .state = b->rows[i].state,
                                                                 .counter = b->rows[i].counter,
                                                                 .ban_stops = b->rows[i].ban_stops};
    *(struct step_counts *)v.counts = (struct step_counts){
        .n_tokens = b->n_tokens,
        .n_seqs = b->n_seqs,
        .n_decodes = b->n_decodes,
        .n_rows = b->n_rows,
        .n_items = plan_items((struct attn_item *)v.items, v.table_start, l, b),
        .n_tiles = plan_tiles((struct attn_tile *)v.tiles, v.table_start, b),
        .slot = slot,
        .n_loads = b->n_loads,
    };
    end = (const char *)v.tables;
    (void)take(&end, n_tables, sizeof(*v.tables));
    v.loads = take(&end, b->n_loads, sizeof(*v.loads));
    v.bias = (const struct logit_bias *)(const void *)end;
    for (int i = 0; i < b->n_loads; i++) {
        const struct sampling *s = b->loads[i].sampling;

        ((struct sampler_load *)v.loads)[i] = load_of(&b->loads[i], n_bias);
        fill((struct logit_bias *)v.bias + n_bias, s->bias, s->n_bias, sizeof(*s->bias));
        n_bias += s->n_bias;
    }
    *on_device = step_view_at(r, device);
    on_device->loads = (const struct sampler_load *)(device + ((const char *)v.loads - host));
    on_device->bias = (const struct logit_bias *)(device + ((const char *)v.bias - host));
    return (size_t)((const char *)(v.bias + n_bias) - host);
}
