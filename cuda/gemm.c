/* gemm.c - see gemm.h. To cuBLASLt all matrices are column-major: it computes y^T = w x^T. */
#include "cuda/gemm.h"

#include <cublasLt.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "engine/util/must.h"

enum {
    GEMM_TABLE = 4096, /* shapes kept; a power of two, far more than occur */
    GEMM_TRIED = 8,    /* candidates, cuBLASLt's best first */
    FEW_TRIED = 4,     /* of products of FEW_ROWS rows and fewer, which come in many sizes */
    FEW_ROWS = 512,
    FIXED_ROWS = 1024, /* for which a fixed algorithm is chosen */
    FIXED_TRIED = 32,
};

_Static_assert(sizeof(cublasLtMatmulAlgo_t) == ALGO_BYTES, "an algorithm fits its record");

struct entry {
    struct algo_shape shape; /* m 0: empty */
    cublasLtMatrixLayoutOpaque_t x, w, y;
    cublasLtMatmulAlgo_t algo; /* chosen at the shape's first use */
    bool known;                /* by a record */
};

struct gemm {
    cublasLtHandle_t handle;
    cublasLtMatmulDescOpaque_t plain[N_GEMM_IN], with_bias;
    cublasLtMatmulPreferenceOpaque_t preference;
    void *workspace;
    const struct algo_records *known; /* or NULL */
    bool fixed;
    int n_ranks;
    int n_known, n_heuristic;

    /* the shape being measured */
    struct algo_shape measured;
    cublasLtMatmulHeuristicResult_t candidates[GEMM_TRIED];
    int n_candidates;

    struct entry entries[GEMM_TABLE];
};

static int lt_check(cublasStatus_t s, const char *what, struct err *e)
{
    if (s == CUBLAS_STATUS_SUCCESS)
        return 0;
    return err_set(e, s == CUBLAS_STATUS_ALLOC_FAILED ? -ENOMEM : -EIO, "cuBLASLt: %s: %s", what,
                   cublasLtGetStatusString(s));
}

static cublasStatus_t point_to_scales(cublasLtMatmulDesc_t desc, const float *w_scales,
                                      const float *x_scales)
{
    const cublasStatus_t s =
        cublasLtMatmulDescSetAttribute(desc, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, &w_scales,
                                       sizeof(w_scales));

    return s ? s
             : cublasLtMatmulDescSetAttribute(desc, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, &x_scales,
                                              sizeof(x_scales));
}

/* To cuBLASLt w is A and x is B. */
static cublasStatus_t describe_scales(cublasLtMatmulDesc_t desc, enum gemm_in in)
{
    const int32_t w = in == GEMM_OF_E4M3 ? CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F
                                         : CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F;
    const int32_t x = in == GEMM_OF_E4M3 ? CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F
                                         : CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F;
    cublasStatus_t s;

    if (in == GEMM_OF_BF16)
        return CUBLAS_STATUS_SUCCESS;
    s = cublasLtMatmulDescSetAttribute(desc, CUBLASLT_MATMUL_DESC_A_SCALE_MODE, &w, sizeof(w));
    return s ? s
             : cublasLtMatmulDescSetAttribute(desc, CUBLASLT_MATMUL_DESC_B_SCALE_MODE, &x,
                                              sizeof(x));
}

static int describe(cublasLtMatmulDesc_t desc, enum gemm_in in, cublasLtEpilogue_t epilogue,
                    struct err *e)
{
    const cublasOperation_t transposed = CUBLAS_OP_T;
    cublasStatus_t s;

    if ((s = cublasLtMatmulDescInit(desc, CUBLAS_COMPUTE_32F, CUDA_R_32F)) ||
        (s = cublasLtMatmulDescSetAttribute(desc, CUBLASLT_MATMUL_DESC_TRANSA, &transposed,
                                            sizeof(transposed))) ||
        (s = cublasLtMatmulDescSetAttribute(desc, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue,
                                            sizeof(epilogue))) ||
        (s = describe_scales(desc, in)))
        return lt_check(s, "describing", e);
    return 0;
}

