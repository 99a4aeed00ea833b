/* cpu_kernels.c - the inner loops of cpu_ops.h; compiled once for each instruction set, whose table
 * and name CPU_OPS and CPU_OPS_NAME are.
 *
 * A dot product is one vector of partial sums over ascending k and a fixed reduction tree, whatever
 * tile computes it. That makes results independent of the batch. */
#include "engine/cpu/cpu_ops.h"
#include "engine/cpu/cpu_vec.h"
#include "engine/util/bf16.h"

#include <math.h>

/* Register tiles: rows * outs accumulators of the matrix product; query rows by vectors of scores
 * or of the output in attention. INT4_OUTS: of a single row, of which other types have ROW_OUTS. */
#if defined(__AVX512F__)
enum { TILE_ROWS = 6, TILE_OUTS = 4, QUERY_ROWS = 6, QUERY_VECS = 4 }; /* 24 of 32 registers */
enum { INT4_OUTS = 8 };
#elif defined(__AVX2__)
enum { TILE_ROWS = 3, TILE_OUTS = 2, QUERY_ROWS = 6, QUERY_VECS = 1 }; /* 12 of 16 */
enum { INT4_OUTS = 4 };
#else
enum { TILE_ROWS = 3, TILE_OUTS = 2, QUERY_ROWS = 2, QUERY_VECS = 1 };
enum { INT4_OUTS = 4 };
#endif
enum {
    GROUP = CPU_KV_GROUP,
    ROW_OUTS = 4,         /* rows of weights read side by side for a single row of x */
    MAX_OUTS = 8,         /* of any tile */
    LINE = 64,            /* bytes of a cache line */
    E4M3_MAX_SCALE = 7,   /* its exponent: 2^7 times the factor that vectors lack is a float */
    E4M3_NAN_SCALE = 255, /* as in the OCP's E8M0: all elements are NaN */
};

/* The bytes that n elements take; the type is a constant after inlining, as in all that follows. */
VEC_FUNC size_t packed_bytes(enum dtype type, size_t n)
{
    return type == DTYPE_BF16 ? 2 * n : type == DTYPE_E4M3 ? n : n / 2;
}

VEC_FUNC struct vec load_weights(enum dtype type, const char *at, struct vec zero)
{
    const void *p = at;

    return type == DTYPE_BF16   ? vec_load_bf16(p)
           : type == DTYPE_E4M3 ? vec_load_e4m3(p)
                                : vec_load_int4(p, zero);
}

VEC_FUNC struct vec load_inputs(enum dtype type, const float *x)
{
    const struct vec v = vec_load(x);

    return type == DTYPE_BF16   ? v
           : type == DTYPE_E4M3 ? vec_mul(v, vec_set1(0x1p64f))
                                : vec_to_int4_lanes(v);
}

/* One row is bound by memory: so many bytes ahead, a tile of bf16, weights are fetched. */
VEC_FUNC size_t bytes_ahead(const struct matmul *m)
{
    return ROW_OUTS * 2 * (size_t)m->w->ld;
}

/* Of bf16, whose products are the fastest, to L2; of the others, to L1 (an EPYC of 4th generation,
 * 2026-11-26: E4M3 16.0 instead of 13.5 billion weights a second on one core, INT4 23.5 instead of
 * 20.5). */
VEC_FUNC void prefetch(enum dtype type, const char *at, int lines)
{
    VEC_UNROLL
    for (int i = 0; i < lines; i++) {
        if (type == DTYPE_BF16)
            __builtin_prefetch(at + (size_t)(i * LINE), 0, 2);
        else
            __builtin_prefetch(at + (size_t)(i * LINE), 0, 3);
    }
}

