/* test_products.c - products by cuBLASLt against a plain twin in double; which algorithms they
 * take, when these are timed, and what is remembered of that. */
#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cuda/algo_file.h"
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
    struct device_array scratch = array_new(size * 4);
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
    ck_assert_msg(gemm_run(g, device.launch.stream, y.device, n, x.device, w.device,
                           with_bias ? bias.device : NULL, m, n, k, out,
                           &(struct gemm_trial){scratch.device, w.device, 0, 1}, &e) == 0,
                  "%s", e.text);
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
    array_free(&scratch);
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
    ck_assert_msg(gemm_run(g, device.launch.stream, y.device, n, x.device, w.device, NULL, m, n, k,
                           GEMM_PARTS_F32, &(struct gemm_trial){NULL, w.device, 0, 1}, &e) == 0,
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

/* Products in parts, before trials and after; none of what fills the machine by itself. */
START_TEST(products_come_in_parts)
{
    struct device_array workspace = array_new(GEMM_WORKSPACE);
    struct gemm *g;
    struct err e;

    ck_assert_msg(gemm_new(&g, &device, workspace.device, NULL, false, &e) == 0, "%s", e.text);
    for (int i = 0; i < 4; i++) {
        gemm_step(g);
        check_gemm_parts(g, 32, 520, 256, 4);
        check_gemm_parts(g, 96, 256, 896, 2);
        check_gemm_parts(g, 128, 1024, 768, 4);
        check_gemm_parts(g, 256, 1024, 512, 2);
    }
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

    ck_assert_msg(gemm_new(&g, &device, workspace.device, NULL, false, &e) == 0, "%s", e.text);
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
        ck_assert_msg(gemm_run(g, device.launch.stream, y.device, n,
                               (uint16_t *)x.device + (size_t)first * (size_t)k, w.device,
                               out == GEMM_BIAS_BF16 ? bias.device : NULL, gemm_rows(m), n, k, out,
                               NULL, &e) == 0,
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

    ck_assert_msg(gemm_new(&g, &device, workspace.device, NULL, true, &e) == 0, "%s", e.text);
    check_rows_alone(g, 4096, 1024, GEMM_BF16);
    check_rows_alone(g, 1024, 2048, GEMM_ADD_F32);
    check_rows_alone(g, 6144, 1024, GEMM_BF16);
    check_rows_alone(g, 1024, 3072, GEMM_ADD_F32);
    check_rows_alone(g, 1152, 896, GEMM_BIAS_BF16);
    check_rows_alone(g, 192, 128, GEMM_BF16);
    check_rows_alone(g, 128, 320, GEMM_ADD_F32);
    ck_assert(gemm_settled(g));
    gemm_free(g);
    array_free(&workspace);
}
END_TEST

/* The shapes of the test below, until all algorithms have settled. */
static struct gemm_counts run_remembering(const char *folder, void *workspace)
{
    struct gemm_counts counts;
    struct gemm *g;
    struct err e;

    ck_assert_msg(gemm_new(&g, &device, workspace, folder, false, &e) == 0, "%s", e.text);
    for (int i = 0; i < 50; i++) {
        gemm_step(g);
        check_gemm(g, 32, 264, 256, GEMM_BF16);
        check_gemm(g, 32, 264, 256, GEMM_F32);
        check_gemm(g, 112, 256, 264, GEMM_ADD_F32);
        if (gemm_settled(g))
            break;
    }
    ck_assert(gemm_settled(g));
    counts = gemm_counts(g);
    gemm_free(g);
    return counts;
}

/* Choices are there at the next start, and nothing is timed then; those that a file made up are
 * found again, with the right products all the while. */
START_TEST(algorithms_are_remembered)
{
    char folder[] = "/tmp/nvllm-products-XXXXXX", key[ALGO_KEY], command[64];
    struct device_array workspace = array_new(GEMM_WORKSPACE);
    struct algo_record *records;
    struct gemm_counts counts;
    struct gemm *g;
    struct err e;
    int n;

    ck_assert_ptr_nonnull(mkdtemp(folder));
    counts = run_remembering(folder, workspace.device);
    ck_assert_int_eq(counts.n_timed, 3);
    ck_assert_int_eq(counts.n_remembered, 0);
    counts = run_remembering(folder, workspace.device);
    ck_assert_int_eq(counts.n_timed, 0);
    ck_assert_int_eq(counts.n_remembered, 3);
    ck_assert_msg(gemm_new(&g, &device, workspace.device, folder, false, &e) == 0, "%s", e.text);
    strcpy(key, gemm_counts(g).key);
    gemm_free(g);
    for (int kind = 0; kind < 4; kind++) {
        ck_assert_int_eq(algo_file_read(&records, &n, folder, key, &e), 0);
        ck_assert_int_eq(n, 3);
        for (int i = 0; i < n; i++)
            for (int j = 0; j < ALGO_BYTES; j++)
                records[i].algo[j] = kind == 0   ? 0
                                     : kind == 1 ? 0xff
                                     : kind == 2 ? (uint8_t)random_bits()
                                                 : (uint8_t)(records[i].algo[j] ^ (j == 63));
        ck_assert_int_eq(algo_file_write(folder, key, records, n, &e), 0);
        free(records);
        counts = run_remembering(folder, workspace.device);
        ck_assert_int_eq(counts.n_timed, 3);
        counts = run_remembering(folder, workspace.device);
        ck_assert_int_eq(counts.n_remembered, 3);
    }
    snprintf(command, sizeof(command), "rm -r %s", folder);
    ck_assert_int_eq(system(command), 0);
    array_free(&workspace);
}
END_TEST

/* A shape that comes in two steps is computed, but not timed: in the third it is. */
START_TEST(shapes_that_come_twice_are_not_timed)
{
    struct device_array workspace = array_new(GEMM_WORKSPACE);
    struct gemm *g;
    struct err e;

    ck_assert_msg(gemm_new(&g, &device, workspace.device, NULL, false, &e) == 0, "%s", e.text);
    for (int i = 0; i < 12; i++) {
        gemm_step(g);
        for (int j = 0; j < 3; j++) /* as layers do */
            check_gemm(g, 48, 264, 256, GEMM_BF16);
        if (i % 4 == 0)
            check_gemm(g, 64 + i, 264, 256, GEMM_BF16);
        ck_assert(i >= 2 || gemm_counts(g).longest == 0.0);
        ck_assert(i >= 2 || !gemm_settled(g));
    }
    ck_assert_int_eq(gemm_counts(g).n_timed, 1);
    gemm_free(g);
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
    tcase_add_test(t, algorithms_are_remembered);
    tcase_add_test(t, shapes_that_come_twice_are_not_timed);
    suite_add_tcase(suite, t);
    return run_suite_here(suite);
}
