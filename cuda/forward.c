/* forward.c - see forward.h.
 *
 * The resident path is one persistent kernel for all layers and the LM head (resident.cu). The
 * other two go layer by layer. Skinny: every product is a skinny_gemm that norms its input (where
 * that is short) and adds to or gates its output by itself, five kernels a layer. Gemm: cuBLASLt,
 * which can only add, with norms and gate as kernels of their own; a product with few tiles for the
 * machine leaves sums over parts of k, and the norm after it adds these.
 *
 * The FFN of a mixture of experts is that of experts.h on both.
 *
 * With two ranks the resident kernels of both exchange their sums by themselves. The other paths
 * leave theirs in parts, and the norm after them is a kernel of its own, which adds those of all
 * ranks, or what an exchange has made of them.
 *
 * An invariant pass takes two paths at once: decodes go the skinny way, however many they are,
 * prompts the gemm way, with algorithms that do not depend on how many rows there are. So a row's
 * result depends on its kind alone, and that never changes for one position of a sequence. One rank
 * sums products over heads and FFN columns in two halves then, as two ranks do. */
#include "cuda/forward.h"

#include <errno.h>

#include "engine/util/must.h"

struct pass {
    const struct forward *f;
    const struct step_view *v;
    const struct forward_shape *s;
    struct err *e;
};

/* Rows first .. first + n - 1 of the activations. */
struct rows {
    int first, n;
};

static int qkv_dim(const struct forward *f)
{
    return (f->config->n_heads + 2 * f->config->n_kv_heads) * f->config->head_dim;
}

/* ---- ranks */

/* What other ranks have written is there behind it. */
static int barrier(const struct pass *p, enum peer_mark mark)
{
    struct peer_barrier b = p->f->ranks.barrier;

    b.mark = mark;
    return cuda_check(peer_barrier(p->f->launch, &b), "a barrier of ranks", p->e);
}

/* Whether parts of so many rows are bf16. */
static bool parts_are_bf16(const struct forward *f, int n)
{
    return f->ranks.n > 1 && n > NORM_PUSHED_ROWS && !f->invariant;
}

/* Whether each rank norms a share of so many rows. */
static bool shares_rows(const struct forward *f, int n)
{
    return parts_are_bf16(f, n) && !f->ranks.exchange.nccl;
}

/* Rows of the step whose residual this rank keeps. */
static struct rows owned_rows(const struct pass *p)
{
    const struct forward_ranks *r = &p->f->ranks;
    const int n = p->s->n_tokens, share = (n + r->n - 1) / r->n;
    const int first = r->me * share < n ? r->me * share : n;

    if (!shares_rows(p->f, n))
        return (struct rows){0, n};
    return (struct rows){first, share < n - first ? share : n - first};
}

enum { PARTS_OF_ATTENTION, PARTS_OF_FFN, NO_PARTS };

/* As reduce(), of parts that an exchange adds first. */
static int reduce_apart(const struct pass *p, int which, const uint16_t *w, bool gathered)
{
    const struct forward *f = p->f;
    const int n_tokens = p->s->n_tokens, dim = f->config->hidden_dim;
    void *parts = f->ranks.parts[f->ranks.me][which];
    const bool bf16 = parts_are_bf16(f, n_tokens);
    const struct norm n = {.y = {f->normed},
                           .x = f->residual,
                           .w = w,
                           .n_rows = gathered ? p->s->n_rows : n_tokens,
                           .dim = dim,
                           .eps = f->config->rms_norm_eps,
                           .gather = gathered ? p->v : NULL,
                           .owned_rows = n_tokens,
                           .n_parts = 1,
                           .parts = {parts},
                           .parts_bf16 = bf16};
    const int r = exchange_sum(&f->ranks.exchange, f->launch, parts, (size_t)n_tokens * (size_t)dim,
                               bf16, p->e);

    return r < 0 ? r : cuda_check(rms_norm(f->launch, &n), "rms_norm", p->e);
}

/* Adds what products have left in parts to the residual and norms the sum: of all rows, or of those
 * that are gathered. */
