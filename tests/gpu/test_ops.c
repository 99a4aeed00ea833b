/* test_ops.c - each kernel that is no attention and no sampler against a plain twin in double, at
 * odd sizes, one row and many, with poisoned outputs. cuBLASLt's products are in test_products.c.
 */
#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cuda/device.h"
#include "cuda/kernels/kernels.h"
#include "engine/util/bf16.h"
#include "tests/gpu/device_array.h"
#include "tests/unit/run_suite.h"

/* One rounding to bf16 of random values is off by 2^-9 / sqrt(3) at most: 1.7e-3 and a margin. */
static const double bf16_error = 2.5e-3;

static struct device device;

static void setup(void)
{
    struct err e;

    ck_assert_msg(device_open(&device, 0, &e) == 0, "%s", e.text);
    random_seed(7);
}

static void teardown(void)
{
    device_close(&device);
}

/* The float residual of a token is its embedding, whether the id is given or sampled before. */
START_TEST(embed_takes_given_and_sampled_ids)
{
    enum { VOCAB = 100, DIM = 264, ROWS = 5 };
    const int32_t tokens[ROWS] = {0, 99, ~1, 7, ~0}, sampled[2] = {42, 13};
    const int32_t expected[ROWS] = {0, 99, 13, 7, 42};
    struct device_array table = array_new(VOCAB * DIM * 2), out = array_new(ROWS * DIM * 4);
    struct device_array ids = array_new(sizeof(tokens)), before = array_new(sizeof(sampled));
    struct step_view v = {.tokens = ids.device};

    fill_bf16(&table, 1.0f);
    memcpy(ids.host, tokens, sizeof(tokens));
    memcpy(before.host, sampled, sizeof(sampled));
    array_to_device(&ids);
    array_to_device(&before);
    cuda_must(embed(&device.launch, out.device, table.device, &v, before.device, ROWS, DIM, VOCAB));
    array_to_host(&out);
    for (int i = 0; i < ROWS; i++)
        for (int j = 0; j < DIM; j++)
            ck_assert(((float *)out.host)[i * DIM + j] ==
                      f32_from_bf16(((uint16_t *)table.host)[expected[i] * DIM + j]));
    array_free(&table);
    array_free(&out);
    array_free(&ids);
    array_free(&before);
}
END_TEST

static void check_rms_norm(int rows, int dim, bool gather)
{
    const int source = rows * 3 + 1;
    struct device_array x = array_new((size_t)source * (size_t)dim * 4);
    struct device_array w = array_new((size_t)dim * 2);
    struct device_array y = array_new((size_t)rows * (size_t)dim * 2);
    struct device_array list = array_new((size_t)rows * sizeof(struct sampler_row));
    struct device_array counts = array_new(sizeof(struct step_counts));
    struct step_view v = {.rows = list.device, .counts = counts.device};
    double *expected = malloc((size_t)rows * (size_t)dim * sizeof(*expected)), *got;

    fill_f32(&x, 3.0f);
    fill_bf16(&w, 1.0f);
    ((struct step_counts *)counts.host)->n_rows = rows;
    for (int i = 0; i < rows; i++)
        ((struct sampler_row *)list.host)[i].row = i * 3 + 1;
    array_to_device(&counts);
    array_to_device(&list);
    cuda_must(rms_norm(&device.launch, y.device, x.device, w.device, gather ? &v : NULL, rows, dim,
                       1e-6f));
    array_to_host(&y);
    for (int i = 0; i < rows; i++) {
        const float *from = (float *)x.host + (size_t)(gather ? i * 3 + 1 : i) * (size_t)dim;
        double sum = 0.0;

        for (int j = 0; j < dim; j++)
            sum += (double)from[j] * (double)from[j];
        for (int j = 0; j < dim; j++)
            expected[i * dim + j] =
                (double)from[j] / sqrt(sum / dim + 1e-6) * bf16_value(((uint16_t *)w.host)[j]);
    }
    got = values_bf16(y.host, (size_t)rows * (size_t)dim);
    ck_assert_double_lt(relative_error(got, expected, (size_t)rows * (size_t)dim), bf16_error);
    free(got);
    free(expected);
    array_free(&x);
    array_free(&w);
    array_free(&y);
    array_free(&list);
    array_free(&counts);
}

