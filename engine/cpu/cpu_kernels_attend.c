/* cpu_kernels_attend.c - causal attention over paged keys and values; compiled once for each
 * instruction set.
 *
 * Keys come in groups of CPU_KV_GROUP from positions 0, 64, 128, …, whatever block_len is and
 * wherever the query begins. Each group updates a row's running maximum, sum and output once
 * (online softmax, Milakov and Gimelshein 2018); keys are lanes of the scores and are added to the
 * output in order. So a row's result depends only on its own keys. Slots after the last row's
 * position are never read. */
#include "engine/cpu/cpu_kernels.h"
#include "engine/cpu/cpu_vec.h"

#include <math.h>

enum {
    GROUP = CPU_KV_GROUP,
    SUBS = GROUP / VEC, /* runs of sixteen keys, each within one block */
};

/* Register tile: rows of queries by vectors of scores, or of the output. */
#if defined(__AVX512F__)
enum { TILE_ROWS = 6, TILE_VECS = 4 };
#elif defined(__AVX2__)
enum { TILE_ROWS = 6, TILE_VECS = 1 };
#else
enum { TILE_ROWS = 2, TILE_VECS = 1 };
#endif

/* The buffers of a call, all in the scratch. Query rows are r = row * n_group + head. */
struct work {
    int dim, padded, n_rows;
    float *k;      /* [dim, GROUP] the group's keys, transposed */
    float *v_copy; /* [GROUP, padded] values that cannot be used in place */
    float *q;      /* [n_rows, padded] scaled */
    float *acc;    /* [n_rows, padded] */
    float *p;      /* [n_rows, GROUP] scores, then weights */
    float *max;    /* [n_rows] */
    float *sum;    /* [n_rows, VEC] */
    const float *v[SUBS];
    size_t v_stride;
};