static int reduce(const struct pass *p, int which, const uint16_t *w, bool gathered)
{
    const struct forward *f = p->f;
    const struct forward_ranks *r = &f->ranks;
    const struct rows owned = owned_rows(p), all = {0, p->s->n_tokens};
    const bool shared = which != NO_PARTS && shares_rows(f, all.n);
    /* On a shared device rows that wait could keep those they wait for from running. */
    const bool pushed = all.n <= NORM_PUSHED_ROWS && f->launch->chained;
    const struct rows rows = shared ? owned : all;
    struct norm n = {.y = {f->normed},
                     .n_y = shared ? r->n : 1,
                     .x = f->residual,
                     .w = w,
                     .first_row = rows.first,
                     .n_rows = gathered ? p->s->n_rows : rows.n,
                     .dim = f->config->hidden_dim,
                     .eps = f->config->rms_norm_eps,
                     .gather = gathered ? p->v : NULL,
                     .owned_rows = rows.n,
                     .n_parts = which == NO_PARTS ? 0 : r->n,
                     .parts_bf16 = shared,
                     .me = r->me,
                     .clock = pushed && which != NO_PARTS ? r->barrier.clock : NULL};
    int rc = 0;

    if (r->exchange.nccl && which != NO_PARTS)
        return reduce_apart(p, which, w, gathered);
    if (which != NO_PARTS && !pushed)
        rc = barrier(p, shared ? PEER_BEGIN : PEER_MEET);
    for (int i = 0; i < n.n_parts; i++) {
        n.parts[i] = r->parts[i][which];
        n.y[i] = shared ? r->normed[i] : n.y[i];
        n.inbox[i] = pushed ? r->inbox[i][which] : NULL;
    }
    if (rc == 0 && n.n_rows > 0)
        rc = cuda_check(rms_norm(f->launch, &n), "rms_norm", p->e);
    return rc == 0 && shared ? barrier(p, PEER_END) : rc;
}

/* ---- products of many rows */

/* Parts that products which add to the residual are computed in; 1: they add by themselves. */
static int parts_of(const struct forward *f, int n_rows, const struct matrix *w)
{
    return f->invariant || f->ranks.n > 1 || forward_gemm_in(f, w, NULL) != GEMM_OF_BF16
               ? 1
               : gemm_parts(gemm_rows(n_rows), f->config->hidden_dim, w->k);
}

/* A product of many rows, before it is known how its weights are multiplied. */
struct product {
    const struct matrix *w, *bias; /* NULL: there is none */
    const uint16_t *x;             /* [rows, w->k] */
    void *y;
    enum gemm_out out;
};

static struct product describe(const struct forward *f, enum forward_product kind, int layer)
{
    const struct layer_weights *l = &f->weights->layers[layer];
    const struct product of[N_PRODUCTS] = {
        [PRODUCT_QKV] = {&l->qkv, &l->qkv_bias, f->normed, f->qkv,
                         l->qkv_bias.data ? GEMM_BIAS_BF16 : GEMM_BF16},
        [PRODUCT_O] = {&l->o, NULL, f->attn, f->residual, GEMM_ADD_F32},
        [PRODUCT_GATE_UP] = {&l->gate_up, NULL, f->normed, f->gate_up, GEMM_BF16},
        [PRODUCT_DOWN] = {&l->down, NULL, f->act, f->residual, GEMM_ADD_F32},
        [PRODUCT_LM_HEAD] = {&f->weights->lm_head, NULL, f->normed, f->logits, GEMM_F32},
    };

    return of[kind];
}

static struct gemm_product product_of(const struct forward *f, enum forward_product kind, int layer,
                                      struct rows rows)
{
    const struct product of = describe(f, kind, layer);
    const struct matrix *w = of.w;
    const bool is_float = of.out == GEMM_ADD_F32 || of.out == GEMM_F32;
    const size_t element = is_float ? sizeof(float) : sizeof(uint16_t);
    const bool last = layer == f->config->n_layers - 1;
    struct gemm_product p = {
        .y = (char *)of.y + (size_t)rows.first * (size_t)w->n * element,
        .y_stride = kind == PRODUCT_LM_HEAD ? f->sampler.logits_stride : w->n,
        .in = forward_gemm_in(f, w, of.bias),
        .x = of.x + (int64_t)rows.first * w->k,
        .w = w->scales ? f->dequantized : w->data,
        .bias = of.bias ? of.bias->data : NULL,
        .m = gemm_rows(rows.n),
        .n = w->n,
        .k = w->k,
        .out = of.out,
    };

