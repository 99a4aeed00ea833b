/* test_attention.c - decode and prefill attention over paged keys against a plain twin in double:
 * mixed lengths, any grouping of heads, scattered blocks. What no sequence has written is NaN; so
 * is the key of this step before decode attention has made it, which is to be what rope_store()
 * makes of it, to the bit. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/util/bf16.h"
#include "tests/gpu/attention_rig.h"
#include "tests/unit/run_suite.h"

enum { MAX_SEQS = 64, LAYERS = 2 };

static bool has_hopper; /* the kernels for compute capability 9.0 can be launched */

static void set_up(void)
{
    device_set_up();
    cuda_must(attn_prefill_init());
    cuda_must(attn_decode_sm90_init(&has_hopper));
    ck_assert(has_hopper == (device.compute == 90));
}

/* Keys and values of some sequences, on the host too. */
struct keys {
    struct paged paged;
    struct device_array pool;
};

/* The row of a key or value. */
static struct kv_twin row_of(const struct keys *k, int seq, int head, int key, bool v)
{
    const struct kv_pool *kv = &k->paged.kv;
    const int block = k->paged.table[seq * k->paged.max_blocks + (key >> kv->block_shift)];

    return kv_twin_of(kv, (uint16_t *)k->pool.host + block * kv->block_stride, k->paged.layer, head,
                      key & ((1 << kv->block_shift) - 1), v);
}

/* Random keys and values of all sequences, of decodes without the last. */
static struct keys keys_new(const struct scene *s)
{
    struct keys k = {.paged = paged_new(s, LAYERS)};

    k.pool = array_new(k.paged.pool_bytes);
    k.paged.kv.base = k.pool.device;
    for (int i = 0; i < s->n_seqs; i++)
        for (int h = 0; h < s->n_kv; h++)
            for (int key = 0; key < s->kv_len[i] - (i < s->n_decodes); key++)
                for (int v = 0; v < 2; v++) {
                    const struct kv_twin row = row_of(&k, i, h, key, v);

                    for (int d = 0; d < s->dim; d++)
                        if (s->fp8)
                            row.e4m3[d] = (uint8_t)(random_bits() % 2 * 128 + random_bits() % 127);
                        else
                            row.bf16[d] = bf16_from_f32(random_normal());
                    if (s->fp8)
                        *row.exponent = (uint8_t)(118 + random_bits() % 3); /* 448 becomes 0.9 .. */
                }
    array_to_device(&k.pool);
    return k;
}

/* Query row at a position over keys 0 .. position. */
static void row_twin(double *out, const uint16_t *q, const struct keys *k, int seq, int kv_head,
                     int position)
{
    const int dim = k->paged.kv.head_dim;
    double *score = malloc(((size_t)position + 1) * sizeof(double)), max = -1e300, sum = 0.0;

    for (int i = 0; i <= position; i++) {
        const struct kv_twin key = row_of(k, seq, kv_head, i, false);

        score[i] = 0.0;
        for (int d = 0; d < dim; d++)
            score[i] += bf16_value(q[d]) * kv_twin_value(&key, d);
        score[i] /= sqrt((double)dim);
        max = fmax(max, score[i]);
    }
    memset(out, 0, (size_t)dim * sizeof(double));
    for (int i = 0; i <= position; i++) {
        const struct kv_twin value = row_of(k, seq, kv_head, i, true);
        const double w = exp(score[i] - max);

        sum += w;
        for (int d = 0; d < dim; d++)
            out[d] += w * kv_twin_value(&value, d);
    }
    for (int d = 0; d < dim; d++)
        out[d] /= sum;
    free(score);
}

/* Launches with several grids. Returns q with decodes' rows as rope_store() leaves them; the keys
 * of this step are what it makes of them, with drafts before the launch. */