/* Adds the products of columns from .. to - 1. */
VEC_FUNC void add_columns(struct vec *acc, const struct matmul *m, int row, int out, int rows,
                          int outs, enum dtype type, const struct vec *zeros, int from, int to)
{
    const size_t ld = packed_bytes(type, (size_t)m->w->ld);
    const float *x = m->x + (size_t)row * m->x_stride;
    const char *w = (const char *)m->w->data + (size_t)(m->first + out) * ld;
    /* What comes behind these rows of w may be another thread's. */
    const size_t ahead = bytes_ahead(m), left = (size_t)(m->n_outs - out) * ld;

    for (int k = from; k < to; k += VEC) {
        const size_t at = packed_bytes(type, (size_t)k);
        struct vec wv[MAX_OUTS];

        VEC_UNROLL
        for (int o = 0; o < outs; o++)
            wv[o] = load_weights(type, w + (size_t)o * ld + at, zeros[o]);
        if (rows == 1 && at % LINE == 0 && (size_t)outs * at + ahead < left)
            prefetch(type, w + (size_t)outs * at + ahead, outs);
        VEC_UNROLL
        for (int r = 0; r < rows; r++) {
            const struct vec xv = load_inputs(type, x + (size_t)r * m->x_stride + k);

            VEC_UNROLL
            for (int o = 0; o < outs; o++)
                acc[r * outs + o] = vec_fma(xv, wv[o], acc[r * outs + o]);
        }
    }
}

VEC_FUNC float half_to_float(uint16_t x)
{
    const uint32_t bits = f32_bits_from_f16(x);
    float f;

    memcpy(&f, &bits, sizeof(f));
    return f;
}

/* The scale of a group, of E4M3 with what its vectors lack. */
VEC_FUNC float load_scale(enum dtype type, const struct matrix *w, int64_t i)
{
    const uint16_t *halves = w->scales;

    if (type == DTYPE_E4M3)
        return ((const float *)w->scales)[i] * 0x1p56f;
    return w->scale_dtype == DTYPE_F16 ? half_to_float(halves[i]) : f32_from_bf16(halves[i]);
}

/* Adds the products of all columns, each group's sum times its scale. */
VEC_FUNC void add_groups(struct vec *acc, const struct matmul *m, int row, int out, int rows,
                         int outs, enum dtype type)
{
    const struct matrix *w = m->w;
    const int n_groups = (int)matrix_groups(w);
    int64_t first[MAX_OUTS]; /* scale of each row of w */
    struct vec zeros[MAX_OUTS];

    VEC_UNROLL
    for (int o = 0; o < outs; o++) {
        first[o] = (int64_t)((m->first + out + o) / w->scale_rows) * n_groups;
        zeros[o] = vec_int4_zero((float)INT4_ZERO);
    }
    for (int g = 0, from = 0; g < n_groups; g++, from += w->scale_cols) {
        const int to = g == n_groups - 1 ? (int)w->ld : from + w->scale_cols;
        struct vec sums[TILE_ROWS * MAX_OUTS];

        VEC_UNROLL
        for (int i = 0; i < rows * outs; i++)
            sums[i] = vec_zero();
        if (w->zeros) {
            VEC_UNROLL
            for (int o = 0; o < outs; o++)
                zeros[o] = vec_int4_zero((float)w->zeros[first[o] + g]);
        }
        add_columns(sums, m, row, out, rows, outs, type, zeros, from, to);
        VEC_UNROLL
        for (int o = 0; o < outs; o++) {
            const struct vec scale = vec_set1(load_scale(type, w, first[o] + g));

            VEC_UNROLL
            for (int r = 0; r < rows; r++)
                acc[r * outs + o] = vec_fma(sums[r * outs + o], scale, acc[r * outs + o]);
        }
    }
}

/* rows x outs results; both are constants after inlining. */
VEC_FUNC void matmul_tile(const struct matmul *m, int row, int out, int rows, int outs,
                          enum dtype type)
{
    struct vec acc[TILE_ROWS * MAX_OUTS];
    const struct vec no_zeros[MAX_OUTS] = {0};
    float sums[TILE_ROWS * MAX_OUTS];

    VEC_UNROLL
    for (int i = 0; i < rows * outs; i++)
        acc[i] = vec_zero();
    if (type == DTYPE_BF16)
        add_columns(acc, m, row, out, rows, outs, type, no_zeros, 0, (int)m->w->ld);
    else
        add_groups(acc, m, row, out, rows, outs, type);
    VEC_UNROLL
    for (int i = 0; i < rows * outs; i++)
        sums[i] = vec_sum(type == DTYPE_INT4 ? vec_from_int4_lanes(acc[i]) : acc[i]);
    for (int r = 0; r < rows; r++) {
        float *y = m->y + (size_t)(row + r) * m->y_stride + out;

        for (int o = 0; o < outs; o++)
            y[o] = m->add ? y[o] + sums[r * outs + o] : sums[r * outs + o];
    }
}

