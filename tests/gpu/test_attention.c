/* test_attention.c - decode and prefill attention over paged keys against a plain twin in double:
 * mixed lengths, any grouping of heads, scattered blocks. What no sequence has written is NaN; so
 * is the key of this step before decode attention has made it, which is to be what rope_store()
 * makes of it, to the bit. */
#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cuda/device.h"
#include "cuda/step.h"
#include "engine/util/bf16.h"
#include "tests/gpu/device_array.h"
#include "tests/tools/make_batch.h"
#include "tests/unit/run_suite.h"

enum { LAYERS = 2, LAYER = 1, MAX_SEQS = 64, MAX_LEN = 9000 };

/* One attention call: its shapes and its sequences. */
struct scene {
    int n_heads, n_kv, dim, block_shift;
    int n_seqs, n_decodes;
    const int *q_len, *kv_len; /* [n_seqs] */
    bool invariant;
    int n_splits; /* of prefill tiles */
    bool bare;    /* decodes' heads are rotated, but not normed */
    int n_items;  /* that the plan of decodes aims at; 0: 40 */
};

static struct device device;

static void setup(void)
{
    struct err e;

    ck_assert_msg(device_open(&device, 0, &e) == 0, "%s", e.text);
    cuda_must(attn_prefill_init());
    random_seed(11);
}

static void teardown(void)
{
    device_close(&device);
}

struct paged {
    struct kv_pool kv;
    struct device_array pool;
    int32_t table[MAX_SEQS * (MAX_LEN / 16 + 1)];
    int max_blocks, n_blocks;
};

static uint16_t *slot_of(const struct paged *p, int seq, int head, int key, bool v)
{
    const int block = p->table[seq * p->max_blocks + (key >> p->kv.block_shift)];
    const int at = key & ((1 << p->kv.block_shift) - 1);

    return (uint16_t *)p->pool.host + block * p->kv.block_stride + LAYER * p->kv.layer_stride +
           (v ? p->kv.v_offset : 0) + ((head << p->kv.block_shift) + at) * p->kv.head_dim;
}

/* Blocks of all sequences in mixed order, their keys and values random; of decodes without the
 * last.
 */
static void paged_init(struct paged *p, const struct scene *s)
{
    const int block_len = 1 << s->block_shift;
    const int64_t v_offset = (int64_t)s->n_kv * block_len * s->dim;
    int n = 0, at = 0;

    p->max_blocks = 0;
    for (int i = 0; i < s->n_seqs; i++) {
        const int blocks = (s->kv_len[i] + block_len - 1) / block_len;

        p->max_blocks = blocks > p->max_blocks ? blocks : p->max_blocks;
        n += blocks;
    }
    ck_assert_int_ne(n % 7919, 0);
    memset(p->table, 0xff, sizeof(p->table));
    for (int i = 0; i < s->n_seqs; i++)
        for (int j = 0; j * block_len < s->kv_len[i]; j++, at++)
            p->table[i * p->max_blocks + j] = (int32_t)((int64_t)at * 7919 % n);
    p->n_blocks = n;
    p->pool = array_new((size_t)(n * LAYERS * 2 * v_offset) * 2);
    p->kv = (struct kv_pool){p->pool.device, 2 * v_offset * LAYERS, 2 * v_offset,
                             v_offset,       s->block_shift,        s->n_kv,
                             s->dim};
    for (int i = 0; i < s->n_seqs; i++)
        for (int h = 0; h < s->n_kv; h++)
            for (int k = 0; k < s->kv_len[i] - (i < s->n_decodes); k++)
                for (int v = 0; v < 2; v++)
                    for (int d = 0; d < s->dim; d++)
                        slot_of(p, i, h, k, v)[d] = bf16_from_f32(random_normal());
    array_to_device(&p->pool);
}