static const uint16_t *launch(struct run *r, const struct scene *s, struct keys *k, bool hopper)
{
    const int n_rows = scene_decode_rows(s);
    const size_t decoded = (size_t)(n_rows * s->n_heads * s->dim) * 2; /* bytes of out */
    const struct device_array stored = array_of(k->pool.host, k->pool.bytes);
    const struct device_array rotated = array_of(r->q.host, r->q.bytes);
    struct kv_pool kv = k->paged.kv;
    void *first = host_new(decoded + 1, 1);

    run_pack(r, s, &k->paged, hopper);
    kv.base = stored.device;
    if (n_rows)
        cuda_must(rope_store(&device.launch, rotated.device, &r->rope, &kv, k->paged.layer,
                             &r->view, 0, n_rows, s->n_heads, true));
    array_to_host(&stored);
    array_to_host(&rotated);
    if (s->n_drafted) {
        memcpy(k->pool.host, stored.host, stored.bytes);
        array_to_device(&k->pool);
    }
    /* Few blocks have more loads in flight; so many have not; and so few take several items. */
    const int grids[] = {r->counts.n_items, r->room.n_items + 2 * device.launch.n_sms + 1,
                         (r->counts.n_items + 2) / 3};

    for (int i = 0; i < N(grids); i++) { /* again: counters must be as they were */
        device_fill(r->out.device, 0xff, r->out.bytes);
        run_launch(r, grids[i]);
        array_to_host(&r->out);
        if (i == 0)
            memcpy(first, r->out.host, decoded);
        ck_assert_mem_eq(first, r->out.host, decoded);
    }
    array_to_host(&k->pool);
    ck_assert_mem_eq(k->pool.host, stored.host, stored.bytes);
    return rotated.host;
}

/* Checks a chunk's first two rows, its last and some between. */
static int next_row(int row, int n)
{
    const int step = row == 0 ? 1 : 37;

    return row + step >= n && row < n - 1 ? n - 1 : row + step;
}

static void check_kernel(const struct scene *s, bool hopper)
{
    struct run r = run_new(s);
    struct keys k = keys_new(s);
    const uint16_t *q = launch(&r, s, &k, hopper);
    double *twin = malloc((size_t)s->dim * sizeof(double));

    for (int i = 0; i < (s->fp8 ? s->n_decodes + s->n_drafted : s->n_seqs); i++)
        for (int j = 0; j < s->q_len[i]; j = next_row(j, s->q_len[i]))
            for (int h = 0; h < s->n_heads; h++) {
                const int row = r.q_start[i] + j;
                const uint16_t *out = (uint16_t *)r.out.host + (row * s->n_heads + h) * s->dim;
                double error;

                row_twin(twin, q + row * r.attn.q_stride + h * s->dim, &k, i,
                         h / (s->n_heads / s->n_kv), s->kv_len[i] - s->q_len[i] + j);
                error = error_bf16(out, twin, (size_t)s->dim);
                ck_assert_msg(
                    error < 1e-2,
                    "hopper %d fp8 %d heads %d/%d dim %d block %d seq %d row %d head %d: %g",
                    hopper, s->fp8, s->n_heads, s->n_kv, s->dim, 1 << s->block_shift, i, j, h,
                    error);
            }
    free(twin);
}

static void check_scene(const struct scene *s)
{
    struct scene fp8 = *s;

    fp8.fp8 = true;
    if (s->n_decodes + s->n_drafted > 0)
        check_kernel(&fp8, false);
    for (int hopper = 0; hopper <= has_hopper; hopper++)
        check_kernel(s, hopper);
}

