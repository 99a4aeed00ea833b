/* test_quant.c - products with weights of 8 and 4 bits, few rows and many, against a plain twin in
 * double; that a row's result does not depend on the others; what becomes e4m3, and bf16 again. */
#include <math.h>
#include <string.h>

#include "cuda/gemm.h"
#include "engine/util/bf16.h"
#include "tests/gpu/quant_rig.h"
#include "tests/unit/run_suite.h"

/* One rounding to bf16 of random values is off by 2^-9 / sqrt(3) at most: 1.7e-3 and a margin. */
static const double bf16_error = 2.5e-3;

/* A rounding to e4m3 is off by 2^-4 / sqrt(3) at most, on both sides of a product of random values
 * by as much again. */
static const double f32_error = 2e-6;

static double twin(const struct skinny *s, const struct quant_weights *w, const double *x, int n)
{
    const double y = dot_of_doubles(x, w->values + (int64_t)n * w->k, w->k);

    return s->out == SKINNY_SILU_MUL
               ? y / (1.0 + exp(-y)) *
                     dot_of_doubles(x, w->values + (int64_t)(s->n + n) * w->k, w->k)
               : y;
}

static void check_skinny(const struct weight_format *f, int m, int n, int k, enum skinny_out out,
                         bool with_bias)
{
    const bool wide = out == SKINNY_F32 || out == SKINNY_ADD_F32, gated = out == SKINNY_SILU_MUL;
    const size_t size = (size_t)m * (size_t)n, n_x = (size_t)m * (size_t)k;
    const struct quant_weights w = quant_weights_new(f, gated ? 2 * n : n, k);
    const struct device_array x = array_bf16(n_x, 1.0f), bias = array_bf16((size_t)n, 2.0f);
    const struct device_array y =
        out == SKINNY_ADD_F32 ? array_f32(size, 1.0f) : array_new(size * (wide ? 4 : 2));
    const struct skinny s = {.y = y.device,
                             .y_stride = n,
                             .x = x.device,
                             .w = w.w.device,
                             .quant = w.quant,
                             .bias = with_bias ? bias.device : NULL,
                             .m = m,
                             .n = n,
                             .k = k,
                             .out = out};
    const double *in = values_bf16(x.host, n_x);
    double *expected =
        out == SKINNY_ADD_F32 ? values_f32(y.host, size) : host_new(size, sizeof(double));
    double error;

    for (int i = 0; i < m; i++)
        for (int j = 0; j < n; j++)
            expected[i * n + j] += twin(&s, &w, in + i * k, j) +
                                   (with_bias ? bf16_value(((uint16_t *)bias.host)[j]) : 0.0);
    cuda_must(skinny_gemm(&device.launch, &s));
    array_to_host(&y);
    error = wide ? error_f32(y.host, expected, size) : error_bf16(y.host, expected, size);
    ck_assert_msg(error < (wide ? f32_error : (1 + gated) * bf16_error),
                  "format %d m %d n %d k %d out %d: %g", (int)(f - weight_formats), m, n, k,
                  (int)out, error);
}

/* All outputs, one row to many, widths that fill no tile, groups and steps that k does not fill. */
TEST(skinny_gemm_follows_twin, .n = N_WEIGHT_FORMATS)
{
    static const int rows[] = {1, 3, 8, 9, 16, 17, 64};
    const struct weight_format *f = &weight_formats[_i];

    for (int i = 0; i < N(rows); i++) {
        for (int out = SKINNY_BF16; out <= SKINNY_SILU_MUL; out++) {
            check_skinny(f, rows[i], 52, 320, (enum skinny_out)out, false);
            check_skinny(f, rows[i], 264, 1024, (enum skinny_out)out, false);
            check_skinny(f, rows[i], 12, 3072 + 32, (enum skinny_out)out, false);
        }
        check_skinny(f, rows[i], 4300, 160, SKINNY_BF16, true);
        memory_free();
    }
}
END_TEST

