/* forward_products.c - the forward pass's products of many rows: what each multiplies, where its
 * sums go, and what its weights or its input are made into first. */
#include "cuda/forward_impl.h"

_Static_assert(GEMM_BLOCKS_K % 256 == 0, "stream_gemm() takes all that cuBLASLt takes as blocks");
_Static_assert((int)GEMM_PART_FLOATS <= (int)FORWARD_PART_FLOATS,
               "whichever kernel leaves parts, there is room");

/* Weights of bf16 that stream with more rows than a slice has, at most, of a model on one device.
 * Where they are few, blocks that had no tile take the second slice, and copies overlap the kernels
 * around the product, which those of cuBLASLt do not. (A step of 160 and 256 decodes at 512 to 656
 * tokens on an H200, 2026-11-30, and by cuBLASLt: 0.6B 3.43 and 4.95 ms, 3.76 and 5.28; 1.7B but
 * for its FFN, which makes no difference, 4.40 and 6.01, 4.54 and 6.14; 4B with qkv and o 7.43 and
 * 10.02, 6.98 and 9.52. Ranks were not measured.) */
enum { SLICED_WEIGHTS = 8 << 20 };

/* Whether stream_gemm() multiplies n_rows rows with w. */
static bool streams(const struct forward *f, const struct matrix *w, const struct matrix *bias,
                    int n_rows)
{
    const bool e4m3 = forward_gemm_in(f, w, bias) == GEMM_OF_E4M3_BLOCKS;
    const bool sliced = !e4m3 && f->peers.n == 1 && (int64_t)w->n * w->k <= SLICED_WEIGHTS;

    return f->streams && !f->invariant && (e4m3 || !w->scales) &&
           n_rows <= (sliced ? STREAM_MAX_ROWS : STREAM_SLICE_ROWS);
}

/* stream_gemm() of E4M3 cannot, and quantize() gates by itself. */
bool pass_gates(const struct forward *f, int layer, int n_rows)
{
    const struct layer_weights *l = &f->weights->layers[layer];

    return forward_is_ours(f, PRODUCT_GATE_UP, layer, n_rows) &&
           forward_gemm_in(f, &l->gate_up, NULL) == GEMM_OF_BF16 &&
           forward_gemm_in(f, &l->down, NULL) == GEMM_OF_BF16;
}

