/* test_ops.c - each kernel that is no attention and no sampler against a plain twin in double, at
 * odd sizes, one row and many, with poisoned outputs. cuBLASLt's products are in test_products.c.
 */
#include <math.h>
#include <string.h>

#include "engine/model/rope.h"
#include "engine/util/bf16.h"
#include "tests/gpu/gpu_rig.h"
#include "tests/unit/run_suite.h"

/* One rounding to bf16 of random values is off by 2^-9 / sqrt(3) at most: 1.7e-3 and a margin. */
static const double bf16_error = 2.5e-3;

static const float eps = 1e-6f;

/* A row of n divided by its root mean square, times w. */
static void norm_twin(double *x, const uint16_t *w, int n)
{
    double sum = 0.0;

    for (int i = 0; i < n; i++)
        sum += x[i] * x[i];
    for (int i = 0; i < n; i++)
        x[i] *= bf16_value(w[i]) / sqrt(sum / n + (double)eps);
}

static double silu_twin(double gate, double up)
{
    return gate / (1.0 + exp(-gate)) * up;
}

/* The float residual of a token is its embedding, whether the id is given or sampled before; 0
 * where the rank that has it is out of reach. */
TEST(embed_takes_given_and_sampled_ids, .n = 2)
{
    enum { VOCAB = 100, DIM = 264, ROWS = 5 };
    const int32_t tokens[ROWS] = {0, 99, ~1, 7, ~0}, sampled[2] = {42, 13};
    const int32_t expected[ROWS] = {0, 99, 13, 7, 42};
    const struct device_array table = array_bf16(VOCAB * DIM, 1.0f);
    const struct device_array out = array_new(ROWS * DIM * 4);
    const struct step_view v = {.tokens = array_of(tokens, sizeof(tokens)).device};

    for (int rows = VOCAB; rows >= VOCAB / 4; rows /= 2) { /* of a rank */
        struct embedding e = {.rows_per_rank = rows, .vocab_size = VOCAB, .dim = DIM};

        for (int i = 0; i * rows < VOCAB; i++)
            if (i > 0 || _i == 0)
                e.tables[i] = (const uint16_t *)table.device + i * rows * DIM;
        device_fill(out.device, 0xff, out.bytes);
        cuda_must(embed(&device.launch, out.device, &e, &v,
                        array_of(sampled, sizeof(sampled)).device, ROWS));
        array_to_host(&out);
        for (int i = 0; i < ROWS; i++)
            for (int j = 0; j < DIM; j++)
                ck_assert(((float *)out.host)[i * DIM + j] ==
                          (_i > 0 && expected[i] < rows
                               ? 0.0f
                               : f32_from_bf16(((uint16_t *)table.host)[expected[i] * DIM + j])));
    }
}
END_TEST

static const struct {
    int rows, dim, n_parts;
    bool gather;
} norms[] = {
    {1, 8, 0, false},      {1, 1024, 0, true},    {7, 904, 0, true},     {3000, 5120, 0, false},
    {300, 2048, 0, true},  {3, 2056, 0, true},    {2, 16384, 0, false},  {2, 131072, 0, true},
    {1, 8, 2, false},      {256, 1024, 2, false}, {7, 904, 2, false},    {65, 2560, 2, false},
    {3, 8192, 2, false},   {1, 8, 4, false},      {256, 1024, 4, false}, {7, 904, 4, false},
    {65, 2560, 4, false},  {3, 8192, 4, false},   {1, 8, 8, true},       {65, 5120, 8, false},
    {300, 904, 8, true},   {7, 1024, 2, true},    {300, 4096, 2, false}, {5, 1024, 1, true},
    {300, 4096, 1, false},
};

/* Every row has unit mean square before the weight, at one row, odd widths and many rows, gathered
 * or not. Parts, float or bf16, are added to x before it is normed, and x is what was added up. */