/* One item: within its sequence, its ends where units end. */
static void check_item(const struct attn_item *i, const int32_t *kv_len, int *covered, int *pieces)
{
    const int n_pieces = (i->end - i->begin + i->units * 16 - 1) / (i->units * 16);

    ck_assert(i->begin >= 0 && i->begin % 16 == 0 && i->begin < i->end);
    ck_assert(i->end == kv_len[i->seq] || (i->end % 16 == 0 && i->end < kv_len[i->seq]));
    ck_assert_int_eq(i->kv_len, kv_len[i->seq]);
    ck_assert_int_eq(i->n_rows, 1);
    ck_assert_int_gt(i->units, 0);
    ck_assert_int_le(i->split + n_pieces, i->n_splits);
    covered[i->seq] += i->end - i->begin;
    pieces[i->seq] |= i->n_splits;
    pieces[i->seq] += n_pieces << 16;
}

/* Each sequence has room of its own for partial results, all its items the same. */
static void check_partials(const struct step_view *v, const struct step_limits *l, int n)
{
    const int room = step_max_partials(l, n);
    bool *taken = calloc((size_t)room, sizeof(*taken));
    int begins[MAX_SEQS];

    memset(begins, 0xff, sizeof(begins));
    for (int at = 0; at < v->counts->n_items; at++) {
        const struct attn_item *i = &v->items[at];

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
    free(taken);
}

struct plan {
    int n_items, n_whole; /* n_whole of them are sequences that are not cut */
};

static struct plan check_plan(const int32_t *kv_len, int n, int target, bool invariant)
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
    char *memory = malloc(step_max_bytes(&limits));
    int covered[MAX_SEQS] = {0}, pieces[MAX_SEQS] = {0};
    struct plan plan = {0};
    struct step_room room;
    struct step_view v;

    memset(memory, 0x5a, step_max_bytes(&limits));
    room = pack_parts(memory, &v, memory, &limits, &parts, 0);
    plan.n_items = v.counts->n_items;
    ck_assert_int_le(plan.n_items, room.n_items);
    for (int i = 0; i < plan.n_items; i++) {
        check_item(&v.items[i], kv_len, covered, pieces);
        plan.n_whole += v.items[i].end - v.items[i].begin == kv_len[v.items[i].seq];
    }
    check_partials(&v, &limits, n);
    for (int i = 0; i < n; i++) {
        ck_assert_int_eq(covered[i], kv_len[i]);
        ck_assert_int_eq(pieces[i] >> 16, pieces[i] & 0xffff); /* as many as each of them says */
    }
    free(memory);
    return plan;
}

/* Every key is in one work item, whatever the lengths; those of the last wave are cut. */
TEST(plans_take_every_key_once)
{
    int32_t kv_len[MAX_SEQS];

    for (int i = 0; i < 1000; i++) {
        const int n = 1 + (int)(random_bits() % MAX_SEQS), kind = i % 4;
        const uint32_t most = kind == 0 ? 30 : kind == 1 ? 700 : kind == 2 ? 2000 : 40960;

        for (int j = 0; j < n; j++)
            kv_len[j] = 1 + (int32_t)(random_bits() % (kind == 3 && j % 9 ? 20 : most));
        check_plan(kv_len, n, 1 + (int)(random_bits() % ATTN_MAX_SPLITS), i % 5 == 0);
    }
    for (int i = 0; i < MAX_SEQS; i++)
        kv_len[i] = 40960;
    for (int n = 1; n <= MAX_SEQS; n++) /* as many items as there are at most, nearly */
        check_plan(kv_len, n, ATTN_MAX_SPLITS, true);
}
END_TEST

/* Sequences are whole but for those of the last wave, of which as many are cut as fill it. */
TEST(plans_cut_the_last_wave)
{
    static const struct {
        int n, kv_len, spread, n_items, n_whole; /* lengths differ by up to spread */
    } cases[] = {{1, 584, 0, 10, 0},   {37, 584, 0, 49, 25}, {49, 584, 0, 49, 49},
                 {64, 584, 0, 98, 49}, {64, 64, 0, 64, 64},  {50, 100, 1900, 51, 49},
                 {1, 40000, 0, 49, 0}, {64, 4000, 0, 245, 0}};
    int32_t kv_len[MAX_SEQS];

    for (int i = 0; i < N(cases); i++) {
        struct plan plan;

        for (int j = 0; j < cases[i].n; j++)
            kv_len[j] = cases[i].kv_len + (cases[i].spread ? j * 53 % cases[i].spread : 0);
        plan = check_plan(kv_len, cases[i].n, 49, false);
        ck_assert_int_eq(plan.n_items, cases[i].n_items);
        ck_assert_int_eq(plan.n_whole, cases[i].n_whole);
    }
}
END_TEST