    if (p.in != GEMM_OF_BF16) {
        p.x = f->x_e4m3;
        p.x_scales = f->x_scales;
        p.w = w->data;
        p.w_scales = w->scales;
    }
    if (f->ranks.n > 1 && (kind == PRODUCT_O || kind == PRODUCT_DOWN)) {
        const bool bf16 = parts_are_bf16(f, rows.n);
        char *parts =
            f->ranks.parts[f->ranks.me][kind == PRODUCT_O ? PARTS_OF_ATTENTION : PARTS_OF_FFN];

        p.y = parts + (size_t)rows.first * (size_t)w->n * sizeof(float); /* bf16: all rows */
        p.out = bf16 ? GEMM_BF16 : GEMM_F32;
        return p;
    }
    /* after the last layer no norm of all rows adds the parts */
    if ((kind == PRODUCT_O || (kind == PRODUCT_DOWN && !last)) && parts_of(f, rows.n, w) > 1) {
        p.y = f->parts;
        p.out = GEMM_PARTS_F32;
    }
    return p;
}

bool forward_has_product(const struct forward *f, enum forward_product kind)
{
    return f->config->n_experts == 0 || (kind != PRODUCT_GATE_UP && kind != PRODUCT_DOWN);
}

struct gemm_product forward_product(const struct forward *f, enum forward_product kind, int layer,
                                    int n_rows)
{
    return product_of(f, kind, layer, (struct rows){0, n_rows});
}

/* Brings the weights to bf16 or the input to 8 bits, where the product takes that. The input of the
 * second FFN product comes from gate and up themselves then. */
static int prepare(const struct forward *f, enum forward_product kind, int layer, struct rows rows,
                   struct err *e)
{
    const struct product of = describe(f, kind, layer);
    const enum gemm_in in = forward_gemm_in(f, of.w, of.bias);
    const struct quant q = forward_quant(of.w);
    const bool gated = kind == PRODUCT_DOWN;
    const uint16_t *x = gated ? f->gate_up : of.x;

    if (q.element == ELEMENT_BF16)
        return 0;
    if (in == GEMM_OF_BF16)
        return cuda_check(dequantize(f->launch, f->dequantized, of.w->data, &q, of.w->n, of.w->k),
                          "dequantize", e);
    return cuda_check(quantize(f->launch, f->x_e4m3, f->x_scales,
                               x + (int64_t)rows.first * (gated ? 2 : 1) * of.w->k,
                               gemm_rows(rows.n), of.w->k, in == GEMM_OF_E4M3_BLOCKS, gated),
                      "quantize", e);
}

int forward_prepare_product(const struct forward *f, enum forward_product kind, int layer,
                            int n_rows, struct err *e)
{
    return prepare(f, kind, layer, (struct rows){0, n_rows}, e);
}

/* One rank of an invariant pass adds what two ranks would have in parts. */
static bool in_halves(const struct forward *f, const struct matrix *w)
{
    const struct quant q = forward_quant(w);

    return f->invariant && f->ranks.n == 1 && skinny_halves(&q, w->k);
}

static int gemm(const struct pass *p, enum forward_product kind, int layer, struct rows rows)
{
    const struct forward *f = p->f;
    struct gemm_product product = product_of(f, kind, layer, rows);
    int r = prepare(f, kind, layer, rows, p->e);

    if (r < 0)
        return r;
    if (product.out != GEMM_ADD_F32 || !in_halves(f, describe(f, kind, layer).w))
        return gemm_run(f->gemm, f->launch->stream, &product, p->e);
    product.out = GEMM_ADD_HALF_F32;
    product.k /= 2;
    r = gemm_run(f->gemm, f->launch->stream, &product, p->e);
    product.x = (const uint16_t *)product.x + product.k;
    product.w = (const uint16_t *)product.w + product.k;
    return r < 0 ? r : gemm_run(f->gemm, f->launch->stream, &product, p->e);
}

/* The norm of rows after a product with `before`, added to the residual or left in parts; NULL:
 * none. */