/* What a row gives is the same to the bit whatever the number of rows, whether the product norms it
 * or a kernel before it does. */
TEST(rows_do_not_depend_on_rows, .n = N_WEIGHT_FORMATS)
{
    enum { ROWS = 70, HIDDEN = 1024, OUTPUTS = 328 };
    static const int counts[] = {1, 2, 5, 8, 9, 16, 17, 33, 64};
    const struct quant_weights w = quant_weights_new(&weight_formats[_i], 2 * OUTPUTS, HIDDEN);
    const struct device_array x = array_f32(ROWS * HIDDEN, 2.0f), norm = array_bf16(HIDDEN, 1.0f);
    const struct device_array normed = array_new(ROWS * HIDDEN * 2), rms = array_new(ROWS * 4);
    const struct device_array y = array_new(ROWS * OUTPUTS * 2);
    uint16_t *all = host_new(ROWS * OUTPUTS, 2);
    struct skinny s = {.y = y.device,
                       .y_stride = OUTPUTS,
                       .x = normed.device,
                       .rms = rms.device,
                       .norm = norm.device,
                       .eps = 1e-6f,
                       .w = w.w.device,
                       .quant = w.quant,
                       .m = ROWS,
                       .n = OUTPUTS,
                       .k = HIDDEN,
                       .out = SKINNY_SILU_MUL};

    cuda_must(skinny_norm(&device.launch, normed.device, rms.device, x.device, norm.device, ROWS,
                          HIDDEN, s.eps));
    cuda_must(skinny_gemm(&device.launch, &s));
    array_to_host(&y);
    memcpy(all, y.host, y.bytes);
    for (int i = 0; i < N(counts); i++)
        for (int alone = 0; alone < 2; alone++) {
            const int first = 7 * i % (ROWS - counts[i] + 1);
            struct skinny few = s;

            few.m = counts[i];
            few.x = (uint16_t *)normed.device + first * HIDDEN;
            few.rms = (float *)rms.device + first;
            if (alone) {
                few.x_f32 = (float *)x.device + first * HIDDEN;
                few.rms = NULL;
            }
            if (alone && 2 * few.m * HIDDEN > SKINNY_NORM_BYTES)
                continue;
            device_fill(y.device, 0xff, y.bytes);
            cuda_must(skinny_gemm(&device.launch, &few));
            array_to_host(&y);
            ck_assert_msg(memcmp(y.host, all + first * OUTPUTS,
                                 (size_t)(few.m * OUTPUTS) * sizeof(*all)) == 0,
                          "format %d, %d rows, alone %d", _i, few.m, alone);
        }
}
END_TEST

/* Columns half of those of each row of n, of `row` bytes. */
static void *half_of(const struct device_array *a, int n, int half)
{
    const size_t row = a->bytes / (size_t)n;
    void *to = device_new(a->bytes / 2);

    cuda_must(cudaMemcpy2D(to, row / 2, (char *)a->device + (size_t)half * row / 2, row, row / 2,
                           (size_t)n, cudaMemcpyDeviceToDevice));
    cuda_must(cudaDeviceSynchronize());
    return to;
}

/* One rank that adds both halves of k, one after the other, has the bits of the sum of two ranks
 * with a half each. */
