/* test_resident.c - the resident kernel against the chain of kernels that it stands for, each of
 * which has a twin of its own: logits and stored keys and values, for odd shapes, any number of
 * rows and mixed lengths. What nothing has written is NaN. For which steps it is planned is in
 * test_resident_plan.c.
 *
 *   test_resident [lost]        lost: a step whose packets are lost */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "tests/gpu/resident_rig.h"
#include "tests/unit/run_suite.h"

/* Both round to bf16 where the other does, but their sums differ by some float roundings, and so do
 * some of the bf16 numbers behind: a few 2^-9 / sqrt(3) after some layers. */
static const double error_limit = 8e-3;

/* Of keys and values as E4M3 those roundings move a few elements in a hundred to a neighbour, which
 * is 2^-4 of them away at the least, and with one key all that follows from it. */
static const double e4m3_limit = 2e-2;

/* Scores of a router, of the size of 1, that differ by less are a tie, which those roundings
 * decide. */
static const double tie = 0.02;

/* A copy on the host, once all that was enqueued is done. */
static void *host_of(const void *from, size_t bytes)
{
    void *p = host_new(bytes, 1);

    cuda_must(cudaDeviceSynchronize());
    cuda_must(cudaMemcpy(p, from, bytes, cudaMemcpyDeviceToHost));
    return p;
}

/* What a step leaves behind. */
struct outcome {
    float *logits;
    uint16_t *pool;
    size_t n_logits, n_pool;
    int32_t sampled[RIG_ROWS];
};

static struct outcome outcome_of(struct rig *r, const struct step_view *v, int n, int n_rows,
                                 bool resident)
{
    const size_t stride = (size_t)r->forward.sampler.logits_stride;
    struct outcome o = {.n_logits = (size_t)n_rows * stride,
                        .n_pool = (size_t)r->n_blocks * (size_t)r->block_elements};

    device_fill(r->forward.logits, 0xff, RIG_ROWS * stride * sizeof(float));
    rig_run(r, v, n, n_rows, resident);
    o.logits = host_of(r->forward.logits, o.n_logits * sizeof(float));
    o.pool = host_of(r->forward.kv.base, o.n_pool * 2);
    cuda_must(cudaMemcpy(o.sampled, r->forward.sampler.sampled[0], sizeof(o.sampled),
                         cudaMemcpyDeviceToHost));
    return o;
}

/* Row `plane` of 2 n_layers n_kv_heads of a key. */
static struct kv_twin row_of(const struct rig *r, uint16_t *pool, int seq, int key, int plane)
{
    const int block = r->block_table[seq * r->limits.max_blocks + key / r->block_len];
    const int n_kv = r->config.n_kv_heads;

    return kv_twin_of(&r->forward.kv, pool + block * r->forward.kv.block_stride, plane / 2 / n_kv,
                      plane / 2 % n_kv, key % r->block_len, plane % 2);
}

static int n_planes(const struct rig *r)
{
    return 2 * r->config.n_layers * r->config.n_kv_heads;
}

/* Every key that is not of an earlier step is NaN; the same pool for each run. */
static void poison(const struct rig *r, uint16_t *pool, int n)
{
    const size_t dim = (size_t)r->config.head_dim;

    for (int i = 0; i < n; i++)
        for (int key = r->kv_len[i] - 1; key < r->n_held[i] * r->block_len; key++)
            for (int j = 0; j < n_planes(r); j++) {
                const struct kv_twin row = row_of(r, pool, i, key, j);

                memset(row.bf16 ? (void *)row.bf16 : row.e4m3, 0xff, row.bf16 ? dim * 2 : dim);
                if (row.e4m3)
                    *row.exponent = 0xff;
            }
}

