/* test_products.c - products by cuBLASLt against a plain twin in double; which algorithms they
 * take, how these are measured, and that they never change. */
#include <math.h>
#include <string.h>

#include "cuda/gemm.h"
#include "tests/gpu/gpu_rig.h"
#include "tests/unit/run_suite.h"

/* One rounding to bf16 of random values is off by 2^-9 / sqrt(3) at most: 1.7e-3 and a margin. */
static const double bf16_error = 2.5e-3;

static struct gemm *new_gemm(bool fixed, int n_ranks)
{
    struct gemm *g;
    struct err e;

    err_must(gemm_new(&g, device_new(GEMM_WORKSPACE), fixed, n_ranks, &e), &e);
    return g;
}

/* A product of random numbers. */
struct product {
    struct device_array x, w, y, bias;
    struct gemm_product p;
};

static struct product random_product(int m, int n, int k, enum gemm_out out)
{
    const size_t size = (size_t)(m * n) * (out == GEMM_PARTS_F32 ? (size_t)gemm_parts(m, n, k) : 1);
    struct product r = {.x = array_bf16((size_t)(m * k), 1.0f),
                        .w = array_bf16((size_t)(n * k), 1.0f / sqrtf((float)k)),
                        .bias = array_bf16((size_t)n, 2.0f)};

    if (out == GEMM_BF16 || out == GEMM_BIAS_BF16)
        r.y = array_new(size * 2);
    else
        r.y = out == GEMM_ADD_F32 ? array_f32(size, 1.0f) : array_new(size * 4);
    r.p = (struct gemm_product){.y = r.y.device,
                                .y_stride = n,
                                .x = r.x.device,
                                .w = r.w.device,
                                .bias = out == GEMM_BIAS_BF16 ? r.bias.device : NULL,
                                .m = m,
                                .n = n,
                                .k = k,
                                .out = out};
    return r;
}

static void run(struct gemm *g, const struct gemm_product *p)
{
    struct err e;

    err_must(gemm_run(g, device.launch.stream, p, &e), &e);
}

/* Against the twin; each part is the product over its own part of k. */
static void check_gemm(struct gemm *g, int m, int n, int k, enum gemm_out out)
{
    const struct product r = random_product(m, n, k, out);
    const int n_parts = out == GEMM_PARTS_F32 ? gemm_parts(m, n, k) : 1, part = k / n_parts;
    const size_t size = (size_t)(m * n);
    const double *in = values_bf16(r.x.host, (size_t)(m * k));
    double *expected = out == GEMM_ADD_F32 ? values_f32(r.y.host, size) : host_new(size, 8);

    run(g, &r.p);
    array_to_host(&r.y);
    for (int p = 0; p < n_parts; p++) {
        for (int i = 0; i < m; i++)
            for (int j = 0; j < n; j++)
                expected[i * n + j] =
                    (out == GEMM_ADD_F32 ? expected[i * n + j] : 0.0) +
                    (r.p.bias ? bf16_value(((uint16_t *)r.bias.host)[j]) : 0.0) +
                    dot(in + i * k + p * part, (uint16_t *)r.w.host + j * k + p * part, part);
        ck_assert_double_lt(out == GEMM_BF16 || out == GEMM_BIAS_BF16
                                ? error_bf16(r.y.host, expected, size)
                                : error_f32((float *)r.y.host + (size_t)p * size, expected, size),
                            bf16_error);
    }
}

/* bf16, float and added results and a bias, the same shape twice: found, then remembered. */
TEST(gemm_follows_twin)
{
    struct gemm *g = new_gemm(false, 1);

    for (int i = 0; i < 2; i++) {
        check_gemm(g, 32, 520, 256, GEMM_BF16);
        check_gemm(g, 32, 520, 256, GEMM_F32);
        check_gemm(g, gemm_rows(97), 256, 768, GEMM_ADD_F32);
        check_gemm(g, gemm_rows(97), 1152, 896, GEMM_BIAS_BF16); /* another bias each time */
    }
    gemm_free(g);
}
END_TEST