static int prefer(struct gemm *g, struct err *e)
{
    static const cublasLtMatmulPreferenceAttributes_t sides[] = {
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES};
    const size_t workspace = GEMM_WORKSPACE;
    const uint32_t row = 16; /* bytes */
    cublasStatus_t s = cublasLtMatmulPreferenceInit(&g->preference);

    if (s == CUBLAS_STATUS_SUCCESS)
        s = cublasLtMatmulPreferenceSetAttribute(&g->preference,
                                                 CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                                 &workspace, sizeof(workspace));
    /* Where algorithms are fixed rows of a product may begin anywhere, not just on 256 bytes. */
    for (size_t i = 0; i < sizeof(sides) / sizeof(*sides) && g->fixed && s == 0; i++)
        s = cublasLtMatmulPreferenceSetAttribute(&g->preference, sides[i], &row, sizeof(row));
    return lt_check(s, "preferring", e);
}

int gemm_new(struct gemm **out, void *workspace, bool fixed, int n_ranks, struct err *e)
{
    struct gemm *g = calloc(1, sizeof(*g));
    int r = 0;

    if (!g)
        return err_set(e, -ENOMEM, "out of memory");
    g->workspace = workspace;
    g->fixed = fixed;
    g->n_ranks = n_ranks;
    if ((r = lt_check(cublasLtCreate(&g->handle), "starting", e)) < 0 ||
        (r = describe(&g->with_bias, GEMM_OF_BF16, CUBLASLT_EPILOGUE_BIAS, e)) < 0 ||
        (r = prefer(g, e)) < 0)
        goto fail;
    /* cuBLASLt chooses nothing while it knows no scales: until there are some, any address does. */
    for (int in = 0; in < N_GEMM_IN; in++)
        if ((r = describe(&g->plain[in], (enum gemm_in)in, CUBLASLT_EPILOGUE_DEFAULT, e)) < 0 ||
            (in != GEMM_OF_BF16 &&
             (r = lt_check(point_to_scales(&g->plain[in], workspace, workspace), "describing", e)) <
                 0))
            goto fail;
    *out = g;
    return 0;
fail:
    gemm_free(g);
    return r;
}

void gemm_counts(const struct gemm *g, int *n_known, int *n_heuristic)
{
    *n_known = g->n_known;
    *n_heuristic = g->n_heuristic;
}

void gemm_adopt(struct gemm *g, const struct algo_records *known)
{
    memset(g->entries, 0, sizeof(g->entries));
    g->n_known = g->n_heuristic = 0;
    g->known = known;
}

void gemm_free(struct gemm *g)
{
    if (!g)
        return;
    if (g->handle)
        (void)cublasLtDestroy(g->handle);
    free(g);
}

int gemm_rows(int m)
{
    const int step = m <= 64 ? 16 : m <= 512 ? 32 : m <= 2048 ? 64 : 128;

    return (m + step - 1) / step * step;
}

int gemm_parts(int m, int n, int k)
{
    const int64_t tiles = (int64_t)((m + 63) / 64) * ((n + 63) / 64);

    for (int parts = 4; parts > 1; parts /= 2)
        if (tiles * parts <= GEMM_PART_TILES && k % (parts * 64) == 0)
            return parts;
    return 1;
}

/* The out of a shape says both, so that bf16's is what it is without the other. */
static enum gemm_out out_of(const struct algo_shape *s)
{
    return (enum gemm_out)(s->out % N_GEMM_OUT);
}

static enum gemm_in in_of(const struct algo_shape *s)
{
    return (enum gemm_in)(s->out / N_GEMM_OUT);
}

static cublasLtMatmulDesc_t desc_of(struct gemm *g, const struct algo_shape *s)
{
    return out_of(s) == GEMM_BIAS_BF16 ? &g->with_bias : &g->plain[in_of(s)];
}

