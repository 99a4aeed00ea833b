/* test_stream.c - products whose weights stream through shared memory against a plain twin in
 * double, and that a row's result does not depend on the others. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "cuda/forward.h"
#include "tests/gpu/gpu_rig.h"
#include "tests/unit/run_suite.h"

/* One rounding to bf16 of random values is off by 2^-9 / sqrt(3) at most: 1.7e-3 and a margin. */
static const double bf16_error = 2.5e-3;

/* The matrix unit cuts off what it adds to a sum: of 12,288 products 6e-6 is seen. */
static const double f32_error = 2e-5;

static bool usable;

static void set_up(void)
{
    device_set_up();
    cuda_must(stream_gemm_init(&usable));
    if (!usable)
        printf("skipped: not a device of compute capability 9.0\n");
}

static double silu(double x)
{
    return x / (1.0 + exp(-x));
}

/* A product of random numbers; its y is wider than its rows where it is not in parts. */
struct product {
    struct device_array x, w, bias, y;
    struct skinny s;
    int n_parts;
};

static struct product random_product(int m, int n, int k, enum skinny_out out, int n_parts)
{
    const bool wide = out == SKINNY_F32 || out == SKINNY_ADD_F32, gated = out == SKINNY_SILU_MUL;
    const size_t stride = (size_t)n + (n_parts > 1 ? 0 : 8);
    const size_t size = (size_t)n_parts * (size_t)m * stride;
    struct product p = {.x = array_bf16((size_t)m * (size_t)k, 1.0f),
                        .w = array_bf16((size_t)n * (size_t)k * (gated ? 2 : 1),
                                        1.0f / sqrtf((float)k)),
                        .bias = array_bf16((size_t)n, 2.0f),
                        .y = out == SKINNY_ADD_F32 ? array_f32(size, 1.0f)
                                                   : array_new(size * (wide ? 4 : 2))};

    p.n_parts = n_parts;
    p.s = (struct skinny){.y = p.y.device,
                          .y_stride = (int64_t)stride,
                          .x = p.x.device,
                          .w = p.w.device,
                          .bias = out == SKINNY_BF16 ? p.bias.device : NULL,
                          .m = m,
                          .n = n,
                          .k = k,
                          .out = out};
    return p;
}

/* Result j of a row x [k] in a part. */
static double twin(const struct product *p, const double *x, int j, int part)
{
    const struct skinny *s = &p->s;
    const uint16_t *w = p->w.host;
    const int each = s->k / p->n_parts;
    const double y = dot(x + part * each, w + (size_t)j * (size_t)s->k + part * each, each);

    if (s->out == SKINNY_SILU_MUL)
        return silu(y) * dot(x, w + (size_t)(s->n + j) * (size_t)s->k, s->k);
    return y + (s->bias ? bf16_value(((uint16_t *)p->bias.host)[j]) : 0.0);
}

/* n_sms: multiprocessors that the product takes the device to have, so as many thread blocks. */
static void check_on(int n_sms, int m, int n, int k, enum skinny_out out, int n_parts)
{
    struct launch launch = device.launch;
    const bool wide = out == SKINNY_F32 || out == SKINNY_ADD_F32;
    const struct product p = random_product(m, n, k, out, n_parts);
    const size_t stride = (size_t)p.s.y_stride, size = (size_t)(n_parts * m) * stride;
    const double *in = values_bf16(p.x.host, (size_t)m * (size_t)k);
    double *expected =
        out == SKINNY_ADD_F32 ? values_f32(p.y.host, size) : host_new(size, sizeof(double));
    double *got, error;

    launch.n_sms = n_sms;
    for (int i = 0; i < n_parts * m; i++)
        for (int j = 0; j < n; j++)
            expected[(size_t)i * stride + (size_t)j] += twin(&p, in + i % m * k, j, i / m);
    cuda_must(stream_gemm(&launch, &p.s, n_parts, NULL));
    array_to_host(&p.y);
    got = wide ? values_f32(p.y.host, size) : values_bf16(p.y.host, size);
    for (size_t i = 0; i < size && out != SKINNY_ADD_F32; i++)
        if (i % stride >= (size_t)n) {
            ck_assert(isnan(got[i])); /* nothing written past a row */
            got[i] = 0.0;
        }
    error = relative_error(got, expected, size);
    ck_assert_msg(error < (wide ? f32_error : bf16_error), "m %d n %d k %d out %d parts %d: %g", m,
                  n, k, (int)out, n_parts, error);
}