static const int32_t ones[MAX_SEQS] = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1};
static const int32_t lengths[] = {1, 15, 16, 17, 63, 64, 65, 127, 1000, 5003};

static const int decode_heads[][2] = {{1, 1}, {4, 2}, {8, 2}, {7, 1}, {8, 1}, {12, 1}};

/* Short and long sequences together, groups of 1 to 12 query heads, both head sizes. */
TEST(decode_follows_twin, .n = N(decode_heads))
{
    for (int dim = 64; dim <= 128; dim += 64)
        check_scene(&(struct scene){decode_heads[_i][0], decode_heads[_i][1], dim, _i % 2 ? 4 : 6,
                                    10, 10, ones, lengths, .invariant = _i == 2, .bare = _i == 3,
                                    .n_items = _i == 2 ? 3 : 0});
}
END_TEST

/* More sequences than one wave has blocks. */
TEST(decode_in_waves_follows_twin)
{
    int32_t kv_len[MAX_SEQS], q_len[MAX_SEQS];

    for (int i = 0; i < MAX_SEQS; i++) {
        q_len[i] = 1;
        kv_len[i] = i % 11 == 3 ? 900 : 1 + i * 131 % 400;
    }
    check_scene(&(struct scene){4, 2, 128, 4, 63, 63, q_len, kv_len, .n_splits = 1});
    check_scene(&(struct scene){12, 1, 64, 5, 60, 60, q_len, kv_len, .bare = true});
    check_scene(&(struct scene){16, 8, 64, 4, 63, 63, q_len, kv_len, .n_items = 49});
}
END_TEST

/* Rows of drafts that share a pass over the keys, as many as there is room for, beside decodes and
 * a chunk; over a block's and a unit's end, split and not. */
TEST(drafts_follow_twin, .n = N(decode_heads))
{
    static const int32_t q_len[] = {1, 1, 2, 16, 3, 5, 9, 7, 40};
    static const int32_t kv_len[] = {33, 700, 2, 2000, 17, 68, 1025, 2016, 140};
    static const int n_items[] = {0, 3, 13};

    for (int dim = 64; dim <= 128; dim += 64)
        for (int i = 0; i < 3; i++)
            check_scene(&(struct scene){decode_heads[_i][0], decode_heads[_i][1], dim,
                                        _i % 2 ? 4 : 6, 9, 2, q_len, kv_len, .bare = _i == 3,
                                        .n_splits = 1, .n_items = n_items[i], .n_drafted = 6});
}
END_TEST

/* The same in waves of blocks. */
TEST(drafts_in_waves_follow_twin)
{
    int32_t kv_len[MAX_SEQS], q_len[MAX_SEQS];

    for (int i = 0; i < MAX_SEQS; i++) {
        q_len[i] = 1 + i % 9;
        kv_len[i] = q_len[i] + 300 + i * 131 % 400;
    }
    check_scene(
        &(struct scene){4, 2, 128, 4, 40, 0, q_len, kv_len, .n_items = 30, .n_drafted = 40});
    check_scene(
        &(struct scene){16, 8, 64, 4, 30, 0, q_len, kv_len, .n_items = 49, .n_drafted = 30});
}
END_TEST

static const int cuts[] = {40, 3, 4, 13}; /* blocks of threads for all sequences together */

/* In invariant mode a sequence's result and its key have the same bits alone and among others:
 * split over several blocks, in one, in waves. */