/* Query row at a position over keys 0 .. position. */
static void row_twin(double *out, const uint16_t *q, const struct paged *p, int seq, int kv_head,
                     int position)
{
    const int dim = p->kv.head_dim;
    double *score = malloc(((size_t)position + 1) * sizeof(double)), max = -1e300, sum = 0.0;

    for (int k = 0; k <= position; k++) {
        const uint16_t *key = slot_of(p, seq, kv_head, k, false);

        score[k] = 0.0;
        for (int d = 0; d < dim; d++)
            score[k] += (double)f32_from_bf16(q[d]) * (double)f32_from_bf16(key[d]);
        score[k] /= sqrt((double)dim);
        max = fmax(max, score[k]);
    }
    memset(out, 0, (size_t)dim * sizeof(double));
    for (int k = 0; k <= position; k++) {
        const uint16_t *value = slot_of(p, seq, kv_head, k, true);
        const double w = exp(score[k] - max);

        sum += w;
        for (int d = 0; d < dim; d++)
            out[d] += w * (double)f32_from_bf16(value[d]);
    }
    for (int d = 0; d < dim; d++)
        out[d] /= sum;
    free(score);
}

struct run {
    struct device_array q, out, step, partial, counters, splits, split_counters;
    struct device_array norms, circle; /* [2, dim]; of rope_table() */
    struct device_array rotated;       /* q, decodes' rows as rope_store() leaves them */
    int64_t q_stride;
    int n_tokens;
    int32_t q_start[MAX_SEQS + 1];
};

/* Decodes' rows and keys by rope_store(), on a copy of q and of the pool. Reunits that pool. */
static struct device_array rotate_rows(struct run *r, const struct scene *s, const struct paged *p,
                                       const struct rope *rope, const struct step_view *v)
{
    struct device_array pool = array_new(p->pool.bytes);
    struct kv_pool kv = p->kv;

    memcpy(pool.host, p->pool.host, pool.bytes);
    array_to_device(&pool);
    r->rotated = array_new(r->q.bytes);
    memcpy(r->rotated.host, r->q.host, r->q.bytes);
    array_to_device(&r->rotated);
    kv.base = pool.device;
    if (s->n_decodes)
        cuda_must(rope_store(&device.launch, r->rotated.device, rope, &kv, LAYER, v, 0,
                             s->n_decodes, s->n_heads));
    array_to_host(&pool);
    array_to_host(&r->rotated);
    return pool;
}