TEST(rms_norm_follows_twin, .n = 2 * N(norms))
{
    const bool narrow = _i >= N(norms);
    const int which = _i % N(norms);
    const int rows = norms[which].rows, dim = norms[which].dim, n_parts = norms[which].n_parts;
    const int apart =
        norms[which].gather ? 3 : 1; /* rows of x from one that is taken to the next */
    const size_t row = (size_t)dim, n = (size_t)rows * row, stride = n * (size_t)apart + 8 * row;
    const struct device_array x = array_f32((size_t)(rows * apart + 1) * row, 3.0f);
    const struct device_array parts = narrow ? array_bf16((size_t)n_parts * stride, 2.0f)
                                             : array_f32((size_t)n_parts * stride, 2.0f);
    const double *added = narrow ? values_bf16(parts.host, (size_t)n_parts * stride)
                                 : values_f32(parts.host, (size_t)n_parts * stride);
    const struct device_array w = array_bf16(row, 1.0f), y = array_new(n * 2);
    const struct step_counts counts = {.n_rows = rows};
    struct sampler_row *list = host_new((size_t)rows, sizeof(*list));
    double *sums = values_f32(x.host, n * (size_t)apart + row), *expected = host_new(n, 8);
    struct step_view v;
    struct norm how;

    for (int i = 0; i < rows; i++)
        list[i].row = i * 3 + 1;
    v = (struct step_view){.rows = array_of(list, (size_t)rows * sizeof(*list)).device,
                           .counts = array_of(&counts, sizeof(counts)).device};
    for (int i = 0; i < rows; i++) {
        double *sum = sums + (norms[which].gather ? i * 3 + 1 : i) * dim;

        for (size_t k = 0; k < row; k++)
            for (int j = 0; j < n_parts; j++)
                sum[k] += added[(size_t)j * stride + (size_t)(sum + k - sums)];
        memcpy(expected + i * dim, sum, row * 8);
        norm_twin(expected + i * dim, w.host, dim);
    }
    how = (struct norm){.y = {y.device},
                        .x = x.device,
                        .w = w.device,
                        .n_rows = rows,
                        .owned_rows = rows * apart + 1,
                        .dim = dim,
                        .eps = eps,
                        .gather = norms[which].gather ? &v : NULL,
                        .n_parts = n_parts,
                        .parts_bf16 = narrow};
    for (int j = 0; j < n_parts; j++)
        how.parts[j] = (const char *)parts.device + (size_t)j * stride * (narrow ? 2 : 4);
    cuda_must(rms_norm(&device.launch, &how));
    array_to_host(&y);
    array_to_host(&x);
    ck_assert_double_lt(error_bf16(y.host, expected, n), bf16_error);
    ck_assert_double_lt(error_f32(x.host, sums, n), 1e-6);
}
END_TEST

static void check_normed_e4m3(struct norm n, const struct device_array *x, bool groups)
{
    const int rows = n.n_rows, dim = n.dim, m = rows + 3; /* more rows lie there */
    const size_t size = (size_t)rows * (size_t)dim, n_scales = (size_t)(groups ? m * dim / 128 : m);
    const struct device_array y = array_new((size_t)m * (size_t)dim * 2);
    const struct device_array apart = array_new((size_t)m * (size_t)dim);
    const struct device_array together = array_new((size_t)m * (size_t)dim);
    const struct device_array scales[] = {array_new(n_scales * 4), array_new(n_scales * 4)};
    const struct e4m3_rows to = {apart.device, scales[0].device, m, groups};
    const float *a = scales[0].host, *b = scales[1].host;

    n.x = array_of(x->host, x->bytes).device; /* parts are added to it */
    n.y[0] = y.device;
    cuda_must(rms_norm(&device.launch, &n));
    cuda_must(quantize(&device.launch, &to, y.device, dim, false));
    n.x = array_of(x->host, x->bytes).device;
    n.y[0] = NULL;
    n.e4m3 = (struct e4m3_rows){together.device, scales[1].device, m, groups};
    cuda_must(rms_norm(&device.launch, &n));
    array_to_host(&apart);
    array_to_host(&together);
    array_to_host(&scales[0]);
    array_to_host(&scales[1]);
    ck_assert_mem_eq(together.host, apart.host, size);
    for (int i = 0; i < (int)n_scales; i++)
        if (i % m < rows)
            ck_assert_mem_eq(&b[i], &a[i], sizeof(*a));
}

