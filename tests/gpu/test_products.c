/* test_products.c - products by cuBLASLt against a plain twin in double; which algorithms they
 * take, how these are measured, and that they never change. */
#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cuda/device.h"
#include "cuda/gemm.h"
#include "tests/gpu/device_array.h"
#include "tests/unit/run_suite.h"

/* One rounding to bf16 of random values is off by 2^-9 / sqrt(3) at most: 1.7e-3 and a margin. */
static const double bf16_error = 2.5e-3;

static struct device device;

static void setup(void)
{
    struct err e;

    ck_assert_msg(device_open(&device, 0, &e) == 0, "%s", e.text);
    random_seed(11);
}

static void teardown(void)
{
    device_close(&device);
}

static void check_gemm(struct gemm *g, int m, int n, int k, enum gemm_out out)
{
    const size_t size = (size_t)m * (size_t)n;
    struct device_array x = array_new((size_t)m * (size_t)k * 2);
    struct device_array w = array_new((size_t)n * (size_t)k * 2);
    const bool wide = out == GEMM_F32 || out == GEMM_ADD_F32, with_bias = out == GEMM_BIAS_BF16;
    struct device_array y = array_new(size * (wide ? 4 : 2)), bias = array_new((size_t)n * 2);
    const struct gemm_product p = {.y = y.device,
                                   .y_stride = n,
                                   .x = x.device,
                                   .w = w.device,
                                   .bias = with_bias ? bias.device : NULL,
                                   .m = m,
                                   .n = n,
                                   .k = k,
                                   .out = out};
    double *expected = malloc(size * sizeof(double)), *got, *in;
    struct err e;

    fill_bf16(&x, 1.0f);
    fill_bf16(&w, 1.0f / sqrtf((float)k));
    fill_bf16(&bias, 2.0f);
    if (out == GEMM_ADD_F32)
        fill_f32(&y, 1.0f);
    in = values_bf16(x.host, (size_t)m * (size_t)k);
    for (int i = 0; i < m; i++)
        for (int j = 0; j < n; j++)
            expected[(size_t)i * (size_t)n + (size_t)j] =
                (out == GEMM_ADD_F32 ? (double)((float *)y.host)[(size_t)i * (size_t)n + (size_t)j]
                                     : 0.0) +
                (with_bias ? bf16_value(((uint16_t *)bias.host)[j]) : 0.0) +
                dot(in + (size_t)i * (size_t)k, (uint16_t *)w.host + (size_t)j * (size_t)k, k);
    ck_assert_msg(gemm_run(g, device.launch.stream, &p, &e) == 0, "%s", e.text);
    array_to_host(&y);
    got = wide ? values_f32(y.host, size) : values_bf16(y.host, size);
    ck_assert_double_lt(relative_error(got, expected, size), bf16_error);
    free(in);
    free(got);
    free(expected);
    array_free(&x);
    array_free(&w);
    array_free(&bias);
    array_free(&y);
}

/* Each part is the product over its own part of k. */
static void check_gemm_parts(struct gemm *g, int m, int n, int k, int n_parts)
{
    const size_t size = (size_t)m * (size_t)n, part = (size_t)(k / n_parts);
    struct device_array x = array_new((size_t)m * (size_t)k * 2);
    struct device_array w = array_new((size_t)n * (size_t)k * 2);
    struct device_array y = array_new(size * (size_t)n_parts * 4);
    double *expected = malloc(size * sizeof(double)), *got, *in;
    struct err e;

    ck_assert_int_eq(gemm_parts(m, n, k), n_parts);
    ck_assert_int_le(n_parts * m * n, GEMM_PART_FLOATS);
    fill_bf16(&x, 1.0f);
    fill_bf16(&w, 1.0f / sqrtf((float)k));
    in = values_bf16(x.host, (size_t)m * (size_t)k);
    ck_assert_msg(gemm_run(g, device.launch.stream,
                           &(struct gemm_product){.y = y.device,
                                                  .y_stride = n,
                                                  .x = x.device,
                                                  .w = w.device,
                                                  .m = m,
                                                  .n = n,
                                                  .k = k,
                                                  .out = GEMM_PARTS_F32},
                           &e) == 0,
                  "%s", e.text);
    array_to_host(&y);
    for (size_t p = 0; p < (size_t)n_parts; p++) {
        for (size_t i = 0; i < (size_t)m; i++)
            for (size_t j = 0; j < (size_t)n; j++)
                expected[i * (size_t)n + j] =
                    dot(in + i * (size_t)k + p * part,
                        (uint16_t *)w.host + j * (size_t)k + p * part, (int)part);
        got = values_f32((float *)y.host + p * size, size);
        ck_assert_double_lt(relative_error(got, expected, size), bf16_error);
        free(got);
    }
    free(in);
    free(expected);
    array_free(&x);
    array_free(&w);
    array_free(&y);
}