/* hopper: prefill by the kernel for compute capability 9.0. */
static void launch(struct run *r, const struct scene *s, struct paged *p, bool hopper)
{
    const int32_t zeros[MAX_SEQS * 600] = {0};
    int32_t positions[MAX_SEQS * 600] = {0}, slots[MAX_SEQS * 600] = {0};
    const struct step_limits limits = {.max_tokens = r->n_tokens,
                                       .max_seqs = MAX_SEQS,
                                       .max_blocks = p->max_blocks,
                                       .block_len = 1 << s->block_shift,
                                       .target_items = s->n_items ? s->n_items : 40,
                                       .invariant = s->invariant};
    const struct batch_parts parts = {.step = 1,
                                      .n_tokens = r->n_tokens,
                                      .n_seqs = s->n_seqs,
                                      .n_decodes = s->n_decodes,
                                      .max_blocks = p->max_blocks,
                                      .tokens = zeros,
                                      .positions = positions,
                                      .slots = slots,
                                      .q_start = r->q_start,
                                      .kv_len = s->kv_len,
                                      .block_table = p->table};
    const struct rope rope = {.q_norm = s->bare ? NULL : r->norms.device,
                              .k_norm = s->bare ? NULL : (uint16_t *)r->norms.device + s->dim,
                              .table = r->circle.device,
                              .eps = 1e-6f};
    struct step_room room;
    struct batch *b;
    const struct attn a = {r->out.device, r->q.device, r->q_stride, s->n_heads, LAYER, &p->kv};
    const int passes = s->n_kv * ((s->n_heads / s->n_kv + ATTN_GROUP - 1) / ATTN_GROUP);
    const size_t decoded = (size_t)(s->n_decodes * s->n_heads * s->dim) * 2; /* bytes of out */
    const struct step_counts *counts;
    struct device_array stored;
    char *first;
    struct attn_maps maps;
    struct step_view v;
    struct attn_prefill t = {.n_splits = s->n_splits > 1 ? s->n_splits : 1};

    r->step = array_new(step_max_bytes(&limits));
    r->partial = array_new(
        (size_t)(step_max_partials(&limits, MAX_SEQS) * passes * ATTN_GROUP * (s->dim + 2)) * 4);
    r->counters = array_new((size_t)(MAX_SEQS * passes) * 4);
    memset(r->counters.host, 0, r->counters.bytes);
    array_to_device(&r->counters);
    r->splits = array_new(attn_prefill_partial_bytes(s->dim));
    r->split_counters = array_new(ATTN_PREFILL_COUNTERS * 4);
    memset(r->split_counters.host, 0, r->split_counters.bytes);
    array_to_device(&r->split_counters);
    for (int i = 0; i < s->n_decodes; i++) {
        const int at = s->kv_len[i] - 1;

        positions[i] = at;
        slots[i] = (p->table[i * p->max_blocks + (at >> s->block_shift)] << s->block_shift) +
                   (at & (limits.block_len - 1));
    }
    b = make_batch(&parts);
    room = step_room_of(&limits, b);
    (void)step_pack(r->step.host, &v, r->step.device, &limits, &room, b, 0);
    free(b);
    counts = r->step.host;
    array_to_device(&r->step);
    for (int i = s->n_decodes; i < s->n_seqs; i++)
        t.max_kv_len = s->kv_len[i] > t.max_kv_len ? s->kv_len[i] : t.max_kv_len;
    t.partial = r->splits.device;
    t.counters = r->split_counters.device;
    t.n_tiles = counts->n_tiles;
    if (hopper) {
        cuda_must(
            attn_maps_init(&maps, &p->kv, p->n_blocks, r->q.device, r->q_stride, r->n_tokens));
        ck_assert(maps.usable);
    }
    stored = rotate_rows(r, s, p, &rope, &v);
    first = malloc(decoded);
    for (int i = 0; i < 2; i++) { /* twice: counters must be as they were */
        /* few blocks have more loads in flight; then so many that they have not */
        const int grid_items =
            i == 0 ? counts->n_items : room.n_items + 2 * device.launch.n_sms / passes + 1;

        cuda_must(cudaMemset(r->out.device, 0xff, r->out.bytes));
        cuda_must(cudaDeviceSynchronize());
        if (counts->n_items)
            cuda_must(attn_decode(&device.launch, &a, &rope, &v, r->partial.device,
                                  r->counters.device, grid_items));
        if (counts->n_tiles)
            cuda_must(hopper ? attn_prefill_sm90(&device.launch, &a, &maps, &v, &t)
                             : attn_prefill(&device.launch, &a, &v, &t));
        array_to_host(&r->out);
        if (i == 0)
            memcpy(first, r->out.host, decoded);
        ck_assert_mem_eq(first, r->out.host, decoded);
    }
    free(first);
    array_to_host(&p->pool);
    ck_assert_mem_eq(p->pool.host, stored.host, stored.bytes);
    array_free(&stored);
}

/* Checks a chunk's first two rows, its last and some between. */
static int next_row(int row, int n)
{
    const int step = row == 0 ? 1 : 37;

    return row + step >= n && row < n - 1 ? n - 1 : row + step;
}

/* Random queries, outputs poisoned. */
static struct run run_new(const struct scene *s)
{
    struct run r = {.q_stride = (s->n_heads + 2 * s->n_kv) * s->dim};

    for (int i = 0; i < s->n_seqs; i++)
        r.q_start[i + 1] = r.q_start[i] + s->q_len[i];
    r.n_tokens = r.q_start[s->n_seqs];
    ck_assert_int_le(r.n_tokens, MAX_SEQS * 600);
    r.q = array_new((size_t)(r.n_tokens * r.q_stride) * 2);
    r.out = array_new((size_t)(r.n_tokens * s->n_heads * s->dim) * 2);
    fill_bf16(&r.q, 1.5f);
    r.norms = array_new((size_t)(2 * s->dim) * 2);
    fill_bf16(&r.norms, 1.0f);
    r.circle = array_new((size_t)MAX_LEN * (size_t)s->dim * 4);
    cuda_must(rope_table(&device.launch, r.circle.device, MAX_LEN, s->dim, 1e6));
    return r;
}

