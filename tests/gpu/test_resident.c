/* test_resident.c - the resident kernel against the chain of kernels that it stands for, each of
 * which has a twin of its own: logits and stored keys and values, for odd shapes, any number of
 * rows and mixed lengths. What nothing has written is NaN. */
#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/gpu/resident_rig.h"

/* Both round to bf16 where the other does, but their sums differ by some float roundings, and so do
 * some of the bf16 numbers behind: a few 2^-9 / sqrt(3) after some layers. */
static const double error_limit = 8e-3;

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

    cuda_must(cudaMemset(r->forward.logits, 0xff, RIG_ROWS * stride * sizeof(float)));
    cuda_must(cudaDeviceSynchronize());
    rig_run(r, v, n, n_rows, resident);
    cuda_must(cudaStreamSynchronize(r->device.launch.stream));
    o.logits = malloc(o.n_logits * sizeof(float));
    o.pool = malloc(o.n_pool * sizeof(uint16_t));
    cuda_must(cudaMemcpy(o.logits, r->forward.logits, o.n_logits * sizeof(float),
                         cudaMemcpyDeviceToHost));
    cuda_must(cudaMemcpy(o.pool, r->forward.kv.base, o.n_pool * 2, cudaMemcpyDeviceToHost));
    cuda_must(cudaMemcpy(o.sampled, r->forward.sampler.sampled, sizeof(o.sampled),
                         cudaMemcpyDeviceToHost));
    return o;
}

static void outcome_deinit(struct outcome *o)
{
    free(o->logits);
    free(o->pool);
}

static uint16_t *key_of(const struct rig *r, uint16_t *pool, int seq, int key, int layer, int head,
                        bool v)
{
    const int block = r->block_table[seq * r->limits.max_blocks + key / r->block_len];
    const struct kv_pool *kv = &r->forward.kv;

    return pool + block * kv->block_stride + layer * kv->layer_stride + (v ? kv->v_offset : 0) +
           (head * r->block_len + key % r->block_len) * kv->head_dim;
}

/* Every key that is not of an earlier step is NaN; the same pool for each run. */
static void poison(const struct rig *r, uint16_t *pool, int n)
{
    for (int i = 0; i < n; i++)
        for (int key = r->kv_len[i] - 1; key < r->n_held[i] * r->block_len; key++)
            for (int j = 0; j < r->config.n_layers * r->config.n_kv_heads * 2; j++)
                memset(key_of(r, pool, i, key, j / 2 / r->config.n_kv_heads,
                              j / 2 % r->config.n_kv_heads, j % 2),
                       0xff, (size_t)r->config.head_dim * 2);
}

/* The error of the keys and values of this step, and that no others have changed. */
static double stored_error(const struct rig *r, struct outcome *got, struct outcome *expected,
                           const uint16_t *before, int n)
{
    const size_t size = (size_t)r->config.head_dim;
    double difference = 0.0, norm = 0.0;
    size_t changed = 0;

    for (int i = 0; i < n; i++)
        for (int j = 0; j < r->config.n_layers * r->config.n_kv_heads * 2; j++) {
            const int layer = j / 2 / r->config.n_kv_heads, head = j / 2 % r->config.n_kv_heads;
            const uint16_t *a = key_of(r, got->pool, i, r->kv_len[i] - 1, layer, head, j % 2);
            const uint16_t *b = key_of(r, expected->pool, i, r->kv_len[i] - 1, layer, head, j % 2);

            for (size_t k = 0; k < size; k++) {
                difference += pow(bf16_value(a[k]) - bf16_value(b[k]), 2.0);
                norm += pow(bf16_value(b[k]), 2.0);
            }
        }
    for (size_t i = 0; i < got->n_pool; i++)
        changed += got->pool[i] != before[i];
    ck_assert_uint_le(changed, (size_t)(n * r->config.n_layers * r->config.n_kv_heads * 2) * size);
    return sqrt(difference / norm);
}

static double logits_error(const struct rig *r, const struct outcome *got,
                           const struct outcome *expected, int n_rows)
{
    const int64_t stride = r->forward.sampler.logits_stride;
    double difference = 0.0, norm = 0.0;

    for (int i = 0; i < n_rows; i++)
        for (int64_t j = 0; j < stride; j++) {
            const double a = (double)got->logits[i * stride + j];
            const double b = (double)expected->logits[i * stride + j];

            if (j >= r->config.vocab_size) {
                ck_assert(isnan(a)); /* nothing is written past a row */
                continue;
            }
            difference += (a - b) * (a - b);
            norm += b * b;
        }
    return sqrt(difference / norm);
}