static int multiply(struct gemm *g, cudaStream_t stream, struct entry *t,
                    const struct gemm_product *p, const cublasLtMatmulAlgo_t *algo, struct err *e)
{
    const float one = 1.0f,
                beta = p->out == GEMM_ADD_F32 || p->out == GEMM_ADD_HALF_F32 ? 1.0f : 0.0f;
    int r = 0;

    must((p->bias != NULL) == (p->out == GEMM_BIAS_BF16));
    if (p->bias)
        r = lt_check(cublasLtMatmulDescSetAttribute(&g->with_bias,
                                                    CUBLASLT_MATMUL_DESC_BIAS_POINTER, &p->bias,
                                                    sizeof(p->bias)),
                     "describing", e);
    if (p->in != GEMM_OF_BF16)
        r = lt_check(point_to_scales(&g->plain[p->in], p->w_scales, p->x_scales), "describing", e);
    return r < 0 ? r
                 : lt_check(cublasLtMatmul(g->handle, desc_of(g, &t->shape), &one, p->w, &t->w,
                                           p->x, &t->x, &beta, p->y, &t->y, p->y, &t->y, algo,
                                           g->workspace, GEMM_WORKSPACE, stream),
                            "a product", e);
}

static int find_candidates(struct gemm *g, struct entry *t, int wanted,
                           cublasLtMatmulHeuristicResult_t *found, int *n, struct err *e)
{
    int r = lt_check(cublasLtMatmulAlgoGetHeuristic(g->handle, desc_of(g, &t->shape), &t->w, &t->x,
                                                    &t->y, &t->y, &g->preference, wanted, found, n),
                     "choosing an algorithm", e);

    if (r == 0 && *n == 0)
        r = err_set(e, -ENOTSUP, "cuBLASLt: no algorithm for [%d, %d] x [%d, %d]", t->shape.m,
                    t->shape.k, t->shape.k, t->shape.n);
    return r;
}

static int n_tried(const struct algo_shape *s)
{
    return s->m <= FEW_ROWS ? FEW_TRIED : GEMM_TRIED;
}

/* A record only chooses among the candidates that cuBLASLt names for the shape itself: whatever a
 * file holds, nothing else ever runs. */
static int choose(struct gemm *g, struct entry *t, struct err *e)
{
    const struct algo_record *record = algo_find(g->known, &t->shape);
    cublasLtMatmulHeuristicResult_t found[GEMM_TRIED];
    int n = 0;
    int r = find_candidates(g, t, record ? n_tried(&t->shape) : 1, found, &n, e);

    if (r < 0)
        return r;
    t->algo = found[0].algo;
    for (int i = 0; record && i < n && !t->known; i++)
        if (memcmp(&found[i].algo, record->algo, sizeof(record->algo)) == 0) {
            t->algo = found[i].algo;
            t->known = true;
        }
    return 0;
}

/* A matrix of `parts`, `stride` elements apart: parts of k are products side by side. */
static cublasStatus_t lay_out_matrix(cublasLtMatrixLayout_t layout, cudaDataType_t type,
                                     uint64_t rows, uint64_t columns, int64_t ld, int32_t parts,
                                     int64_t stride)
{
    cublasStatus_t s = cublasLtMatrixLayoutInit(layout, type, rows, columns, ld);

    if (s == CUBLAS_STATUS_SUCCESS && parts > 1)
        s = cublasLtMatrixLayoutSetAttribute(layout, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &parts,
                                             sizeof(parts));
    if (s == CUBLAS_STATUS_SUCCESS && parts > 1)
        s = cublasLtMatrixLayoutSetAttribute(layout, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET,
                                             &stride, sizeof(stride));
    return s;
}