/* Products in parts; none of what fills the machine by itself. */
START_TEST(products_come_in_parts)
{
    struct device_array workspace = array_new(GEMM_WORKSPACE);
    struct gemm *g;
    struct err e;

    ck_assert_msg(gemm_new(&g, workspace.device, NULL, false, &e) == 0, "%s", e.text);
    check_gemm_parts(g, 32, 520, 256, 4);
    check_gemm_parts(g, 96, 256, 896, 2);
    check_gemm_parts(g, 128, 1024, 768, 4);
    check_gemm_parts(g, 256, 1024, 512, 2);
    ck_assert_int_eq(gemm_parts(288, 1024, 1024), 1);
    ck_assert_int_eq(gemm_parts(128, 4096, 4096), 1);
    ck_assert_int_eq(gemm_parts(16, 1024, 96), 1);
    gemm_free(g);
    array_free(&workspace);
}
END_TEST

/* bf16, float and added results and a bias, the same shape twice: found, then remembered. */
START_TEST(gemm_follows_twin)
{
    struct device_array workspace = array_new(GEMM_WORKSPACE);
    struct gemm *g;
    struct err e;

    ck_assert_msg(gemm_new(&g, workspace.device, NULL, false, &e) == 0, "%s", e.text);
    for (int i = 0; i < 2; i++) {
        check_gemm(g, 32, 520, 256, GEMM_BF16);
        check_gemm(g, 32, 520, 256, GEMM_F32);
        check_gemm(g, gemm_rows(97), 256, 768, GEMM_ADD_F32);
        check_gemm(g, gemm_rows(97), 1152, 896, GEMM_BIAS_BF16); /* another bias each time */
    }
    gemm_free(g);
    array_free(&workspace);
}
END_TEST

/* Rows of one product are those of any other with as many rows, or fewer, or more, to the bit. */
static void check_rows_alone(struct gemm *g, int n, int k, enum gemm_out out)
{
    enum { ROWS = 700 };
    static const int counts[] = {1, 16, 40, 129, 513, ROWS};
    const size_t size = out == GEMM_ADD_F32 ? 4 : 2, row = (size_t)n * size;
    struct device_array x = array_new((size_t)gemm_rows(ROWS) * (size_t)k * 2);
    struct device_array w = array_new((size_t)n * (size_t)k * 2), bias = array_new((size_t)n * 2);
    struct device_array y = array_new((size_t)gemm_rows(ROWS) * row);
    char *all = malloc(ROWS * row);
    struct err e;

    fill_bf16(&x, 1.0f);
    fill_bf16(&w, 1.0f / sqrtf((float)k));
    fill_bf16(&bias, 1.0f);
    for (int i = 5; i >= 0; i--) {
        const int m = counts[i], first = i == 5 ? 0 : 3 * i;

        cuda_must(cudaMemset(y.device, 0, y.bytes));
        cuda_must(cudaDeviceSynchronize());
        ck_assert_msg(
            gemm_run(g, device.launch.stream,
                     &(struct gemm_product){.y = y.device,
                                            .y_stride = n,
                                            .x = (uint16_t *)x.device + (size_t)first * (size_t)k,
                                            .w = w.device,
                                            .bias = out == GEMM_BIAS_BF16 ? bias.device : NULL,
                                            .m = gemm_rows(m),
                                            .n = n,
                                            .k = k,
                                            .out = out},
                     &e) == 0,
            "%s", e.text);
        array_to_host(&y);
        if (i == 5)
            memcpy(all, y.host, ROWS * row);
        ck_assert_msg(memcmp(y.host, all + (size_t)first * row, (size_t)m * row) == 0,
                      "%d rows, n %d k %d out %d", m, n, k, (int)out);
    }
    free(all);
    array_free(&x);
    array_free(&w);
    array_free(&bias);
    array_free(&y);
}

START_TEST(fixed_algorithms_do_not_depend_on_rows)
{
    struct device_array workspace = array_new(GEMM_WORKSPACE);
    struct gemm *g;
    struct err e;

    ck_assert_msg(gemm_new(&g, workspace.device, NULL, true, &e) == 0, "%s", e.text);
    check_rows_alone(g, 4096, 1024, GEMM_BF16);
    check_rows_alone(g, 1024, 2048, GEMM_ADD_F32);
    check_rows_alone(g, 6144, 1024, GEMM_BF16);
    check_rows_alone(g, 1024, 3072, GEMM_ADD_F32);
    check_rows_alone(g, 1152, 896, GEMM_BIAS_BF16);
    check_rows_alone(g, 192, 128, GEMM_BF16);
    check_rows_alone(g, 128, 320, GEMM_ADD_F32);
    gemm_free(g);
    array_free(&workspace);
}
END_TEST

/* Products of random numbers, for measuring. */
struct random_product {
    struct device_array x, w, y;
    struct gemm_product p;
};

