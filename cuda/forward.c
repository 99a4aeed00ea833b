/* forward.c - see forward.h.
 *
 * The resident path is one persistent kernel for all layers and the LM head (resident.cu). The
 * other two go layer by layer. Skinny: every product is a skinny_gemm that norms its input (where
 * that is short) and adds to or gates its output by itself, five kernels a layer. Gemm: norms are
 * kernels of their own, which leave what they norm as E4M3 where a product takes that. Products are
 * stream_gemm up to STREAM_SLICE_ROWS rows of bf16 and of E4M3 by blocks, or STREAM_MAX_ROWS of
 * bf16 where weights are few (SLICED_WEIGHTS), and int4_gemm up to INT4_ROWS rows of 4 bits; of
 * bf16 and 4 bits both gate by themselves. All else is cuBLASLt, which can only add. A product with
 * few tiles for the machine leaves sums over parts of k, and the norm after it adds these.
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
#include "cuda/forward_impl.h"

#include <errno.h>

#include "engine/util/must.h"

/* ---- ranks */

/* What other ranks have written is there behind it. */
static int barrier(const struct pass *p, enum peer_mark mark)
{
    struct peer_barrier b = p->f->peers.barrier;

    b.mark = mark;
    return cuda_check(peer_barrier(p->f->launch, &b), "a barrier of ranks", p->e);
}

/* Whether each rank norms a share of so many rows. */
static bool shares_rows(const struct forward *f, int n)
{
    return pass_parts_are_bf16(f, n) && !f->peers.exchange.nccl;
}

/* Rows of the step whose residual this rank keeps. */
static struct rows owned_rows(const struct pass *p)
{
    const struct peers *peers = &p->f->peers;
    const int n = p->s->n_tokens, share = (n + peers->n - 1) / peers->n;
    const int first = peers->me * share < n ? peers->me * share : n;

    if (!shares_rows(p->f, n))
        return (struct rows){0, n};
    return (struct rows){first, share < n - first ? share : n - first};
}

/* As reduce(), of parts that an exchange adds first. */
static int reduce_apart(const struct pass *p, int which, const uint16_t *w, bool gathered)
{
    const struct forward *f = p->f;
    const int n_tokens = p->s->n_tokens, dim = f->config->hidden_dim;
    void *parts = f->peers.parts[f->peers.me][which];
    const bool bf16 = pass_parts_are_bf16(f, n_tokens);
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
    const int r = exchange_sum(&f->peers.exchange, f->launch, parts, (size_t)n_tokens * (size_t)dim,
                               bf16, p->e);

    return r < 0 ? r : cuda_check(rms_norm(f->launch, &n), "rms_norm", p->e);
}

/* Adds what products have left in parts to the residual and norms the sum: of all rows, or of those
 * that are gathered. */
static int reduce(const struct pass *p, int which, const uint16_t *w, bool gathered)
{
    const struct forward *f = p->f;
    const struct peers *peers = &f->peers;
    const struct rows owned = owned_rows(p), all = {0, p->s->n_tokens};
    const bool shared = which != NO_PARTS && shares_rows(f, all.n);
    /* On a shared device rows that wait could keep those they wait for from running. */
    const bool pushed = all.n <= NORM_PUSHED_ROWS && f->launch->chained;
    const struct rows rows = shared ? owned : all;
    struct norm n = {.y = {f->normed},
                     .n_y = shared ? peers->n : 1,
                     .x = f->residual,
                     .w = w,
                     .first_row = rows.first,
                     .n_rows = gathered ? p->s->n_rows : rows.n,
                     .dim = f->config->hidden_dim,
                     .eps = f->config->rms_norm_eps,
                     .gather = gathered ? p->v : NULL,
                     .owned_rows = rows.n,
                     .n_parts = which == NO_PARTS ? 0 : peers->n,
                     .parts_bf16 = shared,
                     .me = peers->me,
                     .clock = pushed && which != NO_PARTS ? peers->barrier.clock : NULL};
    int rc = 0;

    if (peers->exchange.nccl && which != NO_PARTS)
        return reduce_apart(p, which, w, gathered);
    if (which != NO_PARTS && !pushed)
        rc = barrier(p, shared ? PEER_BEGIN : PEER_MEET);
    for (int i = 0; i < n.n_parts; i++) {
        n.parts[i] = peers->parts[i][which];
        n.y[i] = shared ? peers->normed[i] : n.y[i];
        n.inbox[i] = pushed ? peers->inbox[i][which] : NULL;
    }
    if (rc == 0 && n.n_rows > 0)
        rc = cuda_check(rms_norm(f->launch, &n), "rms_norm", p->e);
    return rc == 0 && shared ? barrier(p, PEER_END) : rc;
}

