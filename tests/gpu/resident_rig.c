/* resident_rig.c - see resident_rig.h. */
#include "tests/gpu/resident_rig.h"

#include <math.h>
#include <string.h>

#include "engine/model/quantization.h"
#include "engine/model/rope.h"
#include "engine/util/must.h"
#include "tests/gpu/quant_rig.h"

enum {
    PROJECTIONS = 1 << (WEIGHT_QKV - N_MODEL_WEIGHTS) | 1 << (WEIGHT_O - N_MODEL_WEIGHTS) |
                  1 << (WEIGHT_GATE_UP - N_MODEL_WEIGHTS) | 1 << (WEIGHT_DOWN - N_MODEL_WEIGHTS),
    MOST_LAYERS = 36,
};

struct quantization rig_quantization(enum dtype dtype, int scale_rows, int scale_cols, bool zeros)
{
    static uint16_t layers[MOST_LAYERS];

    for (int i = 0; i < MOST_LAYERS; i++)
        layers[i] = PROJECTIONS;
    return (struct quantization){.dtype = dtype,
                                 .scale_dtype = dtype == DTYPE_E4M3 ? DTYPE_F32
                                                : zeros             ? DTYPE_F16
                                                                    : DTYPE_BF16,
                                 .zeros = zeros,
                                 .scale_rows = scale_rows,
                                 .scale_cols = scale_cols,
                                 .layers = layers};
}

/* Elements go on in the noise where those of the matrix before ended. */
static void fill_quantized(const struct matrix *m, const struct weight_format *f,
                           const struct device_array *noise, size_t *next)
{
    const size_t n = (size_t)matrix_scales(m), bytes = matrix_bytes(m);
    const struct device_array scales = array_new(n * (f->element == ELEMENT_E4M3 ? 4 : 2));
    const struct device_array zeros = array_new(n);

    for (size_t at = 0, here; at < bytes; at += here) {
        here = noise->bytes - *next < bytes - at ? noise->bytes - *next : bytes - at;
        cuda_must(cudaMemcpy((char *)m->data + at, (const char *)noise->device + *next, here,
                             cudaMemcpyDeviceToDevice));
        *next = (*next + here) % noise->bytes;
    }
    quant_fill_groups(f, &scales, &zeros, n, m->k);
    cuda_must(cudaMemcpy(m->scales, scales.host, scales.bytes, cudaMemcpyHostToDevice));
    if (m->zeros)
        cuda_must(cudaMemcpy(m->zeros, zeros.host, zeros.bytes, cudaMemcpyHostToDevice));
}

static void fill_projections(struct rig *r)
{
    const struct quantization *q = r->config.quant;
    const struct weight_format f = {q->dtype == DTYPE_INT4 ? ELEMENT_INT4 : ELEMENT_E4M3,
                                    q->scale_rows, q->scale_cols, q->zeros,
                                    q->scale_dtype == DTYPE_F16};
    const struct device_array noise = array_new(1000003); /* a period that no row has */
    size_t next = 0;

    quant_fill_elements(&f, &noise);
    for (int i = 0; i < r->config.n_layers; i++) {
        const struct layer_weights *l = &r->weights.layers[i];
        const struct matrix *const all[] = {&l->qkv, &l->o, &l->gate_up, &l->down};

        for (size_t j = 0; j < sizeof(all) / sizeof(*all); j++)
            fill_quantized(all[j], &f, &noise, &next);
    }
}

static void fill_weights(struct rig *r)
{
    struct weights *w = &r->weights;

    for (int32_t i = 0; i < w->n_pieces; i++) {
        const struct weight_part *p = &w->pieces[i].part;
        const enum weight_role role = p->tensor->role;
        const bool bias = role == WEIGHT_QKV_BIAS, norm = p->n_cols == 1 && !bias;
        float scale = 1.0f / sqrtf((float)p->n_cols);

        if (w->pieces[i].to->scales)
            continue;
        if (bias || role == WEIGHT_EMBED)
            scale = 1.0f;
        if (norm)
            scale = 0.3f;
        fill_noise(matrix_row(w->pieces[i].to, p->to_row), (size_t)(p->n_rows * p->n_cols),
                   norm ? 1.0f : 0.0f, scale);
    }
    if (w->quant)
        fill_projections(r);
}

static void make_experts(struct rig *r)
{
    struct arena measured = {0}, a = {0};

    experts_lay(&r->forward.experts, &measured, &r->config, RIG_ROWS);
    a.base = device_new(measured.used);
    experts_lay(&r->forward.experts, &a, &r->config, RIG_ROWS);
}