/* To the bit what quantize() makes of normed rows. */
TEST(normed_rows_become_e4m3, .n = N(norms))
{
    const int rows = norms[_i].rows, dim = norms[_i].dim, n_parts = norms[_i].n_parts;
    const size_t n = (size_t)rows * (size_t)dim;
    const struct device_array x = array_f32(n, 3.0f), parts = array_f32((size_t)n_parts * n, 2.0f);
    const struct step_counts counts = {.n_rows = rows};
    struct sampler_row *list = host_new((size_t)rows, sizeof(*list));
    struct step_view v;
    struct norm how;

    for (int i = 0; i < rows; i++)
        list[i].row = rows - 1 - i;
    v = (struct step_view){.rows = array_of(list, (size_t)rows * sizeof(*list)).device,
                           .counts = array_of(&counts, sizeof(counts)).device};
    how = (struct norm){.w = array_bf16((size_t)dim, 1.0f).device,
                        .n_rows = rows,
                        .owned_rows = rows,
                        .dim = dim,
                        .eps = eps,
                        .gather = norms[_i].gather ? &v : NULL,
                        .n_parts = n_parts};
    for (int j = 0; j < n_parts; j++)
        how.parts[j] = (const float *)parts.device + (size_t)j * n;
    check_normed_e4m3(how, &x, false);
    if (dim % 128 == 0)
        check_normed_e4m3(how, &x, true);
}
END_TEST

/* Two ranks that take the rows in shares leave what one leaves that takes them all, to the bit, and
 * each writes the normed rows of both; gathered rows come from who has them. */
TEST(ranks_share_the_rows_of_a_norm, .n = 2)
{
    enum { ROWS = 301, SHARE = 151, DIM = 1024, WANTED = 9 };
    const bool gather = _i == 1;
    const size_t bytes = ROWS * DIM * 4;
    const struct device_array x = array_f32(ROWS * DIM, 3.0f), w = array_bf16(DIM, 1.0f);
    const struct device_array parts = array_f32(2 * ROWS * DIM, 2.0f);
    const struct device_array own[2] = {array_of(x.host, bytes), array_of(x.host, bytes)};
    const struct device_array whole = array_new(bytes / 2);
    const struct device_array y[2] = {array_new(bytes / 2), array_new(bytes / 2)};
    const struct step_counts counts = {.n_rows = WANTED};
    struct sampler_row list[WANTED] = {{0}};
    struct step_view v;
    struct norm n = {.y = {whole.device},
                     .x = x.device,
                     .w = w.device,
                     .n_rows = gather ? WANTED : ROWS,
                     .owned_rows = ROWS,
                     .dim = DIM,
                     .eps = eps,
                     .gather = gather ? &v : NULL,
                     .parts = {parts.device, (const float *)parts.device + ROWS * DIM},
                     .n_parts = 2};

    for (int i = 0; i < WANTED; i++)
        list[i].row = i * 37;
    v = (struct step_view){.rows = array_of(list, sizeof(list)).device,
                           .counts = array_of(&counts, sizeof(counts)).device};
    cuda_must(rms_norm(&device.launch, &n));
    n.n_y = 2;
    for (int rank = 0; rank < 2; rank++) {
        n.y[rank] = y[rank].device;
        n.y[!rank] = y[!rank].device;
        n.x = own[rank].device;
        n.first_row = rank * SHARE;
        n.owned_rows = rank ? ROWS - SHARE : SHARE;
        n.n_rows = gather ? WANTED : n.owned_rows;
        cuda_must(rms_norm(&device.launch, &n));
    }
    array_to_host(&whole);
    array_to_host(&x);
    for (int rank = 0; rank < 2; rank++) {
        const size_t at = rank ? SHARE * DIM : 0, len = (rank ? ROWS - SHARE : SHARE) * DIM * 4;

        array_to_host(&y[rank]);
        array_to_host(&own[rank]);
        ck_assert_int_eq(memcmp(y[rank].host, whole.host,
                                (size_t)(gather ? WANTED : ROWS) * DIM * 2),
                         0);
        ck_assert_int_eq(memcmp((float *)own[rank].host + at, (float *)x.host + at, len), 0);
    }
}
END_TEST

static const int gates[][2] = {{1, 8}, {5, 4872}, {2049, 3072}};

/* silu(gate) * up at one row, an odd width and many rows. */
TEST(silu_mul_follows_twin, .n = N(gates))
{
    const int rows = gates[_i][0], dim = gates[_i][1];
    const size_t n = (size_t)rows * (size_t)dim;
    const struct device_array x = array_bf16(2 * n, 3.0f), y = array_new(n * 2);
    const double *in = values_bf16(x.host, 2 * n);
    double *expected = host_new(n, sizeof(*expected));

    cuda_must(silu_mul(&device.launch, y.device, x.device, rows, dim));
    array_to_host(&y);
    for (int i = 0; i < rows; i++)
        for (int j = 0; j < dim; j++)
            expected[i * dim + j] = silu_twin(in[2 * i * dim + j], in[(2 * i + 1) * dim + j]);
    ck_assert_double_lt(error_bf16(y.host, expected, n), bf16_error);
}
END_TEST