/* What a product of n_rows rows has left in parts, for the norm behind it. */
static void take_parts(const struct forward *f, struct norm *n, int n_rows, int n_parts)
{
    if (n_parts == 1)
        return;
    n->n_parts = n_parts;
    for (int i = 0; i < n_parts; i++)
        n->parts[i] = f->parts + (int64_t)i * gemm_rows(n_rows) * n->dim;
}

/* The norm of rows before a product of a layer, which takes them as E4M3 or as bf16. n_parts: as
 * pass_parts_before(); 1 where skinny products have added to the residual. */
static int norm(const struct pass *p, struct rows rows, enum forward_product kind, int layer,
                int n_parts)
{
    const struct forward *f = p->f;
    const struct layer_weights *w = &f->weights->layers[layer];
    const int dim = f->config->hidden_dim;
    const int64_t at = (int64_t)rows.first * dim;
    struct norm n = {.y = {f->normed + at},
                     .e4m3 = pass_normed_e4m3(f, kind, layer, rows.n),
                     .x = f->residual + at,
                     .w = kind == PRODUCT_QKV ? w->attn_norm.data : w->mlp_norm.data,
                     .n_rows = rows.n,
                     .dim = dim,
                     .eps = f->config->rms_norm_eps};

    must(n_parts == 1 || rows.first == 0); /* parts are of all rows */
    take_parts(f, &n, rows.n, n_parts);
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
                             .in_halves = pass_in_halves(f, &f->weights->layers[layer].down)};

    if (f->peers.n > 1) {
        r.y = (float *)(void *)f->peers.parts[f->peers.me][PARTS_OF_FFN] + at;
        r.out = pass_parts_are_bf16(f, rows.n) ? EXPERT_SUM_BF16 : EXPERT_SUM_F32;
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
    if ((r = pass_gemm(p, PRODUCT_GATE_UP, layer, rows)) < 0)
        return r;
    if (!pass_gates(f, layer, rows.n) &&
        forward_gemm_in(f, &f->weights->layers[layer].down, NULL) == GEMM_OF_BF16 &&
        (r = cuda_check(silu_mul(f->launch, f->act + at, f->gate_up + 2 * at, rows.n,
                                 f->config->ffn_dim),
                        "silu_mul", p->e)) < 0)
        return r;
    return pass_gemm(p, PRODUCT_DOWN, layer, rows);
}

/* A layer up to attention, and from there on. */
static int begin_gemm(const struct pass *p, int layer, struct rows rows)
{
    const int n_parts = pass_parts_before(p->f, PRODUCT_QKV, layer, rows.n);
    const int r = norm(p, rows, PRODUCT_QKV, layer, n_parts);

    return r < 0 ? r : pass_gemm(p, PRODUCT_QKV, layer, rows);
}

static int end_gemm(const struct pass *p, int layer, struct rows rows)
{
    const int n_parts = pass_parts_before(p->f, PRODUCT_GATE_UP, layer, rows.n);
    int r;

    if ((r = pass_gemm(p, PRODUCT_O, layer, rows)) < 0 ||
        (r = norm(p, rows, PRODUCT_GATE_UP, layer, n_parts)) < 0)
        return r;
    return ffn_gemm(p, layer, rows);
}

/* ---- products of few rows */

static int skinny(const struct pass *p, const struct matrix *w, struct skinny s)
{
    s.w = w->data;
    s.quant = forward_quant(w);
    s.k = w->k;
    s.n = s.out == SKINNY_SILU_MUL ? w->n / 2 : w->n;
    if (s.out == SKINNY_ADD_F32 && pass_in_halves(p->f, w))
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
        r = norm(p, (struct rows){0, n}, PRODUCT_GATE_UP, layer, 1);
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
    char *const *parts = f->peers.parts[f->peers.me];
    const enum skinny_sum sum = f->invariant && f->peers.n == 2 ? SKINNY_HALF : SKINNY_WHOLE;
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
        (rest.n > 0 && (r = pass_gemm(p, PRODUCT_QKV, i, rest)) < 0) ||
        (n_skinny > 0 && (r = skinny_of_reduced(p, &w->qkv, w->attn_norm.data, qkv)) < 0) ||
        (r = pass_attention(p, w, i)) < 0 || (n_skinny > 0 && (r = skinny(p, &w->o, o)) < 0) ||
        (rest.n > 0 && (r = pass_gemm(p, PRODUCT_O, i, rest)) < 0) ||
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
        (rest.n > 0 && (r = begin_gemm(p, i, rest)) < 0) || (r = pass_attention(p, w, i)) < 0 ||
        (n_skinny > 0 && (r = end_skinny(p, i, n_skinny)) < 0))
        return r;
    return rest.n > 0 ? end_gemm(p, i, rest) : 0;
}

