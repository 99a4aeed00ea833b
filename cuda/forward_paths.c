/* forward_paths.c - which way a step goes, how quantized weights are multiplied, and what the
 * resident kernel has of the model; see forward.h. */
#include "cuda/forward.h"
#include "engine/model/quantization.h"
#include "engine/util/must.h"

/* Without records, where weights cannot stream. A step of 2, 4, 16 rows on an H200 by skinny
 * products and by cuBLASLt, 0.6B: 0.80 and 0.83, 0.90 and 0.86, 1.29 and 1.12 ms; 8B: 4.7
 * and 4.4, 4.8 and 4.5, 6.1 and 4.9. */
enum { SKINNY_ROWS = 2 };

/* The same of quantized weights. A layer of 8B on an H100 with 16 and 32 rows: where many rows take
 * activations of 8 bits 120 us, and by skinny products 100 and 130. Where a matrix becomes bf16
 * first, 128 and 256 rows of weights of 4 bits: 450 and 480 us, by skinny products 370 and 740. */
enum { SKINNY_QUANTIZED_ROWS = 16, SKINNY_DEQUANTIZED_ROWS = 128 };

/* Where all products of a layer stream as e4m3: a step of 8B on an H200 with 6, 8 and 16 rows takes
 * 2.9, 3.0 and 3.1 ms, by skinny products 3.9, 3.9 and 4.5. Fewer have the resident kernel. */
enum { SKINNY_STREAMED_ROWS = 4 };

/* For up to so many rows weights of 4 bits are multiplied as they are. Prompts of 256, 320, 384,
 * 512, 768 and 1,024 tokens through eight layers of 8B on an H200: 2.9, 3.5, 3.5, 4.3, 6.1 and 7.8
 * ms; where bf16 is made of the weights first, 130 us a layer, 3.2, 3.4, 3.6, 4.0, 5.3 and 6.3. */
enum { INT4_ROWS = 256 };

/* A product of a layer that is no expert's. */
struct dense {
    const struct matrix *w, *bias; /* NULL: there is none */
};

/* Returns how many a layer has. */
static int dense_of(const struct forward *f, const struct layer_weights *l, struct dense out[4])
{
    out[0] = (struct dense){&l->qkv, &l->qkv_bias};
    out[1] = (struct dense){&l->o, NULL};
    out[2] = (struct dense){&l->gate_up, NULL};
    out[3] = (struct dense){&l->down, NULL};
    return f->config->n_experts ? 2 : 4;
}

static bool all_stream_e4m3(const struct forward *f, const struct layer_weights *l)
{
    struct dense all[4];
    const int n = dense_of(f, l, all);

    for (int i = 0; i < n; i++)
        if (forward_gemm_in(f, all[i].w, all[i].bias) != GEMM_OF_E4M3_BLOCKS)
            return false;
    return f->streams;
}

/* A dense matrix, by which a layer is judged. */
static const struct matrix *example_of(const struct forward *f, const struct layer_weights *l)
{
    return f->config->n_experts ? &l->o : &l->gate_up;
}

/* The first layer where it is quantized, as not all need be; or NULL. */
static const struct layer_weights *first_quantized(const struct forward *f)
{
    for (int i = 0; i < f->config->n_layers; i++)
        if (example_of(f, &f->weights->layers[i])->scales)
            return &f->weights->layers[i];
    return NULL;
}

static int skinny_rows(const struct forward *f)
{
    const struct layer_weights *l = first_quantized(f);
    const struct matrix *w = l ? example_of(f, l) : NULL;

    if (!l)
        return f->streams ? 0 : SKINNY_ROWS;
    if (all_stream_e4m3(f, l))
        return SKINNY_STREAMED_ROWS;
    return forward_gemm_in(f, w, NULL) == GEMM_OF_BF16 && !forward_is_int4(f, w, 1)
               ? SKINNY_DEQUANTIZED_ROWS
               : SKINNY_QUANTIZED_ROWS;
}