static void make_activations(struct rig *r)
{
    const struct model_config *c = &r->config;
    struct forward *f = &r->forward;
    const size_t rows = RIG_ROWS, dim = (size_t)c->hidden_dim, ffn = (size_t)c->ffn_dim;
    const size_t head_dim = (size_t)c->head_dim, heads = (size_t)c->n_heads;
    const size_t partials = (size_t)step_max_partials(&r->limits, RIG_ROWS);
    float inv_freq[ROPE_MAX_PAIRS];
    const size_t entry = (size_t)c->n_kv_heads * ATTN_GROUP * (head_dim + 2) * sizeof(float);

    f->rope = device_new((size_t)c->max_seq_len * head_dim * sizeof(float));
    f->residual = device_new(rows * dim * sizeof(float));
    f->normed = device_new(rows * dim * 2);
    f->rms = device_new(rows * sizeof(float));
    f->qkv = device_new(rows * (heads + 2 * (size_t)c->n_kv_heads) * head_dim * 2);
    f->attn = device_new(rows * heads * head_dim * 2);
    f->gate_up = device_new(rows * 2 * ffn * 2);
    f->act = device_new(rows * ffn * 2);
    f->partial = device_new(partials * entry);
    if (c->n_experts > 0)
        make_experts(r);
    f->counters = device_new(rows * (size_t)c->n_kv_heads * sizeof(int32_t));
    rope_frequencies(c, inv_freq);
    cuda_must(rope_table(&device.launch, f->rope, c->max_seq_len, inv_freq, c->head_dim / 2, 1.0f));
}

static void make_sampler(struct rig *r)
{
    const size_t stride = ((size_t)r->config.vocab_size + 7) & ~(size_t)7;
    const struct sampler_state greedy = {.n_logprobs = -1};
    struct sampler_memory *m = &r->forward.sampler;

    r->forward.logits = device_new(RIG_ROWS * stride * sizeof(float));
    *m = sampler_memory_new(r->forward.logits, r->config.vocab_size, RIG_ROWS,
                            device_new(RIG_ROWS * (2 + 2 * SAMPLING_MAX_LOGPROBS) * 4));
    m->scans = device_new(sampler_scan_bytes(&device.launch, m));
    for (int i = 0; i < RIG_ROWS; i++)
        cuda_must(cudaMemcpy(m->states + i, &greedy, sizeof(greedy), cudaMemcpyHostToDevice));
}

/* The exponent of a row's scale. Most rows are of numbers up to about 3, one in eight is smaller,
 * down to nothing beside the others. Values of each second sequence are larger by 2^14, up to the
 * most that rows have: what such a sequence gives is attention's alone. */
static uint8_t exponent_of_row(int seq, bool is_v)
{
    const uint32_t less = random_bits() % 8 == 0 ? random_bits() % 58 : 0;

    return (uint8_t)(118 + random_bits() % 3 - less + (is_v && seq % 2 ? 14 : 0));
}

static void fill_e4m3_keys(const struct rig *r, size_t pool_bytes)
{
    const struct kv_pool *kv = &r->forward.kv;
    const int planes = 2 * r->config.n_layers, rows = kv->n_kv_heads * r->block_len;
    uint8_t *pool = host_new(pool_bytes, 1);

    for (size_t i = 0; i < pool_bytes; i++)
        pool[i] = (uint8_t)(random_bits() % 2 * 128 + random_bits() % 127);
    for (int seq = 0; seq < RIG_ROWS; seq++)
        for (int i = 0; i < r->n_held[seq] * planes; i++) {
            const int id = r->block_table[seq * r->limits.max_blocks + i / planes];
            uint16_t *block = (uint16_t *)(void *)pool + id * kv->block_stride;
            uint8_t *exponents = kv_twin_of(kv, block, i % planes / 2, 0, 0, i % 2).exponent;

            for (int j = 0; j < rows; j++)
                exponents[j] = exponent_of_row(seq, i % 2);
        }
    cuda_must(cudaMemcpy(kv->base, pool, pool_bytes, cudaMemcpyHostToDevice));
}

/* Blocks of the sequences in mixed order. */
static void make_blocks(struct rig *r, bool fp8, const int *max_len)
{
    const struct model_config *c = &r->config;
    const int64_t rows = (int64_t)c->n_kv_heads * r->block_len;
    const int64_t v_offset = fp8 ? rows * (c->head_dim + 1) / 2 : rows * c->head_dim;
    const int max_blocks = r->limits.max_blocks;
    uint32_t n = 0, used = 0;

    for (int i = 0; i < RIG_ROWS; i++) {
        r->n_held[i] = (max_len[i] + r->block_len - 1) / r->block_len;
        n += (uint32_t)r->n_held[i];
    }
    r->n_blocks = (int)n;
    r->block_elements = 2 * v_offset * c->n_layers;
    r->forward.kv = (struct kv_pool){.base = device_new((size_t)n * (size_t)r->block_elements * 2),
                                     .block_stride = r->block_elements,
                                     .layer_stride = 2 * v_offset,
                                     .v_offset = v_offset,
                                     .block_shift = __builtin_ctz((unsigned)r->block_len),
                                     .n_kv_heads = c->n_kv_heads,
                                     .head_dim = c->head_dim,
                                     .n_blocks = r->n_blocks,
                                     .fp8 = fp8};
    r->block_table = host_new((size_t)(RIG_ROWS * max_blocks), sizeof(int32_t));
    for (int i = 0; i < RIG_ROWS; i++)
        for (int j = 0; j < max_blocks; j++)
            r->block_table[i * max_blocks + j] = j < r->n_held[i] ? scattered(used++, n) : -1;
    if (fp8)
        fill_e4m3_keys(r, (size_t)n * (size_t)r->block_elements * 2);
    else
        fill_noise(r->forward.kv.base, (size_t)n * (size_t)r->block_elements, 0.0f, 1.0f);
}