/* All outputs of a few rows. */
VEC_FUNC void matmul_rows(const struct matmul *m, int row, int rows, int outs, enum dtype type)
{
    const size_t ld = packed_bytes(type, (size_t)m->w->ld);
    const char *first = (const char *)m->w->data + (size_t)m->first * ld;
    int out = 0;

    if (rows == 1)
        for (size_t i = 0; i < bytes_ahead(m) && i < (size_t)m->n_outs * ld; i += LINE)
            prefetch(type, first + i, 1);
    for (; out + outs <= m->n_outs; out += outs)
        matmul_tile(m, row, out, rows, outs, type);
    for (; out < m->n_outs; out++)
        matmul_tile(m, row, out, rows, 1, type);
}

/* Rows 0 .. n_rows - 1, a multiple of TILE_ROWS. The weights of a tile stay in the L1 cache for all
 * of them. */
VEC_FUNC void matmul_tiles(const struct matmul *m, int n_rows, enum dtype type)
{
    const int n_outs = m->n_outs / TILE_OUTS * TILE_OUTS;

    for (int out = 0; out < n_outs; out += TILE_OUTS)
        for (int row = 0; row < n_rows; row += TILE_ROWS)
            matmul_tile(m, row, out, TILE_ROWS, TILE_OUTS, type);
    for (int out = n_outs; out < m->n_outs; out++)
        for (int row = 0; row < n_rows; row += TILE_ROWS)
            matmul_tile(m, row, out, TILE_ROWS, 1, type);
}

/* The product of a type. A single row and a few have functions of their own: in one with all tiles
 * gcc keeps addresses in memory (an EPYC of 5th generation, 2026-11-27: INT4 in the L2 cache 61
 * instead of 38 billion weights a second for one row, 22 instead of 13 for four). */
#define MATMUL(name, type, row_outs)                                                               \
    static __attribute__((noinline)) void name##_row(const struct matmul *m, int row)              \
    {                                                                                              \
        matmul_rows(m, row, 1, row_outs, type);                                                    \
    }                                                                                              \
    static __attribute__((noinline)) void name##_few(const struct matmul *m, int row)              \
    {                                                                                              \
        VEC_FOR_ROWS(m->n_rows - row, TILE_ROWS, matmul_rows(m, row, ROWS, TILE_OUTS, type));      \
    }                                                                                              \
    static void name(const struct matmul *m)                                                       \
    {                                                                                              \
        const int n_tiled = m->n_rows / TILE_ROWS * TILE_ROWS;                                     \
                                                                                                   \
        if (n_tiled > 0)                                                                           \
            matmul_tiles(m, n_tiled, type);                                                        \
        if (m->n_rows - n_tiled == 1)                                                              \
            name##_row(m, n_tiled);                                                                \
        else                                                                                       \
            name##_few(m, n_tiled);                                                                \
    }

MATMUL(matmul_bf16, DTYPE_BF16, ROW_OUTS)
MATMUL(matmul_e4m3, DTYPE_E4M3, ROW_OUTS)
MATMUL(matmul_int4, DTYPE_INT4, INT4_OUTS)

static void matmul(const struct matmul *m)
{
    if (m->w->dtype == DTYPE_E4M3)
        matmul_e4m3(m);
    else if (m->w->dtype == DTYPE_INT4)
        matmul_int4(m);
    else
        matmul_bf16(m);
}

static void rms_norm(float *y, const float *x, const float *w, int n, float eps)
{
    struct vec squares = vec_zero(), scale;

    for (int i = 0; i < n; i += VEC) {
        const struct vec v = vec_load_n(x + i, n - i);

        squares = vec_fma(v, v, squares);
    }
    scale = vec_set1(1.0f / sqrtf(vec_sum(squares) / (float)n + eps));
    for (int i = 0; i < n; i += VEC) {
        const struct vec v = vec_mul(vec_load_n(x + i, n - i), scale);

        vec_store_n(y + i, vec_mul(v, vec_load_n(w + i, n - i)), n - i);
    }
}