TEST(halves_are_added_as_ranks_add_them, .n = N_WEIGHT_FORMATS)
{
    enum { ROWS = 20, OUTPUTS = 128, INPUTS = 1536 };
    const struct weight_format *f = &weight_formats[_i];
    const bool blocks = f->scale_cols > 0;
    const struct quant_weights w = quant_weights_new(f, OUTPUTS, INPUTS);
    const struct device_array x = array_bf16(ROWS * INPUTS, 1.0f);
    const struct device_array y = array_f32(ROWS * OUTPUTS, 1.0f), part = array_new(y.bytes);
    const int n_rows = OUTPUTS / f->scale_rows;
    float *expected = host_new(y.bytes, 1);
    struct skinny s = {.y = y.device,
                       .y_stride = OUTPUTS,
                       .x = x.device,
                       .w = w.w.device,
                       .quant = w.quant,
                       .m = ROWS,
                       .n = OUTPUTS,
                       .k = INPUTS,
                       .out = SKINNY_ADD_F32,
                       .sum = SKINNY_HALVES};

    memcpy(expected, y.host, y.bytes);
    ck_assert(skinny_halves(&s.quant, INPUTS));
    cuda_must(skinny_gemm(&device.launch, &s));
    s.y = part.device;
    s.k = INPUTS / 2;
    s.out = SKINNY_F32;
    s.sum = SKINNY_HALF;
    for (int half = 0; half < 2; half++) {
        s.x = half_of(&x, ROWS, half);
        s.w = half_of(&w.w, OUTPUTS, half);
        s.quant.scale_cols = blocks ? w.quant.scale_cols : INPUTS / 2;
        s.quant.scales = blocks ? half_of(&w.scales, n_rows, half) : w.scales.device;
        if (f->zeros)
            s.quant.zeros = blocks ? half_of(&w.zeros, n_rows, half) : w.zeros.device;
        cuda_must(skinny_gemm(&device.launch, &s));
        array_to_host(&part);
        for (int i = 0; i < ROWS * OUTPUTS; i++)
            expected[i] += ((float *)part.host)[i];
    }
    array_to_host(&y);
    ck_assert(memcmp(y.host, expected, y.bytes) == 0);
}
END_TEST

static bool int4_is_usable(void)
{
    bool usable;

    cuda_must(int4_gemm_init(&usable));
    return usable;
}

static struct int4_work int4_work_new(void)
{
    size_t part_bytes, n_counters;

    int4_work_size(&device.launch, &part_bytes, &n_counters);
    return (struct int4_work){.parts = device_new(part_bytes),
                              .counters = device_new(n_counters * sizeof(int32_t))};
}

/* Whether of rows of `row` bytes nothing was written behind `used` bytes, nor from row n on. */
static bool is_poison_kept(const struct device_array *a, size_t n, size_t row, size_t used)
{
    const uint8_t *bytes = a->host;
    bool kept = true;

    for (size_t i = 0; i < a->bytes; i++)
        kept &= (i / row < n && i % row < used) || bytes[i] == 0xff;
    return kept;
}

/* Each number of rows from `least` to `most`, twice: which block is the last to have its part of a
 * sum changes no bit. */
static void check_int4(const struct weight_format *f, int least, int most, int n, int k,
                       enum skinny_out out, const struct int4_work *work)
{
    const bool wide = out == SKINNY_F32 || out == SKINNY_ADD_F32, gated = out == SKINNY_SILU_MUL;
    const int stride = n + 6;
    const size_t each = wide ? 4 : 2, row = (size_t)stride * each;
    const struct quant_weights w = quant_weights_new(f, gated ? 2 * n : n, k);
    const struct device_array x = array_bf16((size_t)(most * k), 1.0f);
    const struct device_array bias = array_bf16((size_t)n, 2.0f);
    const struct device_array y = array_new((size_t)(most + 1) * row), again = array_new(y.bytes);
    const double *in = values_bf16(x.host, (size_t)(most * k));
    struct skinny s = {.y_stride = stride,
                       .x = x.device,
                       .w = w.w.device,
                       .quant = w.quant,
                       .bias = out == SKINNY_BF16 ? bias.device : NULL,
                       .n = n,
                       .k = k,
                       .out = out};
    double *expected = host_new((size_t)(most * n), sizeof(double));
    double *got = host_new((size_t)(most * n), sizeof(double));