static double skinny_twin(const struct skinny *s, const double *x, const uint16_t *w, int n)
{
    const double y = dot(x, w + (size_t)n * (size_t)s->k, s->k);

    return s->out == SKINNY_SILU_MUL
               ? silu_twin(y, dot(x, w + (size_t)(s->n + n) * (size_t)s->k, s->k))
               : y;
}

/* What the product sees of float rows: normed. */
static double *normed_input(const struct device_array *x, const uint16_t *norm, int m, int k)
{
    double *v = values_f32(x->host, (size_t)m * (size_t)k);

    for (int i = 0; i < m; i++)
        norm_twin(v + i * k, norm, k);
    return v;
}

static void check_skinny(int m, int n, int k, enum skinny_out out, bool f32, bool with_bias)
{
    const bool wide = out == SKINNY_F32 || out == SKINNY_ADD_F32, gated = out == SKINNY_SILU_MUL;
    const size_t stride = (size_t)n + 8, size = (size_t)m * stride, n_x = (size_t)m * (size_t)k;
    const struct device_array x = f32 ? array_f32(n_x, 2.0f) : array_bf16(n_x, 1.0f);
    const struct device_array w =
        array_bf16((size_t)n * (size_t)k * (gated ? 2 : 1), 1.0f / sqrtf((float)k));
    const struct device_array norm = array_bf16((size_t)k, 1.0f);
    const struct device_array bias = array_bf16((size_t)n, 2.0f);
    const struct device_array y =
        out == SKINNY_ADD_F32 ? array_f32(size, 1.0f) : array_new(size * (wide ? 4 : 2));
    const struct skinny s = {.y = y.device,
                             .y_stride = (int64_t)stride,
                             .x = f32 ? NULL : x.device,
                             .x_f32 = f32 ? x.device : NULL,
                             .norm = norm.device,
                             .eps = eps,
                             .w = w.device,
                             .bias = with_bias ? bias.device : NULL,
                             .m = m,
                             .n = n,
                             .k = k,
                             .out = out};
    const double *in = f32 ? normed_input(&x, norm.host, m, k) : values_bf16(x.host, n_x);
    double *expected =
        out == SKINNY_ADD_F32 ? values_f32(y.host, size) : host_new(size, sizeof(double));
    double *got, error;

    for (int i = 0; i < m; i++)
        for (int j = 0; j < n; j++)
            expected[(size_t)i * stride + (size_t)j] +=
                skinny_twin(&s, in + i * k, w.host, j) +
                (with_bias ? bf16_value(((uint16_t *)bias.host)[j]) : 0.0);
    cuda_must(skinny_gemm(&device.launch, &s));
    array_to_host(&y);
    got = wide ? values_f32(y.host, size) : values_bf16(y.host, size);
    for (size_t i = 0; i < size && out != SKINNY_ADD_F32; i++)
        if (i % stride >= (size_t)n) {
            ck_assert(isnan(got[i])); /* nothing written past a row */
            got[i] = 0.0;
        }
    error = relative_error(got, expected, size);
    ck_assert_msg(error < (1 + f32 + gated) * bf16_error, "m %d n %d k %d out %d f32 %d: %g", m, n,
                  k, (int)out, f32, error);
}

static const int skinny_rows[] = {1, 3, 8, 9, 16, 17, 64, 150};

/* All outputs, with and without a norm before, one row to the largest, widths that fill no tile. */
TEST(skinny_gemm_follows_twin, .n = N(skinny_rows))
{
    const int m = skinny_rows[_i];

    for (int f32 = 0; f32 < (m > SKINNY_MAX_ROWS ? 1 : 2); f32++) {
        for (int out = SKINNY_BF16; out <= SKINNY_SILU_MUL; out++) {
            check_skinny(m, 52, 32, (enum skinny_out)out, f32, false);
            check_skinny(m, 200, f32 ? 480 : 1024, (enum skinny_out)out, f32, false);
            if (!f32 || 2 * m * (3072 + 32) <= SKINNY_NORM_BYTES)
                check_skinny(m, 12, 3072 + 32, (enum skinny_out)out, f32, false);
        }
        check_skinny(m, 17004, 96, SKINNY_F32, f32, false);
        check_skinny(m, 2604, 160, SKINNY_BF16, f32, false);
        check_skinny(m, 1160, 448, SKINNY_BF16, f32, true);
    }
}
END_TEST