/* The error of the keys and values of this step, and that no others have changed. */
static double stored_error(const struct rig *r, struct outcome *got, struct outcome *expected,
                           const uint16_t *before, int n)
{
    const int planes = n_planes(r), dim = r->config.head_dim;
    const size_t all = (size_t)(n * planes * dim);
    const size_t words = (size_t)(n * planes * (r->forward.kv.fp8 ? dim / 2 + 1 : dim));
    double *a = host_new(all, sizeof(double)), *b = host_new(all, sizeof(double));
    size_t changed = 0;

    for (int i = 0; i < n * planes; i++) {
        const int seq = i / planes, key = r->kv_len[seq] - 1;
        const struct kv_twin own = row_of(r, got->pool, seq, key, i % planes);
        const struct kv_twin twin = row_of(r, expected->pool, seq, key, i % planes);

        for (int d = 0; d < dim; d++) {
            a[i * dim + d] = kv_twin_value(&own, d);
            b[i * dim + d] = kv_twin_value(&twin, d);
        }
    }
    for (size_t i = 0; i < got->n_pool; i++)
        changed += got->pool[i] != before[i];
    ck_assert_uint_le(changed, words);
    return relative_error(a, b, all);
}

/* Nothing is written past a row. */
static double logits_error(const struct rig *r, const struct outcome *got,
                           const struct outcome *expected)
{
    double *a = values_f32(got->logits, got->n_logits);
    double *b = values_f32(expected->logits, got->n_logits);

    for (size_t i = 0; i < got->n_logits; i++)
        if ((int64_t)i % r->forward.sampler.logits_stride >= r->config.vocab_size) {
            ck_assert(isnan(a[i]));
            a[i] = b[i] = 0.0;
        }
    return relative_error(a, b, got->n_logits);
}

/* Whether all packets but those of the LM head's x are sentinels. */
static bool buffers_are_reset(const struct rig *r)
{
    const struct resident *k = &r->forward.resident;
    const size_t part = resident_exchange_bytes(k) / RESIDENT_COPIES;
    const size_t n = resident_sentinel_bytes(k);
    const unsigned char *seen = host_of(k->exchange, RESIDENT_COPIES * part);
    bool reset = true;

    for (int i = 0; i < RESIDENT_COPIES; i++, seen += part)
        reset &= seen[0] == 0xff && memcmp(seen, seen + 1, n - 1) == 0;
    return reset;
}

/* Whether the last expert that the one row's last router chose is at a tie with one that it did
 * not. */
static bool is_at_tie(const struct rig *r)
{
    const int n = r->config.n_experts, first = n - r->config.n_experts_per_tok;
    double *scores;

    if (n == 0)
        return false;
    scores = values_f32(host_of(r->forward.experts.scores, (size_t)n * sizeof(float)), (size_t)n);
    sort_numbers(scores, n);
    return scores[first] - scores[first - 1] < tie;
}

/* Runs from what nothing has written but `before`. */
static struct outcome outcome_after(struct rig *r, const struct step_view *v, int n, int n_rows,
                                    bool resident, const uint16_t *before)
{
    device_fill(r->forward.sampler.sampled[0], 0, RIG_ROWS * sizeof(int32_t));
    cuda_must(cudaMemcpy(r->forward.kv.base, before,
                         (size_t)r->n_blocks * (size_t)r->block_elements * 2,
                         cudaMemcpyHostToDevice));
    if (resident)
        rig_renew(r);
    return outcome_of(r, v, n, n_rows, resident);
}