void forward_choose_paths(struct forward *f, const struct algo_records *known)
{
    f->few_rows = f->config->quant ? FORWARD_FEW_ROWS : SKINNY_MAX_ROWS;
    for (int n = 1; n <= f->few_rows; n++) {
        int m = 1;
        float us[N_PATHS];

        while (m < n)
            m *= 2;
        for (int path = 0; path < N_PATHS; path++) {
            const struct algo_shape step = algo_step_shape(m, path);
            const struct algo_record *r = algo_find(known, &step);

            us[path] = r ? r->us : -1.0f;
        }
        f->chain_path[n] = n <= skinny_rows(f) ? PATH_SKINNY : PATH_GEMM;
        if (us[PATH_SKINNY] > 0 && us[PATH_GEMM] > 0)
            f->chain_path[n] = us[PATH_SKINNY] <= us[PATH_GEMM] ? PATH_SKINNY : PATH_GEMM;
        f->decode_path[n] = f->chain_path[n];
        if (n <= f->resident_rows &&
            !(us[PATH_RESIDENT] > us[f->chain_path[n]] && us[f->chain_path[n]] > 0))
            f->decode_path[n] = PATH_RESIDENT;
    }
}

enum forward_path forward_path_of(const struct forward *f, int n_tokens, bool prompts)
{
    if (n_tokens > f->few_rows)
        return PATH_GEMM;
    return prompts ? f->chain_path[n_tokens] : f->decode_path[n_tokens];
}

/* ---- quantized weights */

struct quant forward_quant(const struct matrix *w)
{
    return (struct quant){.element = !w->scales               ? ELEMENT_BF16
                                     : w->dtype == DTYPE_INT4 ? ELEMENT_INT4
                                                              : ELEMENT_E4M3,
                          .scales = w->scales,
                          .scales_f16 = w->scale_dtype == DTYPE_F16,
                          .zeros = w->zeros,
                          .scale_rows = w->scale_rows,
                          .scale_cols = w->scale_cols};
}

enum gemm_in forward_gemm_in(const struct forward *f, const struct matrix *w,
                             const struct matrix *bias)
{
    const bool rows = w->scale_rows == 1 && w->scale_cols == w->k;
    const bool blocks =
        w->scale_rows == GEMM_BLOCK && w->scale_cols == GEMM_BLOCK && w->k % GEMM_BLOCKS_K == 0;

    if (!w->scales || w->dtype != DTYPE_E4M3 || !f->e4m3 || (bias && bias->data))
        return GEMM_OF_BF16;
    return blocks ? GEMM_OF_E4M3_BLOCKS : rows ? GEMM_OF_E4M3 : GEMM_OF_BF16;
}

bool forward_is_int4(const struct forward *f, const struct matrix *w, int n_rows)
{
    return f->int4 && w->scales && w->dtype == DTYPE_INT4 && n_rows <= INT4_ROWS;
}

struct quantized_plan forward_plan_quantized(const struct forward *f)
{
    struct quantized_plan p = {0};

    for (int i = 0; i < f->config->n_layers; i++) {
        struct dense all[4];
        const int n_dense = dense_of(f, &f->weights->layers[i], all); /* those of experts stay so */

        for (int j = 0; j < n_dense; j++) {
            const struct matrix *w = all[j].w;
            const size_t n = (size_t)w->n, k = (size_t)w->k;

            if (!w->scales)
                continue;
            if (forward_is_int4(f, w, 1))
                int4_work_size(f->launch, &p.part_bytes, &p.n_counters);
            if (forward_gemm_in(f, w, all[j].bias) == GEMM_OF_BF16) {
                p.n_dequantized = n * k > p.n_dequantized ? n * k : p.n_dequantized;
            } else if (k > p.x_bytes) {
                p.x_bytes = k;
                p.n_x_scales = (k + GEMM_BLOCK - 1) / GEMM_BLOCK;
            }
        }
    }
    return p;
}

/* ---- the resident kernel */

/* False: the kernel is not made for such weights, or not all layers' are. */
static bool plan_quant(struct resident_quant *out, const struct model_config *c)
{
    static const enum weight_role roles[] = {WEIGHT_QKV, WEIGHT_O, WEIGHT_GATE_UP, WEIGHT_DOWN};
    const struct quantization *q = c->quant;
    const bool int4 = q && q->dtype == DTYPE_INT4;

    *out = (struct resident_quant){.element = ELEMENT_BF16};
    if (!q)
        return true;
    for (int32_t layer = 0; layer < c->n_layers; layer++)
        for (size_t i = 0; i < sizeof(roles) / sizeof(*roles); i++)
            if (!quantization_has(q, roles[i], layer))
                return false;
    *out = (struct resident_quant){.element = int4 ? ELEMENT_INT4 : ELEMENT_E4M3,
                                   .of_rows = q->scale_cols == 0,
                                   .zeros = q->zeros,
                                   .f16 = q->scale_dtype == DTYPE_F16};
    return q->scale_cols == QUANT_BLOCK ? q->scale_rows == (int4 ? 1 : QUANT_BLOCK)
                                        : q->scale_cols == 0 && !int4;
}