static void rope(float *x, const float *cos, const float *sin, int half)
{
    for (int i = 0; i < half; i += VEC) {
        const int n = half - i;
        const struct vec a = vec_load_n(x + i, n), b = vec_load_n(x + half + i, n);
        const struct vec c = vec_load_n(cos + i, n), s = vec_load_n(sin + i, n);

        vec_store_n(x + i, vec_sub(vec_mul(a, c), vec_mul(b, s)), n);
        vec_store_n(x + half + i, vec_add(vec_mul(b, c), vec_mul(a, s)), n);
    }
}

static void silu_mul(float *y, const float *gate, const float *up, int n)
{
    for (int i = 0; i < n; i += VEC) {
        const struct vec g = vec_load_n(gate + i, n - i), u = vec_load_n(up + i, n - i);
        const struct vec e = vec_exp(vec_sub(vec_zero(), g));

        vec_store_n(y + i, vec_mul(vec_div(g, vec_add(vec_set1(1.0f), e)), u), n - i);
    }
}

static void add(float *y, const float *x, int n)
{
    for (int i = 0; i < n; i += VEC)
        vec_store_n(y + i, vec_add(vec_load_n(y + i, n - i), vec_load_n(x + i, n - i)), n - i);
}

static void add_scaled(float *y, const float *x, float scale, int n)
{
    const struct vec by = vec_set1(scale);

    for (int i = 0; i < n; i += VEC)
        vec_store_n(y + i, vec_fma(vec_load_n(x + i, n - i), by, vec_load_n(y + i, n - i)), n - i);
}

static void from_bf16(float *y, const uint16_t *x, int n)
{
    int i = 0;

    for (; i + VEC <= n; i += VEC)
        vec_store(y + i, vec_load_bf16(x + i));
    for (; i < n; i++)
        y[i] = f32_from_bf16(x[i]);
}

/* 2^(exponent - 127), 0 < exponent < 255. */
VEC_FUNC float power_of_two(uint32_t exponent)
{
    const uint32_t bits = exponent << 23;
    float f;

    memcpy(&f, &bits, sizeof(f));
    return f;
}

/* Of a scale 2^(exponent - 127), or E4M3_NAN_SCALE. */
static void from_e4m3(float *y, const uint8_t *x, int n, uint8_t exponent)
{
    const bool is_nan = exponent == E4M3_NAN_SCALE;
    const float scale = is_nan ? NAN : power_of_two(exponent);
    const struct vec factor = /* 2^120 is what vectors lack */
        vec_set1(is_nan ? NAN : power_of_two(exponent + 120u));
    int i = 0;

    for (; i + VEC <= n; i += VEC)
        vec_store(y + i, vec_mul(vec_load_e4m3(x + i), factor));
    for (; i < n; i++)
        y[i] = f32_from_e4m3(x[i]) * scale;
}

static uint8_t to_e4m3(uint8_t *y, const float *x, int n)
{
    float largest = 0;
    int exponent;

    for (int i = 0; i < n; i++) {
        if (!(fabsf(x[i]) < INFINITY))
            return E4M3_NAN_SCALE;
        largest = fabsf(x[i]) > largest ? fabsf(x[i]) : largest;
    }
    (void)frexpf(largest / E4M3_MAX, &exponent); /* below 2^exponent */
    exponent -= ldexpf(E4M3_MAX, exponent - 1) >= largest;
    exponent = exponent < -126 ? -126 : exponent > E4M3_MAX_SCALE ? E4M3_MAX_SCALE : exponent;
    for (int i = 0; i < n; i++)
        y[i] = e4m3_from_f32(x[i] * power_of_two((uint32_t)(127 - exponent)));
    return (uint8_t)(exponent + 127);
}

static void to_bf16(uint16_t *y, const float *x, int n)
{
    bf16_from_f32_array(y, x, (size_t)n);
}

static bool row_max(float *max, const float *x, int n)
{
    struct vec best = vec_set1(-INFINITY), zero = vec_zero();
    float rest;
    int i = 0;

    for (; i + VEC <= n; i += VEC) {
        const struct vec v = vec_load(x + i);

        best = vec_max(v, best);
        zero = vec_fma(v, vec_zero(), zero); /* becomes NaN at the first NaN or Inf */
    }
    rest = vec_max_lane(best);
    for (; i < n; i++) {
        rest = x[i] > rest ? x[i] : rest;
        zero = vec_fma(vec_set1(x[i]), vec_zero(), zero);
    }
    *max = rest;
    return vec_sum(zero) == 0.0f;
}