    for (int i = 0; i < most * n; i++)
        expected[i] = twin(&s, &w, in + i / n * k, i % n) +
                      (s.bias ? bf16_value(((uint16_t *)bias.host)[i % n]) : 0.0) +
                      (out == SKINNY_ADD_F32 ? 0.5 * (i % 7) : 0.0);
    for (s.m = least; s.m <= most; s.m++) {
        const size_t size = (size_t)(s.m * n);
        double error;

        for (int run = 0; run < 2; run++) {
            const struct device_array *to = run ? &again : &y;

            memset(to->host, 0xff, to->bytes);
            for (int i = 0; i < s.m * n && out == SKINNY_ADD_F32; i++)
                ((float *)to->host)[i / n * stride + i % n] = 0.5f * (float)(i % 7);
            array_to_device(to);
            s.y = to->device;
            cuda_must(int4_gemm(&device.launch, &s, work));
            array_to_host(to);
        }
        ck_assert_msg(memcmp(y.host, again.host, y.bytes) == 0, "m %d: other bits", s.m);
        ck_assert_msg(is_poison_kept(&y, (size_t)s.m, row, (size_t)n * each), "m %d", s.m);
        for (int i = 0; i < s.m * n; i++) {
            const int at = i / n * stride + i % n;

            got[i] = wide ? (double)((float *)y.host)[at] : bf16_value(((uint16_t *)y.host)[at]);
        }
        error = relative_error(got, expected, size);
        ck_assert_msg(error < (wide ? f32_error : (1 + gated) * bf16_error),
                      "format %d m %d n %d k %d out %d: %g", (int)(f - weight_formats), s.m, n, k,
                      (int)out, error);
    }
}

/* Any number of rows; widths and lengths of k that fill no tile, no step and no group, tiles that
 * one block has and that many share. */
TEST(int4_gemm_follows_twin, .n = N_WEIGHT_FORMATS)
{
    const struct weight_format *f = &weight_formats[_i];
    struct int4_work work;

    if (f->element != ELEMENT_INT4 || !int4_is_usable())
        return;
    work = int4_work_new();
    for (int out = SKINNY_BF16; out <= SKINNY_SILU_MUL; out++) {
        check_int4(f, 1, 300, 76, 160, (enum skinny_out)out, &work);
        check_int4(f, 1, 70, 264, 1024 + 32, (enum skinny_out)out, &work);
        check_int4(f, 1, 6, 12, 8192 + 96, (enum skinny_out)out, &work);
        check_int4(f, 1, 3, 34000, 96, (enum skinny_out)out, &work);
    }
}
END_TEST

/* Each kernel and output once, of coarse groups and fine: few enough for a sanitizer. */
TEST(int4_gemm_of_each_width)
{
    static const int rows[] = {32, 64, 130};

    for (int i = 0; i < N_WEIGHT_FORMATS && int4_is_usable(); i++) {
        const struct int4_work work = int4_work_new();

        for (int j = 0; j < N(rows) && weight_formats[i].zeros; j++)
            for (int out = SKINNY_BF16; out <= SKINNY_SILU_MUL; out++)
                check_int4(&weight_formats[i], rows[j], rows[j], 76, 1024 + 32,
                           (enum skinny_out)out, &work);
    }
}
END_TEST

/* Rows that are not a multiple of what a thread has, and more of a row than a block has. */
TEST(dequantized_weights_are_rounded_once, .n = 2 * N_WEIGHT_FORMATS)
{
    const bool wide = _i >= N_WEIGHT_FORMATS;
    const int n = wide ? 7 : 262, k = wide ? 4128 : 416;
    const struct quant_weights w = quant_weights_new(&weight_formats[_i % N_WEIGHT_FORMATS], n, k);
    const struct device_array y = array_new((size_t)(n * k) * 2);

    cuda_must(dequantize(&device.launch, y.device, w.w.device, &w.quant, n, k));
    array_to_host(&y);
    for (int i = 0; i < n * k; i++)
        ck_assert_int_eq(((uint16_t *)y.host)[i], bf16_from_f32((float)w.values[i]));
}
END_TEST

static double largest_of(const double *x, int n)
{
    double most = 0.0;

    for (int i = 0; i < n; i++)
        most = fmax(most, fabs(x[i]));
    return most;
}