/* Every row has unit mean square before the weight, at one row, odd widths and many rows. */
START_TEST(rms_norm_follows_twin)
{
    check_rms_norm(1, 8, false);
    check_rms_norm(1, 1024, true);
    check_rms_norm(7, 904, true);
    check_rms_norm(3000, 5120, false);
    check_rms_norm(300, 2048, true);
    check_rms_norm(3, 2056, true);
    check_rms_norm(2, 16384, false);
    check_rms_norm(2, 131072, true);
}
END_TEST

/* Parts are added to x before it is normed, and x is what was added up then. */
static void check_norm_of_parts(int rows, int dim, int n_parts)
{
    const size_t n = (size_t)rows * (size_t)dim, stride = n + 8 * (size_t)dim;
    struct device_array x = array_new(n * 4), w = array_new((size_t)dim * 2);
    struct device_array y = array_new(n * 2), parts = array_new((size_t)n_parts * stride * 4);
    double *sums = malloc(n * sizeof(*sums)), *expected = malloc(n * sizeof(*expected)), *got;

    fill_f32(&x, 3.0f);
    fill_f32(&parts, 2.0f);
    fill_bf16(&w, 1.0f);
    for (size_t i = 0; i < n; i++) {
        sums[i] = (double)((float *)x.host)[i];
        for (size_t j = 0; j < (size_t)n_parts; j++)
            sums[i] += (double)((float *)parts.host)[j * stride + i];
    }
    for (int i = 0; i < rows; i++) {
        const double *row = sums + (size_t)i * (size_t)dim;
        double square = 0.0;

        for (int j = 0; j < dim; j++)
            square += row[j] * row[j];
        for (int j = 0; j < dim; j++)
            expected[i * dim + j] =
                row[j] / sqrt(square / dim + 1e-6) * bf16_value(((uint16_t *)w.host)[j]);
    }
    cuda_must(rms_norm_add(&device.launch, y.device, x.device, parts.device, n_parts,
                           (int64_t)stride, w.device, rows, dim, 1e-6f));
    array_to_host(&y);
    array_to_host(&x);
    got = values_bf16(y.host, n);
    ck_assert_double_lt(relative_error(got, expected, n), bf16_error);
    free(got);
    got = values_f32(x.host, n);
    ck_assert_double_lt(relative_error(got, sums, n), 1e-6);
    free(got);
    free(sums);
    free(expected);
    array_free(&x);
    array_free(&w);
    array_free(&y);
    array_free(&parts);
}

START_TEST(norm_adds_parts_first)
{
    for (int n_parts = 2; n_parts <= 4; n_parts += 2) {
        check_norm_of_parts(1, 8, n_parts);
        check_norm_of_parts(256, 1024, n_parts);
        check_norm_of_parts(7, 904, n_parts);
        check_norm_of_parts(65, 2560, n_parts);
        check_norm_of_parts(3, 8192, n_parts);
    }
}
END_TEST

static void check_silu_mul(int rows, int dim)
{
    const size_t n = (size_t)rows * (size_t)dim;
    struct device_array x = array_new(2 * n * 2), y = array_new(n * 2);
    double *expected = malloc(n * sizeof(*expected)), *got;

    fill_bf16(&x, 3.0f);
    cuda_must(silu_mul(&device.launch, y.device, x.device, rows, dim));
    array_to_host(&y);
    for (int i = 0; i < rows; i++)
        for (int j = 0; j < dim; j++) {
            const uint16_t *row = (uint16_t *)x.host + (size_t)i * 2 * (size_t)dim;
            const double g = bf16_value(row[j]), u = bf16_value(row[dim + j]);

            expected[(size_t)i * (size_t)dim + (size_t)j] = g / (1.0 + exp(-g)) * u;
        }
    got = values_bf16(y.host, n);
    ck_assert_double_lt(relative_error(got, expected, n), bf16_error);
    free(got);
    free(expected);
    array_free(&x);
    array_free(&y);
}