static int norm(const struct pass *p, struct rows rows, const uint16_t *w,
                const struct matrix *before)
{
    const struct forward *f = p->f;
    const int dim = f->config->hidden_dim, n_parts = before ? parts_of(f, rows.n, before) : 1;
    const int64_t at = (int64_t)rows.first * dim;
    struct norm n = {.y = {f->normed + at},
                     .x = f->residual + at,
                     .w = w,
                     .n_rows = rows.n,
                     .dim = dim,
                     .eps = f->config->rms_norm_eps};

    if (n_parts > 1) {
        must(rows.first == 0); /* parts are of all rows */
        n.n_parts = n_parts;
        for (int i = 0; i < n_parts; i++)
            n.parts[i] = f->parts + (int64_t)i * gemm_rows(rows.n) * dim;
    }
    return cuda_check(rms_norm(f->launch, &n), "rms_norm", p->e);
}

/* ---- experts */

/* Of normed rows; `decodes` take the skinny path where that must not depend on their number. */
static int ffn_experts(const struct pass *p, int layer, struct rows rows, bool decodes)
{
    const struct forward *f = p->f;
    const int64_t at = (int64_t)rows.first * f->config->hidden_dim;
    struct experts_rows r = {.x = f->normed + at,
                             .y = f->residual + at,
                             .out = EXPERT_SUM_ADD_F32,
                             .first = rows.first,
                             .n = rows.n,
                             .counts = p->v->counts,
                             .path = !f->invariant ? EXPERTS_BY_ROWS
                                     : decodes     ? EXPERTS_FEW
                                                   : EXPERTS_MANY,
                             .in_halves = in_halves(f, &f->weights->layers[layer].down)};

    if (f->ranks.n > 1) {
        r.y = (float *)(void *)f->ranks.parts[f->ranks.me][PARTS_OF_FFN] + at;
        r.out = parts_are_bf16(f, rows.n) ? EXPERT_SUM_BF16 : EXPERT_SUM_F32;
    }
    return experts_run(&f->experts, f->launch, &f->weights->layers[layer], &r, p->e);
}

/* ---- a layer by products of many rows */

/* Of normed rows. */
static int ffn_gemm(const struct pass *p, int layer, struct rows rows)
{
    const struct forward *f = p->f;
    const int64_t at = (int64_t)rows.first * f->config->ffn_dim;
    int r;

    if (f->config->n_experts)
        return ffn_experts(p, layer, rows, false);
    if ((r = gemm(p, PRODUCT_GATE_UP, layer, rows)) < 0)
        return r;
    if (forward_gemm_in(f, &f->weights->layers[layer].down, NULL) == GEMM_OF_BF16 &&
        (r = cuda_check(silu_mul(f->launch, f->act + at, f->gate_up + 2 * at, rows.n,
                                 f->config->ffn_dim),
                        "silu_mul", p->e)) < 0)
        return r;
    return gemm(p, PRODUCT_DOWN, layer, rows);
}

/* A layer up to attention, and from there on. */
static int begin_gemm(const struct pass *p, int layer, struct rows rows)
{
    const struct layer_weights *w = &p->f->weights->layers[layer];
    const bool after_down = layer > 0 && forward_has_product(p->f, PRODUCT_DOWN);
    const int r = norm(p, rows, w->attn_norm.data, after_down ? &w[-1].down : NULL);

    return r < 0 ? r : gemm(p, PRODUCT_QKV, layer, rows);
}

static int end_gemm(const struct pass *p, int layer, struct rows rows)
{
    const struct layer_weights *w = &p->f->weights->layers[layer];
    int r;

    if ((r = gemm(p, PRODUCT_O, layer, rows)) < 0 ||
        (r = norm(p, rows, w->mlp_norm.data, &w->o)) < 0)
        return r;
    return ffn_gemm(p, layer, rows);
}

/* ---- attention */

enum {
    FETCH_BESIDE = 4, /* thread blocks, while others compute */
    FETCH_ALONE = 32,
};

/* Begins to fetch what earlier steps wrote of a layer, once attention has read what is there. */
static int fetch_old(const struct pass *p, int layer)
{
    const struct ring *r = &p->f->ring;
    const struct launch l = {.stream = r->stream, .n_sms = p->f->launch->n_sms};
    const int i = layer % 2;
    cudaError_t code = cudaStreamWaitEvent(r->stream, r->empty[i], 0);

    if (code == cudaSuccess && p->s->chunk_old > 0)
        code = fetch_blocks(&l, r->kv[i].base, &p->f->kv, layer, p->s->chunk_table, p->s->chunk_old,
                            FETCH_BESIDE);
    if (code == cudaSuccess)
        code = cudaEventRecord(r->full[i], r->stream);
    return cuda_check(code, "fetching an offloaded sequence", p->e);
}