/* keys: the pool with no key unwritten. Where experts are at a tie, other tokens are drawn. */
static void check_step(struct rig *r, const uint16_t *keys, const int *kv_len, int n,
                       bool skip_first)
{
    const int n_rows = n - (skip_first && n > 1);
    const double limit = r->forward.kv.fp8 ? e4m3_limit : error_limit;
    const size_t pool_bytes = (size_t)r->n_blocks * (size_t)r->block_elements * 2;
    uint16_t *before = host_new(pool_bytes, 1);
    struct outcome chain, o[3];
    double logits, stored;
    struct step_view v;
    int n_draws = 0;

    do {
        ck_assert_int_lt(n_draws++, 100);
        v = rig_step(r, kv_len, n, skip_first);
        memcpy(before, keys, pool_bytes);
        poison(r, before, n);
        chain = outcome_after(r, &v, n, n_rows, false, before);
    } while (is_at_tie(r));
    for (int i = 0; i < 3; i++) {
        o[i] = outcome_after(r, &v, n, n_rows, true, before);
        ck_assert(buffers_are_reset(r));
        logits = logits_error(r, &o[i], &chain);
        stored = stored_error(r, &o[i], &chain, before, n);
        if (i == 0)
            printf("hidden=%d heads=%d/%d of %d keys=%s rows=%d first_len=%d logits=%.2e "
                   "stored=%.2e\n",
                   r->config.hidden_dim, r->config.n_heads, r->config.n_kv_heads,
                   r->config.head_dim, r->forward.kv.fp8 ? "fp8" : "bf16", n, kv_len[0], logits,
                   stored);
        fflush(stdout);
        ck_assert(logits < limit);
        ck_assert(stored < limit);
        ck_assert(memcmp(o[i].logits, o[0].logits, o[0].n_logits * sizeof(float)) == 0);
        ck_assert(memcmp(o[i].pool, o[0].pool, o[0].n_pool * 2) == 0);
        ck_assert(memcmp(o[i].sampled, o[0].sampled, sizeof(o[0].sampled)) == 0);
    }
}

static const struct model_config small = {.n_layers = 2,
                                          .n_heads = 6,
                                          .n_kv_heads = 2,
                                          .head_dim = 128,
                                          .hidden_dim = 416,
                                          .ffn_dim = 992,
                                          .vocab_size = 1004,
                                          .max_seq_len = 8192,
                                          .rms_norm_eps = 1e-6f,
                                          .rope_theta = 1e6,
                                          .tied = false};

/* How projections are quantized; rig_quantization() of each. */
enum format { BF16, IN_BLOCKS, OF_ROWS, IN_GROUPS, WITH_ZEROS, N_FORMATS };
static struct quantization formats[N_FORMATS];

static const struct quantization *format_of(enum format format)
{
    static const struct {
        enum dtype dtype;
        int scale_rows, scale_cols;
    } of[] = {[IN_BLOCKS] = {DTYPE_E4M3, 128, 128},
              [OF_ROWS] = {DTYPE_E4M3, 1, 0},
              [IN_GROUPS] = {DTYPE_INT4, 1, 128},
              [WITH_ZEROS] = {DTYPE_INT4, 1, 128}};

    if (format == BF16)
        return NULL;
    formats[format] = rig_quantization(of[format].dtype, of[format].scale_rows,
                                       of[format].scale_cols, format == WITH_ZEROS);
    return &formats[format];
}