/* silu(gate) * up at one row, an odd width and many rows. */
START_TEST(silu_mul_follows_twin)
{
    check_silu_mul(1, 8);
    check_silu_mul(5, 4872);
    check_silu_mul(2049, 3072);
}
END_TEST

static double skinny_twin(const struct skinny *s, const double *x, const uint16_t *w, int n)
{
    const double y = dot(x, w + (size_t)n * (size_t)s->k, s->k);

    if (s->out != SKINNY_SILU_MUL)
        return y;
    return y / (1.0 + exp(-y)) * dot(x, w + (size_t)(s->n + n) * (size_t)s->k, s->k);
}

/* What the product sees of x: normed where it norms. */
static double *skinny_input(const struct device_array *x, const struct device_array *norm, int m,
                            int k, bool f32)
{
    const size_t n = (size_t)m * (size_t)k;
    double *v = f32 ? values_f32(x->host, n) : values_bf16(x->host, n);

    for (int i = 0; f32 && i < m; i++) {
        double sum = 0.0;

        for (int j = 0; j < k; j++)
            sum += v[i * k + j] * v[i * k + j];
        for (int j = 0; j < k; j++)
            v[i * k + j] *= bf16_value(((uint16_t *)norm->host)[j]) / sqrt(sum / k + 1e-6);
    }
    return v;
}

static void check_skinny(int m, int n, int k, enum skinny_out out, bool f32, bool with_bias)
{
    const bool wide = out == SKINNY_F32 || out == SKINNY_ADD_F32;
    const size_t stride = (size_t)n + 8, size = (size_t)m * stride;
    struct device_array x = array_new((size_t)m * (size_t)k * (f32 ? 4 : 2));
    struct device_array w = array_new((size_t)n * (size_t)k * (out == SKINNY_SILU_MUL ? 4 : 2));
    struct device_array norm = array_new((size_t)k * 2), y = array_new(size * (wide ? 4 : 2));
    struct device_array bias = array_new((size_t)n * 2);
    struct skinny s = {.y = y.device,
                       .y_stride = (int64_t)stride,
                       .norm = norm.device,
                       .eps = 1e-6f,
                       .w = w.device,
                       .m = m,
                       .n = n,
                       .k = k,
                       .out = out};
    double *expected = malloc(size * sizeof(double)), *got, *in;

    if (f32)
        fill_f32(&x, 2.0f);
    else
        fill_bf16(&x, 1.0f);
    fill_bf16(&w, 1.0f / sqrtf((float)k));
    fill_bf16(&norm, 1.0f);
    fill_bf16(&bias, 2.0f);
    s.bias = with_bias ? bias.device : NULL;
    if (out == SKINNY_ADD_F32)
        fill_f32(&y, 1.0f);
    s.x_f32 = f32 ? x.device : NULL;
    s.x = f32 ? NULL : x.device;
    in = skinny_input(&x, &norm, m, k, f32);
    for (size_t i = 0; i < size; i++)
        expected[i] = out == SKINNY_ADD_F32 ? (double)((float *)y.host)[i] : 0.0;
    for (int i = 0; i < m; i++)
        for (int j = 0; j < n; j++)
            expected[(size_t)i * stride + (size_t)j] +=
                skinny_twin(&s, in + (size_t)i * (size_t)k, w.host, j) +
                (with_bias ? bf16_value(((uint16_t *)bias.host)[j]) : 0.0);
    cuda_must(skinny_gemm(&device.launch, &s));
    array_to_host(&y);
    got = wide ? values_f32(y.host, size) : values_bf16(y.host, size);
    for (int i = 0; i < m && out != SKINNY_ADD_F32; i++)
        for (size_t j = (size_t)n; j < stride; j++) {
            ck_assert(isnan(got[(size_t)i * stride + j])); /* nothing written past a row */
            got[(size_t)i * stride + j] = 0.0;
        }
    ck_assert_msg(relative_error(got, expected, size) <
                      (1 + f32 + (out == SKINNY_SILU_MUL)) * bf16_error,
                  "m %d n %d k %d out %d f32 %d: %g", m, n, k, (int)out, f32,
                  relative_error(got, expected, size));
    free(in);
    free(got);
    free(expected);
    array_free(&x);
    array_free(&w);
    array_free(&norm);
    array_free(&bias);
    array_free(&y);
}