static void check_alone(const struct scene *together, bool hopper)
{
    struct keys k = keys_new(together);
    struct run all = run_new(together);
    const size_t row = (size_t)(together->n_heads * together->dim);

    (void)launch(&all, together, &k, hopper);
    for (int i = 0; i < together->n_seqs; i++) {
        struct scene alone = *together;
        struct keys one = k;
        struct run r;

        alone.n_seqs = alone.n_decodes = 1;
        alone.n_items = 0; /* each split by its own block, or several by one */
        alone.kv_len = lengths + i;
        one.paged.table += i * k.paged.max_blocks;
        r = run_new(&alone);
        memcpy(r.q.host, (uint16_t *)all.q.host + i * all.attn.q_stride, r.q.bytes);
        array_to_device(&r.q);
        memcpy(r.norms.host, all.norms.host, r.norms.bytes);
        array_to_device(&r.norms);
        (void)launch(&r, &alone, &one, hopper);
        ck_assert_mem_eq(r.out.host, (uint16_t *)all.out.host + (size_t)i * row, row * 2);
    }
}

TEST(decode_does_not_depend_on_others, .n = 2 * N(cuts))
{
    const struct scene together = {
        16,           8, 128, 4, 10, 10, ones, lengths, .invariant = true, .n_items = cuts[_i / 2],
        .fp8 = _i % 2};

    for (int hopper = 0; hopper <= (has_hopper && !together.fp8); hopper++)
        check_alone(&together, hopper);
}
END_TEST

/* All of a sequence's blocks but its last move to where blocks of the host tier are, further apart;
 * what was there in the pool is gone. */
static void move_to_host(struct paged *p, const struct scene *s)
{
    struct kv_pool *kv = &p->kv;
    const size_t bytes = (size_t)kv->block_stride * sizeof(*kv->base);
    uint16_t *host = device_new(2 * p->pool_bytes);

    kv->n_blocks = p->n_blocks;
    kv->host_stride = 2 * kv->block_stride;
    kv->host_offset = (host - kv->base) - kv->n_blocks * kv->host_stride;
    for (int i = 0; i < s->n_seqs; i++)
        for (int j = 0; j < (s->kv_len[i] - 1) >> kv->block_shift; j++) {
            int32_t *const id = &p->table[i * p->max_blocks + j];
            uint16_t *const from = kv->base + *id * kv->block_stride;

            cuda_must(cudaMemcpy(host + *id * kv->host_stride, from, bytes, cudaMemcpyDefault));
            device_fill(from, 0xff, bytes);
            *id += kv->n_blocks;
        }
}

/* Keys in the host tier give the bits that they give in the pool. */
TEST(decode_reads_the_host_tier, .n = 4)
{
    const struct scene s = {
        16, 8, _i / 2 ? 128 : 64, 4, 10, 10, ones, lengths, .n_items = 13, .fp8 = _i % 2};

    for (int hopper = 0; hopper <= (has_hopper && !s.fp8); hopper++) {
        struct keys k = keys_new(&s);
        struct run r = run_new(&s);
        void *first = host_new(r.out.bytes, 1);

        run_pack(&r, &s, &k.paged, hopper);
        run_launch(&r, r.counts.n_items);
        array_to_host(&r.out);
        memcpy(first, r.out.host, r.out.bytes);
        move_to_host(&k.paged, &s);
        device_fill(r.out.device, 0xff, r.out.bytes);
        run_pack(&r, &s, &k.paged, hopper);
        run_launch(&r, r.counts.n_items);
        array_to_host(&r.out);
        ck_assert_mem_eq(first, r.out.host, r.out.bytes);
    }
}
END_TEST

/* A long sequence alone is split and joined. */
TEST(decode_of_one_long_sequence)
{
    check_scene(&(struct scene){16, 8, 128, 4, 1, 1, ones, &lengths[9], .n_splits = 1});
    check_scene(&(struct scene){4, 2, 128, 8, 1, 1, ones, &lengths[4], .n_splits = 1});
}
END_TEST