static int lay_out(struct entry *t, const struct algo_shape *s, struct err *e)
{
    const enum gemm_out out = out_of(s);
    const cudaDataType_t in = in_of(s) == GEMM_OF_BF16 ? CUDA_R_16BF : CUDA_R_8F_E4M3;
    const cudaDataType_t type =
        out == GEMM_BF16 || out == GEMM_BIAS_BF16 ? CUDA_R_16BF : CUDA_R_32F;
    const int parts = out == GEMM_PARTS_F32 ? gemm_parts(s->m, s->n, s->k) : 1;
    const int64_t row = out == GEMM_ADD_HALF_F32 ? 2 * (int64_t)s->k : s->k;
    const uint64_t k = (uint64_t)(s->k / parts), m = (uint64_t)s->m, n = (uint64_t)s->n;
    cublasStatus_t status;

    must(parts == 1 || (s->y_stride == s->n && s->k % parts == 0));
    t->shape = *s;
    if ((status = lay_out_matrix(&t->w, in, k, n, row, parts, (int64_t)k)) ||
        (status = lay_out_matrix(&t->x, in, k, m, row, parts, (int64_t)k)) ||
        (status = lay_out_matrix(&t->y, type, n, m, s->y_stride, parts, (int64_t)(m * n))))
        return lt_check(status, "laying out", e);
    return 0;
}

/* The product as one rank has it, and as each of two has it, which must give the same bits: one
 * adds halves of k or has twice the columns. Returns which one candidates are asked for. */
static int twins_of(struct algo_shape twins[2], const struct gemm *g, const struct algo_shape *s)
{
    const bool columns = s->out == GEMM_BF16 || s->out == GEMM_BIAS_BF16;
    const bool half = s->out == GEMM_ADD_HALF_F32 || (s->out == GEMM_F32 && g->n_ranks == 2);

    twins[0] = twins[1] = *s;
    if (columns && g->n_ranks == 1) {
        twins[1].n /= 2;
        twins[1].y_stride /= 2;
    } else if (columns && g->n_ranks == 2) {
        twins[0].n *= 2;
        twins[0].y_stride *= 2;
    } else if (half) {
        twins[0].out = GEMM_ADD_HALF_F32;
        twins[1].out = GEMM_F32;
    }
    return half ? 1 : 0;
}

enum { N_PROBES = 4, PROBED = 2 /* of them: FIXED_ROWS */ };

static int lay_out_probes(struct entry like[N_PROBES], const struct algo_shape *s, struct err *e)
{
    static const int rows[N_PROBES] = {16, 128, FIXED_ROWS, 16384};
    int r = 0;

    for (int i = 0; i < N_PROBES && r == 0; i++) {
        struct algo_shape probe = *s;

        probe.m = rows[i];
        r = lay_out(&like[i], &probe, e);
    }
    return r;
}

static bool fits_all(const struct gemm *g, cublasLtMatmulDesc_t desc,
                     const cublasLtMatmulAlgo_t *algo, struct entry like[N_PROBES])
{
    cublasLtMatmulHeuristicResult_t ignored;

    for (int i = 0; i < N_PROBES; i++)
        if (cublasLtMatmulAlgoCheck(g->handle, desc, &like[i].w, &like[i].x, &like[i].y, &like[i].y,
                                    algo, &ignored) != CUBLAS_STATUS_SUCCESS)
            return false;
    return true;
}

/* One that is good for FIXED_ROWS rows, works for any number, and sums each result in one go; for
 * one rank and two the same, where there is such a one. */