/* Activations [m, k] as quantize() leaves them, and their values. */
struct activations {
    struct device_array x, scales;
    double *values, *exact;
};

static struct activations quantized(int m, int k, bool groups, bool gated)
{
    const struct device_array in = array_bf16((size_t)(m * k * (gated ? 2 : 1)), 1.0f);
    struct activations r = {.x = array_new((size_t)(m * k)),
                            .scales = array_new((size_t)(groups ? m * (k / 128) : m) * 4),
                            .values = host_new((size_t)(m * k), sizeof(double)),
                            .exact = values_bf16(in.host, (size_t)(m * k))};
    struct e4m3_rows to;

    if (gated) {
        const struct device_array act = array_new((size_t)(m * k) * 2);

        cuda_must(silu_mul(&device.launch, act.device, in.device, m, k));
        array_to_host(&act);
        r.exact = values_bf16(act.host, (size_t)(m * k));
    }
    to = (struct e4m3_rows){r.x.device, r.scales.device, m, groups};
    cuda_must(quantize(&device.launch, &to, in.device, k, gated));
    array_to_host(&r.x);
    array_to_host(&r.scales);
    for (int i = 0; i < m * k; i++) {
        const int row = i / k, group = i % k / 128;

        r.values[i] = e4m3_value(((uint8_t *)r.x.host)[i]) *
                      ((float *)r.scales.host)[groups ? group * m + row : row];
    }
    return r;
}

/* Each scale makes 448 of the largest; each value is one of the two nearest, and within half of
 * what lies between. */
TEST(activations_become_the_nearest_e4m3, .n = 8)
{
    const bool groups = _i % 2, wide = _i / 4; /* more of a row than registers have */
    const int rows = wide ? 3 : 37, inputs = wide ? 20480 : 1536;
    const int length = groups ? 128 : inputs;
    const struct activations a = quantized(rows, inputs, groups, _i / 2 % 2);

    for (int i = 0; i < rows * inputs; i += length) {
        const double most = largest_of(a.exact + i, length), scale = most / 448.0;
        const int row = i / inputs, group = i % inputs / 128;
        const double got = ((float *)a.scales.host)[groups ? group * rows + row : row];

        ck_assert_double_lt(fabs(got - scale), 1e-6 * scale);
        for (int j = i; j < i + length; j++) {
            const double half_step =
                fmax(ldexp(1.0, (int)floor(log2(fabs(a.exact[j]) / scale + 1e-30)) - 4), 0x1p-10);

            ck_assert_double_le(fabs(a.values[j] - a.exact[j]), half_step * scale * 1.0001);
        }
    }
}
END_TEST

static void check_gemm(struct gemm *g, bool blocks, int m, int n, int k, enum gemm_out out)
{
    const struct quant_weights w = quant_weights_new(&weight_formats[blocks ? 0 : 2], n, k);
    const struct activations a = quantized(m, k, blocks, false);
    const size_t size = (size_t)(m * n);
    const struct device_array y =
        out == GEMM_ADD_F32 ? array_f32(size, 1.0f) : array_new(size * (out == GEMM_BF16 ? 2 : 4));
    const struct gemm_product p = {.y = y.device,
                                   .y_stride = n,
                                   .in = blocks ? GEMM_OF_E4M3_BLOCKS : GEMM_OF_E4M3,
                                   .x = a.x.device,
                                   .w = w.w.device,
                                   .x_scales = a.scales.device,
                                   .w_scales = w.scales.device,
                                   .m = m,
                                   .n = n,
                                   .k = k,
                                   .out = out};
    double *expected =
        out == GEMM_ADD_F32 ? values_f32(y.host, size) : host_new(size, sizeof(double));
    double error;
    struct err e;

    for (int i = 0; i < m; i++)
        for (int j = 0; j < n; j++)
            expected[i * n + j] += dot_of_doubles(a.values + i * k, w.values + j * k, k);
    ck_assert_msg(gemm_run(g, device.launch.stream, &p, &e) == 0, "%s", e.text);
    array_to_host(&y);
    error =
        out == GEMM_BF16 ? error_bf16(y.host, expected, size) : error_f32(y.host, expected, size);
    ck_assert_msg(error < bf16_error, "blocks %d m %d n %d k %d out %d: %g", blocks, m, n, k,
                  (int)out, error);
}

