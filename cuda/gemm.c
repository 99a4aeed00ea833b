/* gemm.c - see gemm.h. To cuBLASLt all matrices are column-major: it computes y^T = w x^T. */
#include "cuda/gemm.h"

#include <cublasLt.h>
#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>

#include "cuda/device.h"

enum {
    GEMM_TABLE = 4096, /* shapes remembered; a power of two, far more than occur */
    GEMM_TRIED = 8,    /* algorithms timed, as cuBLASLt thinks them best */
    GEMM_REPEATS = 4,  /* runs timed of each: launches are behind one another, as in a step */
};

struct shape {
    int m, n, k;
    enum gemm_out out;
    int64_t y_stride;
};

struct entry {
    struct shape shape; /* m 0: empty */
    cublasLtMatrixLayout_t x, w, y;
    cublasLtMatmulAlgo_t algo;
};

struct gemm {
    cublasLtHandle_t handle;
    cublasLtMatmulDesc_t desc;
    cublasLtMatmulPreference_t preference;
    void *workspace;
    cudaEvent_t begin, end;
    int n_trials; /* runs timed: each takes the next weights */
    struct entry entries[GEMM_TABLE];
};

static int lt_check(cublasStatus_t s, const char *what, struct err *e)
{
    if (s == CUBLAS_STATUS_SUCCESS)
        return 0;
    return err_set(e, s == CUBLAS_STATUS_ALLOC_FAILED ? -ENOMEM : -EIO, "cuBLASLt: %s: %s", what,
                   cublasLtGetStatusString(s));
}

int gemm_new(struct gemm **out, void *workspace, struct err *e)
{
    const cublasOperation_t transposed = CUBLAS_OP_T;
    const size_t bytes = GEMM_WORKSPACE;
    struct gemm *g = calloc(1, sizeof(*g));
    int r;

    if (!g)
        return err_set(e, -ENOMEM, "out of memory");
    g->workspace = workspace;
    r = lt_check(cublasLtCreate(&g->handle), "starting", e);
    if (r == 0)
        r = lt_check(cublasLtMatmulDescCreate(&g->desc, CUBLAS_COMPUTE_32F, CUDA_R_32F),
                     "describing", e);
    if (r == 0)
        r = lt_check(cublasLtMatmulDescSetAttribute(g->desc, CUBLASLT_MATMUL_DESC_TRANSA,
                                                    &transposed, sizeof(transposed)),
                     "describing", e);
    if (r == 0)
        r = lt_check(cublasLtMatmulPreferenceCreate(&g->preference), "preferring", e);
    if (r == 0)
        r = lt_check(cublasLtMatmulPreferenceSetAttribute(g->preference,
                                                          CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                                          &bytes, sizeof(bytes)),
                     "preferring", e);
    if (r == 0)
        r = cuda_check(cudaEventCreate(&g->begin), "making an event", e);
    if (r == 0)
        r = cuda_check(cudaEventCreate(&g->end), "making an event", e);
    if (r < 0) {
        gemm_free(g);
        return r;
    }
    *out = g;
    return 0;
}

static void entry_clear(struct entry *t)
{
    if (t->x)
        (void)cublasLtMatrixLayoutDestroy(t->x);
    if (t->w)
        (void)cublasLtMatrixLayoutDestroy(t->w);
    if (t->y)
        (void)cublasLtMatrixLayoutDestroy(t->y);
    *t = (struct entry){0};
}

void gemm_free(struct gemm *g)
{
    if (!g)
        return;
    for (int i = 0; i < GEMM_TABLE; i++)
        entry_clear(&g->entries[i]);
    if (g->begin)
        (void)cudaEventDestroy(g->begin);
    if (g->end)
        (void)cudaEventDestroy(g->end);
    if (g->preference)
        (void)cublasLtMatmulPreferenceDestroy(g->preference);
    if (g->desc)
        (void)cublasLtMatmulDescDestroy(g->desc);
    if (g->handle)
        (void)cublasLtDestroy(g->handle);
    free(g);
}

int gemm_rows(int m)
{
    const int step = m <= 64 ? 16 : m <= 512 ? 32 : m <= 2048 ? 64 : 128;

    return (m + step - 1) / step * step;
}

/* One product: what is multiplied, where to. */
struct product {
    cudaStream_t stream;
    const uint16_t *x, *w;
    void *y;
    const struct gemm_trial *trial;
};

static int multiply(struct gemm *g, const struct entry *t, const struct product *p,
                    const uint16_t *w, void *y, struct err *e)
{
    const float one = 1.0f, beta = t->shape.out == GEMM_ADD_F32 ? 1.0f : 0.0f;

    return lt_check(cublasLtMatmul(g->handle, g->desc, &one, w, t->w, p->x, t->x, &beta, y, t->y, y,
                                   t->y, &t->algo, g->workspace, GEMM_WORKSPACE, p->stream),
                    "a product", e);
}