static void run_free(struct run *r)
{
    array_free(&r->q);
    array_free(&r->out);
    array_free(&r->step);
    array_free(&r->partial);
    array_free(&r->counters);
    array_free(&r->splits);
    array_free(&r->split_counters);
    array_free(&r->norms);
    array_free(&r->circle);
    array_free(&r->rotated);
}

static void check_kernel(const struct scene *s, bool hopper)
{
    struct paged *p = malloc(sizeof(*p));
    struct run r = run_new(s);
    double *twin = malloc((size_t)s->dim * sizeof(double));
    double *got = malloc((size_t)s->dim * sizeof(double));

    paged_init(p, s);
    launch(&r, s, p, hopper);
    for (int i = 0; i < s->n_seqs; i++)
        for (int j = 0; j < s->q_len[i]; j = next_row(j, s->q_len[i]))
            for (int h = 0; h < s->n_heads; h++) {
                const int row = r.q_start[i] + j, position = s->kv_len[i] - s->q_len[i] + j;
                const uint16_t *out = (uint16_t *)r.out.host + (row * s->n_heads + h) * s->dim;

                row_twin(twin, (uint16_t *)r.rotated.host + row * r.q_stride + h * s->dim, p, i,
                         h / (s->n_heads / s->n_kv), position);
                for (int d = 0; d < s->dim; d++)
                    got[d] = bf16_value(out[d]);
                ck_assert_msg(relative_error(got, twin, (size_t)s->dim) < 1e-2,
                              "hopper %d heads %d/%d dim %d block %d seq %d row %d head %d: %g",
                              hopper, s->n_heads, s->n_kv, s->dim, 1 << s->block_shift, i, j, h,
                              relative_error(got, twin, (size_t)s->dim));
            }
    free(twin);
    free(got);
    array_free(&p->pool);
    free(p);
    run_free(&r);
}

static void check_scene(const struct scene *s)
{
    check_kernel(s, false);
    if (device.compute == 90 && s->n_decodes < s->n_seqs)
        check_kernel(s, true);
}

/* Items from `first` on: each within its sequence, its ends where units end. Reunits their units.
 */
static int check_run(const struct attn_item *items, int first, int n_first, int n_items,
                     const int32_t *kv_len, int *covered, int *pieces)
{
    int n = 0, units = 0, n_pieces;

    for (int at = first; n == 0 || at > 0; at = items[at].next, n++) {
        const struct attn_item *i = &items[at];

        ck_assert(n == 0 || at >= n_first);
        ck_assert_int_lt(at, n_items);
        ck_assert(i->begin >= 0 && i->begin % 16 == 0 && i->begin < i->end);
        ck_assert(i->end == kv_len[i->seq] || (i->end % 16 == 0 && i->end < kv_len[i->seq]));
        ck_assert_int_eq(i->kv_len, kv_len[i->seq]);
        ck_assert_int_gt(i->units, 0);
        n_pieces = (i->end - i->begin + i->units * 16 - 1) / (i->units * 16);
        ck_assert_int_le(i->split + n_pieces, i->n_splits);
        covered[i->seq] += i->end - i->begin;
        pieces[i->seq] |= i->n_splits;
        pieces[i->seq] += n_pieces << 16;
        units += (i->end - i->begin + 15) / 16;
    }
    return units;
}

/* Each sequence has room of its own for partial results, all its items the same. */
static void check_partials(const struct step_view *v, const struct step_limits *l, int n)
{
    const int room = step_max_partials(l, n);
    bool *taken = calloc((size_t)room, sizeof(*taken));
    int begins[MAX_SEQS];

    memset(begins, 0xff, sizeof(begins));
    for (int first = 0; first < v->counts->n_items; first++) {
        const struct attn_item *i = &v->items[first];

        for (bool more = true; more; more = i->next > 0, i = &v->items[i->next]) {
            if (begins[i->seq] >= 0) {
                ck_assert_int_eq(i->partial, begins[i->seq]);
                continue;
            }
            begins[i->seq] = i->partial;
            ck_assert(i->partial >= 0 && i->partial + i->n_splits <= room);
            for (int j = 0; j < i->n_splits; j++) {
                ck_assert(!taken[i->partial + j]);
                taken[i->partial + j] = true;
            }
        }
    }
    free(taken);
}