/* All outputs, with and without a norm before, one row to the largest, widths that fill no tile. */
START_TEST(skinny_gemm_follows_twin)
{
    static const int rows[] = {1, 3, 8, 9, 16, 17, 64, 150};

    for (size_t i = 0; i < sizeof(rows) / sizeof(*rows); i++)
        for (int f32 = 0; f32 < (rows[i] > SKINNY_MAX_ROWS ? 1 : 2); f32++) {
            for (int out = SKINNY_BF16; out <= SKINNY_SILU_MUL; out++) {
                check_skinny(rows[i], 52, 32, (enum skinny_out)out, f32, false);
                check_skinny(rows[i], 200, f32 ? 480 : 1024, (enum skinny_out)out, f32, false);
                if (!f32 || 2 * rows[i] * (3072 + 32) <= SKINNY_NORM_BYTES)
                    check_skinny(rows[i], 12, 3072 + 32, (enum skinny_out)out, f32, false);
            }
            check_skinny(rows[i], 17004, 96, SKINNY_F32, f32, false);
            check_skinny(rows[i], 2604, 160, SKINNY_BF16, f32, false);
            check_skinny(rows[i], 1160, 448, SKINNY_BF16, f32, true);
        }
}
END_TEST

/* A product of normed rows, by itself or behind the kernel for many. */
static void normed_product(struct device_array *y, struct skinny s, const struct device_array *x,
                           int first, bool alone)
{
    struct device_array normed = array_new((size_t)s.m * (size_t)s.k * 2);
    struct device_array rms = array_new((size_t)s.m * 4);
    const float *from = (const float *)x->device + (size_t)first * (size_t)s.k;

    *y = array_new((size_t)s.m * (size_t)s.y_stride * 2);
    s.y = y->device;
    if (alone) {
        s.x_f32 = from;
    } else {
        cuda_must(
            skinny_norm(&device.launch, normed.device, rms.device, from, s.norm, s.m, s.k, s.eps));
        s.x = normed.device;
        s.rms = rms.device;
    }
    cuda_must(skinny_gemm(&device.launch, &s));
    array_to_host(y);
    array_free(&normed);
    array_free(&rms);
}