/* One rank that adds both halves of k, one after the other, has the bits of the sum of two ranks
 * with a half each, which is near the twin's. */
static void check_halves(int m, int n, int k)
{
    const struct device_array x = array_bf16((size_t)(m * k), 1.0f);
    const struct device_array w = array_bf16((size_t)(n * k), 1.0f / sqrtf((float)k));
    const struct device_array y = array_f32((size_t)(m * n), 1.0f);
    const struct device_array part = array_new(y.bytes);
    float *expected = host_new(y.bytes, 1);
    double *twin = values_f32(y.host, (size_t)(m * n)), *in = values_bf16(x.host, (size_t)(m * k));
    struct skinny s = {.y = y.device,
                       .y_stride = n,
                       .x = x.device,
                       .w = w.device,
                       .m = m,
                       .n = n,
                       .k = k,
                       .out = SKINNY_ADD_F32,
                       .sum = SKINNY_HALVES};

    memcpy(expected, y.host, y.bytes);
    for (int i = 0; i < m * n; i++)
        twin[i] += dot(in + i / n * k, (uint16_t *)w.host + i % n * k, k);
    cuda_must(skinny_gemm(&device.launch, &s));
    s.y = part.device;
    s.k = k / 2;
    s.out = SKINNY_F32;
    s.sum = SKINNY_HALF;
    for (int half = 0; half < 2; half++) {
        const size_t row = (size_t)k; /* bytes of half a row */

        s.x = device_new((size_t)m * row);
        s.w = device_new((size_t)n * row);
        cuda_must(cudaMemcpy2D((void *)(uintptr_t)s.x, row, (char *)x.device + half * k, 2 * row,
                               row, (size_t)m, cudaMemcpyDeviceToDevice));
        cuda_must(cudaMemcpy2D((void *)(uintptr_t)s.w, row, (char *)w.device + half * k, 2 * row,
                               row, (size_t)n, cudaMemcpyDeviceToDevice));
        device_fill(part.device, 0xff, part.bytes);
        cuda_must(cudaDeviceSynchronize());
        cuda_must(skinny_gemm(&device.launch, &s));
        array_to_host(&part);
        for (int i = 0; i < m * n; i++)
            expected[i] += ((float *)part.host)[i];
    }
    array_to_host(&y);
    ck_assert_msg(memcmp(y.host, expected, y.bytes) == 0, "m %d n %d k %d", m, n, k);
    ck_assert_double_lt(error_f32(y.host, twin, (size_t)(m * n)), bf16_error);
}

TEST(skinny_halves_are_added_as_ranks_add_them, .n = N(skinny_rows))
{
    const int m = skinny_rows[_i];

    check_halves(m, 52, 64);
    check_halves(m, 1024, 3072);
    check_halves(m, 4100, 192);
    check_halves(m, 24, 12288);
}
END_TEST

/* A product of normed rows, by itself or behind the kernel for many. */
static struct device_array normed_product(struct skinny s, const float *x, bool alone)
{
    const struct device_array y = array_new((size_t)s.m * (size_t)s.y_stride * 2);
    uint16_t *normed = array_new((size_t)s.m * (size_t)s.k * 2).device;
    float *rms = array_new((size_t)s.m * 4).device;

    s.y = y.device;
    if (alone) {
        s.x_f32 = x;
    } else {
        cuda_must(skinny_norm(&device.launch, normed, rms, x, s.norm, s.m, s.k, s.eps));
        s.x = normed;
        s.rms = rms;
    }
    cuda_must(skinny_gemm(&device.launch, &s));
    array_to_host(&y);
    return y;
}

static const struct {
    int n, k;
    enum skinny_out out;
} normed_shapes[] = {
    {52, 32, SKINNY_BF16},   {200, 480, SKINNY_SILU_MUL}, {2604, 160, SKINNY_BF16},
    {72, 1024, SKINNY_BF16}, {40, 2720, SKINNY_BF16},     {40, 4096, SKINNY_SILU_MUL},
};

/* What a row gives is the same to the bit whether the product norms it or a kernel before it does,
 * and whatever the number of rows. */