static void check_plan(const int32_t *kv_len, int n, int target, bool invariant, bool even)
{
    static const int32_t zeros[MAX_SEQS + 1], table[MAX_SEQS * (40960 / 16)];
    const struct step_limits limits = {.max_tokens = MAX_SEQS,
                                       .max_seqs = MAX_SEQS,
                                       .max_blocks = 40960 / 16,
                                       .block_len = 16,
                                       .target_items = target,
                                       .invariant = invariant};
    const struct batch_parts parts = {.step = 1,
                                      .n_tokens = n,
                                      .n_seqs = n,
                                      .n_decodes = n,
                                      .max_blocks = limits.max_blocks,
                                      .tokens = zeros,
                                      .positions = zeros,
                                      .slots = zeros,
                                      .q_start = zeros,
                                      .kv_len = kv_len,
                                      .block_table = table};
    struct step_room room;
    struct batch *b;
    char *memory = malloc(step_max_bytes(&limits));
    int covered[MAX_SEQS] = {0}, pieces[MAX_SEQS] = {0}, most = 0, all = 0, n_first;
    struct step_view v;

    memset(memory, 0x5a, step_max_bytes(&limits));
    b = make_batch(&parts);
    room = step_room_of(&limits, b);
    (void)step_pack(memory, &v, memory, &limits, &room, b, 0);
    free(b);
    n_first = v.counts->n_items;
    ck_assert_int_le(n_first, room.n_items);
    for (int i = 0; i < n_first; i++) {
        const int units = check_run(v.items, i, n_first, room.n_items, kv_len, covered, pieces);

        most = units > most ? units : most;
        all += units;
    }
    check_partials(&v, &limits, n);
    for (int i = 0; i < n; i++) {
        ck_assert_int_eq(covered[i], kv_len[i]);
        ck_assert_int_eq(pieces[i] >> 16, pieces[i] & 0xffff); /* as many as each of them says */
    }
    if (even) {
        ck_assert_int_eq(n_first, target);
        ck_assert_int_le(most * target, all + all / 8 + target);
    }
    free(memory);
}

/* Every key is in one work item, whatever the lengths; middling batches are cut into equal runs. */
START_TEST(plans_take_every_key_once)
{
    int32_t kv_len[MAX_SEQS];

    for (int i = 0; i < 1000; i++) {
        const int n = 1 + (int)(random_bits() % MAX_SEQS), kind = i % 4;
        const uint32_t most = kind == 0 ? 30 : kind == 1 ? 700 : kind == 2 ? 2000 : 40960;

        for (int j = 0; j < n; j++)
            kv_len[j] = 1 + (int32_t)(random_bits() % (kind == 3 && j % 9 ? 20 : most));
        check_plan(kv_len, n, 1 + (int)(random_bits() % ATTN_MAX_SPLITS), i % 5 == 0, false);
    }
    for (int i = 0; i < MAX_SEQS; i++)
        kv_len[i] = 584;
    check_plan(kv_len, 64, 49, false, true);
    check_plan(kv_len, 37, 49, false, true);
    for (int i = 0; i < MAX_SEQS; i++)
        kv_len[i] = 100 + i * 53 % 1900;
    check_plan(kv_len, 50, 49, false, true);
    for (int i = 0; i < MAX_SEQS; i++)
        kv_len[i] = 40960;
    for (int n = 1; n <= MAX_SEQS; n++) /* as many items as there are at most, nearly */
        check_plan(kv_len, n, ATTN_MAX_SPLITS, true, false);
}
END_TEST

static const int ones[MAX_SEQS] = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1};
static const int lengths[] = {1, 15, 16, 17, 63, 64, 65, 127, 1000, 5003};