static const struct {
    int n_layers, n_heads, n_kv_heads, head_dim, hidden_dim, ffn_dim, vocab_size;
    bool tied, bias;
    int block_len, most_rows;
    int n_experts, n_picks;
    bool norm_topk;
    enum format format;
    bool fp8; /* keys and values */
} shapes[] = {
    /* widths that fill no stage, three query heads a KV head, a vocabulary that fills no tile */
    {2, 6, 2, 128, 416, 992, 1004, false, false, 16, 16, 0, 0, false, BF16, false},
    /* heads of 64, seven a KV head, biases in place of norms, blocks of 32 */
    {2, 14, 2, 64, 896, 1216, 1004, false, true, 32, 16, 0, 0, false, BF16, false},
    /* a model of 0.6 billion parameters, a part of its layers */
    {2, 16, 8, 128, 1024, 3072, 12004, true, false, 16, 16, 0, 0, false, BF16, false},
    /* rows longer than a stage, several tiles a block, as few rows as leave memory for a ring */
    {1, 32, 8, 128, 4096, 12288, 1004, false, false, 16, 4, 0, 0, false, BF16, false},
    /* experts of one stage, of which a block has none or one tile */
    {2, 6, 2, 128, 416, 256, 1004, false, false, 16, 1, 6, 3, true, BF16, false},
    /* two stages each, weights that do not add up to one */
    {2, 14, 2, 64, 896, 1536, 1004, false, true, 32, 1, 8, 2, false, BF16, false},
    /* a mixture of 30 billion parameters, one of its layers */
    {1, 32, 4, 128, 2048, 768, 12004, false, false, 16, 1, 128, 8, true, BF16, false},
    /* quantized: partly filled stages, scales differ between steps */
    {2, 4, 2, 128, 512, 2560, 1004, false, false, 16, 8, 0, 0, false, IN_BLOCKS, false},
    {2, 6, 2, 64, 448, 1216, 1004, false, true, 32, 8, 0, 0, false, OF_ROWS, false},
    {2, 16, 8, 128, 1024, 3072, 12004, true, false, 16, 8, 0, 0, false, IN_GROUPS, false},
    {2, 32, 4, 64, 2048, 6144, 1004, false, true, 16, 8, 0, 0, false, WITH_ZEROS, false},
    /* rows of several stages; a long LM head */
    {1, 32, 8, 128, 4096, 12288, 40004, false, false, 16, 4, 0, 0, false, IN_BLOCKS, false},
    {1, 32, 8, 128, 4096, 12288, 1004, false, false, 16, 4, 0, 0, false, OF_ROWS, false},
    {1, 32, 8, 128, 4096, 12288, 1004, false, false, 16, 4, 0, 0, false, IN_GROUPS, false},
    {1, 32, 8, 128, 4096, 12288, 1004, false, false, 16, 4, 0, 0, false, WITH_ZEROS, false},
    /* keys of E4M3: three, seven and two query heads a KV head, an expert's, quantized weights */
    {2, 6, 2, 128, 416, 992, 1004, false, false, 16, 8, 0, 0, false, BF16, true},
    {2, 14, 2, 64, 896, 1216, 1004, false, true, 32, 8, 0, 0, false, BF16, true},
    {2, 16, 8, 128, 1024, 3072, 12004, true, false, 64, 8, 0, 0, false, BF16, true},
    /* so many KV heads that a block attends to several sequences */
    {2, 16, 16, 128, 416, 992, 1004, false, false, 16, 8, 0, 0, false, BF16, true},
    {2, 6, 2, 128, 416, 256, 1004, false, false, 16, 1, 6, 3, true, BF16, true},
    {2, 4, 2, 128, 512, 2560, 1004, false, false, 16, 8, 0, 0, false, IN_BLOCKS, true},
    {2, 32, 4, 64, 2048, 6144, 1004, false, true, 16, 8, 0, 0, false, WITH_ZEROS, true},
};

TEST(shapes_follow_chain, .n = N(shapes))
{
    static const int rows[] = {1, 2, 3, 4, 7, 8, 9, 16}, rows_alike[] = {3, 7, 15, 16};
    static const int lengths[RIG_ROWS] = {513, 1,  4200, 16, 17,  1, 100, 64,
                                          15,  33, 32,   2,  250, 7, 1,   48};
    struct model_config c = small;
    int alike[RIG_ROWS], max_len[RIG_ROWS];
    uint16_t *keys;
    struct rig r;

    c.n_layers = shapes[_i].n_layers;
    c.n_heads = shapes[_i].n_heads;
    c.n_kv_heads = shapes[_i].n_kv_heads;
    c.head_dim = shapes[_i].head_dim;
    c.hidden_dim = shapes[_i].hidden_dim;
    c.ffn_dim = shapes[_i].ffn_dim;
    c.vocab_size = shapes[_i].vocab_size;
    c.tied = shapes[_i].tied;
    c.n_experts = shapes[_i].n_experts;
    c.n_experts_per_tok = shapes[_i].n_picks;
    c.norm_topk = shapes[_i].norm_topk;
    c.quant = format_of(shapes[_i].format);
    for (int i = 0; i < RIG_ROWS; i++) {
        alike[i] = 200 + 3 * i;
        max_len[i] = i == 0 ? 4208 : lengths[i] > alike[i] ? lengths[i] : alike[i];
    }
    rig_init(&r, &c, shapes[_i].bias, shapes[_i].fp8, shapes[_i].block_len, max_len);
    ck_assert_int_eq(r.forward.resident_rows, shapes[_i].most_rows);
    keys = host_of(r.forward.kv.base, (size_t)r.n_blocks * (size_t)r.block_elements * 2);
    for (int i = 0; i < N(rows) && rows[i] <= shapes[_i].most_rows; i++)
        check_step(&r, keys, lengths, rows[i], i % 2);
    for (int i = 0; i < N(rows_alike) && rows_alike[i] <= shapes[_i].most_rows; i++)
        check_step(&r, keys, alike, rows_alike[i], false); /* each has blocks of its own */
    for (int i = 1; i < 4; i++) /* one sequence: of one key, of many, of a few */
        check_step(&r, keys, lengths + i, 1, false);
    rig_deinit(&r);
}
END_TEST