static double sum_exp(const float *x, int n, float max, float scale)
{
    const struct vec m = vec_set1(max), s = vec_set1(scale);
    double sum = 0.0;

    for (int from = 0; from < n; from += 64 * VEC) { /* few enough to sum as floats */
        const int to = n - from < 64 * VEC ? n : from + 64 * VEC;
        struct vec lanes = vec_zero();
        int i = from;

        for (; i + VEC <= to; i += VEC)
            lanes = vec_add(lanes, vec_exp(vec_mul(vec_sub(vec_load(x + i), m), s)));
        sum += (double)vec_sum(lanes);
        if (i < to) {
            float rest[VEC];

            vec_store(rest, vec_exp(vec_mul(vec_sub(vec_load_n(x + i, to - i), m), s)));
            for (int j = 0; j < to - i; j++)
                sum += (double)rest[j];
        }
    }
    return sum;
}

static int find_ge(const float *x, int from, int n, float floor)
{
    enum { STRIDE = 8 * VEC };
    int i = from;

    if (i < n && x[i] >= floor)
        return i;
    for (; i + STRIDE <= n; i += STRIDE) {
        struct vec best = vec_load(x + i);

        for (int j = VEC; j < STRIDE; j += VEC)
            best = vec_max(best, vec_load(x + i + j));
        if (vec_max_lane(best) >= floor)
            break;
    }
    while (i < n && !(x[i] >= floor))
        i++;
    return i;
}

/* ---- causal attention over paged keys and values
 *
 * Keys come in groups of CPU_KV_GROUP from positions 0, 64, 128, …, whatever block_len is and
 * wherever the query begins. Each group updates a row's running maximum, sum and output once
 * (online softmax, Milakov and Gimelshein 2018); keys are lanes of the scores and are added to the
 * output in order. So a row's result depends only on its own keys. What lies in slots after the
 * last row's position has no effect. */

/* The buffers of a call, all in the scratch. Query rows are r = row * n_group + head. */
struct work {
    int dim, padded, n_rows;
    float *k;                    /* [dim, GROUP] the group's keys, transposed */
    float *room;                 /* [GROUP, padded] of rows that cannot be used in place */
    const float *v[GROUP / VEC]; /* sixteen rows each, `padded` apart */
    float *q;                    /* [n_rows, padded] scaled */
    float *acc;                  /* [n_rows, padded] */
    float *p;                    /* [n_rows, GROUP] scores, then weights */
    float *max;                  /* [n_rows] */
    float *sum;                  /* [n_rows, VEC] */
};

static void work_init(struct work *w, const struct attend *a)
{
    float *at = a->scratch;

    w->dim = a->head_dim;
    w->padded = (a->head_dim + VEC - 1) / VEC * VEC;
    w->n_rows = a->n_rows * a->n_group;
    w->k = at;
    w->room = at += GROUP * w->padded;
    w->q = at += GROUP * w->padded;
    w->acc = at += w->n_rows * w->padded;
    w->p = at += w->n_rows * w->padded;
    w->sum = at += w->n_rows * GROUP;
    w->max = at + w->n_rows * VEC;
    for (int r = 0; r < w->n_rows; r++) {
        const float *q = a->q + (size_t)(r / a->n_group) * a->q_stride +
                         (size_t)(r % a->n_group) * (size_t)w->dim;

        for (int d = 0; d < w->padded; d += VEC) {
            const struct vec v = vec_load_n(q + d, w->dim - d > 0 ? w->dim - d : 0);

            vec_store(w->q + r * w->padded + d, vec_mul(v, vec_set1(a->scale)));
            vec_store(w->acc + r * w->padded + d, vec_zero());
        }
        vec_store(w->sum + r * VEC, vec_zero());
        w->max[r] = -INFINITY;
    }
}

/* out[d * GROUP + i] = rows[i][d] for sixteen rows. */
static void transpose_keys(float *out, const float *rows, const struct work *w)
{
    int d = 0;

    for (; d + 4 <= w->dim; d += 4)
        vec_transpose(out + d * GROUP, GROUP, rows + d, w->padded);
    for (; d < w->dim; d++)
        for (int i = 0; i < VEC; i++)
            out[d * GROUP + i] = rows[i * w->padded + d];
}