TEST(normed_rows_do_not_depend_on_rows, .n = N(normed_shapes))
{
    enum { ROWS = 150 };
    static const int counts[] = {1, 2, 3, 5, 8, 9, 16, 17, 100};
    const int n = normed_shapes[_i].n, k = normed_shapes[_i].k;
    const struct device_array x = array_f32((size_t)(ROWS * k), 2.0f);
    const struct device_array w = array_bf16((size_t)(2 * n * k), 1.0f / sqrtf((float)k));
    const struct device_array norm = array_bf16((size_t)k, 1.0f);
    struct skinny s = {.y_stride = n,
                       .norm = norm.device,
                       .eps = eps,
                       .w = w.device,
                       .m = ROWS,
                       .n = n,
                       .k = k,
                       .out = normed_shapes[_i].out};
    const struct device_array all = normed_product(s, x.device, false);
    const double *in = normed_input(&x, norm.host, ROWS, k);
    double *expected = host_new(ROWS * (size_t)n, sizeof(double));

    for (int i = 0; i < ROWS * n; i++)
        expected[i] = skinny_twin(&s, in + i / n * k, w.host, i % n);
    ck_assert_double_lt(error_bf16(all.host, expected, ROWS * (size_t)n), 2 * bf16_error);
    for (int i = 0; i < N(counts); i++)
        for (int alone = 0; alone < 2; alone++) {
            const int first = 7 * i % (ROWS - counts[i]);

            s.m = counts[i];
            if (alone && (s.m > SKINNY_MAX_ROWS || 2 * s.m * k > SKINNY_NORM_BYTES))
                continue;
            ck_assert_msg(memcmp(normed_product(s, (float *)x.device + first * k, alone).host,
                                 (uint16_t *)all.host + first * n, (size_t)(s.m * n) * 2) == 0,
                          "%d rows, n %d k %d alone %d", s.m, n, k, alone);
        }
}
END_TEST

static void rotate_twin(double *x, int dim, int position)
{
    for (int i = 0; i < dim / 2; i++) {
        const float frequency = (float)(1.0 / pow(1e6, 2.0 * i / dim));
        const double angle = (double)((float)position * frequency);
        const double a = x[i], b = x[dim / 2 + i];

        x[i] = a * cos(angle) - b * sin(angle);
        x[dim / 2 + i] = b * cos(angle) + a * sin(angle);
    }
}

static const struct {
    int dim, n_heads, n_kv, first, rows, shift;
    bool with_norm;
} ropes[] = {
    {128, 2, 1, 0, 1, 4, true}, {128, 16, 8, 3, 10, 4, true}, {64, 14, 2, 0, 13, 5, false},
    {64, 6, 2, 1, 9, 4, true},  {128, 5, 1, 7, 22, 6, false},
};

/* Blocks in a pool, some of another memory behind it. */
static uint16_t *block_of(const struct kv_pool *kv, uint16_t *base, int id)
{
    return base +
           (id < kv->n_blocks ? id * kv->block_stride : id * kv->host_stride + kv->host_offset);
}

/* A stored key or value: E4M3 rounds to 4 bits, or to 2^-9 of a scale with which the largest
 * element is among the upper half of the range. */
static void check_row(const struct kv_twin *row, const double *twin, int dim)
{
    double largest = 0.0, *got = malloc((size_t)dim * sizeof(*got));

    for (int d = 0; d < dim; d++) {
        got[d] = kv_twin_value(row, d);
        largest = fmax(largest, fabs(twin[d]));
    }
    if (row->bf16)
        ck_assert(relative_error(got, twin, (size_t)dim) < bf16_error);
    for (int d = 0; d < dim && row->e4m3; d++)
        ck_assert_msg(fabs(got[d] - twin[d]) <= 0.07 * fabs(twin[d]) + 1e-5 * largest,
                      "%g not %g of %g", got[d], twin[d], largest);
    free(got);
}

/* q in place, k and v in their slots, for both head sizes, with norms and without, from a row in
 * the middle on; a row without a slot is stored nowhere, those of the host tier elsewhere. */