static const int mixed_lengths[RIG_ROWS] = {513, 1,  1200, 16, 17,  1, 100, 64,
                                            15,  33, 32,   2,  250, 7, 1,   48};

/* Of step 1 .. 16: as many, or as few as there may be. */
static int rows_of(const struct rig *r, int step)
{
    return (step - 1) % r->forward.resident_rows + 1;
}

/* Logits of such steps, each run alone on a cleared exchange. Each rig_step() draws tokens anew, so
 * from the same seed. */
static float *logits_of(struct rig *r, int step, bool fresh)
{
    const int n = rows_of(r, step);
    const size_t bytes = (size_t)n * (size_t)r->forward.sampler.logits_stride * sizeof(float);
    struct step_view v;

    if (fresh)
        cuda_must(resident_clear(&device.launch, &r->forward.resident));
    random_seed((uint32_t)step);
    v = rig_step(r, mixed_lengths, n, false);
    device_fill(r->forward.logits, 0xff, bytes);
    device_fill(r->forward.sampler.sampled[0], 0, RIG_ROWS * sizeof(int32_t));
    rig_run(r, &v, n, n, true);
    return host_of(r->forward.logits, bytes);
}

/* A rig of so many layers of the small shape. With 8 KV heads, which have few blocks each, the keys
 * of many rows are cut into equal parts; with 2 each row has blocks of its own. */
static void small_rig(struct rig *r, int n_layers, int n_kv_heads)
{
    struct model_config c = small;

    c.n_layers = n_layers;
    c.n_heads = 3 * n_kv_heads;
    c.n_kv_heads = n_kv_heads;
    rig_init(r, &c, false, false, 16, mixed_lengths);
}

/* The same with experts. */
static void rig_of_experts(struct rig *r, int n_layers)
{
    struct model_config c = small;

    c.n_layers = n_layers;
    c.ffn_dim = 256;
    c.n_experts = 16;
    c.n_experts_per_tok = 4;
    rig_init(r, &c, false, false, 16, mixed_lengths);
}

/* With quantized weights, where what is longest goes before what ends in a partial stage. */
static void rig_of_quantized(struct rig *r, enum format format, bool fp8)
{
    const bool e4m3 = format == IN_BLOCKS || format == OF_ROWS;
    struct model_config c = small;

    c.n_layers = 2;
    c.n_heads = e4m3 ? 20 : 16;
    c.n_kv_heads = 4;
    c.hidden_dim = e4m3 ? 2560 : 2048;
    c.ffn_dim = 6144;
    c.quant = format_of(format);
    rig_init(r, &c, false, fp8, 16, mixed_lengths);
    ck_assert_int_eq(r->forward.resident_rows, RESIDENT_FEW_ROWS);
}

static void check_logits(const struct rig *r, const float *got, const float *expected, int n)
{
    ck_assert(memcmp(got, expected,
                     (size_t)n * (size_t)r->forward.sampler.logits_stride * sizeof(float)) == 0);
}