/* n rows of keys or values from row `at` of a plane on as floats, `padded` apart: where they are,
 * or copied to `room`. */
static const float *load_rows(float *room, const char *plane, int at, int n, const struct work *w,
                              const struct attend *a)
{
    const size_t row_bytes = (size_t)w->dim * dtype_info[a->dtype].bits / 8;
    const char *from = plane + (size_t)at * row_bytes;
    const uint8_t *scales = (const uint8_t *)plane + (row_bytes << a->block_shift) + at;

    if (a->dtype == DTYPE_F32 && w->dim == w->padded)
        return (const float *)(const void *)from;
    for (int i = 0; i < n; i++, from += row_bytes)
        if (a->dtype == DTYPE_BF16)
            from_bf16(room + i * w->padded, (const uint16_t *)(const void *)from, w->dim);
        else if (a->dtype == DTYPE_E4M3)
            from_e4m3(room + i * w->padded, (const uint8_t *)from, w->dim, scales[i]);
        else
            memcpy(room + i * w->padded, from, row_bytes);
    return room;
}

/* Loads the keys and values of positions from .. from + n_keys - 1. */
static void load_group(struct work *w, const struct attend *a, int from, int n_keys)
{
    const int in_block = (1 << a->block_shift) - 1;

    for (int i = 0; i < n_keys; i += VEC) { /* each sixteen keys are within one block */
        const int pos = from + i, n = n_keys - i < VEC ? n_keys - i : VEC;
        const size_t block = (size_t)a->block_table[pos >> a->block_shift] * a->block_bytes;
        float *room = w->room + i * w->padded;

        transpose_keys(w->k + i, load_rows(room, a->k + block, pos & in_block, n, w, a), w);
        w->v[i / VEC] = load_rows(room, a->v + block, pos & in_block, n, w, a);
    }
}

/* A product of query rows: out[i, j] = sum over k of x[i, k] * y[k, j], added to what is there if
 * `add`. Rows of y are y_stride apart; with pieces the k-th is in pieces[k / VEC]. */
struct tiles {
    float *out;
    const float *x, *y, *const *pieces;
    int out_stride, x_stride, y_stride;
    int n_k, n_cols; /* columns in whole vectors */
    bool add;
};

VEC_FUNC void tile(const struct tiles *t, int row, int col, int rows, int vecs)
{
    struct vec acc[QUERY_ROWS * QUERY_VECS];
    const float *x = t->x + row * t->x_stride;
    float *out = t->out + row * t->out_stride + col;

    VEC_UNROLL
    for (int i = 0; i < rows; i++) {
        VEC_UNROLL
        for (int j = 0; j < vecs; j++)
            acc[i * vecs + j] = t->add ? vec_load(out + i * t->out_stride + j * VEC) : vec_zero();
    }
    for (int k = 0; k < t->n_k; k++) {
        const float *y = t->pieces ? t->pieces[k / VEC] + k % VEC * t->y_stride + col
                                   : t->y + k * t->y_stride + col;
        struct vec yv[QUERY_VECS];

        VEC_UNROLL
        for (int j = 0; j < vecs; j++)
            yv[j] = vec_load(y + j * VEC);
        VEC_UNROLL
        for (int i = 0; i < rows; i++) {
            const struct vec xv = vec_set1(x[i * t->x_stride + k]);

            VEC_UNROLL
            for (int j = 0; j < vecs; j++)
                acc[i * vecs + j] = vec_fma(xv, yv[j], acc[i * vecs + j]);
        }
    }
    VEC_UNROLL
    for (int i = 0; i < rows; i++) {
        VEC_UNROLL
        for (int j = 0; j < vecs; j++)
            vec_store(out + i * t->out_stride + j * VEC, acc[i * vecs + j]);
    }
}

/* All columns of `rows` rows, a constant after inlining. */
VEC_FUNC void tile_rows(const struct tiles *t, int row, int rows)
{
    int col = 0;

    for (; col + QUERY_VECS * VEC <= t->n_cols; col += QUERY_VECS * VEC)
        tile(t, row, col, rows, QUERY_VECS);
    for (; col < t->n_cols; col += VEC)
        tile(t, row, col, rows, 1);
}

