/* forward.c - see forward.h.
 *
 * Three ways. Decodes of few rows on a device that can: one resident kernel for all layers and the
 * LM head. Else two ways through a layer. Few rows: every product is a skinny_gemm that norms its
 * input (if short) and adds to or gates its output by itself, five kernels a layer. Many rows:
 * cuBLASLt, which can only add, with norms and gate as kernels of their own; where it has few tiles
 * for the machine it leaves sums over parts, and the norm behind them adds these.
 *
 * An invariant pass goes both ways: decodes by the one for few rows, however many they are, and
 * prompts by the one for many, with algorithms that do not depend on how many. So what a row gives
 * depends on what kind it is alone, and that never changes for one position of a sequence. */
#include "cuda/forward.h"

#include <errno.h>

#include "engine/util/must.h"

struct pass {
    const struct forward *f;
    const struct step_view *v;
    const struct forward_shape *s;
    int qkv_dim, attn_dim;
    struct err *e;
};

/* Rows first .. first + n - 1 of the activations. */
struct rows {
    int first, n;
};

static int skinny(const struct pass *p, struct skinny s)
{
    s.eps = p->f->config->rms_norm_eps;
    return cuda_check(skinny_gemm(p->f->launch, &s), "a product of few rows", p->e);
}

/* Elements from a layer's weights to the next layer's: layers are alike and lie one behind another.
 */
static int64_t layer_stride(const struct forward *f)
{
    const struct layer_weights *w = f->weights->layers;

    return f->config->n_layers > 1
               ? (const uint16_t *)w[1].qkv.data - (const uint16_t *)w[0].qkv.data
               : 0;
}

/* first: the same weights of layer 0. */
static int gemm(const struct pass *p, struct rows rows, void *y, const uint16_t *x,
                const uint16_t *w, const uint16_t *first, const uint16_t *bias, int n, int k,
                enum gemm_out out)
{
    const struct forward *f = p->f;
    const int n_layers = f->config->n_layers;
    const struct gemm_trial trial = {.scratch = f->gate_up, /* empty when anything is added */
                                     .w = first,
                                     .w_stride = layer_stride(f),
                                     .n_w = n_layers};

    y = (char *)y + (int64_t)rows.first * n * (out == GEMM_ADD_F32 ? 4 : 2); /* or it is 0 */
    x += (int64_t)rows.first * k;
    return gemm_run(f->gemm, f->launch->stream, y, n, x, w, bias, gemm_rows(rows.n), n, k, out,
                    &trial, p->e);
}

static int norm(const struct pass *p, struct rows rows, const uint16_t *w)
{
    const struct forward *f = p->f;
    const int dim = f->config->hidden_dim;
    const int64_t at = (int64_t)rows.first * dim;

    return cuda_check(rms_norm(f->launch, f->normed + at, f->residual + at, w, NULL, rows.n, dim,
                               f->config->rms_norm_eps),
                      "rms_norm", p->e);
}

/* Parts that products which add to the residual are computed in; 1: they add by themselves. */
static int parts_of(const struct pass *p, struct rows rows, int k)
{
    return p->f->invariant ? 1 : gemm_parts(gemm_rows(rows.n), p->f->config->hidden_dim, k);
}

/* Adds a product to the residual; in parts it is the next norm that adds them. */
static int add(const struct pass *p, struct rows rows, const uint16_t *x, const uint16_t *w,
               const uint16_t *first, int k, bool in_parts)
{
    const struct forward *f = p->f;

    return gemm(p, rows, in_parts ? f->parts : f->residual, x, w, first, NULL,
                f->config->hidden_dim, k, in_parts ? GEMM_PARTS_F32 : GEMM_ADD_F32);
}

/* The norm behind a product over k that was added. */
static int norm_behind(const struct pass *p, struct rows rows, const uint16_t *w, int k)
{
    const struct forward *f = p->f;
    const int dim = f->config->hidden_dim, n_parts = parts_of(p, rows, k);

    if (n_parts == 1)
        return norm(p, rows, w);
    must(rows.first == 0); /* parts are of all rows */
    return cuda_check(rms_norm_add(f->launch, f->normed, f->residual, f->parts, n_parts,
                                   (int64_t)gemm_rows(rows.n) * dim, w, rows.n, dim,
                                   f->config->rms_norm_eps),
                      "rms_norm", p->e);
}