/* Steps one after another give what each gives alone. */
static void check_steps(struct rig *r, int n)
{
    const float *expected[RIG_ROWS];

    for (int i = 0; i < RIG_ROWS; i++)
        expected[i] = logits_of(r, i + 1, true);
    for (int i = 0; i < n; i++) {
        const int step = (int)(i * 7 % RIG_ROWS) + 1; /* up and down */

        check_logits(r, logits_of(r, step, false), expected[step - 1], rows_of(r, step));
        ck_assert(i % 10 > 0 || buffers_are_reset(r));
    }
    rig_deinit(r);
}

/* A step has no effect on the bits of the next, of more rows or fewer; buffers rotate over layers,
 * so with one layer, as many as there are buffers, and other numbers. Last with experts, where
 * steps are of other tokens instead. */
TEST(steps_in_a_row_are_as_alone, .n = 7)
{
    struct rig r;

    if (_i < 5)
        small_rig(&r, 1 + _i, _i % 2 ? 8 : 2);
    else
        rig_of_experts(&r, _i - 4);
    check_steps(&r, 300);
}
END_TEST

TEST(quantized_steps_in_a_row_are_as_alone, .n = 2 * (N_FORMATS - 1))
{
    struct rig r;

    rig_of_quantized(&r, (enum format)(_i / 2 + 1), _i % 2);
    check_steps(&r, 100);
}
END_TEST

/* Few launches: compute-sanitizer runs it. Keys of each second one are E4M3. */
TEST(quantized_formats_follow_chain, .n = 2 * (N_FORMATS - 1))
{
    uint16_t *keys;
    struct rig r;

    rig_of_quantized(&r, (enum format)(_i / 2 + 1), _i % 2);
    keys = host_of(r.forward.kv.base, (size_t)r.n_blocks * (size_t)r.block_elements * 2);
    check_step(&r, keys, mixed_lengths, 1, false);
    check_step(&r, keys, mixed_lengths, r.forward.resident_rows - 1, true);
    rig_deinit(&r);
}
END_TEST

/* A graph that is launched again and again, with nothing but the tags renewed, gives the same. */
TEST(replayed_steps_are_the_same)
{
    const cudaStream_t stream = device.launch.stream;
    struct rig r;

    small_rig(&r, 4, 8);
    for (int n = 1; n <= RIG_ROWS; n += 5) {
        const size_t bytes = (size_t)n * (size_t)r.forward.sampler.logits_stride * sizeof(float);
        const float *expected = logits_of(&r, n, true);
        cudaGraphExec_t exec;
        struct step_view v;

        random_seed((uint32_t)n);
        v = rig_step(&r, mixed_lengths, n, false);
        capture_begin();
        cuda_must(cudaMemsetAsync(r.forward.sampler.sampled[0], 0, sizeof(int32_t), stream));
        rig_run(&r, &v, n, n, true);
        exec = capture_end();
        for (int i = 0; i < 50; i++) {
            rig_renew(&r);
            cuda_must(cudaGraphLaunch(exec, stream));
            cuda_must(cudaStreamSynchronize(stream));
        }
        check_logits(&r, host_of(r.forward.logits, bytes), expected, n);
        cuda_must(cudaGraphExecDestroy(exec));
    }
    rig_deinit(&r);
}
END_TEST

/* Where tags wrap the exchange is cleared, and no step is different. */
TEST(steps_are_the_same_where_tags_begin_again)
{
    const float *expected;
    struct rig r;
    int again = 0;

    small_rig(&r, 3, 2);
    expected = logits_of(&r, 3, true);
    r.last_tag = UINT32_MAX - 20;
    for (int i = 0; i < 12; i++) {
        const uint32_t last = r.last_tag;

        check_logits(&r, logits_of(&r, 3, false), expected, 3);
        again += r.last_tag < last;
        ck_assert_uint_ne(r.last_tag, UINT32_MAX);
    }
    ck_assert_int_eq(again, 1);
    rig_deinit(&r);
}
END_TEST