TEST(gemm_of_e4m3_follows_twin, .n = 2)
{
    struct gemm *g;
    struct err e;

    err_must(gemm_new(&g, device_new(GEMM_WORKSPACE), false, 1, &e), &e);
    for (int i = 0; i < 2; i++) {
        check_gemm(g, _i, 16, 256, 512, GEMM_BF16);
        check_gemm(g, _i, 48, 384, 1024, GEMM_F32);
        check_gemm(g, _i, 112, 320, 512, GEMM_ADD_F32);
        check_gemm(g, _i, 576, 384, 1536, GEMM_BF16);
    }
    gemm_free(g);
}
END_TEST

/* The matrix unit keeps fewer bits of sums of e4m3: 2.4e-4 is seen. */
static const double e4m3_error = 5e-4;

/* Of e4m3 by blocks, to be streamed. */
static struct skinny streamed(const struct device_array *y, const struct activations *a,
                              const struct quant_weights *w, int m, int n, int k,
                              enum skinny_out out)
{
    return (struct skinny){.y = y->device,
                           .y_stride = n,
                           .x = a->x.device,
                           .x_scales = a->scales.device,
                           .w = w->w.device,
                           .quant = w->quant,
                           .m = m,
                           .n = n,
                           .k = k,
                           .out = out};
}

/* y [n_parts, m, n], on so many multiprocessors. */
static void check_stream_on(int n_sms, int m, int n, int k, enum skinny_out out, int n_parts)
{
    const struct quant_weights w = quant_weights_new(&weight_formats[0], n, k);
    const struct activations a = quantized(m, k, true, false);
    const size_t size = (size_t)(n_parts * m * n);
    const struct device_array y = out == SKINNY_ADD_F32
                                      ? array_f32(size, 1.0f)
                                      : array_new(size * (out == SKINNY_BF16 ? 2 : 4));
    const struct skinny s = streamed(&y, &a, &w, m, n, k, out);
    const int each = k / n_parts;
    double *expected =
        out == SKINNY_ADD_F32 ? values_f32(y.host, size) : host_new(size, sizeof(double));
    struct launch launch = device.launch;
    double error;

    for (int i = 0; i < n_parts * m; i++)
        for (int j = 0; j < n; j++)
            expected[i * n + j] += dot_of_doubles(a.values + i % m * k + i / m * each,
                                                  w.values + j * k + i / m * each, each);
    launch.n_sms = n_sms;
    cuda_must(stream_gemm(&launch, &s, n_parts, NULL));
    array_to_host(&y);
    error =
        out == SKINNY_BF16 ? error_bf16(y.host, expected, size) : error_f32(y.host, expected, size);
    ck_assert_msg(error < (out == SKINNY_BF16 ? bf16_error : e4m3_error),
                  "m %d n %d k %d out %d parts %d: %g", m, n, k, (int)out, n_parts, error);
}

static void check_stream(int m, int n, int k, enum skinny_out out, int n_parts)
{
    check_stream_on(device.launch.n_sms, m, n, k, out, n_parts);
}

static const int streamed_rows[] = {4, 16, 20, 32, 36, 48, 52, 64, 68, 96, 100, 128};