/* Blocks that the keys of one tile are split over: one, unless the tiles leave most of the machine
 * idle and there are keys enough for several. */
static int prefill_splits(const struct pass *p)
{
    const int tiles = p->s->n_tiles * p->f->config->n_heads, least_keys = 512;
    const int wanted = 2 * p->f->launch->n_sms / tiles, useful = p->s->max_kv_len / least_keys;
    const int fitting = ATTN_SPLIT_BLOCKS / tiles;
    int n = wanted < useful ? wanted : useful;

    n = n < fitting ? n : fitting;
    return n < 2 ? 1 : n;
}

static int prefill(const struct pass *p, const struct attn *a)
{
    const struct forward *f = p->f;
    const bool sm90 = f->maps.usable;
    struct attn_prefill t = {.partial = f->prefill_partial,
                             .tickets = f->prefill_tickets,
                             .n_tiles = p->s->n_tiles,
                             .n_splits = 1,
                             .max_kv_len = p->s->max_kv_len};

    if (!f->invariant)
        t.n_splits = sm90
                         ? attn_prefill_sm90_splits(f->launch, t.n_tiles * a->n_heads, t.max_kv_len)
                         : prefill_splits(p);
    return cuda_check(sm90 ? attn_prefill_sm90(f->launch, a, &f->maps, p->v, &t)
                           : attn_prefill(f->launch, a, p->v, &t),
                      "attn_prefill", p->e);
}

/* Prompts go by rope_store(); decodes have the same in attention. */
static int attention(const struct pass *p, const struct layer_weights *w, int layer)
{
    const struct forward *f = p->f;
    const int n_decodes = p->s->n_decodes, n_prompts = p->s->n_tokens - n_decodes;
    const struct attn a = {.out = f->attn,
                           .q = f->qkv,
                           .q_stride = p->qkv_dim,
                           .n_heads = f->config->n_heads,
                           .layer = layer,
                           .kv = &f->kv};
    const struct rope rope = {.q_norm = w->q_norm.data,
                              .k_norm = w->k_norm.data,
                              .table = f->rope,
                              .eps = f->config->rms_norm_eps};
    int r = 0;

    if (n_prompts > 0)
        r = cuda_check(rope_store(f->launch, f->qkv, &rope, &f->kv, layer, p->v, n_decodes,
                                  n_prompts, f->config->n_heads),
                       "rope_store", p->e);
    if (r == 0 && p->s->n_items > 0)
        r = cuda_check(attn_decode(f->launch, &a, &rope, p->v, f->partial, f->tickets,
                                   p->s->n_items),
                       "attn_decode", p->e);
    if (r == 0 && p->s->n_tiles > 0)
        r = prefill(p, &a);
    return r;
}

/* A product of the normed residual: with the norm in it where it is short enough, else behind one.
 * Both give the same bits. */
static int skinny_of_normed(const struct pass *p, const uint16_t *norm_weight, struct skinny s)
{
    const struct forward *f = p->f;
    int r = 0;

    if (s.m <= SKINNY_MAX_ROWS && 2 * s.m * s.k <= SKINNY_NORM_BYTES) {
        s.x_f32 = f->residual;
        s.norm = norm_weight;
    } else {
        r = cuda_check(skinny_norm(f->launch, f->normed, f->rms, f->residual, norm_weight, s.m, s.k,
                                   f->config->rms_norm_eps),
                       "the norm before a product of few rows", p->e);
        s.x = f->normed;
        s.rms = f->rms;
    }
    return r < 0 ? r : skinny(p, s);
}

/* Few rows, the first ones: up to what attention wants. */
static int begin_few(const struct pass *p, const struct layer_weights *w, int n)
{
    return skinny_of_normed(p, w->attn_norm.data,
                            (struct skinny){.y = p->f->qkv,
                                            .y_stride = p->qkv_dim,
                                            .w = w->qkv.data,
                                            .bias = w->qkv_bias.data,
                                            .m = n,
                                            .n = p->qkv_dim,
                                            .k = p->f->config->hidden_dim,
                                            .out = SKINNY_BF16});
}