/* Short and long sequences together, groups of 1 to 12 query heads, both head sizes. */
START_TEST(decode_follows_twin)
{
    static const int heads[][2] = {{1, 1}, {4, 2}, {8, 2}, {7, 1}, {8, 1}, {12, 1}};

    for (size_t i = 0; i < sizeof(heads) / sizeof(*heads); i++)
        for (int dim = 64; dim <= 128; dim += 64)
            check_scene(&(struct scene){heads[i][0], heads[i][1], dim, i % 2 ? 4 : 6, 10, 10, ones,
                                        lengths, i == 2, 1, i == 3, i == 2 ? 3 : 0});
}
END_TEST

/* n_items: blocks of threads that all sequences together are cut for. */
static void check_alone(int n_items)
{
    const struct scene together = {16, 8, 128, 4, 10, 10, ones, lengths, true, 1, false, n_items};
    struct paged *p = malloc(sizeof(*p));
    struct run all = run_new(&together);
    const size_t row = 16 * 128;

    paged_init(p, &together);
    launch(&all, &together, p, false);
    for (int i = 0; i < together.n_seqs; i++) {
        struct scene alone = together;
        struct paged one = *p;
        struct run r;

        alone.n_seqs = alone.n_decodes = 1;
        alone.n_items = 0; /* each split by its own block, or several by one */
        alone.kv_len = lengths + i;
        memcpy(one.table, p->table + i * p->max_blocks, (size_t)p->max_blocks * sizeof(int32_t));
        r = run_new(&alone);
        memcpy(r.q.host, (uint16_t *)all.q.host + i * all.q_stride, r.q.bytes);
        array_to_device(&r.q);
        memcpy(r.norms.host, all.norms.host, r.norms.bytes);
        array_to_device(&r.norms);
        launch(&r, &alone, &one, false);
        ck_assert_mem_eq(r.out.host, (uint16_t *)all.out.host + (size_t)i * row, row * 2);
        run_free(&r);
    }
    run_free(&all);
    array_free(&p->pool);
    free(p);
}

/* In invariant mode a sequence's result and its key have the same bits alone and among others:
 * split over several blocks, in one, in runs. */
START_TEST(decode_does_not_depend_on_others)
{
    check_alone(40);
    check_alone(3);
    check_alone(4);
    check_alone(13);
}
END_TEST

/* Blocks of threads that take the end of one sequence, whole ones and the beginning of another. */
START_TEST(decode_in_runs_follows_twin)
{
    int kv_len[MAX_SEQS], q_len[MAX_SEQS];

    for (int i = 0; i < MAX_SEQS; i++) {
        q_len[i] = 1;
        kv_len[i] = i % 11 == 3 ? 900 : 1 + i * 131 % 400;
    }
    check_scene(&(struct scene){4, 2, 128, 4, 63, 63, q_len, kv_len, false, 1, false, 0});
    check_scene(&(struct scene){12, 1, 64, 5, 60, 60, q_len, kv_len, false, 1, true, 0});
    check_scene(&(struct scene){16, 8, 64, 4, 63, 63, q_len, kv_len, false, 1, false, 49});
}
END_TEST

/* A long sequence alone is split and joined. */
START_TEST(decode_of_one_long_sequence)
{
    check_scene(&(struct scene){16, 8, 128, 4, 1, 1, ones, &lengths[9], false, 1, false, 0});
    check_scene(&(struct scene){4, 2, 128, 8, 1, 1, ones, &lengths[4], false, 1, false, 0});
}
END_TEST

/* Chunks of 1 to 300 rows behind 0 to 1,003 earlier tokens, beside decodes. */
START_TEST(prefill_follows_twin)
{
    static const int q_len[] = {1, 1, 1, 5, 128, 129, 300, 64, 17};
    static const int kv_len[] = {33, 700, 1, 5, 128, 1129, 300, 1067, 2020};
    static const int heads[][2] = {{2, 2}, {4, 2}, {7, 1}};

    for (size_t i = 0; i < sizeof(heads) / sizeof(*heads); i++)
        for (int dim = 64; dim <= 128; dim += 64)
            check_scene(&(struct scene){heads[i][0], heads[i][1], dim, i == 1 ? 8 : 4, 9, 2, q_len,
                                        kv_len, false, 1, false, 0});
}
END_TEST