/* Before a step's first layer. */
static int begin_offloaded(const struct pass *p)
{
    const struct ring *r = &p->f->ring;
    cudaError_t code = cudaEventRecord(r->begun, p->f->launch->stream);
    int rc;

    if (code == cudaSuccess)
        code = cudaStreamWaitEvent(r->stream, r->begun, 0);
    rc = cuda_check(code, "fetching an offloaded sequence", p->e);
    for (int layer = 0; layer < 2 && layer < p->f->config->n_layers && rc == 0; layer++)
        rc = fetch_old(p, layer);
    return rc;
}

static int prefill(const struct pass *p, const struct attn *a, const struct attn_maps *maps,
                   const struct step_view *v)
{
    const struct forward *f = p->f;
    struct attn_prefill t = {.partial = f->prefill_partial,
                             .counters = f->prefill_counters,
                             .n_tiles = p->s->n_tiles,
                             .n_splits = 1,
                             .max_kv_len = p->s->max_kv_len};

    if (!f->invariant)
        t.n_splits = attn_prefill_splits(f->launch, t.n_tiles * a->n_heads, t.max_kv_len);
    return cuda_check(maps->usable ? attn_prefill_sm90(f->launch, a, maps, v, &t)
                                   : attn_prefill(f->launch, a, v, &t),
                      "attn_prefill", p->e);
}

/* This step's keys and values have been stored in host memory; they come back from there, and the
 * others have been fetched meanwhile. */
static int prefill_offloaded(const struct pass *p, const struct attn *a)
{
    const struct forward *f = p->f;
    const struct forward_shape *s = p->s;
    const struct ring *ring = &f->ring;
    const struct kv_pool *kv = &ring->kv[a->layer % 2];
    struct attn from = *a;
    struct step_view v = *p->v;
    cudaStream_t stream = f->launch->stream;
    int r = cuda_check(fetch_blocks(f->launch, kv->base + s->chunk_old * kv->block_stride, &f->kv,
                                    a->layer, s->chunk_table + s->chunk_old,
                                    s->chunk_blocks - s->chunk_old, FETCH_ALONE),
                       "fetch_blocks", p->e);

    from.kv = kv;
    from.layer = 0;
    v.tables = ring->table;
    if (r < 0 ||
        (r = cuda_check(cudaStreamWaitEvent(stream, ring->full[a->layer % 2], 0), "a layer",
                        p->e)) < 0 ||
        (r = prefill(p, &from, &ring->maps[a->layer % 2], &v)) < 0 ||
        (r = cuda_check(cudaEventRecord(ring->empty[a->layer % 2], stream), "a layer", p->e)) < 0)
        return r;
    return a->layer + 2 < f->config->n_layers ? fetch_old(p, a->layer + 2) : 0;
}

/* Prompts are normed, rotated and stored by rope_store(); decodes in the attention kernel, which
 * reads keys of earlier steps before the kernel ahead of it ends. With drafts all keys are stored
 * first, and then it waits. */
static int attention(const struct pass *p, const struct layer_weights *w, int layer)
{
    const struct forward *f = p->f;
    const int n_decodes = p->s->n_decodes, n_prompts = p->s->n_tokens - n_decodes;
    struct launch decode = *f->launch;
    const struct attn a = {.out = f->attn,
                           .q = f->qkv,
                           .q_stride = qkv_dim(f),
                           .n_heads = f->config->n_heads,
                           .layer = layer,
                           .kv = &f->kv,
                           .drafts = p->s->drafts && !f->invariant};
    const struct rope rope = {.q_norm = w->q_norm.data,
                              .k_norm = w->k_norm.data,
                              .table = f->rope,
                              .eps = f->config->rms_norm_eps};
    int r;

    decode.chained = decode.chained && !p->s->drafts;
    if (n_prompts > 0 && (r = cuda_check(rope_store(f->launch, f->qkv, &rope, &f->kv, layer, p->v,
                                                    n_decodes, n_prompts, f->config->n_heads, true),
                                         "rope_store", p->e)) < 0)
        return r;
    if (p->s->drafts && (r = cuda_check(rope_store(f->launch, f->qkv, &rope, &f->kv, layer, p->v, 0,
                                                   n_decodes, f->config->n_heads, false),
                                        "rope_store", p->e)) < 0)
        return r;
    if (p->s->n_items > 0 && (r = cuda_check(attn_decode(&decode, &a, &rope, p->v, f->partial,
                                                         f->counters, p->s->n_items),
                                             "attn_decode", p->e)) < 0)
        return r;
    if (p->s->chunk_blocks > 0)
        return prefill_offloaded(p, &a);
    return p->s->n_tiles > 0 ? prefill(p, &a, &f->maps, p->v) : 0;
}

