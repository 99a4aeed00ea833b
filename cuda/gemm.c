/* gemm.c - see gemm.h. To cuBLASLt all matrices are column-major: it computes y^T = w x^T. */
#include "cuda/gemm.h"

#include <cublasLt.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "cuda/algo_file.h"
#include "engine/util/must.h"

enum {
    GEMM_TABLE = 4096, /* shapes remembered; a power of two, far more than occur */
    GEMM_TRIED = 8,    /* algorithms timed, as cuBLASLt thinks them best */
    FEW_TRIED = 4,  /* of products of FEW_ROWS rows and fewer: they come in many sizes, and each */
    FEW_ROWS = 512, /* trial costs as much as many of them, most of it for loading a kernel */
    TRIED_FROM = 3, /* steps that a shape comes in: most sizes of prompts come once or twice */
    GEMM_REPEATS = 4,  /* runs timed of each: launches are behind one another, as in a step */
    FIXED_ROWS = 1024, /* for which a fixed algorithm is chosen */
    FIXED_TRIED = 32,
};

static const double STEP_SECONDS = 0.015; /* of a step, after which no further trial begins */
static const double LONG_PRODUCT = 2e11;  /* multiplications from which one run is timed */
static const double WRITE_SECONDS = 10.0; /* between two writings of the file, at least */

_Static_assert(sizeof(cublasLtMatmulAlgo_t) == ALGO_BYTES, "an algorithm fits its record");

struct shape {
    int m, n, k;
    enum gemm_out out;
    int64_t y_stride;
};

struct entry {
    struct shape shape; /* m 0: empty */
    cublasLtMatrixLayout_t x, w, y;
    cublasLtMatmulAlgo_t algo; /* the best known */
    float us;                  /* what it takes, once a trial was made */
    int n_candidates, n_tried;
    cublasLtMatmulAlgo_t *candidates; /* until all are tried */
    uint64_t step;                    /* that it last came in, while there are */
    int n_steps;
};

struct gemm {
    cublasLtHandle_t handle;
    cublasLtMatmulDesc_t plain, with_bias;
    cublasLtMatmulPreference_t preference;
    void *workspace;
    cudaEvent_t begin, end;
    int n_trials; /* runs timed: each takes the next weights */
    bool fixed;
    const char *folder;
    char key[ALGO_KEY];
    struct algo_record *records; /* [ALGO_FILE_MAX]; NULL without a folder */
    int n_records;
    bool unwritten;
    uint64_t step; /* counts steps */
    int n_open;    /* products of this step whose algorithm is not settled */
    double spent;  /* seconds of this step in trials */
    double written_at;
    struct gemm_counts counts;
    struct entry entries[GEMM_TABLE];
};

static int lt_check(cublasStatus_t s, const char *what, struct err *e)
{
    if (s == CUBLAS_STATUS_SUCCESS)
        return 0;
    return err_set(e, s == CUBLAS_STATUS_ALLOC_FAILED ? -ENOMEM : -EIO, "cuBLASLt: %s: %s", what,
                   cublasLtGetStatusString(s));
}