static void check(int m, int n, int k, enum skinny_out out, int n_parts)
{
    check_on(device.launch.n_sms, m, n, k, out, n_parts);
}

static const int rows[] = {1,  2,  7,  16, 17, 31,  32,  33,  48,  49,  63,
                           64, 65, 95, 96, 97, 127, 128, 129, 192, 193, STREAM_MAX_ROWS};

/* All outputs; tiles that are not full, fewer steps than the ring has and more, more tiles than the
 * machine has room for, several of them a thread block with the ring's end within. */
TEST(products_follow_twin, .n = N(rows))
{
    const int m = rows[_i];

    for (int out = 0; usable && out <= SKINNY_SILU_MUL; out++) {
        check(m, 64, 64, (enum skinny_out)out, 1);
        check(m, 200, 72, (enum skinny_out)out, 1);
        check(m, 264, 896, (enum skinny_out)out, 1);
        check(m, 1000, 4864, (enum skinny_out)out, 1);
        check(m, 128 * 64 + 40, 328, (enum skinny_out)out, 1);
        check_on(3, m, 520, 520, (enum skinny_out)out, 1);
    }
    if (usable) {
        check(m, 52, 320, SKINNY_F32, 1);
        check(m, 30001, 128, SKINNY_F32, 1);
        check(m, 1152, 896, SKINNY_BF16, 1);
    }
}
END_TEST

static const struct {
    int n, k, few, many, sliced; /* parts of 96 rows, of 97 and of 129 */
} in_parts[] = {{1024, 2048, 8, 4, 4},  {1024, 3072, 8, 4, 4}, {4096, 4096, 2, 2, 1},
                {4096, 12288, 2, 2, 1}, {896, 4864, 4, 4, 4},  {5120, 5120, 1, 1, 1},
                {200, 72, 1, 1, 1}};

TEST(products_come_in_parts, .n = N(in_parts))
{
    const int n = in_parts[_i].n, k = in_parts[_i].k;

    ck_assert_int_eq(stream_parts(96, n, k, false), in_parts[_i].few);
    ck_assert_int_eq(stream_parts(97, n, k, false), in_parts[_i].many);
    ck_assert_int_eq(stream_parts(129, n, k, false), in_parts[_i].sliced);
    ck_assert(in_parts[_i].many == 1 ||
              in_parts[_i].many * n * STREAM_SLICE_ROWS <= FORWARD_PART_FLOATS);
    for (int m = 5; m <= STREAM_MAX_ROWS; m += m < STREAM_SLICE_ROWS ? 27 : 116) {
        const int n_parts = stream_parts(m, n, k, false);

        ck_assert(n_parts == 1 || n_parts * n * m <= FORWARD_PART_FLOATS);
        if (usable)
            check(m, n, k, SKINNY_F32, n_parts);
    }
    if (usable && n <= 1024) {
        check_on(3, 128, n, k, SKINNY_F32, in_parts[_i].many);
        check_on(3, 256, n, k, SKINNY_F32, in_parts[_i].sliced);
    }
}
END_TEST

/* A part of e4m3 is whole groups of 256. */
TEST(products_of_e4m3_come_in_parts)
{
    ck_assert_int_eq(stream_parts(64, 1024, 2048, true), 8);
    ck_assert_int_eq(stream_parts(64, 4096, 12288, true), 2);
    ck_assert_int_eq(stream_parts(64, 200, 512, true), 2);
    ck_assert_int_eq(stream_parts(64, 200, 768, true), 1);
}
END_TEST

static const struct {
    int n, k;
} uneven[] = {
    {520, 1096},  /* 18 boxes: nine stages of two */
    {520, 1032},  /* 17: of up to 64 rows, one lies past k */
    {8200, 1096}, /* too many tiles for finer slices */
};