/* ---- products of few rows */

static int skinny(const struct pass *p, const struct matrix *w, struct skinny s)
{
    s.w = w->data;
    s.quant = forward_quant(w);
    s.k = w->k;
    s.n = s.out == SKINNY_SILU_MUL ? w->n / 2 : w->n;
    if (s.out == SKINNY_ADD_F32 && in_halves(p->f, w))
        s.sum = SKINNY_HALVES;
    s.y_stride = s.y_stride ? s.y_stride : s.n;
    s.eps = p->f->config->rms_norm_eps;
    return cuda_check(skinny_gemm(p->f->launch, &s), "a product of few rows", p->e);
}

/* A product of the normed residual; a short one norms it itself, which gives the same bits. */
static int skinny_of_normed(const struct pass *p, const struct matrix *w,
                            const uint16_t *norm_weight, struct skinny s)
{
    const struct forward *f = p->f;
    int r = 0;

    if (s.m <= SKINNY_MAX_ROWS && 2 * s.m * w->k <= SKINNY_NORM_BYTES) {
        s.x_f32 = f->residual;
        s.norm = norm_weight;
    } else {
        r = cuda_check(skinny_norm(f->launch, f->normed, f->rms, f->residual, norm_weight, s.m,
                                   w->k, f->config->rms_norm_eps),
                       "the norm before a product of few rows", p->e);
        s.x = f->normed;
        s.rms = f->rms;
    }
    return r < 0 ? r : skinny(p, w, s);
}

/* Of rows that reduce() has normed, by the arithmetic of one rank where that must not matter. */
static int skinny_of_reduced(const struct pass *p, const struct matrix *w,
                             const uint16_t *norm_weight, struct skinny s)
{
    if (p->f->invariant)
        return skinny_of_normed(p, w, norm_weight, s);
    s.x = p->f->normed;
    return skinny(p, w, s);
}

/* The first n rows of a layer up to attention, and from there on. */
static int begin_skinny(const struct pass *p, const struct layer_weights *w, int n)
{
    return skinny_of_normed(
        p, &w->qkv, w->attn_norm.data,
        (struct skinny){.y = p->f->qkv, .bias = w->qkv_bias.data, .m = n, .out = SKINNY_BF16});
}

static int end_skinny(const struct pass *p, int layer, int n)
{
    const struct forward *f = p->f;
    const struct layer_weights *w = &f->weights->layers[layer];
    const struct skinny o = {.y = f->residual, .x = f->attn, .m = n, .out = SKINNY_ADD_F32};
    const struct skinny gate_up = {.y = f->act, .m = n, .out = SKINNY_SILU_MUL};
    const struct skinny down = {.y = f->residual, .x = f->act, .m = n, .out = SKINNY_ADD_F32};
    int r;

    if ((r = skinny(p, &w->o, o)) < 0)
        return r;
    if (f->config->n_experts) {
        r = norm(p, (struct rows){0, n}, w->mlp_norm.data, NULL);
        return r < 0 ? r : ffn_experts(p, layer, (struct rows){0, n}, true);
    }
    r = skinny_of_normed(p, &w->gate_up, w->mlp_norm.data, gate_up);
    if (r < 0)
        return r;
    return skinny(p, &w->down, down);
}