/* A row of which an input is no number ends as none, also where its bits are all ones, as a
 * sentinel's; the rows beside it do not notice. */
TEST(no_number_stays_in_its_row, .n = N_FORMATS)
{
    static const uint16_t bits[] = {0xffff, 0x7fff, 0x7f81, 0x7f80, 0xff80};
    size_t dim;
    struct rig r;

    if (_i == BF16)
        small_rig(&r, 3, 2);
    else
        rig_of_quantized(&r, (enum format)_i, _i % 2);
    dim = (size_t)r.config.hidden_dim;
    for (int i = 0; i < N(bits); i++) {
        const int64_t stride = r.forward.sampler.logits_stride;
        const float *expected = logits_of(&r, 3, true), *got;
        uint16_t *embed = matrix_row(&r.weights.embed, r.tokens[2]);
        uint16_t *none = host_new(dim, 2);
        const uint16_t *old = host_of(embed, dim * 2);

        for (size_t j = 0; j < dim; j++)
            none[j] = bits[i];
        cuda_must(cudaMemcpy(embed, none, dim * 2, cudaMemcpyHostToDevice));
        got = logits_of(&r, 3, false);
        cuda_must(cudaMemcpy(embed, old, dim * 2, cudaMemcpyHostToDevice));
        check_logits(&r, got, expected, 2);
        for (int j = 0; j < small.vocab_size; j++)
            ck_assert(isnan(got[2 * stride + j]));
        ck_assert(buffers_are_reset(&r));
    }
    rig_deinit(&r);
}
END_TEST

/* A sequence with NaN in a stored key or value ends in NaN; the others keep their bits. With 16 KV
 * heads the last key spoiled is of a block that attends to five more sequences after it. */
TEST(keys_of_no_number_stay_in_their_sequence, .n = 2 * 2)
{
    static const int keys[] = {700, 1190}; /* of 1,200 */
    const int n = 8, seq = 2;
    struct model_config c = small;
    size_t bytes;
    struct rig r;

    c.n_kv_heads = _i / 2 ? 16 : 2;
    c.n_heads = _i / 2 ? 16 : 6;
    rig_init(&r, &c, false, _i % 2, 16, mixed_lengths);
    ck_assert_int_ge(r.forward.resident_rows, n);
    bytes = (size_t)r.n_blocks * (size_t)r.block_elements * 2;
    for (int i = 0; i < 2 * 2 * N(keys); i++) { /* of either layer, a key or a value */
        const int plane = (i / 2 % 2 * c.n_kv_heads + i % c.n_kv_heads) * 2 + i % 2;
        const float *expected = logits_of(&r, n, true), *got;
        const uint16_t *old = host_of(r.forward.kv.base, bytes);
        uint16_t *pool = host_of(r.forward.kv.base, bytes);
        const struct kv_twin row = row_of(&r, pool, seq, keys[i / 4], plane);

        if (row.e4m3)
            *row.exponent = 0xff;
        else
            memset(row.bf16, 0xff, (size_t)c.head_dim * 2);
        cuda_must(cudaMemcpy(r.forward.kv.base, pool, bytes, cudaMemcpyHostToDevice));
        got = logits_of(&r, n, false);
        cuda_must(cudaMemcpy(r.forward.kv.base, old, bytes, cudaMemcpyHostToDevice));
        for (int at = 0; at < n; at++) {
            const size_t first = (size_t)at * (size_t)r.forward.sampler.logits_stride;

            if (at != seq)
                check_logits(&r, got + first, expected + first, 1);
            for (int j = 0; at == seq && j < small.vocab_size; j++)
                ck_assert(isnan(got[first + (size_t)j]));
        }
        ck_assert(buffers_are_reset(&r));
    }
    rig_deinit(&r);
}
END_TEST