static double now_seconds(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static int describe(cublasLtMatmulDesc_t *out, cublasLtEpilogue_t epilogue, struct err *e)
{
    const cublasOperation_t transposed = CUBLAS_OP_T;
    int r =
        lt_check(cublasLtMatmulDescCreate(out, CUBLAS_COMPUTE_32F, CUDA_R_32F), "describing", e);

    if (r == 0)
        r = lt_check(cublasLtMatmulDescSetAttribute(*out, CUBLASLT_MATMUL_DESC_TRANSA, &transposed,
                                                    sizeof(transposed)),
                     "describing", e);
    if (r == 0)
        r = lt_check(cublasLtMatmulDescSetAttribute(*out, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue,
                                                    sizeof(epilogue)),
                     "describing", e);
    return r;
}

static int make_descriptors(struct gemm *g, struct err *e)
{
    const size_t bytes = GEMM_WORKSPACE;
    int r = lt_check(cublasLtCreate(&g->handle), "starting", e);

    if (r == 0)
        r = describe(&g->plain, CUBLASLT_EPILOGUE_DEFAULT, e);
    if (r == 0)
        r = describe(&g->with_bias, CUBLASLT_EPILOGUE_BIAS, e);
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
    return r;
}

/* All that a choice depends on but the shape. */
static int recall(struct gemm *g, const struct device *d, struct err *e)
{
    int driver = 0, runtime = 0;
    int r = cuda_check(cudaDriverGetVersion(&driver), "asking for the driver's version", e);

    if (r == 0)
        r = cuda_check(cudaRuntimeGetVersion(&runtime), "asking for CUDA's version", e);
    if (r < 0)
        return r;
    snprintf(g->key, sizeof(g->key), "%.100s, compute %d, driver %d, CUDA %d, cuBLASLt %zu, %d MiB",
             d->name, d->compute, driver, runtime, cublasLtGetVersion(), GEMM_WORKSPACE >> 20);
    r = algo_file_read(&g->records, &g->n_records, g->folder, g->key, e);
    return r;
}

/* Rows of a product may begin anywhere where algorithms are fixed, and not on 256 bytes. */
static int allow_any_row(struct gemm *g, struct err *e)
{
    static const cublasLtMatmulPreferenceAttributes_t sides[] = {
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES};
    const uint32_t bytes = 16;
    int r = 0;

    for (size_t i = 0; i < sizeof(sides) / sizeof(*sides) && r == 0; i++)
        r = lt_check(cublasLtMatmulPreferenceSetAttribute(g->preference, sides[i], &bytes,
                                                          sizeof(bytes)),
                     "preferring", e);
    return r;
}

int gemm_new(struct gemm **out, const struct device *d, void *workspace, const char *folder,
             bool fixed, struct err *e)
{
    struct gemm *g = calloc(1, sizeof(*g));
    int r;

    if (!g)
        return err_set(e, -ENOMEM, "out of memory");
    g->workspace = workspace;
    g->folder = folder;
    g->fixed = fixed;
    g->counts.key = g->key;
    r = make_descriptors(g, e);
    if (r == 0 && fixed)
        r = allow_any_row(g, e);
    if (r == 0 && !fixed && folder && *folder)
        r = recall(g, d, e);
    if (r < 0) {
        gemm_free(g);
        return r;
    }
    *out = g;
    return 0;
}

/* A folder that cannot be written to costs the trials of the next start, nothing else. */
static void remember(struct gemm *g)
{
    const double begin = now_seconds();
    double took;
    struct err ignored;

    if (!g->unwritten)
        return;
    (void)algo_file_write(g->folder, g->key, g->records, g->n_records, &ignored);
    g->unwritten = false;
    g->written_at = now_seconds();
    took = g->written_at - begin;
    if (took > g->counts.write)
        g->counts.write = took;
}

void gemm_step(struct gemm *g)
{
    g->step++;
    g->n_open = 0;
    g->spent = 0.0;
    if (g->unwritten && now_seconds() - g->written_at > WRITE_SECONDS)
        remember(g);
}

bool gemm_settled(const struct gemm *g)
{
    return g->n_open == 0;
}

struct gemm_counts gemm_counts(const struct gemm *g)
{
    return g->counts;
}

static void entry_clear(struct entry *t)
{
    if (t->x)
        (void)cublasLtMatrixLayoutDestroy(t->x);
    if (t->w)
        (void)cublasLtMatrixLayoutDestroy(t->w);
    if (t->y)
        (void)cublasLtMatrixLayoutDestroy(t->y);
    free(t->candidates);
    *t = (struct entry){0};
}

void gemm_free(struct gemm *g)
{
    if (!g)
        return;
    remember(g);
    free(g->records);
    for (int i = 0; i < GEMM_TABLE; i++)
        entry_clear(&g->entries[i]);
    if (g->begin)
        (void)cudaEventDestroy(g->begin);
    if (g->end)
        (void)cudaEventDestroy(g->end);
    if (g->preference)
        (void)cublasLtMatmulPreferenceDestroy(g->preference);
    if (g->plain)
        (void)cublasLtMatmulDescDestroy(g->plain);
    if (g->with_bias)
        (void)cublasLtMatmulDescDestroy(g->with_bias);
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

static cublasLtMatmulDesc_t desc_of(const struct gemm *g, const struct shape *s)
{
    return s->out == GEMM_BIAS_BF16 ? g->with_bias : g->plain;
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

    return lt_check(cublasLtMatmul(g->handle, desc_of(g, &t->shape), &one, w, t->w, p->x, t->x,
                                   &beta, y, t->y, y, t->y, &t->algo, g->workspace, GEMM_WORKSPACE,
                                   p->stream),
                    "a product", e);
}

/* Microseconds of one run; a first one loads the kernel. */
static int time_algo(struct gemm *g, const struct entry *t, const struct product *p, float *us,
                     struct err *e)
{
    const struct shape *s = &t->shape;
    const int repeats = (double)s->m * s->n * s->k < LONG_PRODUCT ? GEMM_REPEATS : 1;
    void *y = s->out == GEMM_ADD_F32 ? p->trial->scratch : p->y;
    float ms = 0.0f;
    int r = multiply(g, t, p, p->w, y, e);

    if (r == 0)
        r = cuda_check(cudaEventRecord(g->begin, p->stream), "timing", e);
    for (int i = 0; i < repeats && r == 0; i++, g->n_trials++)
        r = multiply(g, t, p, p->trial->w + g->n_trials % p->trial->n_w * p->trial->w_stride, y, e);
    if (r == 0)
        r = cuda_check(cudaEventRecord(g->end, p->stream), "timing", e);
    if (r == 0)
        r = cuda_check(cudaEventSynchronize(g->end), "timing", e);
    if (r == 0)
        r = cuda_check(cudaEventElapsedTime(&ms, g->begin, g->end), "timing", e);
    *us = ms * 1000.0f / (float)repeats;
    return r;
}

static struct algo_record *find_record(struct gemm *g, const struct shape *s)
{
    for (int i = 0; i < g->n_records; i++) {
        struct algo_record *r = &g->records[i];

        if (r->m == s->m && r->n == s->n && r->k == s->k && r->out == (int32_t)s->out &&
            r->y_stride == s->y_stride)
            return r;
    }
    return NULL;
}

/* What is remembered only chooses among the candidates that cuBLASLt names for the shape itself:
 * whatever a file holds, nothing else is ever run. */
static bool recall_algo(struct gemm *g, struct entry *t,
                        const cublasLtMatmulHeuristicResult_t *found, int n)
{
    const struct algo_record *record = find_record(g, &t->shape);

    for (int i = 0; record && i < n; i++)
        if (memcmp(&found[i].algo, record->algo, sizeof(record->algo)) == 0) {
            t->algo = found[i].algo;
            g->counts.n_remembered++;
            return true;
        }
    return false;
}

/* Candidates as cuBLASLt thinks them best; until there was time for a trial, the first it is. */
static int find_candidates(struct gemm *g, struct entry *t, struct err *e)
{
    cublasLtMatmulHeuristicResult_t found[GEMM_TRIED];
    const int wanted = t->shape.m <= FEW_ROWS ? FEW_TRIED : GEMM_TRIED;
    int n = 0;
    int r = lt_check(cublasLtMatmulAlgoGetHeuristic(g->handle, desc_of(g, &t->shape), t->w, t->x,
                                                    t->y, t->y, g->preference, wanted, found, &n),
                     "choosing an algorithm", e);

    if (r == 0 && n == 0)
        return err_set(e, -ENOTSUP, "cuBLASLt: no algorithm for [%d, %d] x [%d, %d]", t->shape.m,
                       t->shape.k, t->shape.k, t->shape.n);
    if (r < 0 || recall_algo(g, t, found, n))
        return r;
    t->candidates = malloc((size_t)n * sizeof(*t->candidates));
    if (!t->candidates)
        return err_set(e, -ENOMEM, "out of memory");
    for (int i = 0; i < n; i++)
        t->candidates[i] = found[i].algo;
    t->algo = found[0].algo;
    t->n_candidates = n;
    return 0;
}

static void settle(struct gemm *g, struct entry *t)
{
    const struct shape *s = &t->shape;
    struct algo_record *record = find_record(g, s);

    free(t->candidates);
    t->candidates = NULL;
    g->counts.n_timed++;
    if (!record && g->records && g->n_records < ALGO_FILE_MAX)
        record = &g->records[g->n_records++];
    if (!record)
        return;
    *record = (struct algo_record){.m = s->m,
                                   .n = s->n,
                                   .k = s->k,
                                   .out = (int32_t)s->out,
                                   .y_stride = s->y_stride,
                                   .us = t->us};
    memcpy(record->algo, &t->algo, sizeof(record->algo));
    g->unwritten = true;
}

static bool is_worth_trials(const struct gemm *g, struct entry *t)
{
    t->n_steps += t->step != g->step;
    t->step = g->step;
    return t->n_steps >= TRIED_FROM;
}

/* Times candidates while the step has time for it. */
static int try_candidates(struct gemm *g, struct entry *t, const struct product *p, struct err *e)
{
    enum cudaStreamCaptureStatus capturing;
    int r = cuda_check(cudaStreamIsCapturing(p->stream, &capturing), "timing", e);
    double begin;

    if (r == 0 && capturing == cudaStreamCaptureStatusNone && is_worth_trials(g, t) &&
        g->spent < STEP_SECONDS) {
        r = cuda_check(cudaStreamSynchronize(p->stream), "timing",
                       e); /* others' work is no trial */
        begin = now_seconds() - g->spent;
        while (r == 0 && t->n_tried < t->n_candidates && g->spent < STEP_SECONDS) {
            struct entry trial = *t;
            float us;

            trial.algo = t->candidates[t->n_tried];
            r = time_algo(g, &trial, p, &us, e);
            if (r == 0 && (t->n_tried == 0 || us < t->us)) {
                t->us = us;
                t->algo = trial.algo;
            }
            t->n_tried++;
            g->spent = now_seconds() - begin;
        }
        if (g->spent > g->counts.longest)
            g->counts.longest = g->spent;
    }
    if (r == 0 && t->n_tried == t->n_candidates)
        settle(g, t);
    else
        g->n_open++;
    return r;
}

/* Parts of k are products beside one another: where one begins in all three matrices. */
static int lay_out_parts(const struct entry *t, int parts, struct err *e)
{
    const struct shape *s = &t->shape;
    const int64_t in = s->k / parts, out = (int64_t)s->m * s->n;
    const cublasLtMatrixLayout_t layouts[] = {t->w, t->x, t->y};
    const int32_t n = parts;
    int r = 0;

    must(s->y_stride == s->n && s->k % parts == 0);
    for (int i = 0; i < 3 && r == 0; i++) {
        r = lt_check(cublasLtMatrixLayoutSetAttribute(layouts[i],
                                                      CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &n,
                                                      sizeof(n)),
                     "laying out", e);
        if (r == 0)
            r = lt_check(cublasLtMatrixLayoutSetAttribute(
                             layouts[i], CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET,
                             i < 2 ? &in : &out, sizeof(in)),
                         "laying out", e);
    }
    return r;
}

static int lay_out(struct entry *t, const struct shape *s, struct err *e)
{
    const cudaDataType_t type =
        s->out == GEMM_BF16 || s->out == GEMM_BIAS_BF16 ? CUDA_R_16BF : CUDA_R_32F;
    const int parts = s->out == GEMM_PARTS_F32 ? gemm_parts(s->m, s->n, s->k) : 1;
    const uint64_t k = (uint64_t)(s->k / parts);
    int r;

    t->shape = *s;
    r = lt_check(cublasLtMatrixLayoutCreate(&t->w, CUDA_R_16BF, k, (uint64_t)s->n, s->k),
                 "laying out", e);
    if (r == 0)
        r = lt_check(cublasLtMatrixLayoutCreate(&t->x, CUDA_R_16BF, k, (uint64_t)s->m, s->k),
                     "laying out", e);
    if (r == 0)
        r = lt_check(cublasLtMatrixLayoutCreate(&t->y, type, (uint64_t)s->n, (uint64_t)s->m,
                                                s->y_stride),
                     "laying out", e);
    return r == 0 && parts > 1 ? lay_out_parts(t, parts, e) : r;
}

/* One that is good for FIXED_ROWS rows, can be used for any number, and sums each result in one go.
 */
static int choose_fixed(struct gemm *g, struct entry *t, struct err *e)
{
    static const int probes[] = {16, 128, FIXED_ROWS, 16384};
    struct entry like[sizeof(probes) / sizeof(*probes)] = {0};
    const int n_probes = (int)(sizeof(probes) / sizeof(*probes));
    cublasLtMatmulHeuristicResult_t found[FIXED_TRIED], ignored;
    cublasLtMatmulDesc_t desc = desc_of(g, &t->shape);
    int n = 0, r = 0, chosen = -1;

    for (int i = 0; i < n_probes && r == 0; i++) {
        struct shape s = t->shape;

        s.m = probes[i];
        r = lay_out(&like[i], &s, e);
    }
    if (r == 0)
        r = lt_check(cublasLtMatmulAlgoGetHeuristic(g->handle, desc, like[2].w, like[2].x,
                                                    like[2].y, like[2].y, g->preference,
                                                    FIXED_TRIED, found, &n),
                     "choosing an algorithm", e);
    for (int i = 0; i < n && r == 0 && chosen < 0; i++) {
        int32_t splits = 0;
        bool fits =
            cublasLtMatmulAlgoConfigGetAttribute(&found[i].algo, CUBLASLT_ALGO_CONFIG_SPLITK_NUM,
                                                 &splits, sizeof(splits),
                                                 NULL) == CUBLAS_STATUS_SUCCESS &&
            splits <= 1;

        for (int j = 0; j < n_probes && fits; j++)
            fits =
                cublasLtMatmulAlgoCheck(g->handle, desc, like[j].w, like[j].x, like[j].y, like[j].y,
                                        &found[i].algo, &ignored) == CUBLAS_STATUS_SUCCESS;
        chosen = fits ? i : -1;
    }
    for (int i = 0; i < n_probes; i++)
        entry_clear(&like[i]);
    if (r == 0 && chosen < 0)
        r = err_set(e, -ENOTSUP, "cuBLASLt: no algorithm for [any, %d] x [%d, %d]", t->shape.k,
                    t->shape.k, t->shape.n);
    if (r == 0)
        t->algo = found[chosen].algo;
    return r;
}

static int entry_fill(struct gemm *g, struct entry *t, const struct shape *s, struct err *e)
{
    int r = lay_out(t, s, e);

    if (r == 0)
        r = g->fixed ? choose_fixed(g, t, e) : find_candidates(g, t, e);
    if (r < 0)
        entry_clear(t);
    return r;
}

static int lookup(struct gemm *g, struct entry **out, const struct shape *s, struct err *e)
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
        r = entry_fill(g, t, s, e);
        if (r < 0)
            return r;
    }
    *out = t;
    return 0;
}

int gemm_run(struct gemm *g, cudaStream_t stream, void *y, int64_t y_stride, const uint16_t *x,
             const uint16_t *w, const uint16_t *bias, int m, int n, int k, enum gemm_out out,
             const struct gemm_trial *trial, struct err *e)
{
    const struct shape s = {.m = m, .n = n, .k = k, .out = out, .y_stride = y_stride};
    const struct product p = {.stream = stream, .x = x, .w = w, .y = y, .trial = trial};
    struct entry *t = NULL;
    int r = 0;

    must((bias != NULL) == (out == GEMM_BIAS_BF16));
    if (bias)
        r = lt_check(cublasLtMatmulDescSetAttribute(g->with_bias, CUBLASLT_MATMUL_DESC_BIAS_POINTER,
                                                    &bias, sizeof(bias)),
                     "describing", e);
    if (r == 0)
        r = lookup(g, &t, &s, e);
    if (r == 0 && t->candidates)
        r = try_candidates(g, t, &p, e);
    return r < 0 ? r : multiply(g, t, &p, w, y, e);
}