/* The same with several ranks: rows are normed all together. */
static int layer_of_ranks(const struct pass *p, int i, int n_skinny)
{
    const struct forward *f = p->f;
    const struct layer_weights *w = &f->weights->layers[i];
    const struct rows rest = {n_skinny, p->s->n_tokens - n_skinny};
    char *const *parts = f->ranks.parts[f->ranks.me];
    const enum skinny_sum sum = f->invariant && f->ranks.n == 2 ? SKINNY_HALF : SKINNY_WHOLE;
    const struct skinny qkv = {.y = f->qkv,
                               .bias = w->qkv_bias.data,
                               .m = n_skinny,
                               .out = SKINNY_BF16};
    const struct skinny o = {
        .y = parts[PARTS_OF_ATTENTION], .x = f->attn, .m = n_skinny, .out = SKINNY_F32, .sum = sum};
    const struct skinny gate_up = {.y = f->act, .m = n_skinny, .out = SKINNY_SILU_MUL};
    const struct skinny down = {
        .y = parts[PARTS_OF_FFN], .x = f->act, .m = n_skinny, .out = SKINNY_F32, .sum = sum};
    int r;

    if ((r = reduce(p, i > 0 ? PARTS_OF_FFN : NO_PARTS, w->attn_norm.data, false)) < 0 ||
        (rest.n > 0 && (r = gemm(p, PRODUCT_QKV, i, rest)) < 0) ||
        (n_skinny > 0 && (r = skinny_of_reduced(p, &w->qkv, w->attn_norm.data, qkv)) < 0) ||
        (r = attention(p, w, i)) < 0 || (n_skinny > 0 && (r = skinny(p, &w->o, o)) < 0) ||
        (rest.n > 0 && (r = gemm(p, PRODUCT_O, i, rest)) < 0) ||
        (r = reduce(p, PARTS_OF_ATTENTION, w->mlp_norm.data, false)) < 0)
        return r;
    if (n_skinny > 0 && f->config->n_experts)
        r = ffn_experts(p, i, (struct rows){0, n_skinny}, true);
    else if (n_skinny > 0 &&
             (r = skinny_of_reduced(p, &w->gate_up, w->mlp_norm.data, gate_up)) == 0)
        r = skinny(p, &w->down, down);
    if (r < 0)
        return r;
    return rest.n > 0 ? ffn_gemm(p, i, rest) : 0;
}

/* The first n_skinny rows one way, those after them the other. */
static int layer(const struct pass *p, int i, int n_skinny)
{
    const struct layer_weights *w = &p->f->weights->layers[i];
    const struct rows rest = {n_skinny, p->s->n_tokens - n_skinny};
    int r;

    if ((n_skinny > 0 && (r = begin_skinny(p, w, n_skinny)) < 0) ||
        (rest.n > 0 && (r = begin_gemm(p, i, rest)) < 0) || (r = attention(p, w, i)) < 0 ||
        (n_skinny > 0 && (r = end_skinny(p, i, n_skinny)) < 0))
        return r;
    return rest.n > 0 ? end_gemm(p, i, rest) : 0;
}

/* The final norm: of the rows that are sampled from, or of all, which are summed as the step asks
 * before those move to where the LM head reads them. */
static int final_norm(const struct pass *p)
{
    const struct forward *f = p->f;
    const struct forward_shape *s = p->s;
    const int dim = f->config->hidden_dim;
    int r =
        reduce(p, f->ranks.n > 1 ? PARTS_OF_FFN : NO_PARTS, f->weights->norm.data, s->n_sums == 0);

    if (r < 0 || s->n_sums == 0)
        return r;
    if (f->ranks.me == 0)
        r = cuda_check(sum_rows(f->launch, s->sums, f->normed, p->v->sums, s->n_sums, dim),
                       "sum_rows", p->e);
    if (r < 0 || s->n_rows == 0)
        return r;
    r = cuda_check(gather_rows(f->launch, f->gate_up, f->normed, p->v, s->n_rows, dim),
                   "gather_rows", p->e);
    return r < 0 ? r
                 : cuda_check(cudaMemcpyAsync(f->normed, f->gate_up,
                                              (size_t)s->n_rows * (size_t)dim * sizeof(*f->normed),
                                              cudaMemcpyDeviceToDevice, f->launch->stream),
                              "gathering rows", p->e);
}

/* Logits of the rows that are sampled from. */
static int lm_head(const struct pass *p)
{
    const struct forward *f = p->f;
    const int m = p->s->n_rows;

    if (f->invariant || (m <= SKINNY_MAX_ROWS && f->chain_path[m] == PATH_SKINNY))
        return skinny(p, &f->weights->lm_head,
                      (struct skinny){.y = f->logits,
                                      .y_stride = f->sampler.logits_stride,
                                      .x = f->normed,
                                      .m = m,
                                      .out = SKINNY_F32});
    return gemm(p, PRODUCT_LM_HEAD, 0, (struct rows){0, m});
}