static int choose_fixed(struct gemm *g, struct entry *t, struct err *e)
{
    struct entry like[2][N_PROBES] = {0};
    struct algo_shape twins[2];
    const int asked = twins_of(twins, g, &t->shape);
    const int own = memcmp(&twins[0], &t->shape, sizeof(t->shape)) == 0 ? 0 : 1;
    cublasLtMatmulHeuristicResult_t found[FIXED_TRIED];
    cublasLtMatmulDesc_t desc = desc_of(g, &t->shape);
    int n = 0, chosen = -1, r;

    if ((r = lay_out_probes(like[0], &twins[0], e)) < 0 ||
        (r = lay_out_probes(like[1], &twins[1], e)) < 0 ||
        (r = find_candidates(g, &like[asked][PROBED], FIXED_TRIED, found, &n, e)) < 0)
        return r;
    for (int both = 1; both >= 0; both--)
        for (int i = 0; i < n && chosen < 0; i++) {
            int32_t splits = 0;

            if (cublasLtMatmulAlgoConfigGetAttribute(&found[i].algo,
                                                     CUBLASLT_ALGO_CONFIG_SPLITK_NUM, &splits,
                                                     sizeof(splits),
                                                     NULL) == CUBLAS_STATUS_SUCCESS &&
                splits <= 1 && fits_all(g, desc, &found[i].algo, like[own]) &&
                (!both || fits_all(g, desc, &found[i].algo, like[!own])))
                chosen = i;
        }
    if (chosen < 0)
        return err_set(e, -ENOTSUP, "cuBLASLt: no algorithm for [any, %d] x [%d, %d]", t->shape.k,
                       t->shape.k, t->shape.n);
    t->algo = found[chosen].algo;
    return 0;
}

static struct algo_shape shape_of(const struct gemm_product *p)
{
    return (struct algo_shape){p->m, p->n, p->k, (int32_t)p->in * N_GEMM_OUT + (int32_t)p->out,
                               p->y_stride};
}

static int lookup(struct gemm *g, struct entry **out, const struct gemm_product *p, struct err *e)
{
    const struct algo_shape s = shape_of(p);
    const uint64_t hash = XXH3_64bits(&s, sizeof(s));
    struct entry *t = NULL;
    int r;

    for (uint64_t i = 0; i < GEMM_TABLE; i++) {
        t = &g->entries[(hash + i) % GEMM_TABLE];
        if (t->shape.m == 0)
            break;
        if (memcmp(&t->shape, &s, sizeof(s)) == 0) {
            *out = t;
            return 0;
        }
    }
    *t = (struct entry){0}; /* an empty one; or the table is full and the last one goes */
    r = lay_out(t, &s, e);
    if (r == 0)
        r = g->fixed ? choose_fixed(g, t, e) : choose(g, t, e);
    if (r < 0) {
        *t = (struct entry){0};
        return r;
    }
    (*(t->known ? &g->n_known : &g->n_heuristic))++;
    *out = t;
    return 0;
}

int gemm_run(struct gemm *g, cudaStream_t stream, const struct gemm_product *p, struct err *e)
{
    struct entry *t = NULL;
    int r = lookup(g, &t, p, e);

    return r < 0 ? r : multiply(g, stream, t, p, &t->algo, e);
}

bool gemm_is_known(struct gemm *g, const struct gemm_product *p)
{
    struct entry *t = NULL;
    struct err ignored;

    return lookup(g, &t, p, &ignored) == 0 && t->known;
}

int gemm_try(struct gemm *g, cudaStream_t stream, const struct gemm_product *p, int index,
             struct err *e)
{
    struct entry *t = NULL;
    int r = lookup(g, &t, p, e);

    if (r == 0 && memcmp(&g->measured, &t->shape, sizeof(t->shape)) != 0) {
        g->measured = (struct algo_shape){0};
        r = find_candidates(g, t, n_tried(&t->shape), g->candidates, &g->n_candidates, e);
        if (r == 0)
            g->measured = t->shape;
    }
    if (r < 0 || index >= g->n_candidates)
        return r;
    r = multiply(g, stream, t, p, &g->candidates[index].algo, e);
    return r < 0 ? r : 1;
}

void gemm_record(const struct gemm *g, struct algo_record *out, const struct gemm_product *p,
                 int index, float us)
{
    must(index < g->n_candidates);
    *out = (struct algo_record){.shape = shape_of(p), .us = us};
    memcpy(out->algo, &g->candidates[index].algo, sizeof(out->algo));
}