TEST(rope_store_follows_twin, .n = 2 * N(ropes))
{
    enum { BLOCKS = 7, N_DEVICE = 4, GAP = 4096, LAYERS = 2, LAYER = 1, POSITIONS = 3000 };
    const int dim = ropes[_i / 2].dim, n_heads = ropes[_i / 2].n_heads, n_kv = ropes[_i / 2].n_kv;
    const int shift = ropes[_i / 2].shift, first = ropes[_i / 2].first,
              end = first + ropes[_i / 2].rows;
    const int all = n_heads + 2 * n_kv, block_len = 1 << shift;
    const size_t n = (size_t)(end * all * dim);
    const bool fp8 = _i % 2;
    const int64_t v_offset = (int64_t)n_kv * block_len * (fp8 ? dim + 1 : 2 * dim) / 2;
    const struct device_array qkv = array_bf16(n, 1.0f);
    const struct device_array qn = array_bf16((size_t)dim, 1.0f),
                              kn = array_bf16((size_t)dim, 1.0f);
    const int64_t block = 2 * v_offset * LAYERS;
    const struct device_array pool = array_new((size_t)(BLOCKS * 2 * block + GAP) * 2);
    const struct kv_pool kv = {pool.device, block,    2 * v_offset, v_offset, shift, n_kv,
                               dim,         N_DEVICE, 2 * block,    GAP,      fp8};
    const struct rope rope = {.q_norm = ropes[_i / 2].with_norm ? qn.device : NULL,
                              .k_norm = ropes[_i / 2].with_norm ? kn.device : NULL,
                              .table = array_new((size_t)(POSITIONS * dim) * 4).device,
                              .eps = eps};
    float inv_freq[ROPE_MAX_PAIRS];
    int32_t *positions = host_new((size_t)end, 4), *slots = host_new((size_t)end, 4);
    const uint16_t *before = array_of(qkv.host, qkv.bytes).host;
    double *twins = values_bf16(qkv.host, n);
    struct step_view v;
    struct kv_twin row;

    for (int i = 0; i < end; i++) {
        positions[i] = i == 0 ? POSITIONS - 1 : i * 37 % POSITIONS;
        slots[i] = i == first + 1 ? -1 : (i * 5 + 3) % (BLOCKS * block_len);
    }
    v = (struct step_view){.positions = array_of(positions, (size_t)end * 4).device,
                           .slots = array_of(slots, (size_t)end * 4).device};
    rope_frequencies(&(struct model_config){.head_dim = dim, .rope_theta = 1e6}, inv_freq);
    cuda_must(rope_table(&device.launch, (float *)rope.table, POSITIONS, inv_freq, dim / 2, 1.0f));
    cuda_must(rope_store(&device.launch, qkv.device, &rope, &kv, LAYER, &v, first, end - first,
                         n_heads, true));
    array_to_host(&qkv);
    array_to_host(&pool);
    ck_assert_mem_eq(qkv.host, before, (size_t)(first * all * dim) * 2);
    for (int i = first; i < end; i++)
        for (int h = 0; h < all; h++) {
            const bool is_q = h < n_heads, is_v = h >= n_heads + n_kv;
            const uint16_t *at = (uint16_t *)qkv.host + (i * all + h) * dim;
            double *twin = twins + (i * all + h) * dim;

            if (!is_q && slots[i] < 0)
                continue;
            if (rope.q_norm && !is_v)
                norm_twin(twin, is_q ? qn.host : kn.host, dim);
            if (!is_v)
                rotate_twin(twin, dim, positions[i]);
            if (is_q) {
                ck_assert_msg(error_bf16(at, twin, (size_t)dim) < bf16_error, "row %d", i);
                continue;
            }
            row = kv_twin_of(&kv, block_of(&kv, pool.host, slots[i] >> shift), LAYER,
                             (h - n_heads) % n_kv, slots[i] & (block_len - 1), is_v);
            check_row(&row, twin, dim);
        }
}
END_TEST

/* One layer of the blocks of a table, on the device and elsewhere, one behind the other and in
 * bf16; nothing behind the last. Of E4M3 every byte occurs, and scales as small and as large as are
 * exact, and NaN. */