/* And from what attention gave on. */
static int end_few(const struct pass *p, const struct layer_weights *w, int n)
{
    const struct forward *f = p->f;
    const int dim = f->config->hidden_dim, ffn = f->config->ffn_dim;
    int r = skinny(p, (struct skinny){.y = f->residual,
                                      .y_stride = dim,
                                      .x = f->attn,
                                      .w = w->o.data,
                                      .m = n,
                                      .n = dim,
                                      .k = p->attn_dim,
                                      .out = SKINNY_ADD_F32});
    if (r == 0)
        r = skinny_of_normed(p, w->mlp_norm.data,
                             (struct skinny){.y = f->act,
                                             .y_stride = ffn,
                                             .w = w->gate_up.data,
                                             .m = n,
                                             .n = ffn,
                                             .k = dim,
                                             .out = SKINNY_SILU_MUL});
    if (r == 0)
        r = skinny(p, (struct skinny){.y = f->residual,
                                      .y_stride = dim,
                                      .x = f->act,
                                      .w = w->down.data,
                                      .m = n,
                                      .n = dim,
                                      .k = ffn,
                                      .out = SKINNY_ADD_F32});
    return r;
}

static int begin_many(const struct pass *p, const struct layer_weights *w, struct rows rows)
{
    const struct forward *f = p->f;
    const bool first = w == f->weights->layers;
    const int r = first ? norm(p, rows, w->attn_norm.data)
                        : norm_behind(p, rows, w->attn_norm.data, f->config->ffn_dim);

    return r < 0 ? r
                 : gemm(p, rows, f->qkv, f->normed, w->qkv.data, f->weights->layers->qkv.data,
                        w->qkv_bias.data, p->qkv_dim, f->config->hidden_dim,
                        w->qkv_bias.data ? GEMM_BIAS_BF16 : GEMM_BF16);
}

static int end_many(const struct pass *p, const struct layer_weights *w, struct rows rows)
{
    const struct forward *f = p->f;
    const struct layer_weights *first = f->weights->layers;
    const int dim = f->config->hidden_dim, ffn = f->config->ffn_dim;
    const int64_t at = (int64_t)rows.first * ffn;
    const bool last = w == first + f->config->n_layers - 1; /* no norm of all rows is behind it */
    int r = add(p, rows, f->attn, w->o.data, first->o.data, p->attn_dim,
                parts_of(p, rows, p->attn_dim) > 1);

    if (r == 0)
        r = norm_behind(p, rows, w->mlp_norm.data, p->attn_dim);
    if (r == 0)
        r = gemm(p, rows, f->gate_up, f->normed, w->gate_up.data, first->gate_up.data, NULL,
                 2 * ffn, dim, GEMM_BF16);
    if (r == 0)
        r = cuda_check(silu_mul(f->launch, f->act + at, f->gate_up + 2 * at, rows.n, ffn),
                       "silu_mul", p->e);
    if (r == 0)
        r = add(p, rows, f->act, w->down.data, first->down.data, ffn,
                !last && parts_of(p, rows, ffn) > 1);
    return r;
}

/* The first n_few rows one way, those after them the other. */
static int layer(const struct pass *p, int i, int n_few)
{
    const struct layer_weights *w = &p->f->weights->layers[i];
    const struct rows many = {n_few, p->s->n_tokens - n_few};
    int r = n_few > 0 ? begin_few(p, w, n_few) : 0;

    if (r == 0 && many.n > 0)
        r = begin_many(p, w, many);
    if (r == 0)
        r = attention(p, w, i);
    if (r == 0 && n_few > 0)
        r = end_few(p, w, n_few);
    if (r == 0 && many.n > 0)
        r = end_many(p, w, many);
    return r;
}