/* keys: the pool with no key unwritten. */
static void check_step(struct rig *r, const uint16_t *keys, const int *kv_len, int n,
                       bool skip_first)
{
    const struct step_view v = rig_step(r, kv_len, n, skip_first);
    const int n_rows = n - (skip_first && n > 1);
    const size_t pool_bytes = (size_t)r->n_blocks * (size_t)r->block_elements * 2;
    uint16_t *before = malloc(pool_bytes);
    struct outcome chain, first;
    double logits, stored;

    memcpy(before, keys, pool_bytes);
    poison(r, before, n);
    cuda_must(cudaMemset(r->forward.sampler.sampled, 0, RIG_ROWS * sizeof(int32_t)));
    cuda_must(cudaMemcpy(r->forward.kv.base, before, pool_bytes, cudaMemcpyHostToDevice));
    chain = outcome_of(r, &v, n, n_rows, false);
    for (int i = 0; i < 3; i++) {
        struct outcome o;

        cuda_must(cudaMemset(r->forward.sampler.sampled, 0, RIG_ROWS * sizeof(int32_t)));
        cuda_must(cudaMemcpy(r->forward.kv.base, before, pool_bytes, cudaMemcpyHostToDevice));
        rig_renew(r);
        o = outcome_of(r, &v, n, n_rows, true);
        logits = logits_error(r, &o, &chain, n_rows);
        stored = stored_error(r, &o, &chain, before, n);
        if (i == 0)
            printf("hidden=%d heads=%d/%d of %d rows=%d first_len=%d logits=%.2e stored=%.2e\n",
                   r->config.hidden_dim, r->config.n_heads, r->config.n_kv_heads,
                   r->config.head_dim, n, kv_len[0], logits, stored);
        fflush(stdout);
        ck_assert(logits < error_limit);
        ck_assert(stored < error_limit);
        if (i == 0) {
            first = o;
            continue;
        }
        ck_assert(memcmp(o.logits, first.logits, o.n_logits * sizeof(float)) == 0);
        ck_assert(memcmp(o.pool, first.pool, o.n_pool * 2) == 0);
        ck_assert(memcmp(o.sampled, first.sampled, sizeof(o.sampled)) == 0);
        outcome_deinit(&o);
    }
    outcome_deinit(&first);
    outcome_deinit(&chain);
    free(before);
}

static void check_shape(const struct model_config *c, bool bias, int block_len, int most_rows)
{
    static const int rows[] = {1, 2, 3, 4, 8, 9, 16};
    static const int lengths[RIG_ROWS] = {513, 1,  4200, 16, 17,  1, 100, 64,
                                          15,  33, 32,   2,  250, 7, 1,   48};
    int max_len[RIG_ROWS];
    uint16_t *keys;
    struct rig r;

    for (int i = 0; i < RIG_ROWS; i++)
        max_len[i] = i == 0 ? 4208 : lengths[i];
    rig_init(&r, c, bias, block_len, max_len);
    ck_assert_int_eq(r.forward.resident_rows, most_rows);
    keys = malloc((size_t)r.n_blocks * (size_t)r.block_elements * 2);
    cuda_must(cudaMemcpy(keys, r.forward.kv.base, (size_t)r.n_blocks * (size_t)r.block_elements * 2,
                         cudaMemcpyDeviceToHost));
    for (size_t i = 0; i < sizeof(rows) / sizeof(*rows) && rows[i] <= most_rows; i++)
        check_step(&r, keys, lengths, rows[i], i % 2);
    for (int i = 1; i < 4; i++) /* one sequence: of one key, of many, of a few */
        check_step(&r, keys, lengths + i, 1, false);
    free(keys);
    rig_deinit(&r);
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

/* Widths that fill no stage, three query heads a KV head, a vocabulary that fills no tile. */
START_TEST(odd_shape_follows_chain)
{
    check_shape(&small, false, 16, 16);
}
END_TEST

/* Heads of 64, seven a KV head, biases in place of norms, blocks of 32. */
START_TEST(biases_and_short_heads_follow_chain)
{
    struct model_config c = small;

    c.n_heads = 14;
    c.head_dim = 64;
    c.hidden_dim = 896;
    c.ffn_dim = 1216;
    check_shape(&c, true, 32, 16);
}
END_TEST

/* The shape of a model of 0.6 billion parameters, a part of its layers. */
START_TEST(small_model_follows_chain)
{
    struct model_config c = small;

    c.n_heads = 16;
    c.n_kv_heads = 8;
    c.hidden_dim = 1024;
    c.ffn_dim = 3072;
    c.vocab_size = 12004;
    c.tied = true;
    check_shape(&c, false, 16, 16);
}
END_TEST

/* Rows longer than a stage, several tiles a block, and as few rows as leave memory for a ring. */
START_TEST(large_model_follows_chain)
{
    struct model_config c = small;

    c.n_layers = 1;
    c.n_heads = 32;
    c.n_kv_heads = 8;
    c.hidden_dim = 4096;
    c.ffn_dim = 12288;
    check_shape(&c, false, 16, 4);
}
END_TEST

/* A shape that the kernel is not made for is left to the chain. */
START_TEST(unfit_shapes_are_refused)
{
    struct model_config c = small;
    struct forward f = {0};

    c.n_heads = 18; /* nine a KV head */
    forward_plan_resident(&f, &c, 132, 4);
    ck_assert_int_eq(f.resident_rows, 0);
    c = small;
    c.ffn_dim = 200000; /* one row leaves no ring */
    forward_plan_resident(&f, &c, 132, 4);
    ck_assert_int_eq(f.resident_rows, 0);
    c = small;
    c.hidden_dim = 132 * 128 + 32; /* more columns a block than there is room for */
    forward_plan_resident(&f, &c, 132, 4);
    ck_assert_int_eq(f.resident_rows, 0);
    forward_plan_resident(&f, &small, 132, 4);
    ck_assert_int_eq(f.resident_rows, 16);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("resident");
    TCase *t = tcase_create("resident");
    SRunner *runner = srunner_create(suite);
    int failed;

    tcase_set_timeout(t, 120);
    tcase_add_test(t, odd_shape_follows_chain);
    tcase_add_test(t, biases_and_short_heads_follow_chain);
    tcase_add_test(t, small_model_follows_chain);
    tcase_add_test(t, large_model_follows_chain);
    tcase_add_test(t, unfit_shapes_are_refused);
    suite_add_tcase(suite, t);
    srunner_set_fork_status(runner, CK_NOFORK);
    srunner_run_all(runner, CK_NORMAL);
    failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