TEST(blocks_are_fetched, .n = 4 * 2 * 2)
{
    enum { BLOCKS = 9, N_DEVICE = 5, GAP = 1024, LAYERS = 3, LAYER = 2, KV_HEADS = 3 };
    static const int counts[] = {1, 2, 40, 700}, thread_blocks[] = {1, 4, 4, 32};
    const bool fp8 = _i / 4 % 2;
    const int n = counts[_i % 4], dim = _i / 8 ? 128 : 64, shift = fp8 ? 5 : 4;
    const int rows = KV_HEADS << shift, each = 2 * rows * dim;
    const int64_t v_offset = fp8 ? rows * (dim + 1) / 2 : rows * dim;
    const int64_t block = 2 * v_offset * LAYERS;
    const struct device_array pool = array_bf16((size_t)(BLOCKS * 2 * block + GAP), 1.0f);
    const struct device_array to = array_new((size_t)((n + 1) * each) * 2);
    const struct kv_pool kv = {pool.device, block,    2 * v_offset, v_offset, shift, KV_HEADS,
                               dim,         N_DEVICE, 2 * block,    GAP,      fp8};
    int32_t *table = calloc((size_t)n, sizeof(*table));

    ck_assert_ptr_nonnull(table);
    for (int i = 0; i < n; i++)
        table[i] = (i * 7 + 3) % BLOCKS;
    for (int i = 0; i < BLOCKS * 2 * rows && fp8; i++) {
        const struct kv_twin row = kv_twin_of(&kv, block_of(&kv, pool.host, i / (2 * rows)), LAYER,
                                              i % rows >> shift, i % (1 << shift), i / rows % 2);

        for (int d = 0; d < dim; d++)
            row.e4m3[d] = (uint8_t)random_bits();
        *row.exponent = (uint8_t)(i % 8 == 7 ? 255 : i % 8 == 6 ? 134 : 10 + random_bits() % 125);
    }
    array_to_device(&pool);
    cuda_must(fetch_blocks(&device.launch, to.device, &kv, LAYER,
                           array_of(table, (size_t)n * sizeof(*table)).device, n,
                           thread_blocks[_i % 4]));
    array_to_host(&to);
    for (int i = 0; i < n * 2 * rows; i++) {
        const struct kv_twin row =
            kv_twin_of(&kv, block_of(&kv, pool.host, table[i / (2 * rows)]), LAYER,
                       i % rows >> shift, i % (1 << shift), i / rows % 2);

        for (int d = 0; d < dim; d++) {
            const double got = bf16_value(((uint16_t *)to.host)[i * dim + d]);
            const double expected = kv_twin_value(&row, d);

            ck_assert_msg(got == expected || (isnan(got) && isnan(expected)), "%g not %g", got,
                          expected);
        }
    }
    for (int i = n * each; i < (n + 1) * each; i++)
        ck_assert_uint_eq(((uint16_t *)to.host)[i], 0xffff);
    free(table);
}
END_TEST

static const struct batch_sum sums[] = {{0, 1}, {1, 299}, {300, 17}, {1099, 1}};

/* Sums of rows and rows side by side, of which only those that a step has are written. */
TEST(rows_are_summed_and_gathered, .n = 3)
{
    enum { ROWS = 1100, WANTED = 9 };
    const int dim = (const int[]){8, 1032, 4096}[_i];
    const struct device_array x = array_bf16((size_t)(ROWS * dim), 1.0f);
    const struct device_array y = array_new((size_t)(N(sums) * dim) * 4);
    const struct device_array gathered = array_new((size_t)((WANTED + 1) * dim) * 2);
    const struct step_counts counts = {.n_rows = WANTED};
    const double *in = values_bf16(x.host, (size_t)(ROWS * dim));
    double *expected = host_new((size_t)(N(sums) * dim), sizeof(*expected));
    struct sampler_row list[WANTED + 1] = {{0}};
    struct step_view v;

    for (int i = 0; i < N(sums); i++)
        for (int row = sums[i].row; row < sums[i].row + sums[i].n_rows; row++)
            for (int j = 0; j < dim; j++)
                expected[i * dim + j] += in[row * dim + j];
    for (int i = 0; i < WANTED; i++)
        list[i].row = i * 122;
    v = (struct step_view){.rows = array_of(list, sizeof(list)).device,
                           .sums = array_of(sums, sizeof(sums)).device,
                           .counts = array_of(&counts, sizeof(counts)).device};
    cuda_must(sum_rows(&device.launch, y.device, x.device, v.sums, N(sums), dim));
    cuda_must(gather_rows(&device.launch, gathered.device, x.device, &v, WANTED + 1, dim));
    array_to_host(&y);
    array_to_host(&gathered);
    ck_assert_double_lt(error_f32(y.host, expected, (size_t)(N(sums) * dim)), 1e-5);
    for (int i = 0; i <= WANTED; i++)
        for (int j = 0; j < dim; j++)
            ck_assert_uint_eq(((uint16_t *)gathered.host)[i * dim + j],
                              i < WANTED ? ((uint16_t *)x.host)[i * 122 * dim + j] : 0xffff);
}
END_TEST

RUN_TESTS_HERE("ops", device_set_up, device_tear_down)