/* Logits of the rows that are sampled from. */
static int lm_head(const struct pass *p)
{
    const struct forward *f = p->f;
    const struct model_config *c = f->config;
    const struct gemm_trial trial = {.w = f->weights->lm_head.data, .n_w = 1};
    const int m = p->s->n_rows;
    int r = cuda_check(rms_norm(f->launch, f->normed, f->residual, f->weights->norm.data, p->v, m,
                                c->hidden_dim, c->rms_norm_eps),
                       "rms_norm", p->e);

    if (r < 0)
        return r;
    if (m <= SKINNY_MAX_ROWS || f->invariant)
        return skinny(p, (struct skinny){.y = f->logits,
                                         .y_stride = f->sampler.logits_stride,
                                         .x = f->normed,
                                         .w = f->weights->lm_head.data,
                                         .m = m,
                                         .n = c->vocab_size,
                                         .k = c->hidden_dim,
                                         .out = SKINNY_F32});
    return gemm_run(f->gemm, f->launch->stream, f->logits, f->sampler.logits_stride, f->normed,
                    f->weights->lm_head.data, NULL, gemm_rows(m), c->vocab_size, c->hidden_dim,
                    GEMM_F32, &trial, p->e);
}

void forward_plan_resident(struct forward *f, const struct model_config *c, int n_blocks,
                           int block_shift)
{
    f->resident = (struct resident){.n_layers = c->n_layers,
                                    .hidden = c->hidden_dim,
                                    .ffn = c->ffn_dim,
                                    .n_heads = c->n_heads,
                                    .vocab_size = c->vocab_size,
                                    .eps = c->rms_norm_eps,
                                    .kv = {.block_shift = block_shift,
                                           .n_kv_heads = c->n_kv_heads,
                                           .head_dim = c->head_dim},
                                    .max_rows = RESIDENT_MAX_ROWS,
                                    .n_blocks = n_blocks};
    while (f->resident.max_rows > 0 && !resident_supports(&f->resident))
        f->resident.max_rows /= 2;
    f->resident_rows = f->resident.max_rows;
}

void forward_ready_resident(struct forward *f)
{
    const struct layer_weights *w = f->weights->layers;

    f->resident.w = (struct resident_weights){.attn_norm = w->attn_norm.data,
                                              .qkv = w->qkv.data,
                                              .qkv_bias = w->qkv_bias.data,
                                              .q_norm = w->q_norm.data,
                                              .k_norm = w->k_norm.data,
                                              .o = w->o.data,
                                              .mlp_norm = w->mlp_norm.data,
                                              .gate_up = w->gate_up.data,
                                              .down = w->down.data,
                                              .layer_stride = layer_stride(f),
                                              .embed = f->weights->embed.data,
                                              .lm_head = f->weights->lm_head.data,
                                              .norm = f->weights->norm.data};
    f->resident.rope = f->rope;
    f->resident.kv = f->kv;
    f->resident.sampled = f->sampler.sampled;
    f->resident.logits = f->logits;
    f->resident.logits_stride = f->sampler.logits_stride;
}

static int resident(const struct forward *f, const struct step_view *v, int n_tokens, struct err *e)
{
    struct resident r = f->resident;

    r.step = *v;
    r.max_rows = n_tokens;
    return cuda_check(resident_run(f->launch, &r), "the resident kernel", e);
}

static int sample(const struct forward *f, const struct step_view *v, int n_rows, struct err *e)
{
    return cuda_check(sampler_run(f->launch, &f->sampler, v, n_rows), "sampling", e);
}

int forward_run(const struct forward *f, const struct step_view *v, const struct forward_shape *s,
                struct err *e)
{
    const struct model_config *c = f->config;
    const struct pass p = {.f = f,
                           .v = v,
                           .s = s,
                           .qkv_dim = (c->n_heads + 2 * c->n_kv_heads) * c->head_dim,
                           .attn_dim = c->n_heads * c->head_dim,
                           .e = e};
    const int n_few = f->invariant                     ? s->n_decodes
                      : s->n_tokens <= SKINNY_MAX_ROWS ? s->n_tokens
                                                       : 0;
    int r;

    if (s->n_tokens <= f->resident_rows && s->n_tiles == 0) {
        r = resident(f, v, s->n_tokens, e);
        return r < 0 || s->n_rows == 0 ? r : sample(f, v, s->n_rows, e);
    }
    r = cuda_check(embed(f->launch, f->residual, f->weights->embed.data, v, f->sampler.sampled,
                         s->n_tokens, c->hidden_dim, c->vocab_size),
                   "embed", e);

    for (int i = 0; i < c->n_layers && r == 0; i++)
        r = layer(&p, i, n_few);
    if (r < 0 || s->n_rows == 0)
        return r;
    r = lm_head(&p);
    return r < 0 ? r : sample(f, v, s->n_rows, e);
}