int pass_parts_of(const struct forward *f, int n_rows, const struct matrix *w)
{
    if (f->peers.n == 1 && streams(f, w, NULL, n_rows))
        return stream_parts(gemm_rows(n_rows), w->n, w->k, w->scales != NULL);
    return f->invariant || f->peers.n > 1 || forward_gemm_in(f, w, NULL) != GEMM_OF_BF16 ||
                   forward_is_int4(f, w, n_rows)
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

bool forward_is_ours(const struct forward *f, enum forward_product kind, int layer, int n_rows)
{
    const struct product of = describe(f, kind, layer);

    return streams(f, of.w, of.bias, n_rows) || forward_is_int4(f, of.w, n_rows);
}

static struct gemm_product product_of(const struct forward *f, enum forward_product kind, int layer,
                                      struct rows rows)
{
    const struct product of = describe(f, kind, layer);
    const struct matrix *w = of.w;
    const bool is_float = of.out == GEMM_ADD_F32 || of.out == GEMM_F32;
    const size_t element = is_float ? sizeof(float) : sizeof(uint16_t);
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
    if (f->peers.n > 1 && (kind == PRODUCT_O || kind == PRODUCT_DOWN)) {
        const bool bf16 = pass_parts_are_bf16(f, rows.n);
        char *parts =
            f->peers.parts[f->peers.me][kind == PRODUCT_O ? PARTS_OF_ATTENTION : PARTS_OF_FFN];

        p.y = parts + (size_t)rows.first * (size_t)w->n * sizeof(float); /* bf16: all rows */
        p.out = bf16 ? GEMM_BF16 : GEMM_F32;
        return p;
    }
    if ((kind == PRODUCT_O || kind == PRODUCT_DOWN) && pass_parts_of(f, rows.n, w) > 1) {
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

/* Where a product's input lies as E4M3. */
static struct e4m3_rows e4m3_input(const struct forward *f, enum gemm_in in, int n_rows)
{
    return (struct e4m3_rows){.x = f->x_e4m3,
                              .scales = f->x_scales,
                              .m = gemm_rows(n_rows),
                              .groups = in == GEMM_OF_E4M3_BLOCKS};
}

int pass_parts_before(const struct forward *f, enum forward_product kind, int layer, int n_rows)
{
    const struct layer_weights *l = &f->weights->layers[layer];

    if (kind == PRODUCT_GATE_UP)
        return pass_parts_of(f, n_rows, &l->o);
    return layer > 0 && forward_has_product(f, PRODUCT_DOWN) ? pass_parts_of(f, n_rows, &l[-1].down)
                                                             : 1;
}

struct e4m3_rows pass_normed_e4m3(const struct forward *f, enum forward_product kind, int layer,
                                  int n_rows)
{
    const struct product of = describe(f, kind, layer);
    const enum gemm_in in = forward_gemm_in(f, of.w, of.bias);
    const bool normed = kind == PRODUCT_QKV || kind == PRODUCT_GATE_UP;

    /* reduce() gives normed rows to all ranks, as bf16 */
    if (!normed || !forward_has_product(f, kind) || f->peers.n > 1 || in == GEMM_OF_BF16)
        return (struct e4m3_rows){0};
    return e4m3_input(f, in, n_rows);
}

/* Brings the weights to bf16 or the input to 8 bits, where the product takes that. The input of the
 * second FFN product comes from gate and up themselves then. */
static int prepare(const struct forward *f, enum forward_product kind, int layer, struct rows rows,
                   struct err *e)
{
    const struct product of = describe(f, kind, layer);
    const enum gemm_in in = forward_gemm_in(f, of.w, of.bias);
    const struct quant q = forward_quant(of.w);
    const struct e4m3_rows y = e4m3_input(f, in, rows.n);
    const bool gated = kind == PRODUCT_DOWN;
    const uint16_t *x = gated ? f->gate_up : of.x;

    if (q.element == ELEMENT_BF16)
        return 0;
    if (in == GEMM_OF_BF16)
        return cuda_check(dequantize(f->launch, f->dequantized, of.w->data, &q, of.w->n, of.w->k),
                          "dequantize", e);
    return cuda_check(quantize(f->launch, &y, x + (int64_t)rows.first * (gated ? 2 : 1) * of.w->k,
                               of.w->k, gated),
                      "quantize", e);
}

int forward_prepare_product(const struct forward *f, enum forward_product kind, int layer,
                            int n_rows, struct err *e)
{
    return prepare(f, kind, layer, (struct rows){0, n_rows}, e);
}

bool pass_in_halves(const struct forward *f, const struct matrix *w)
{
    const struct quant q = forward_quant(w);

    return f->invariant && f->peers.n == 1 && skinny_halves(&q, w->k);
}

/* A product for a kernel of ours, from what it is for cuBLASLt. */
static struct skinny skinny_of(const struct forward *f, enum forward_product kind, int layer,
                               struct rows rows, const struct gemm_product *of)
{
    static const enum skinny_out outs[N_GEMM_OUT] = {[GEMM_BF16] = SKINNY_BF16,
                                                     [GEMM_BIAS_BF16] = SKINNY_BF16,
                                                     [GEMM_F32] = SKINNY_F32,
                                                     [GEMM_PARTS_F32] = SKINNY_F32,
                                                     [GEMM_ADD_F32] = SKINNY_ADD_F32};
    const struct matrix *w = describe(f, kind, layer).w;
    struct skinny s = {.y = of->y,
                       .y_stride = of->y_stride,
                       .x = of->x,
                       .x_scales = of->x_scales,
                       .w = w->data,
                       .quant = forward_quant(w),
                       .bias = of->bias,
                       .m = of->m,
                       .n = of->n,
                       .k = of->k,
                       .out = outs[of->out]};

    if (kind == PRODUCT_GATE_UP && pass_gates(f, layer, rows.n)) {
        s.n /= 2;
        s.y = f->act + (int64_t)rows.first * s.n;
        s.y_stride = s.n;
        s.out = SKINNY_SILU_MUL;
    }
    return s;
}

static int run_stream(const struct pass *p, enum forward_product kind, int layer,
                      const struct skinny *s, int n_parts)
{
    const struct forward *f = p->f;
    const int next = kind == PRODUCT_QKV ? layer : layer + 1; /* whose attention comes next */
    struct kv_prefetch prefetch = {0};

    if (kind != PRODUCT_LM_HEAD) /* the layers' products come before it */
        prefetch = pass_kv_prefetch(p, next, (int)kind, PRODUCT_LM_HEAD);
    return cuda_check(stream_gemm(f->launch, s, n_parts, &prefetch), "stream_gemm", p->e);
}

int pass_gemm(const struct pass *p, enum forward_product kind, int layer, struct rows rows)
{
    const struct forward *f = p->f;
    const struct matrix *w = describe(f, kind, layer).w;
    struct gemm_product product = product_of(f, kind, layer, rows);
    const bool is_int4 = forward_is_int4(f, w, rows.n); /* the weights as they are */
    int r = 0;

    if (!is_int4 && !pass_normed_e4m3(f, kind, layer, rows.n).x)
        r = prepare(f, kind, layer, rows, p->e);
    if (r < 0)
        return r;
    if (forward_is_ours(f, kind, layer, rows.n)) {
        const struct skinny s = skinny_of(f, kind, layer, rows, &product);
        const bool in_parts = product.out == GEMM_PARTS_F32;

        return is_int4 ? cuda_check(int4_gemm(f->launch, &s, &f->int4_work), "int4_gemm", p->e)
                       : run_stream(p, kind, layer, &s, in_parts ? pass_parts_of(f, rows.n, w) : 1);
    }
    if (product.out != GEMM_ADD_F32 || !pass_in_halves(f, w))
        return gemm_run(f->gemm, f->launch->stream, &product, p->e);
    product.out = GEMM_ADD_HALF_F32;
    product.k /= 2;
    r = gemm_run(f->gemm, f->launch->stream, &product, p->e);
    product.x = (const uint16_t *)product.x + product.k;
    product.w = (const uint16_t *)product.w + product.k;
    return r < 0 ? r : gemm_run(f->gemm, f->launch->stream, &product, p->e);
}