/* Products in parts; none of what fills the machine by itself. */
TEST(products_come_in_parts)
{
    static const struct {
        int m, n, k, n_parts;
    } shapes[] = {{32, 520, 256, 4},   {96, 256, 896, 2},    {128, 1024, 768, 4},
                  {256, 1024, 512, 2}, {288, 1024, 1024, 1}, {128, 4096, 4096, 1},
                  {16, 1024, 96, 1}};
    struct gemm *g = new_gemm(false, 1);

    for (int i = 0; i < N(shapes); i++) {
        const int m = shapes[i].m, n = shapes[i].n, n_parts = shapes[i].n_parts;

        ck_assert_int_eq(gemm_parts(m, n, shapes[i].k), n_parts);
        ck_assert(n_parts == 1 || n_parts * m * n <= GEMM_PART_FLOATS);
        if (n_parts > 1)
            check_gemm(g, m, n, shapes[i].k, GEMM_PARTS_F32);
    }
    gemm_free(g);
}
END_TEST

static const struct {
    int n, k;
    enum gemm_out out;
} fixed_shapes[] = {
    {4096, 1024, GEMM_BF16},    {1024, 2048, GEMM_ADD_F32},  {6144, 1024, GEMM_BF16},
    {1024, 3072, GEMM_ADD_F32}, {1152, 896, GEMM_BIAS_BF16}, {192, 128, GEMM_BF16},
    {128, 320, GEMM_ADD_F32},
};

/* Rows of one product are those of any other with as many rows, or fewer, or more, to the bit. */
TEST(fixed_algorithms_do_not_depend_on_rows, .n = N(fixed_shapes))
{
    enum { ROWS = 700 };
    static const int counts[] = {ROWS, 513, 129, 40, 16, 1};
    const int n = fixed_shapes[_i].n, k = fixed_shapes[_i].k;
    const size_t row = (size_t)n * (fixed_shapes[_i].out == GEMM_ADD_F32 ? 4 : 2);
    const struct product r = random_product(gemm_rows(ROWS), n, k, fixed_shapes[_i].out);
    struct gemm *g = new_gemm(true, 1);
    char *all = host_new(ROWS, row);

    for (int i = 0; i < N(counts); i++) {
        const int first = i == 0 ? 0 : 3 * (N(counts) - 1 - i);
        struct gemm_product p = r.p;

        p.x = (uint16_t *)r.x.device + first * k;
        p.m = gemm_rows(counts[i]);
        device_fill(r.y.device, 0, r.y.bytes);
        run(g, &p);
        array_to_host(&r.y);
        if (i == 0)
            memcpy(all, r.y.host, ROWS * row);
        ck_assert_msg(memcmp(r.y.host, all + (size_t)first * row, (size_t)counts[i] * row) == 0,
                      "%d rows, n %d k %d out %d", counts[i], n, k, (int)p.out);
    }
    gemm_free(g);
}
END_TEST

/* The half of each row of a [rows, k] matrix, packed. */
static void *half_of(const struct device_array *a, int rows, int k, int half)
{
    uint16_t *packed = host_new((size_t)(rows * k / 2), 2);

    for (int i = 0; i < rows; i++)
        memcpy(packed + i * k / 2, (uint16_t *)a->host + i * k + half * k / 2, (size_t)k);
    return array_of(packed, (size_t)(rows * k)).device;
}

static const int half_shapes[][2] = {{1024, 2048},  {1024, 3072}, {4096, 4096},
                                     {4096, 12288}, {256, 768},   {896, 4864}};

/* One rank that adds both halves of k, one after the other, has the bits of the sum of two ranks
 * with a half each. */
TEST(halves_are_added_as_ranks_add_them, .n = N(half_shapes))
{
    enum { ROWS = 144 };
    const int n = half_shapes[_i][0], k = half_shapes[_i][1];
    const struct product whole = random_product(ROWS, n, k, GEMM_ADD_F32);
    const struct device_array part = array_new(whole.y.bytes);
    float *expected = host_new(whole.y.bytes, 1);
    struct gemm *one = new_gemm(true, 1), *two = new_gemm(true, 2);

    memcpy(expected, whole.y.host, whole.y.bytes);
    for (int half = 0; half < 2; half++) {
        struct gemm_product p = whole.p, q = whole.p;

        p.k = q.k = k / 2;
        p.out = GEMM_ADD_HALF_F32;
        p.x = (uint16_t *)whole.x.device + half * k / 2;
        p.w = (uint16_t *)whole.w.device + half * k / 2;
        run(one, &p);
        q.out = GEMM_F32;
        q.y = part.device;
        q.x = half_of(&whole.x, ROWS, k, half);
        q.w = half_of(&whole.w, n, k, half);
        run(two, &q);
        array_to_host(&part);
        for (size_t i = 0; i < whole.y.bytes / 4; i++)
            expected[i] += ((float *)part.host)[i];
    }
    array_to_host(&whole.y);
    ck_assert(memcmp(whole.y.host, expected, whole.y.bytes) == 0);
    gemm_free(one);
    gemm_free(two);
}
END_TEST

