/* cpu_kernels.c - matrix product, norms and loops over a row; compiled once for each instruction
 * set.
 *
 * A dot product is one vector of partial sums over ascending k and a fixed reduction tree, whatever
 * tile computes it. That makes results independent of the batch. */
#include "engine/cpu/cpu_kernels.h"
#include "engine/cpu/cpu_vec.h"

#include <math.h>

/* Register tile of the matrix product: rows * outs accumulators. */
#if defined(__AVX512F__)
enum { TILE_ROWS = 6, TILE_OUTS = 4 }; /* 24 of 32 registers */
#else
enum { TILE_ROWS = 3, TILE_OUTS = 2 }; /* 12 of 16 */
#endif
enum {
    ONE_ROW_OUTS = 4, /* rows of weights read side by side for a single row of x */
    LINE = 32,        /* bf16 values in a cache line */
};

/* rows x outs results; both are constants after inlining. */
VEC_FUNC void matmul_tile(const struct matmul *m, int row, int out, int rows, int outs)
{
    struct vec acc[TILE_ROWS * ONE_ROW_OUTS];
    const float *x = m->x + (size_t)row * m->x_stride;
    const uint16_t *w = m->w + (size_t)out * (size_t)m->k;
    float sums[TILE_ROWS * ONE_ROW_OUTS + 3];

    VEC_UNROLL
    for (int i = 0; i < rows * outs; i++)
        acc[i] = vec_zero();
    for (int k = 0; k < m->k; k += VEC) {
        struct vec wv[ONE_ROW_OUTS];

        VEC_UNROLL
        for (int o = 0; o < outs; o++)
            wv[o] = vec_load_bf16(w + (size_t)o * (size_t)m->k + k);
        /* One row is bound by memory: prefetch the whole next tile to L2. */
        if (rows == 1 && k % LINE == 0) {
            VEC_UNROLL
            for (int o = 0; o < outs; o++)
                __builtin_prefetch(w + (size_t)outs * (size_t)m->k + (size_t)(k * outs + o * LINE),
                                   0, 2);
        }
        VEC_UNROLL
        for (int r = 0; r < rows; r++) {
            const struct vec xv = vec_load(x + (size_t)r * m->x_stride + k);

            VEC_UNROLL
            for (int o = 0; o < outs; o++)
                acc[r * outs + o] = vec_fma(xv, wv[o], acc[r * outs + o]);
        }
    }
    VEC_UNROLL
    for (int i = 0; i < rows * outs; i += 4) {
        const int last = rows * outs - 1;

        vec_sum4(sums + i, acc[i], acc[i + 1 < last ? i + 1 : last],
                 acc[i + 2 < last ? i + 2 : last], acc[i + 3 < last ? i + 3 : last]);
    }
    for (int r = 0; r < rows; r++) {
        float *y = m->y + (size_t)(row + r) * m->y_stride + out;

        for (int o = 0; o < outs; o++)
            y[o] = m->add ? y[o] + sums[r * outs + o] : sums[r * outs + o];
    }
}

/* All outputs of a few rows. */
VEC_FUNC void matmul_rows(const struct matmul *m, int row, int rows, int outs)
{
    int out = 0;

    for (; out + outs <= m->n_outs; out += outs)
        matmul_tile(m, row, out, rows, outs);
    for (; out < m->n_outs; out++)
        matmul_tile(m, row, out, rows, 1);
}

static void matmul(const struct matmul *m)
{
    int row = 0;

    /* The weights of a tile stay in the L1 cache for all rows. */
    if (m->n_rows > TILE_ROWS) {
        const int n_outs = m->n_outs / TILE_OUTS * TILE_OUTS;

        for (int out = 0; out < n_outs; out += TILE_OUTS)
            for (row = 0; row + TILE_ROWS <= m->n_rows; row += TILE_ROWS)
                matmul_tile(m, row, out, TILE_ROWS, TILE_OUTS);
        for (int out = n_outs; out < m->n_outs; out++)
            for (row = 0; row + TILE_ROWS <= m->n_rows; row += TILE_ROWS)
                matmul_tile(m, row, out, TILE_ROWS, 1);
        row = m->n_rows / TILE_ROWS * TILE_ROWS;
    } else if (m->n_rows == TILE_ROWS) {
        matmul_rows(m, 0, TILE_ROWS, TILE_OUTS);
        row = TILE_ROWS;
    }
    if (m->n_rows - row == 1)
        matmul_rows(m, row, 1, ONE_ROW_OUTS);
    else
        VEC_FOR_ROWS(m->n_rows - row, TILE_ROWS, matmul_rows(m, row, ROWS, TILE_OUTS));
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

static void exp_row(float *y, const float *x, int n)
{
    for (int i = 0; i < n; i += VEC)
        vec_store_n(y + i, vec_exp(vec_load_n(x + i, n - i)), n - i);
}

static void from_bf16(float *y, const uint16_t *x, int n)
{
    int i = 0;

    for (; i + VEC <= n; i += VEC)
        vec_store(y + i, vec_load_bf16(x + i));
    for (; i < n; i++) {
        const uint32_t bits = (uint32_t)x[i] << 16;

        memcpy(y + i, &bits, sizeof(bits));
    }
}

static void to_bf16(uint16_t *y, const float *x, int n)
{
    for (int i = 0; i < n; i++) {
        uint32_t bits;

        memcpy(&bits, x + i, sizeof(bits));
        if ((bits & 0x7fffffffu) > 0x7f800000u)
            y[i] = (uint16_t)(bits >> 16 | 0x40); /* NaN stays NaN */
        else
            y[i] = (uint16_t)((bits + 0x7fffu + (bits >> 16 & 1)) >> 16);
    }
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
    const struct vec f = vec_set1(floor);
    int i = from;

    for (; i + VEC <= n && !vec_any_ge(vec_load(x + i), f); i += VEC) {
    }
    while (i < n && !(x[i] >= floor))
        i++;
    return i;
}

const struct cpu_ops CPU_ISA_TABLE = {
    .name = CPU_ISA_NAME,
    .matmul = matmul,
    .attend = CPU_ISA_ATTEND,
    .rms_norm = rms_norm,
    .rope = rope,
    .silu_mul = silu_mul,
    .add = add,
    .exp = exp_row,
    .from_bf16 = from_bf16,
    .to_bf16 = to_bf16,
    .row_max = row_max,
    .sum_exp = sum_exp,
    .find_ge = find_ge,
};