VEC_FUNC void run_tiles(const struct tiles *t, int first_row, int n_rows)
{
    int row = first_row;

    for (; row + QUERY_ROWS <= n_rows; row += QUERY_ROWS)
        tile_rows(t, row, QUERY_ROWS);
    VEC_FOR_ROWS(n_rows - row, QUERY_ROWS, tile_rows(t, row, ROWS));
}

/* Turns a row's first n_keys scores into weights and rescales its running sums. */
static void softmax_row(const struct work *w, int r, int n_keys)
{
    float *p = w->p + r * GROUP, *acc = w->acc + r * w->padded;
    struct vec best = vec_set1(w->max[r]), sum = vec_load(w->sum + r * VEC);
    float max;

    for (int i = n_keys; i < GROUP; i++)
        p[i] = -INFINITY;
    for (int s = 0; s < GROUP / VEC; s++)
        best = vec_max(best, vec_load(p + s * VEC));
    max = vec_max_lane(best);
    if (max != w->max[r]) {
        const struct vec shrink = vec_exp(vec_set1(w->max[r] - max));

        sum = vec_mul(sum, shrink);
        for (int d = 0; d < w->padded; d += VEC)
            vec_store(acc + d, vec_mul(vec_load(acc + d), shrink));
        w->max[r] = max;
    }
    for (int s = 0; s < GROUP / VEC; s++) {
        const struct vec e = vec_exp(vec_sub(vec_load(p + s * VEC), vec_set1(max)));

        sum = vec_add(sum, e);
        vec_store(p + s * VEC, e);
    }
    vec_store(w->sum + r * VEC, sum);
}

static void attend_group(struct work *w, const struct attend *a, int from, int n_keys)
{
    /* Rows before the group do not attend to it. */
    const int first_row = from > a->first_pos ? (from - a->first_pos) * a->n_group : 0;
    const struct tiles scores = {.out = w->p,
                                 .x = w->q,
                                 .y = w->k,
                                 .out_stride = GROUP,
                                 .x_stride = w->padded,
                                 .y_stride = GROUP,
                                 .n_k = w->dim,
                                 .n_cols = (n_keys + VEC - 1) / VEC * VEC};
    const struct tiles outputs = {.out = w->acc,
                                  .x = w->p,
                                  .pieces = w->v,
                                  .out_stride = w->padded,
                                  .x_stride = GROUP,
                                  .y_stride = w->padded,
                                  .n_k = n_keys,
                                  .n_cols = w->padded,
                                  .add = true};

    load_group(w, a, from, n_keys);
    run_tiles(&scores, first_row, w->n_rows);
    for (int r = first_row; r < w->n_rows; r++) {
        const int own = a->first_pos + r / a->n_group + 1 - from;

        softmax_row(w, r, own < n_keys ? own : n_keys);
    }
    run_tiles(&outputs, first_row, w->n_rows);
}

static void attend(const struct attend *a)
{
    const int n_keys = a->first_pos + a->n_rows;
    struct work w;

    work_init(&w, a);
    for (int from = 0; from < n_keys; from += GROUP)
        attend_group(&w, a, from, n_keys - from < GROUP ? n_keys - from : GROUP);
    for (int r = 0; r < w.n_rows; r++) {
        const struct vec sum = vec_set1(vec_sum(vec_load(w.sum + r * VEC)));
        float *out = a->out + (size_t)(r / a->n_group) * a->out_stride +
                     (size_t)(r % a->n_group) * (size_t)w.dim;

        for (int d = 0; d < w.dim; d += VEC)
            vec_store_n(out + d, vec_div(vec_load(w.acc + r * w.padded + d), sum), w.dim - d);
    }
}

const struct cpu_ops CPU_OPS = {
    .name = CPU_OPS_NAME,
    .matmul = matmul,
    .attend = attend,
    .rms_norm = rms_norm,
    .rope = rope,
    .silu_mul = silu_mul,
    .add = add,
    .add_scaled = add_scaled,
    .from_bf16 = from_bf16,
    .to_bf16 = to_bf16,
    .to_e4m3 = to_e4m3,
    .row_max = row_max,
    .sum_exp = sum_exp,
    .find_ge = find_ge,
};