/* Microseconds of one run; a first one loads the kernel. */
static int time_algo(struct gemm *g, const struct entry *t, const struct product *p, float *us,
                     struct err *e)
{
    void *y = t->shape.out == GEMM_ADD_F32 ? p->trial->scratch : p->y;
    float ms = 0.0f;
    int r = multiply(g, t, p, p->w, y, e);

    if (r == 0)
        r = cuda_check(cudaEventRecord(g->begin, p->stream), "timing", e);
    for (int i = 0; i < GEMM_REPEATS && r == 0; i++, g->n_trials++)
        r = multiply(g, t, p, p->trial->w + g->n_trials % p->trial->n_w * p->trial->w_stride, y, e);
    if (r == 0)
        r = cuda_check(cudaEventRecord(g->end, p->stream), "timing", e);
    if (r == 0)
        r = cuda_check(cudaEventSynchronize(g->end), "timing", e);
    if (r == 0)
        r = cuda_check(cudaEventElapsedTime(&ms, g->begin, g->end), "timing", e);
    *us = ms * 1000.0f / GEMM_REPEATS;
    return r;
}

static int choose_algo(struct gemm *g, struct entry *t, const struct product *p, struct err *e)
{
    cublasLtMatmulHeuristicResult_t found[GEMM_TRIED];
    enum cudaStreamCaptureStatus capturing;
    cublasLtMatmulAlgo_t best;
    float best_us = 0.0f, us;
    int n = 0;
    int r = lt_check(cublasLtMatmulAlgoGetHeuristic(g->handle, g->desc, t->w, t->x, t->y, t->y,
                                                    g->preference, GEMM_TRIED, found, &n),
                     "choosing an algorithm", e);

    if (r == 0 && n == 0)
        return err_set(e, -ENOTSUP, "cuBLASLt: no algorithm for [%d, %d] x [%d, %d]", t->shape.m,
                       t->shape.k, t->shape.k, t->shape.n);
    if (r == 0)
        r = cuda_check(cudaStreamIsCapturing(p->stream, &capturing), "timing", e);
    if (r < 0)
        return r;
    best = found[0].algo;
    for (int i = 0; i < n && r == 0 && capturing == cudaStreamCaptureStatusNone; i++) {
        t->algo = found[i].algo;
        r = time_algo(g, t, p, &us, e);
        if (i == 0 || us < best_us) {
            best_us = us;
            best = t->algo;
        }
    }
    t->algo = best;
    return r;
}

static int entry_fill(struct gemm *g, struct entry *t, const struct shape *s,
                      const struct product *p, struct err *e)
{
    const cudaDataType_t type = s->out == GEMM_BF16 ? CUDA_R_16BF : CUDA_R_32F;
    int r;

    t->shape = *s;
    r = lt_check(cublasLtMatrixLayoutCreate(&t->w, CUDA_R_16BF, (uint64_t)s->k, (uint64_t)s->n,
                                            s->k),
                 "laying out", e);
    if (r == 0)
        r = lt_check(cublasLtMatrixLayoutCreate(&t->x, CUDA_R_16BF, (uint64_t)s->k, (uint64_t)s->m,
                                                s->k),
                     "laying out", e);
    if (r == 0)
        r = lt_check(cublasLtMatrixLayoutCreate(&t->y, type, (uint64_t)s->n, (uint64_t)s->m,
                                                s->y_stride),
                     "laying out", e);
    if (r == 0)
        r = choose_algo(g, t, p, e);
    if (r < 0)
        entry_clear(t);
    return r;
}

static int lookup(struct gemm *g, struct entry **out, const struct shape *s,
                  const struct product *p, struct err *e)
{
    const uint32_t hash = ((uint32_t)s->m * 0x9E3779B1u ^ (uint32_t)s->n * 0x85EBCA77u ^
                           (uint32_t)s->k * 0xC2B2AE3Du ^ (uint32_t)s->out * 0x27D4EB2Fu) >>
                          7;
    struct entry *t = NULL;
    bool known = false;

    for (uint32_t i = 0; i < GEMM_TABLE; i++) {
        t = &g->entries[(hash + i) % GEMM_TABLE];
        known = t->shape.m == s->m && t->shape.n == s->n && t->shape.k == s->k &&
                t->shape.out == s->out && t->shape.y_stride == s->y_stride;
        if (known || t->shape.m == 0)
            break;
    }
    if (!known) { /* an empty one; or the table is full and the last one goes */
        int r;

        entry_clear(t);
        r = entry_fill(g, t, s, p, e);
        if (r < 0)
            return r;
    }
    *out = t;
    return 0;
}

int gemm_run(struct gemm *g, cudaStream_t stream, void *y, int64_t y_stride, const uint16_t *x,
             const uint16_t *w, int m, int n, int k, enum gemm_out out,
             const struct gemm_trial *trial, struct err *e)
{
    const struct shape s = {.m = m, .n = n, .k = k, .out = out, .y_stride = y_stride};
    const struct product p = {.stream = stream, .x = x, .w = w, .y = y, .trial = trial};
    struct entry *t;
    const int r = lookup(g, &t, &s, &p, e);

    return r < 0 ? r : multiply(g, t, &p, w, y, e);
}