static struct random_product random_product(int m, int n, int k, enum gemm_out out)
{
    struct random_product r = {.x = array_new((size_t)m * (size_t)k * 2),
                               .w = array_new((size_t)n * (size_t)k * 2),
                               .y = array_new((size_t)m * (size_t)n * 4)};

    fill_bf16(&r.x, 1.0f);
    fill_bf16(&r.w, 1.0f / sqrtf((float)k));
    r.p = (struct gemm_product){r.y.device, n, r.x.device, r.w.device, NULL, m, n, k, out};
    return r;
}

static void random_product_free(struct random_product *r)
{
    array_free(&r->x);
    array_free(&r->w);
    array_free(&r->y);
}

/* The candidate that is not cuBLASLt's first choice, if there is one, as the record of a shape. */
static struct algo_record measure(struct gemm *g, const struct gemm_product *p)
{
    struct algo_record record = {0};
    struct err e;

    for (int i = 0;; i++) {
        int r = gemm_try(g, device.launch.stream, p, i, &e);

        ck_assert_msg(r >= 0, "%s", e.text);
        if (r == 0)
            return record;
        if (i < 2)
            gemm_record(g, &record, p, i, 1.0f);
    }
}

static void check_counts(const struct gemm *g, int known, int heuristic)
{
    int n_known, n_heuristic;

    gemm_counts(g, &n_known, &n_heuristic);
    ck_assert_int_eq(n_known, known);
    ck_assert_int_eq(n_heuristic, heuristic);
}

/* Recorded choices are taken; those that a file made up are not, and products are right with both.
 */
START_TEST(recorded_choices_are_taken)
{
    struct device_array workspace = array_new(GEMM_WORKSPACE);
    struct random_product products[] = {random_product(32, 264, 256, GEMM_BF16),
                                        random_product(32, 264, 256, GEMM_F32),
                                        random_product(112, 256, 264, GEMM_ADD_F32)};
    struct algo_record all[3], made_up[3];
    struct algo_records known = {made_up, 3};
    struct gemm *g;
    struct err e;

    ck_assert_msg(gemm_new(&g, workspace.device, NULL, false, &e) == 0, "%s", e.text);
    for (int i = 0; i < 3; i++) {
        all[i] = measure(g, &products[i].p);
        ck_assert(!gemm_is_known(g, &products[i].p));
    }
    check_counts(g, 0, 3);
    for (int kind = 0; kind < 5; kind++) {
        memcpy(made_up, all, sizeof(all));
        for (int i = 0; i < 3 && kind > 0; i++)
            for (int j = 0; j < ALGO_BYTES; j++)
                made_up[i].algo[j] = kind == 1   ? 0
                                     : kind == 2 ? 0xff
                                     : kind == 3 ? (uint8_t)random_bits()
                                                 : (uint8_t)(all[i].algo[j] ^ (j == 63));
        gemm_adopt(g, &known);
        check_gemm(g, 32, 264, 256, GEMM_BF16);
        check_gemm(g, 32, 264, 256, GEMM_F32);
        check_gemm(g, 112, 256, 264, GEMM_ADD_F32);
        check_counts(g, kind == 0 ? 3 : 0, kind == 0 ? 0 : 3);
    }
    gemm_free(g);
    for (int i = 0; i < 3; i++)
        random_product_free(&products[i]);
    array_free(&workspace);
}
END_TEST

/* A shape's results are the same bits before and after it is measured, however often it comes. */
START_TEST(choices_never_change)
{
    struct device_array workspace = array_new(GEMM_WORKSPACE);
    struct random_product r = random_product(48, 264, 2048, GEMM_F32);
    char *expected = malloc(r.y.bytes);
    struct gemm *g;
    struct err e;

    ck_assert_msg(gemm_new(&g, workspace.device, NULL, false, &e) == 0, "%s", e.text);
    for (int i = 0; i < 12; i++) {
        cuda_must(cudaMemset(r.y.device, 0xff, r.y.bytes));
        cuda_must(cudaDeviceSynchronize());
        ck_assert_msg(gemm_run(g, device.launch.stream, &r.p, &e) == 0, "%s", e.text);
        array_to_host(&r.y);
        if (i == 0)
            memcpy(expected, r.y.host, r.y.bytes);
        ck_assert(memcmp(expected, r.y.host, r.y.bytes) == 0);
        if (i == 5)
            (void)measure(g, &r.p);
    }
    check_counts(g, 0, 1);
    gemm_free(g);
    free(expected);
    random_product_free(&r);
    array_free(&workspace);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("products");
    TCase *t = tcase_create("products");

    tcase_add_unchecked_fixture(t, setup, teardown);
    tcase_set_timeout(t, 120);
    tcase_add_test(t, gemm_follows_twin);
    tcase_add_test(t, products_come_in_parts);
    tcase_add_test(t, fixed_algorithms_do_not_depend_on_rows);
    tcase_add_test(t, recorded_choices_are_taken);
    tcase_add_test(t, choices_never_change);
    suite_add_tcase(suite, t);
    return run_suite_here(suite);
}