static void check_normed_rows(int n, int k, enum skinny_out out)
{
    enum { ROWS = 150 };
    static const int counts[] = {1, 2, 3, 5, 8, 9, 16, 17, 100};
    struct device_array x = array_new((size_t)ROWS * (size_t)k * 4), all, some;
    struct device_array w = array_new((size_t)n * (size_t)k * 4);
    struct device_array norm = array_new((size_t)k * 2);
    struct skinny s = {.y_stride = n,
                       .norm = norm.device,
                       .eps = 1e-6f,
                       .w = w.device,
                       .m = ROWS,
                       .n = n,
                       .k = k,
                       .out = out};
    double *in, *got, *expected = malloc((size_t)(ROWS * n) * sizeof(double));

    fill_f32(&x, 2.0f);
    fill_bf16(&w, 1.0f / sqrtf((float)k));
    fill_bf16(&norm, 1.0f);
    normed_product(&all, s, &x, 0, false);
    in = skinny_input(&x, &norm, ROWS, k, true);
    for (int i = 0; i < ROWS * n; i++)
        expected[i] = skinny_twin(&s, in + (size_t)(i / n) * (size_t)k, w.host, i % n);
    got = values_bf16(all.host, (size_t)(ROWS * n));
    ck_assert_double_lt(relative_error(got, expected, (size_t)(ROWS * n)), 2 * bf16_error);
    for (size_t i = 0; i < sizeof(counts) / sizeof(*counts); i++)
        for (int alone = 0; alone < 2; alone++) {
            const int first = 7 * (int)i % (ROWS - counts[i]);

            s.m = counts[i];
            if (alone && (s.m > SKINNY_MAX_ROWS || 2 * s.m * k > SKINNY_NORM_BYTES))
                continue;
            normed_product(&some, s, &x, first, alone);
            ck_assert_msg(memcmp(some.host, (uint16_t *)all.host + first * n,
                                 (size_t)(s.m * n) * 2) == 0,
                          "%d rows, n %d k %d out %d alone %d", s.m, n, k, (int)out, alone);
            array_free(&some);
        }
    free(in);
    free(got);
    free(expected);
    array_free(&x);
    array_free(&w);
    array_free(&norm);
    array_free(&all);
}

/* What a row gives is the same to the bit whether the product norms it or a kernel before it does,
 * and whatever the number of rows. */
START_TEST(normed_rows_do_not_depend_on_rows)
{
    check_normed_rows(52, 32, SKINNY_BF16);
    check_normed_rows(200, 480, SKINNY_SILU_MUL);
    check_normed_rows(2604, 160, SKINNY_BF16);
    check_normed_rows(72, 1024, SKINNY_BF16);
    check_normed_rows(40, 2720, SKINNY_BF16);
    check_normed_rows(40, 4096, SKINNY_SILU_MUL);
}
END_TEST

/* One head of the twin: norm, rotation. */
static void head_twin(double *x, const uint16_t *norm, int dim, int position, bool rotate)
{
    double sum = 0.0;

    for (int i = 0; i < dim; i++)
        sum += x[i] * x[i];
    for (int i = 0; norm && i < dim; i++)
        x[i] *= bf16_value(norm[i]) / sqrt(sum / dim + 1e-6);
    for (int i = 0; rotate && i < dim / 2; i++) {
        const float frequency = (float)(1.0 / pow(1e6, 2.0 * i / dim));
        const double angle = (double)((float)position * frequency);
        const double a = x[i], b = x[dim / 2 + i];

        x[i] = a * cos(angle) - b * sin(angle);
        x[dim / 2 + i] = b * cos(angle) + a * sin(angle);
    }
}