void rig_init(struct rig *r, const struct model_config *c, bool bias, bool fp8, int block_len,
              const int max_len[RIG_ROWS])
{
    struct forward *f = &r->forward;
    struct err e;
    int longest = 0;

    for (int i = 0; i < RIG_ROWS; i++)
        longest = max_len[i] > longest ? max_len[i] : longest;
    *r = (struct rig){.config = *c, .block_len = block_len};
    r->limits = (struct step_limits){.max_tokens = RIG_ROWS,
                                     .max_seqs = RIG_ROWS,
                                     .max_blocks = (longest + block_len - 1) / block_len,
                                     .block_len = block_len,
                                     .target_items = 49};
    r->config.qkv_bias = bias;
    r->config.qk_norm = !bias;
    err_must(weights_init(&r->weights, &r->config, (struct shard){.rank = 0, .tp_size = 1},
                          &cuda_weights_layout, &e),
             &e);
    weights_place(&r->weights, device_new(r->weights.bytes));
    fill_weights(r);
    f->config = &r->config;
    f->weights = &r->weights;
    f->launch = &device.launch;
    f->peers = (struct peers){.n = 1,
                              .embedding = {.tables = {r->weights.embed.data},
                                            .rows_per_rank = r->config.vocab_size,
                                            .vocab_size = r->config.vocab_size,
                                            .dim = r->config.hidden_dim}};
    make_activations(r);
    make_sampler(r);
    make_blocks(r, fp8, max_len);
    forward_plan_resident(f, &r->config, device.launch.n_sms, f->kv.block_shift, fp8);
    f->resident.exchange = device_new(resident_exchange_bytes(&f->resident));
    forward_ready_resident(f);
    cuda_must(resident_clear(f->launch, &f->resident));
    cuda_must(resident_init());
    r->step = device_new(step_max_bytes(&r->limits));
    cuda_must(cudaHostAlloc((void **)&r->pinned, step_max_bytes(&r->limits), 0));
    cuda_must(cudaDeviceSynchronize());
}

void rig_deinit(struct rig *r)
{
    cuda_must(cudaDeviceSynchronize());
    cuda_must(cudaFreeHost(r->pinned));
    weights_deinit(&r->weights);
    memory_free();
}

void rig_renew(struct rig *r)
{
    struct step_counts *counts = (struct step_counts *)(void *)r->pinned;

    if (resident_take_tags(&counts->tag, &r->last_tag, r->config.n_layers))
        cuda_must(resident_clear(&device.launch, &r->forward.resident));
    cuda_must(cudaMemcpyAsync(r->step, r->pinned, sizeof(struct step_counts),
                              cudaMemcpyHostToDevice, device.launch.stream));
}

struct step_view rig_step(struct rig *r, const int *kv_len, int n, bool skip_first)
{
    const int skipped = skip_first && n > 1;
    const struct batch_parts parts = {.n_tokens = n,
                                      .n_seqs = n,
                                      .n_decodes = n,
                                      .n_rows = n - skipped,
                                      .max_blocks = r->limits.max_blocks,
                                      .tokens = r->tokens,
                                      .positions = r->positions,
                                      .slots = r->slots,
                                      .q_start = r->q_start,
                                      .kv_len = r->kv_len,
                                      .block_table = r->block_table,
                                      .rows = r->rows};
    struct step_view v;

    for (int i = 0; i < n; i++) {
        const int at = kv_len[i] - 1;

        r->tokens[i] = i == 1 ? ~0 : (int32_t)(random_bits() % (uint32_t)r->config.vocab_size);
        r->positions[i] = at;
        r->kv_len[i] = kv_len[i];
        r->slots[i] = r->block_table[i * r->limits.max_blocks + at / r->block_len] * r->block_len +
                      at % r->block_len;
        r->q_start[i] = i;
        r->rows[i] = (struct batch_row){.row = i + skipped, .state = i, .mask = -1};
    }
    r->q_start[n] = n;
    cuda_must(cudaStreamSynchronize(device.launch.stream));
    (void)pack_parts(r->pinned, &v, r->step, &r->limits, &parts, 0);
    cuda_must(cudaMemcpy(r->step, r->pinned, step_max_bytes(&r->limits), cudaMemcpyHostToDevice));
    rig_renew(r);
    return v;
}

void rig_run(struct rig *r, const struct step_view *v, int n, int n_rows, bool resident)
{
    const struct forward_shape shape = {.n_tokens = n,
                                        .n_decodes = n,
                                        .n_rows = n_rows,
                                        .attn_blocks = step_max_items(&r->limits, n),
                                        .path = resident ? PATH_RESIDENT : PATH_SKINNY};
    struct forward f = r->forward;
    struct err e;

    must(!resident || n <= f.resident_rows);
    memset(f.chain_path, PATH_SKINNY, sizeof(f.chain_path));
    err_must(forward_run(&f, v, &shape, &e), &e);
}