/* The final norm of one rank: of all rows, or of those that are gathered. */
static int norm_last(const struct pass *p, bool gathered)
{
    const struct forward *f = p->f;
    const int n_tokens = p->s->n_tokens;
    struct norm n = {.y = {f->normed},
                     .x = f->residual,
                     .w = f->weights->norm.data,
                     .n_rows = gathered ? p->s->n_rows : n_tokens,
                     .dim = f->config->hidden_dim,
                     .eps = f->config->rms_norm_eps,
                     .gather = gathered ? p->v : NULL,
                     .owned_rows = n_tokens};

    if (p->s->path == PATH_GEMM)
        take_parts(f, &n, n_tokens,
                   pass_parts_before(f, PRODUCT_LM_HEAD, f->config->n_layers, n_tokens));
    return cuda_check(rms_norm(f->launch, &n), "rms_norm", p->e);
}

/* The final norm: of the rows that are sampled from, or of all, which are summed as the step asks
 * before those move to where the LM head reads them. */
static int final_norm(const struct pass *p)
{
    const struct forward *f = p->f;
    const struct forward_shape *s = p->s;
    const int dim = f->config->hidden_dim;
    const bool gathered = s->n_sums == 0;
    int r = f->peers.n > 1 ? reduce(p, PARTS_OF_FFN, f->weights->norm.data, gathered)
                           : norm_last(p, gathered);

    if (r < 0 || s->n_sums == 0)
        return r;
    if (f->peers.me == 0)
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
    return pass_gemm(p, PRODUCT_LM_HEAD, 0, (struct rows){0, m});
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
    int r = cuda_check(embed(f->launch, f->residual, &f->peers.embedding, p->v,
                             f->sampler.sampled[f->peers.me], n_tokens),
                       "embed", p->e);

    if (r == 0 && f->peers.exchange.nccl)
        r = exchange_sum(&f->peers.exchange, f->launch, f->residual,
                         (size_t)n_tokens * (size_t)f->config->hidden_dim, false, p->e);
    if (r == 0 && p->s->chunk_blocks > 0)
        r = pass_begin_offloaded(p);
    for (int i = 0; i < f->config->n_layers && r == 0; i++)
        r = f->peers.n > 1 ? layer_of_ranks(p, i, n_skinny) : layer(p, i, n_skinny);
    if (r == 0 && (p->s->n_rows > 0 || p->s->n_sums > 0))
        r = final_norm(p);
    return r < 0 || p->s->n_rows == 0 ? r : lm_head(p);
}

static int sample(const struct pass *p, int n_rows, bool whole_rows)
{
    const struct forward *f = p->f;
    int r;

    if (f->peers.exchange.nccl)
        return exchange_sample(&f->peers.exchange, f->launch, &f->sampler, p->v, n_rows, whole_rows,
                               p->e);
    r = cuda_check(sampler_scan(f->launch, &f->sampler, p->v, n_rows), "sampling", p->e);
    if (r == 0 && f->peers.n > 1)
        r = barrier(p, PEER_MEET);
    return r < 0 || f->peers.me > 0
               ? r
               : cuda_check(sampler_finish(f->launch, &f->sampler, p->v, n_rows), "sampling", p->e);
}

static int end(const struct pass *p, int n_rows, bool whole_rows)
{
    const struct peers *peers = &p->f->peers;
    const int r = n_rows > 0 ? sample(p, n_rows, whole_rows) : 0;

    /* The next step writes parts and logits that others may still read, and begins with what rank 0
     * has sampled. */
    return r == 0 && peers->n > 1 && !peers->exchange.nccl ? barrier(p, PEER_STEP_END) : r;
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