/* Tiles that are not full, fewer steps than the ring has and more, several tiles a thread block. */
TEST(stream_of_e4m3_follows_twin, .n = N(streamed_rows))
{
    const int m = streamed_rows[_i];
    bool usable;

    cuda_must(stream_gemm_init(&usable));
    for (int out = SKINNY_BF16; usable && out <= SKINNY_ADD_F32; out++) {
        check_stream(m, 64, 256, (enum skinny_out)out, 1);
        check_stream(m, 200, 512, (enum skinny_out)out, 1);
        check_stream(m, 320, 9216, (enum skinny_out)out, 1);
        check_stream(m, 160 * 64 + 40, 512, (enum skinny_out)out, 1);
        check_stream_on(3, m, 520, 1536, (enum skinny_out)out, 1);
    }
    for (int parts = 2; usable && parts <= 8; parts *= 2)
        check_stream(m, 1024, 2048, SKINNY_F32, parts);
    if (usable)
        check_stream_on(3, m, 520, 3072, SKINNY_F32, 2);
}
END_TEST

/* The last rows of one product are those of any with fewer, to the bit. */
TEST(rows_of_streamed_e4m3_do_not_depend_on_others, .n = N(streamed_rows))
{
    enum { ROWS = STREAM_SLICE_ROWS, OUTPUTS = 200, INPUTS = 1024, GROUPS = INPUTS / 128 };
    const int m = streamed_rows[_i], first = ROWS - m;
    const size_t row = OUTPUTS * sizeof(float);
    const struct quant_weights w = quant_weights_new(&weight_formats[0], OUTPUTS, INPUTS);
    struct activations a = quantized(ROWS, INPUTS, true, false);
    const struct device_array y = array_new(ROWS * row);
    struct skinny s = streamed(&y, &a, &w, ROWS, OUTPUTS, INPUTS, SKINNY_F32);
    float *expected = host_new(ROWS * OUTPUTS, sizeof(float)), scales[GROUPS * ROWS];
    bool usable;

    cuda_must(stream_gemm_init(&usable));
    if (!usable)
        return;
    cuda_must(stream_gemm(&device.launch, &s, 1, NULL));
    array_to_host(&y);
    memcpy(expected, y.host, ROWS * row);
    for (int i = 0; i < GROUPS * m; i++)
        scales[i] = ((float *)a.scales.host)[i / m * ROWS + first + i % m];
    a.x = array_of((uint8_t *)a.x.host + first * INPUTS, (size_t)(m * INPUTS));
    a.scales = array_of(scales, (size_t)(GROUPS * m) * sizeof(float));
    s = streamed(&y, &a, &w, m, OUTPUTS, INPUTS, SKINNY_F32);
    device_fill(y.device, 0xff, y.bytes);
    cuda_must(stream_gemm(&device.launch, &s, 1, NULL));
    array_to_host(&y);
    ck_assert_mem_eq(y.host, expected + first * OUTPUTS, (size_t)m * row);
    ck_assert(is_poison_kept(&y, (size_t)m, row, row));
}
END_TEST

TEST(stream_of_e4m3_refuses_other_shapes)
{
    const struct quant_weights w = quant_weights_new(&weight_formats[0], 256, 1024);
    const struct activations a = quantized(STREAM_SLICE_ROWS + 4, 1024, true, false);
    const struct device_array y = array_new(2 * 64 * 256 * 4);
    const struct skinny good = streamed(&y, &a, &w, 64, 256, 1024, SKINNY_F32);
    struct skinny bad[6];
    bool usable;

    for (int i = 0; i < N(bad); i++)
        bad[i] = good;
    bad[0].k = 896;
    bad[1].m = 62;
    bad[2].m = STREAM_SLICE_ROWS + 4;
    bad[3].out = SKINNY_SILU_MUL;
    bad[4].quant.scale_rows = 1;
    bad[5].x_scales = NULL;
    for (int i = 0; i < N(bad); i++)
        ck_assert_int_eq(stream_gemm(&device.launch, &bad[i], 1, NULL), cudaErrorInvalidValue);
    ck_assert_int_eq(stream_gemm(&device.launch, &good, 8, NULL), cudaErrorInvalidValue);
    cuda_must(stream_gemm_init(&usable));
    if (usable)
        cuda_must(stream_gemm(&device.launch, &good, 2, NULL));
}
END_TEST

RUN_TESTS_HERE("quant", device_set_up, device_tear_down)