/* Rows from `first` on. */
static void check_rope(int dim, int n_heads, int n_kv, int first, int rows, int shift,
                       bool with_norm)
{
    enum { BLOCKS = 7, LAYERS = 2, LAYER = 1, POSITIONS = 3000 };
    const int all = n_heads + 2 * n_kv, block_len = 1 << shift, end = first + rows;
    const int64_t v_offset = (int64_t)n_kv * block_len * dim;
    struct device_array qkv = array_new((size_t)(end * all * dim) * 2);
    struct device_array table = array_new((size_t)POSITIONS * (size_t)dim * 4);
    struct device_array qn = array_new((size_t)dim * 2), kn = array_new((size_t)dim * 2);
    struct device_array places = array_new((size_t)end * 8);
    struct device_array pool = array_new((size_t)(BLOCKS * LAYERS * 2 * v_offset) * 2);
    struct kv_pool kv = {pool.device, 2 * v_offset * LAYERS, 2 * v_offset, v_offset, shift, n_kv,
                         dim};
    const struct rope rope = {.q_norm = with_norm ? qn.device : NULL,
                              .k_norm = with_norm ? kn.device : NULL,
                              .table = table.device,
                              .eps = 1e-6f};
    int32_t *positions = places.host, *slots = positions + end;
    struct step_view v = {.positions = places.device, .slots = (int32_t *)places.device + end};
    double *in, *got = malloc((size_t)dim * sizeof(double));
    double *twin = malloc((size_t)dim * sizeof(double));
    uint16_t *before = malloc(qkv.bytes);

    fill_bf16(&qkv, 1.0f);
    fill_bf16(&qn, 1.0f);
    fill_bf16(&kn, 1.0f);
    memcpy(before, qkv.host, qkv.bytes);
    in = values_bf16(qkv.host, (size_t)(end * all * dim));
    for (int i = 0; i < end; i++) {
        positions[i] = i == 0 ? POSITIONS - 1 : i * 37 % POSITIONS;
        slots[i] = i == first + 1 ? -1 : (i * 5 + 3) % (BLOCKS * block_len);
    }
    array_to_device(&places);
    cuda_must(rope_table(&device.launch, table.device, POSITIONS, dim, 1e6));
    cuda_must(rope_store(&device.launch, qkv.device, &rope, &kv, LAYER, &v, first, rows, n_heads));
    array_to_host(&qkv);
    array_to_host(&pool);
    ck_assert_mem_eq(qkv.host, before, (size_t)(first * all * dim) * 2);
    for (int i = first; i < end; i++)
        for (int h = 0; h < all; h++) {
            const bool is_q = h < n_heads, is_v = h >= n_heads + n_kv;
            const uint16_t *at = (uint16_t *)qkv.host + (i * all + h) * dim;
            const int kv_head = (h - n_heads) % n_kv;

            if (!is_q && slots[i] < 0)
                continue;
            memcpy(twin, in + (i * all + h) * dim, (size_t)dim * sizeof(double));
            head_twin(twin,
                      !with_norm || is_v ? NULL
                      : is_q             ? qn.host
                                         : kn.host,
                      dim, positions[i], !is_v);
            if (!is_q)
                at = (uint16_t *)pool.host + (slots[i] >> shift) * kv.block_stride +
                     LAYER * kv.layer_stride + (is_v ? v_offset : 0) +
                     (kv_head * block_len + (slots[i] & (block_len - 1))) * dim;
            for (int j = 0; j < dim; j++)
                got[j] = bf16_value(at[j]);
            ck_assert_msg(relative_error(got, twin, (size_t)dim) < bf16_error, "row %d head %d", i,
                          h);
        }
    free(in);
    free(got);
    free(twin);
    free(before);
    array_free(&qkv);
    array_free(&table);
    array_free(&qn);
    array_free(&kn);
    array_free(&places);
    array_free(&pool);
}

/* q in place, k and v in their slots, for both head sizes, with norms and without, from a row in
 * the middle on; a row without a slot is stored nowhere. */
START_TEST(rope_store_follows_twin)
{
    check_rope(128, 2, 1, 0, 1, 4, true);
    check_rope(128, 16, 8, 3, 10, 4, true);
    check_rope(64, 14, 2, 0, 13, 5, false);
    check_rope(64, 6, 2, 1, 9, 4, true);
    check_rope(128, 5, 1, 7, 22, 6, false);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("ops");
    TCase *t = tcase_create("ops");

    tcase_add_unchecked_fixture(t, setup, teardown);
    tcase_set_timeout(t, 120);
    tcase_add_test(t, embed_takes_given_and_sampled_ids);
    tcase_add_test(t, rms_norm_follows_twin);
    tcase_add_test(t, norm_adds_parts_first);
    tcase_add_test(t, silu_mul_follows_twin);
    tcase_add_test(t, skinny_gemm_follows_twin);
    tcase_add_test(t, normed_rows_do_not_depend_on_rows);
    tcase_add_test(t, rope_store_follows_twin);
    suite_add_tcase(suite, t);
    return run_suite_here(suite);
}