/* Experts are chosen of scores that are no numbers, too, and the next step does not notice. */
TEST(experts_of_no_number_give_none)
{
    const float *expected, *got;
    uint16_t *embed, *none;
    const uint16_t *old;
    size_t bytes;
    struct rig r;

    rig_of_experts(&r, 2);
    bytes = (size_t)r.config.hidden_dim * 2;
    expected = logits_of(&r, 1, true);
    embed = matrix_row(&r.weights.embed, r.tokens[0]);
    old = host_of(embed, bytes);
    none = host_new(bytes, 1);
    memset(none, 0xff, bytes);
    cuda_must(cudaMemcpy(embed, none, bytes, cudaMemcpyHostToDevice));
    got = logits_of(&r, 1, false);
    for (int i = 0; i < small.vocab_size; i++)
        ck_assert(isnan(got[i]));
    cuda_must(cudaMemcpy(embed, old, bytes, cudaMemcpyHostToDevice));
    check_logits(&r, logits_of(&r, 1, false), expected, 1);
    ck_assert(buffers_are_reset(&r));
    rig_deinit(&r);
}
END_TEST

/* A stale packet of an earlier layer is taken for this one's: the tests above would see it. */
TEST(stale_packets_are_seen)
{
    const struct resident *k;
    const float *expected, *got;
    size_t at, part;
    struct rig r;

    small_rig(&r, 4, 2);
    k = &r.forward.resident;
    part = resident_exchange_bytes(k) / RESIDENT_COPIES;
    expected = logits_of(&r, 1, true);
    at = resident_sentinel_bytes(k) / 2 / 4096 * 4096; /* within attn: row 0 of a k step */
    for (int i = 0; i < RESIDENT_COPIES; i++)
        device_fill((char *)k->exchange + (size_t)i * part + at, 0x3f, 16);
    ck_assert(!buffers_are_reset(&r));
    got = logits_of(&r, 1, false);
    ck_assert(memcmp(got, expected, (size_t)small.vocab_size * sizeof(float)) != 0);
    rig_deinit(&r);
}
END_TEST

/* Lost packets end the step with an error in bounded time: the copy engine wipes them out again and
 * again while steps run. Afterwards the process has no device any more, so this is a program of its
 * own. */
static int lose_packets(void)
{
    const double most_s = 30.0;
    struct timespec begin, now;
    cudaError_t e = cudaErrorNotReady;
    double seconds = 0.0;
    cudaStream_t other;
    struct step_view v;
    size_t bytes;
    struct rig r;
    void *none;

    device_set_up();
    small_rig(&r, small.n_layers, 2);
    bytes = resident_exchange_bytes(&r.forward.resident);
    cuda_must(cudaHostAlloc(&none, bytes, 0));
    memset(none, 0xff, bytes);
    cuda_must(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking));
    v = rig_step(&r, mixed_lengths, 2, false);
    clock_gettime(CLOCK_MONOTONIC, &begin);
    while ((e == cudaErrorNotReady || e == cudaSuccess) && seconds < most_s) {
        if (e == cudaSuccess) {
            rig_renew(&r);
            rig_run(&r, &v, 2, 2, true);
        }
        (void)cudaMemcpyAsync(r.forward.resident.exchange, none, bytes, cudaMemcpyHostToDevice,
                              other);
        (void)cudaStreamSynchronize(other);
        e = cudaStreamQuery(device.launch.stream);
        clock_gettime(CLOCK_MONOTONIC, &now);
        seconds = (double)(now.tv_sec - begin.tv_sec) + (double)(now.tv_nsec - begin.tv_nsec) / 1e9;
    }
    printf("lost: %s after %.1f s\n", cudaGetErrorName(e), seconds);
    return e == cudaErrorIllegalAddress ? EXIT_SUCCESS : EXIT_FAILURE;
}

int main(int argc, char **argv)
{
    if (argc > 1 && strcmp(argv[1], "lost") == 0)
        return lose_packets();
    return run_tests_here("resident", device_set_up, device_tear_down);
}