/* Chunks of 1 to 300 rows behind 0 to 1,003 earlier tokens, beside decodes. */
TEST(prefill_follows_twin, .n = 3)
{
    static const int32_t q_len[] = {1, 1, 1, 5, 128, 129, 300, 64, 17};
    static const int32_t kv_len[] = {33, 700, 1, 5, 128, 1129, 300, 1067, 2020};
    static const int heads[][2] = {{2, 2}, {4, 2}, {7, 1}};

    for (int dim = 64; dim <= 128; dim += 64)
        check_scene(&(struct scene){heads[_i][0], heads[_i][1], dim, _i == 1 ? 8 : 4, 9, 2, q_len,
                                    kv_len, .n_splits = 1});
}
END_TEST

/* Keys split over more blocks than some rows have use for. */
TEST(split_prefill_follows_twin)
{
    static const int32_t q_len[] = {1, 16, 130, 5};
    static const int32_t kv_len[] = {5003, 3016, 1130, 5};

    for (int splits = 2; splits <= 13; splits += 11)
        for (int dim = 64; dim <= 128; dim += 64)
            check_scene(&(struct scene){4, 2, dim, 4, 4, 0, q_len, kv_len, .n_splits = splits});
    check_scene(&(struct scene){16, 8, 128, 4, 4, 0, q_len, kv_len, .n_splits = 6});
}
END_TEST

static const struct {
    int n_heads, n_kv, shift;
} prefill_shapes[] = {{1, 1, 4}, {4, 2, 6}, {8, 2, 8}, {5, 1, 12}, {7, 1, 7}, {8, 1, 5}};

/* Any number of query heads for a KV head, blocks shorter and longer than a tile of keys, chunks
 * that begin and end anywhere. */
TEST(prefill_of_all_shapes, .n = N(prefill_shapes))
{
    static const int32_t q_len[] = {127, 1, 130, 77, 257};
    static const int32_t kv_len[] = {127, 1, 1003, 8500, 513};

    for (int dim = 64; dim <= 128; dim += 64)
        check_scene(&(struct scene){prefill_shapes[_i].n_heads, prefill_shapes[_i].n_kv, dim,
                                    prefill_shapes[_i].shift, 5, 0, q_len, kv_len, .n_splits = 1});
}
END_TEST

/* More work items than multiprocessors: each block takes several. */
TEST(prefill_of_many_tiles)
{
    static const int32_t q_len[] = {2500, 1200};
    static const int32_t kv_len[] = {2500, 3333};

    check_scene(&(struct scene){16, 8, 128, 4, 2, 0, q_len, kv_len, .n_splits = 1});
}
END_TEST

/* A row's result is the same to the bit wherever its chunk begins. */
TEST(prefill_does_not_depend_on_chunks)
{
    static const int32_t kv_len[] = {1000}, rest_len[] = {613};
    const struct scene whole = {4, 2, 128, 4, 1, 0, kv_len, kv_len, .invariant = true};
    const struct scene rest = {4, 2, 128, 4, 1, 0, rest_len, kv_len, .invariant = true};

    for (int hopper = 0; hopper <= has_hopper; hopper++) {
        struct keys k = keys_new(&whole);
        struct run a = run_new(&whole), b = run_new(&rest);
        const size_t skipped = 1000 - 613, row = 4 * 128;

        memcpy(b.q.host, (uint16_t *)a.q.host + (int64_t)skipped * a.attn.q_stride, b.q.bytes);
        array_to_device(&b.q);
        (void)launch(&a, &whole, &k, hopper);
        (void)launch(&b, &rest, &k, hopper);
        ck_assert_mem_eq(b.out.host, (uint16_t *)a.out.host + skipped * row, b.out.bytes);
    }
}
END_TEST

RUN_TESTS_HERE("attention", set_up, device_tear_down)