static void work_init(struct work *w, const struct attend *a)
{
    float *at = a->scratch;

    w->dim = a->head_dim;
    w->padded = (a->head_dim + VEC - 1) / VEC * VEC;
    w->n_rows = a->n_rows * a->n_group;
    w->k = at;
    w->v_copy = at += GROUP * w->padded;
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

/* out[d * GROUP + i] = row[i][d] for sixteen rows. */
static void transpose_keys(float *out, const float *const row[VEC], int dim)
{
    int d = 0;

    for (; d + 4 <= dim; d += 4) {
        struct vec m[4];

        for (int i = 0; i < 4; i++)
            m[i] = vec_load_quads(row[i] + d, row[i + 4] + d, row[i + 8] + d, row[i + 12] + d);
        vec_transpose_quads(m);
        for (int i = 0; i < 4; i++)
            vec_store(out + (d + i) * GROUP, m[i]);
    }
    for (; d < dim; d++)
        for (int i = 0; i < VEC; i++)
            out[d * GROUP + i] = row[i][d];
}

/* Copies n rows of keys or values as floats, padded with zeros. */
static void copy_rows(float *out, const char *from, int n, const struct work *w, bool bf16)
{
    for (int i = 0; i < n; i++, out += w->padded) {
        memset(out + w->dim, 0, (size_t)(w->padded - w->dim) * sizeof(float));
        if (!bf16) {
            memcpy(out, from + (size_t)(i * w->dim) * sizeof(float),
                   (size_t)w->dim * sizeof(float));
            continue;
        }
        for (int d = 0; d < w->dim; d++) {
            uint16_t half;
            uint32_t bits;

            memcpy(&half, from + (size_t)(i * w->dim + d) * sizeof(half), sizeof(half));
            bits = (uint32_t)half << 16;
            memcpy(out + d, &bits, sizeof(bits));
        }
    }
}

/* Loads the keys and values of positions from .. from + n_keys - 1. */
static void load_group(struct work *w, const struct attend *a, int from, int n_keys)
{
    const size_t row_bytes = (size_t)w->dim * (a->bf16 ? sizeof(uint16_t) : sizeof(float));
    const bool in_place = !a->bf16 && w->dim == w->padded;
    const int in_block = (1 << a->block_shift) - 1;

    w->v_stride = (size_t)w->padded;
    for (int s = 0; s * VEC < n_keys; s++) {
        const int pos = from + s * VEC, n = n_keys - s * VEC < VEC ? n_keys - s * VEC : VEC;
        const size_t at = (size_t)a->block_table[pos >> a->block_shift] * a->block_bytes +
                          (size_t)(pos & in_block) * row_bytes;
        float *copy = w->v_copy + s * VEC * w->padded;
        const float *row[VEC];

        if (in_place && n == VEC) {
            for (int i = 0; i < VEC; i++)
                row[i] = (const float *)(const void *)(a->k + at) + i * w->dim;
        } else {
            copy_rows(copy, a->k + at, n, w, a->bf16);
            memset(copy + n * w->padded, 0, (size_t)((VEC - n) * w->padded) * sizeof(float));
            for (int i = 0; i < VEC; i++)
                row[i] = copy + i * w->padded;
        }
        transpose_keys(w->k + s * VEC, row, w->dim);
        if (in_place) {
            w->v[s] = (const float *)(const void *)(a->v + at);
        } else {
            copy_rows(copy, a->v + at, n, w, a->bf16);
            w->v[s] = copy;
        }
    }
}

VEC_FUNC void score_tile(const struct work *w, int r, int s, int rows, int vecs)
{
    struct vec acc[TILE_ROWS * TILE_VECS];
    const float *q = w->q + r * w->padded, *k = w->k + s * VEC;

    VEC_UNROLL
    for (int i = 0; i < rows * vecs; i++)
        acc[i] = vec_zero();
    for (int d = 0; d < w->dim; d++) {
        struct vec kv[TILE_VECS];

        VEC_UNROLL
        for (int j = 0; j < vecs; j++)
            kv[j] = vec_load(k + d * GROUP + j * VEC);
        VEC_UNROLL
        for (int i = 0; i < rows; i++) {
            const struct vec qv = vec_set1(q[i * w->padded + d]);

            VEC_UNROLL
            for (int j = 0; j < vecs; j++)
                acc[i * vecs + j] = vec_fma(qv, kv[j], acc[i * vecs + j]);
        }
    }
    VEC_UNROLL
    for (int i = 0; i < rows; i++) {
        VEC_UNROLL
        for (int j = 0; j < vecs; j++)
            vec_store(w->p + (r + i) * GROUP + (s + j) * VEC, acc[i * vecs + j]);
    }
}

VEC_FUNC void output_tile(const struct work *w, int r, int d, int n_keys, int rows, int vecs)
{
    struct vec acc[TILE_ROWS * TILE_VECS];
    float *out = w->acc + r * w->padded + d;
    const float *p = w->p + r * GROUP;

    VEC_UNROLL
    for (int i = 0; i < rows; i++) {
        VEC_UNROLL
        for (int j = 0; j < vecs; j++)
            acc[i * vecs + j] = vec_load(out + i * w->padded + j * VEC);
    }
    for (int key = 0; key < n_keys; key++) {
        const float *v = w->v[key / VEC] + (size_t)(key % VEC) * w->v_stride + d;
        struct vec vv[TILE_VECS];

        VEC_UNROLL
        for (int j = 0; j < vecs; j++)
            vv[j] = vec_load(v + j * VEC);
        VEC_UNROLL
        for (int i = 0; i < rows; i++) {
            const struct vec pv = vec_set1(p[i * GROUP + key]);

            VEC_UNROLL
            for (int j = 0; j < vecs; j++)
                acc[i * vecs + j] = vec_fma(pv, vv[j], acc[i * vecs + j]);
        }
    }
    VEC_UNROLL
    for (int i = 0; i < rows; i++) {
        VEC_UNROLL
        for (int j = 0; j < vecs; j++)
            vec_store(out + i * w->padded + j * VEC, acc[i * vecs + j]);
    }
}

/* Scores and outputs of `rows` rows, a constant after inlining. */
VEC_FUNC void score_rows(const struct work *w, int r, int n_subs, int rows)
{
    int s = 0;

    for (; s + TILE_VECS <= n_subs; s += TILE_VECS)
        score_tile(w, r, s, rows, TILE_VECS);
    for (; s < n_subs; s++)
        score_tile(w, r, s, rows, 1);
}

VEC_FUNC void output_rows(const struct work *w, int r, int n_keys, int rows)
{
    int d = 0;

    for (; d + TILE_VECS * VEC <= w->padded; d += TILE_VECS * VEC)
        output_tile(w, r, d, n_keys, rows, TILE_VECS);
    for (; d < w->padded; d += VEC)
        output_tile(w, r, d, n_keys, rows, 1);
}

/* Turns a row's first n_keys scores into weights and rescales its running sums. */
static void softmax_row(const struct work *w, int r, int n_keys)
{
    float *p = w->p + r * GROUP, *acc = w->acc + r * w->padded;
    struct vec best = vec_set1(w->max[r]), sum = vec_load(w->sum + r * VEC);
    float max;

    for (int i = n_keys; i < GROUP; i++)
        p[i] = -INFINITY;
    for (int s = 0; s < SUBS; s++)
        best = vec_max(best, vec_load(p + s * VEC));
    max = vec_max_lane(best);
    if (max != w->max[r]) {
        const struct vec shrink = vec_exp(vec_set1(w->max[r] - max));

        sum = vec_mul(sum, shrink);
        for (int d = 0; d < w->padded; d += VEC)
            vec_store(acc + d, vec_mul(vec_load(acc + d), shrink));
        w->max[r] = max;
    }
    for (int s = 0; s < SUBS; s++) {
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
    int r;

    load_group(w, a, from, n_keys);
    for (r = first_row; r + TILE_ROWS <= w->n_rows; r += TILE_ROWS)
        score_rows(w, r, (n_keys + VEC - 1) / VEC, TILE_ROWS);
    VEC_FOR_ROWS(w->n_rows - r, TILE_ROWS, score_rows(w, r, (n_keys + VEC - 1) / VEC, ROWS));
    for (r = first_row; r < w->n_rows; r++) {
        const int own = a->first_pos + r / a->n_group + 1 - from;

        softmax_row(w, r, own < n_keys ? own : n_keys);
    }
    for (r = first_row; r + TILE_ROWS <= w->n_rows; r += TILE_ROWS)
        output_rows(w, r, n_keys, TILE_ROWS);
    VEC_FOR_ROWS(w->n_rows - r, TILE_ROWS, output_rows(w, r, n_keys, ROWS));
}

void CPU_ISA_ATTEND(const struct attend *a)
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