/* What the kernel reads of a projection, which must be as planned. */
static struct resident_scales scales_of(const struct resident_quant *q, const struct matrix *w)
{
    const bool int4 = q->element == ELEMENT_INT4,
               blocks = q->element == ELEMENT_E4M3 && !q->of_rows;
    const int32_t cols = q->of_rows ? w->k : QUANT_BLOCK;

    if (q->element != ELEMENT_BF16)
        must(w->scales && w->ld == w->k && w->dtype == (int4 ? DTYPE_INT4 : DTYPE_E4M3) &&
             w->scale_rows == (blocks ? QUANT_BLOCK : 1) && w->scale_cols == cols &&
             !w->zeros == !q->zeros && (w->scale_dtype == DTYPE_F16) == q->f16);
    return (struct resident_scales){w->scales, w->zeros};
}

void forward_plan_resident(struct forward *f, const struct model_config *c, int n_blocks,
                           int block_shift, bool fp8)
{
    f->resident = (struct resident){.n_layers = c->n_layers,
                                    .hidden = c->hidden_dim,
                                    .ffn = c->ffn_dim * (c->n_experts ? c->n_experts_per_tok : 1),
                                    .n_experts = c->n_experts,
                                    .n_picks = c->n_experts ? c->n_experts_per_tok : 1,
                                    .norm_topk = c->norm_topk,
                                    .n_heads = c->n_heads,
                                    .eps = c->rms_norm_eps,
                                    .kv = {.block_shift = block_shift,
                                           .n_kv_heads = c->n_kv_heads,
                                           .head_dim = c->head_dim,
                                           .fp8 = fp8},
                                    .max_rows = RESIDENT_MAX_ROWS,
                                    .n_blocks = n_blocks};
    if (!plan_quant(&f->resident.quant, c))
        f->resident.max_rows = 0;
    while (f->resident.max_rows > 0 && !resident_supports(&f->resident))
        f->resident.max_rows /= 2;
    f->resident_rows = f->resident.max_rows;
}

void forward_ready_resident(struct forward *f)
{
    const struct layer_weights *w = f->weights->layers;
    const uint16_t *first = w->qkv.data, *second = f->config->n_layers > 1 ? w[1].qkv.data : first;
    const struct resident_quant *q = &f->resident.quant;

    if (f->resident_rows == 0)
        return;
    f->resident.w = (struct resident_weights){.attn_norm = w->attn_norm.data,
                                              .qkv = w->qkv.data,
                                              .qkv_bias = w->qkv_bias.data,
                                              .q_norm = w->q_norm.data,
                                              .k_norm = w->k_norm.data,
                                              .o = w->o.data,
                                              .mlp_norm = w->mlp_norm.data,
                                              .router = w->router.data,
                                              .gate_up = w->gate_up.data,
                                              .down = w->down.data,
                                              .qkv_scales = scales_of(q, &w->qkv),
                                              .o_scales = scales_of(q, &w->o),
                                              .gate_up_scales = scales_of(q, &w->gate_up),
                                              .down_scales = scales_of(q, &w->down),
                                              .layer_stride = second - first,
                                              .lm_head = f->weights->lm_head.data,
                                              .norm = f->weights->norm.data};
    f->resident.embedding = f->peers.embedding;
    f->resident.n_logits = f->weights->lm_head.n;
    f->resident.me = f->peers.me;
    f->resident.clock = f->peers.barrier.clock;
    f->resident.rope = f->rope;
    f->resident.kv = f->kv;
    f->resident.sampled = f->sampler.sampled[f->peers.me];
    f->resident.logits = f->logits;
    f->resident.logits_stride = f->sampler.logits_stride;
}