/* ---- the resident kernel */

static int resident(const struct pass *p)
{
    struct resident r = p->f->resident;

    r.step = *p->v;
    r.max_rows = p->s->n_tokens;
    return cuda_check(resident_run(p->f->launch, &r), "the resident kernel", p->e);
}

/* ---- a pass */

/* Layer by layer. */
static int chain(const struct pass *p)
{
    const struct forward *f = p->f;
    const int n_tokens = p->s->n_tokens;
    const int n_skinny = f->invariant ? p->s->n_decodes : p->s->path == PATH_SKINNY ? n_tokens : 0;
    int r = cuda_check(embed(f->launch, f->residual, &f->ranks.embedding, p->v,
                             f->sampler.sampled[f->ranks.me], n_tokens),
                       "embed", p->e);

    if (r == 0 && f->ranks.exchange.nccl)
        r = exchange_sum(&f->ranks.exchange, f->launch, f->residual,
                         (size_t)n_tokens * (size_t)f->config->hidden_dim, false, p->e);
    if (r == 0 && p->s->chunk_blocks > 0)
        r = begin_offloaded(p);
    for (int i = 0; i < f->config->n_layers && r == 0; i++)
        r = f->ranks.n > 1 ? layer_of_ranks(p, i, n_skinny) : layer(p, i, n_skinny);
    if (r == 0 && (p->s->n_rows > 0 || p->s->n_sums > 0))
        r = final_norm(p);
    return r < 0 || p->s->n_rows == 0 ? r : lm_head(p);
}

static int sample(const struct pass *p, int n_rows, bool whole_rows)
{
    const struct forward *f = p->f;
    int r;

    if (f->ranks.exchange.nccl)
        return exchange_sample(&f->ranks.exchange, f->launch, &f->sampler, p->v, n_rows, whole_rows,
                               p->e);
    r = cuda_check(sampler_scan(f->launch, &f->sampler, p->v, n_rows), "sampling", p->e);
    if (r == 0 && f->ranks.n > 1)
        r = barrier(p, PEER_MEET);
    return r < 0 || f->ranks.me > 0
               ? r
               : cuda_check(sampler_finish(f->launch, &f->sampler, p->v, n_rows), "sampling", p->e);
}

static int end(const struct pass *p, int n_rows, bool whole_rows)
{
    const struct forward_ranks *ranks = &p->f->ranks;
    const int r = n_rows > 0 ? sample(p, n_rows, whole_rows) : 0;

    /* The next step writes parts and logits that others may still read, and begins with what rank 0
     * has sampled. */
    return r == 0 && ranks->n > 1 && !ranks->exchange.nccl ? barrier(p, PEER_STEP_END) : r;
}

int forward_sample(const struct forward *f, const struct step_view *v, int n_rows, struct err *e)
{
    const struct pass p = {.f = f, .v = v, .e = e};

    return end(&p, n_rows, false);
}

int forward_run(const struct forward *f, const struct step_view *v, const struct forward_shape *s,
                struct err *e)
{
    const struct pass p = {.f = f, .v = v, .s = s, .e = e};
    const int r = s->path == PATH_RESIDENT && !f->invariant ? resident(&p) : chain(&p);

    return r < 0 || s->logits_only ? r : end(&p, s->n_rows, s->whole_rows);
}

int forward_capture(cudaGraphExec_t *out, const struct forward *f, const struct step_view *v,
                    const struct forward_shape *s, struct err *e)
{
    cudaGraph_t graph = NULL;
    int r = cuda_check(cudaStreamBeginCapture(f->launch->stream, cudaStreamCaptureModeThreadLocal),
                       "capturing a step", e);
    int ended;

    if (r < 0)
        return r;
    r = forward_run(f, v, s, e);
    ended = cuda_check(cudaStreamEndCapture(f->launch->stream, &graph), "capturing a step",
                       r < 0 ? NULL : e);
    if (r == 0)
        r = ended;
    if (r == 0)
        r = cuda_check(cudaGraphInstantiate(out, graph, 0), "instantiating a graph", e);
    if (graph)
        (void)cudaGraphDestroy(graph);
    return r;
}