static const struct {
    int n, k;
    enum gemm_out out;
} column_shapes[] = {{4096, 1024, GEMM_BF16},  {6144, 1024, GEMM_BF16},     {6144, 4096, GEMM_BF16},
                     {24576, 4096, GEMM_BF16}, {1152, 896, GEMM_BIAS_BF16}, {1536, 256, GEMM_BF16}};

/* Two ranks with half of the columns each have the bits of one with all. */
TEST(columns_are_the_same_on_ranks, .n = N(column_shapes))
{
    enum { ROWS = 144 };
    const int n = column_shapes[_i].n, k = column_shapes[_i].k;
    const struct product whole = random_product(ROWS, n, k, column_shapes[_i].out);
    const struct device_array half = array_new(whole.y.bytes / 2);
    struct gemm *one = new_gemm(true, 1), *two = new_gemm(true, 2);

    run(one, &whole.p);
    array_to_host(&whole.y);
    for (int rank = 0; rank < 2; rank++) {
        struct gemm_product p = whole.p;

        p.n = n / 2;
        p.y = half.device;
        p.y_stride = n / 2;
        p.w = (uint16_t *)whole.w.device + (int64_t)rank * n / 2 * k;
        p.bias += p.bias ? rank * n / 2 : 0;
        run(two, &p);
        array_to_host(&half);
        for (int i = 0; i < ROWS; i++)
            ck_assert(memcmp((uint16_t *)half.host + i * n / 2,
                             (uint16_t *)whole.y.host + i * n + rank * n / 2, (size_t)n) == 0);
    }
    gemm_free(one);
    gemm_free(two);
}
END_TEST

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
TEST(recorded_choices_are_taken)
{
    const struct product products[] = {random_product(32, 264, 256, GEMM_BF16),
                                       random_product(32, 264, 256, GEMM_F32),
                                       random_product(112, 256, 264, GEMM_ADD_F32)};
    struct algo_record all[N(products)], made_up[N(products)];
    struct algo_records known = {made_up, N(products)};
    struct gemm *g = new_gemm(false, 1);

    for (int i = 0; i < N(products); i++) {
        all[i] = measure(g, &products[i].p);
        ck_assert(!gemm_is_known(g, &products[i].p));
    }
    check_counts(g, 0, 3);
    for (int kind = 0; kind < 5; kind++) {
        memcpy(made_up, all, sizeof(all));
        for (int i = 0; i < N(products) && kind > 0; i++)
            for (int j = 0; j < ALGO_BYTES; j++)
                made_up[i].algo[j] = kind == 1   ? 0
                                     : kind == 2 ? 0xff
                                     : kind == 3 ? (uint8_t)random_bits()
                                                 : (uint8_t)(all[i].algo[j] ^ (j == 63));
        gemm_adopt(g, &known);
        for (int i = 0; i < N(products); i++)
            check_gemm(g, products[i].p.m, products[i].p.n, products[i].p.k, products[i].p.out);
        check_counts(g, kind == 0 ? 3 : 0, kind == 0 ? 0 : 3);
    }
    gemm_free(g);
}
END_TEST

/* A shape's results are the same bits before and after it is measured, however often it comes. */
TEST(choices_never_change)
{
    const struct product r = random_product(48, 264, 2048, GEMM_F32);
    struct gemm *g = new_gemm(false, 1);
    char *expected = host_new(r.y.bytes, 1);

    for (int i = 0; i < 12; i++) {
        device_fill(r.y.device, 0xff, r.y.bytes);
        run(g, &r.p);
        array_to_host(&r.y);
        if (i == 0)
            memcpy(expected, r.y.host, r.y.bytes);
        ck_assert(memcmp(expected, r.y.host, r.y.bytes) == 0);
        if (i == 5)
            (void)measure(g, &r.p);
    }
    check_counts(g, 0, 1);
    gemm_free(g);
}
END_TEST

RUN_TESTS_HERE("products", device_set_up, device_tear_down)