/* Rows of one product are those of any with fewer, to the bit. */
TEST(rows_do_not_depend_on_others, .n = N(uneven))
{
    const int n = uneven[_i].n, k = uneven[_i].k;
    const struct product all = random_product(STREAM_MAX_ROWS, n, k, SKINNY_F32, 1);
    const size_t row = (size_t)all.s.y_stride * 4;
    char *expected = host_new(all.y.bytes, 1);

    if (!usable)
        return;
    cuda_must(stream_gemm(&device.launch, &all.s, 1, NULL));
    array_to_host(&all.y);
    memcpy(expected, all.y.host, all.y.bytes);
    for (int i = 0; i < N(rows); i++) {
        struct skinny some = all.s;
        const int first = STREAM_MAX_ROWS - rows[i];

        some.m = rows[i];
        some.x += first * k;
        device_fill(all.y.device, 0xff, all.y.bytes);
        cuda_must(stream_gemm(&device.launch, &some, 1, NULL));
        array_to_host(&all.y);
        for (int j = 0; j < rows[i]; j++)
            ck_assert_msg(memcmp((char *)all.y.host + (size_t)j * row,
                                 expected + (size_t)(first + j) * row, (size_t)n * 4) == 0,
                          "row %d of %d", j, rows[i]);
    }
}
END_TEST

/* Nine blocks: 36 pieces of four products are all that a sequence of 500 keys has, and few of three
 * sequences; of 60 products they are nearly all. */
static const struct {
    int block_shift, piece_bytes, n_decodes, n_turns;
} prefetches[] = {{4, 32 << 10, 3, 4},  {4, 64 << 10, 1, 4}, {4, 16, 3, 4},     {4, 32 << 10, 0, 4},
                  {8, 32 << 10, 3, 60}, {8, 4128, 1, 4},     {8, 1 << 20, 3, 4}};

/* Blocks in host memory are left alone, whose addresses here lead nowhere. */
TEST(prefetching_changes_nothing, .n = N(prefetches))
{
    enum { BLOCKS = 4 };
    static const int32_t kv_len[] = {500, 1, 700, 1000}; /* the last one is a prompt's */
    static const int32_t ids[] = {3, 1 << 30, 0, 2, 1, 0, 2, INT32_MAX, 1 << 29, 1 << 29};
    const int shift = prefetches[_i].block_shift, bytes = prefetches[_i].piece_bytes;
    const int layer_bytes = 4096 << shift, n_pieces = layer_bytes / bytes;
    const struct step_counts counts = {.n_seqs = N(kv_len), .n_decodes = prefetches[_i].n_decodes};
    const struct product p = random_product(33, 520, 1096, SKINNY_F32, 1);
    char *pool = device_new((size_t)(2 * BLOCKS * layer_bytes)); /* of two layers */
    char *expected = host_new(p.y.bytes, 1);
    int32_t start[N(kv_len)], tables[200] = {0};
    int n = 0;

    for (int i = 0; i < N(kv_len); i++) {
        start[i] = n;
        n += (kv_len[i] + (1 << shift) - 1) >> shift;
    }
    for (int i = 0; i < n; i++)
        tables[i] = ids[i % N(ids)];
    struct kv_prefetch prefetch = {.layer = pool + layer_bytes,
                                   .block_stride = 2 * layer_bytes,
                                   .n_blocks = BLOCKS,
                                   .block_shift = shift,
                                   .piece_bytes = bytes,
                                   .n_pieces = n_pieces,
                                   .n_turns = prefetches[_i].n_turns,
                                   .counts = array_of(&counts, sizeof(counts)).device,
                                   .kv_len = array_of(kv_len, sizeof(kv_len)).device,
                                   .table_start = array_of(start, sizeof(start)).device,
                                   .tables = array_of(tables, sizeof(tables)).device};

    if (!usable)
        return;
    cuda_must(stream_gemm(&device.launch, &p.s, 1, NULL));
    array_to_host(&p.y);
    memcpy(expected, p.y.host, p.y.bytes);
    for (prefetch.turn = 0; prefetch.turn < prefetch.n_turns; prefetch.turn++) {
        device_fill(p.y.device, 0xff, p.y.bytes);
        cuda_must(stream_gemm(&device.launch, &p.s, 1, &prefetch));
        array_to_host(&p.y);
        ck_assert(memcmp(p.y.host, expected, p.y.bytes) == 0);
    }
}
END_TEST

RUN_TESTS_HERE("stream", set_up, device_tear_down)