/* Keys split over more blocks than some rows have use for. */
START_TEST(split_prefill_follows_twin)
{
    static const int q_len[] = {1, 16, 130, 5};
    static const int kv_len[] = {5003, 3016, 1130, 5};

    for (int splits = 2; splits <= 13; splits += 11)
        for (int dim = 64; dim <= 128; dim += 64)
            check_scene(
                &(struct scene){4, 2, dim, 4, 4, 0, q_len, kv_len, false, splits, false, 0});
    check_scene(&(struct scene){16, 8, 128, 4, 4, 0, q_len, kv_len, false, 6, false, 0});
}
END_TEST

/* Any number of query heads for a KV head, blocks shorter and longer than a tile of keys, chunks
 * that begin and end anywhere. */
START_TEST(prefill_of_all_shapes)
{
    static const int q_len[] = {127, 1, 130, 77, 257};
    static const int kv_len[] = {127, 1, 1003, 8500, 513};
    static const int heads[][2] = {{1, 1}, {4, 2}, {8, 2}, {5, 1}, {7, 1}, {8, 1}};
    static const int shifts[] = {4, 6, 8, 12, 7, 5};

    for (size_t i = 0; i < sizeof(heads) / sizeof(*heads); i++)
        for (int dim = 64; dim <= 128; dim += 64)
            check_scene(&(struct scene){heads[i][0], heads[i][1], dim, shifts[i], 5, 0, q_len,
                                        kv_len, false, 1, false, 0});
}
END_TEST

/* More work items than multiprocessors: each block takes several. */
START_TEST(prefill_of_many_tiles)
{
    static const int q_len[] = {2500, 1200};
    static const int kv_len[] = {2500, 3333};

    check_scene(&(struct scene){16, 8, 128, 4, 2, 0, q_len, kv_len, false, 1, false, 0});
}
END_TEST

/* A row's result is the same to the bit wherever its chunk begins. */
START_TEST(prefill_does_not_depend_on_chunks)
{
    static const int kv_len[] = {1000}, whole_len[] = {1000}, rest_len[] = {613};
    const struct scene whole = {4, 2, 128, 4, 1, 0, whole_len, kv_len, true, 1, false, 0};
    const struct scene rest = {4, 2, 128, 4, 1, 0, rest_len, kv_len, true, 1, false, 0};

    for (int hopper = 0; hopper <= (device.compute == 90); hopper++) {
        struct paged *p = malloc(sizeof(*p));
        struct run a = run_new(&whole), b = run_new(&rest);
        const size_t skipped = 1000 - 613, row = 4 * 128;

        paged_init(p, &whole);
        memcpy(b.q.host, (uint16_t *)a.q.host + (int64_t)skipped * a.q_stride, b.q.bytes);
        array_to_device(&b.q);
        launch(&a, &whole, p, hopper);
        launch(&b, &rest, p, hopper);
        ck_assert_mem_eq(b.out.host, (uint16_t *)a.out.host + skipped * row, b.out.bytes);
        run_free(&a);
        run_free(&b);
        array_free(&p->pool);
        free(p);
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("attention");
    TCase *t = tcase_create("decode"), *prefill = tcase_create("prefill");

    tcase_add_unchecked_fixture(t, setup, teardown);
    tcase_add_unchecked_fixture(prefill, setup, teardown);
    tcase_set_timeout(t, 120);
    tcase_set_timeout(prefill, 120);
    tcase_add_test(t, plans_take_every_key_once);
    tcase_add_test(t, decode_follows_twin);
    tcase_add_test(t, decode_in_runs_follows_twin);
    tcase_add_test(t, decode_does_not_depend_on_others);
    tcase_add_test(t, decode_of_one_long_sequence);
    tcase_add_test(prefill, prefill_follows_twin);
    tcase_add_test(prefill, split_prefill_follows_twin);
    tcase_add_test(prefill, prefill_of_all_shapes);
    tcase_add_test(prefill, prefill_of_many_tiles);
    tcase_add_test(prefill, prefill_does_not_depend_on_chunks);
    suite_add_tcase(suite, t);
    suite_add_tcase(suite, prefill);
    return run_suite_here(suite);
}
