/* resident_rig.c - see resident_rig.h. */
#include "tests/gpu/resident_rig.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/util/bf16.h"
#include "engine/util/must.h"
#include "tests/tools/make_batch.h"

enum { NOISE = 1000003 }; /* different random numbers */

static void *take(struct rig *r, size_t bytes)
{
    void *p;

    must(r->n_taken < (int)(sizeof(r->taken) / sizeof(*r->taken)));
    cuda_must(cudaMalloc(&p, bytes));
    cuda_must(cudaMemset(p, 0, bytes));
    cuda_must(cudaDeviceSynchronize()); /* or it may come after what other streams write */
    r->taken[r->n_taken++] = p;
    return p;
}

/* n random numbers around `mean`; long arrays repeat them with a period that no row has. */
static void fill_noise(uint16_t *to, size_t n, float mean, float scale)
{
    static float normal[NOISE];
    static uint16_t scaled[NOISE];
    const size_t start = random_bits() % NOISE;
    size_t have = n < NOISE ? n : NOISE;

    for (int i = 0; i < NOISE && normal[0] == 0.0f; i++)
        normal[NOISE - 1 - i] = random_normal() + 1e-6f;
    for (size_t i = 0; i < have; i++)
        scaled[i] = bf16_from_f32(mean + scale * normal[(start + i) % NOISE]);
    cuda_must(cudaMemcpy(to, scaled, have * sizeof(*scaled), cudaMemcpyHostToDevice));
    for (size_t more; have < n; have += more) {
        more = n - have < have ? n - have : have;
        cuda_must(cudaMemcpy(to + have, to, more * sizeof(*to), cudaMemcpyDeviceToDevice));
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

        if (bias || role == WEIGHT_EMBED)
            scale = 1.0f;
        if (norm)
            scale = 0.3f;
        fill_noise(matrix_row(w->pieces[i].to, p->to_row), (size_t)(p->n_rows * p->n_cols),
                   norm ? 1.0f : 0.0f, scale);
    }
}

static void make_activations(struct rig *r)
{
    const struct model_config *c = &r->config;
    struct forward *f = &r->forward;
    const size_t rows = RIG_ROWS, dim = (size_t)c->hidden_dim, ffn = (size_t)c->ffn_dim;
    const size_t head_dim = (size_t)c->head_dim, heads = (size_t)c->n_heads;
    const size_t partials = (size_t)step_max_partials(&r->limits, RIG_ROWS);
    const size_t entry = (size_t)c->n_kv_heads * ATTN_GROUP * (head_dim + 2) * sizeof(float);

    f->rope = take(r, (size_t)c->max_seq_len * head_dim * sizeof(float));
    f->residual = take(r, rows * dim * sizeof(float));
    f->normed = take(r, rows * dim * 2);
    f->rms = take(r, rows * sizeof(float));
    f->qkv = take(r, rows * (heads + 2 * (size_t)c->n_kv_heads) * head_dim * 2);
    f->attn = take(r, rows * heads * head_dim * 2);
    f->gate_up = take(r, rows * 2 * ffn * 2);
    f->act = take(r, rows * ffn * 2);
    f->partial = take(r, partials * entry);
    f->counters = take(r, rows * (size_t)c->n_kv_heads * sizeof(int32_t));
    cuda_must(rope_table(&r->device.launch, f->rope, c->max_seq_len, c->head_dim, c->rope_theta));
}

static void make_sampler(struct rig *r)
{
    struct sampler_memory *m = &r->forward.sampler;
    const size_t stride = ((size_t)r->config.vocab_size + 7) & ~(size_t)7;
    const struct sampler_state greedy = {.n_logprobs = -1};

    r->forward.logits = take(r, RIG_ROWS * stride * sizeof(float));
    *m = (struct sampler_memory){.logits = r->forward.logits,
                                 .adjusted = take(r, RIG_ROWS * stride * sizeof(float)),
                                 .logits_stride = (int64_t)stride,
                                 .vocab_size = r->config.vocab_size,
                                 .max_seqs = RIG_ROWS};
    m->states = take(r, RIG_ROWS * sizeof(*m->states));
    m->bias = take(r, RIG_ROWS * SAMPLING_MAX_BIAS * sizeof(*m->bias));
    m->seen = take(r, RIG_ROWS * stride * sizeof(*m->seen));
    m->scans = take(r, sampler_scan_bytes(&r->device.launch, m));
    m->sampled = take(r, RIG_ROWS * sizeof(int32_t));
    for (int i = 0; i < 2; i++) {
        m->host_ids[i] = take(r, RIG_ROWS * sizeof(int32_t));
        m->host_logprobs[i] = take(r, RIG_ROWS * sizeof(float));
        m->host_top_ids[i] = NULL;
        m->host_top_logprobs[i] = NULL;
    }
    for (int i = 0; i < RIG_ROWS; i++)
        cuda_must(cudaMemcpy(m->states + i, &greedy, sizeof(greedy), cudaMemcpyHostToDevice));
}

/* Blocks of the sequences in mixed order. */
static void make_blocks(struct rig *r, const int *max_len)
{
    const struct model_config *c = &r->config;
    const int64_t v_offset = (int64_t)c->n_kv_heads * r->block_len * c->head_dim;
    const int max_blocks = r->limits.max_blocks;
    int32_t *ids;
    int n = 0, used = 0;

    for (int i = 0; i < RIG_ROWS; i++) {
        r->n_held[i] = (max_len[i] + r->block_len - 1) / r->block_len;
        n += r->n_held[i];
    }
    r->n_blocks = n;
    r->block_elements = 2 * v_offset * c->n_layers;
    r->forward.kv = (struct kv_pool){.base = take(r, (size_t)n * (size_t)r->block_elements * 2),
                                     .block_stride = r->block_elements,
                                     .layer_stride = 2 * v_offset,
                                     .v_offset = v_offset,
                                     .block_shift = __builtin_ctz((unsigned)r->block_len),
                                     .n_kv_heads = c->n_kv_heads,
                                     .head_dim = c->head_dim};
    fill_noise(r->forward.kv.base, (size_t)n * (size_t)r->block_elements, 0.0f, 1.0f);
    ids = malloc((size_t)n * sizeof(*ids));
    r->block_table = malloc((size_t)(RIG_ROWS * max_blocks) * sizeof(int32_t));
    memset(r->block_table, 0xff, (size_t)(RIG_ROWS * max_blocks) * sizeof(int32_t));
    for (int i = 0; i < n; i++)
        ids[i] = i;
    for (int i = n - 1; i > 0; i--) {
        const int j = (int)(random_bits() % (uint32_t)(i + 1)), old = ids[i];

        ids[i] = ids[j];
        ids[j] = old;
    }
    for (int i = 0; i < RIG_ROWS; i++)
        for (int j = 0; j < r->n_held[i]; j++)
            r->block_table[i * max_blocks + j] = ids[used++];
    free(ids);
}

void rig_init(struct rig *r, const struct model_config *c, bool bias, int block_len,
              const int max_len[RIG_ROWS])
{
    struct forward *f = &r->forward;
    struct err e;
    int longest = 0;

    for (int i = 0; i < RIG_ROWS; i++)
        longest = max_len[i] > longest ? max_len[i] : longest;
    *r = (struct rig){.config = *c, .block_len = block_len};
    must(device_open(&r->device, 0, &e) == 0);
    r->limits = (struct step_limits){.max_tokens = RIG_ROWS,
                                     .max_seqs = RIG_ROWS,
                                     .max_blocks = (longest + block_len - 1) / block_len,
                                     .block_len = block_len,
                                     .target_items = 49};
    r->config.qkv_bias = bias;
    r->config.qk_norm = !bias;
    must(weights_init(&r->weights, &r->config, (struct shard){.rank = 0, .tp_size = 1},
                      &cuda_weights_layout, &e) == 0);
    weights_place(&r->weights, take(r, r->weights.bytes));
    fill_weights(r);
    f->config = &r->config;
    f->weights = &r->weights;
    f->launch = &r->device.launch;
    make_activations(r);
    make_sampler(r);
    make_blocks(r, max_len);
    forward_plan_resident(f, &r->config, r->device.launch.n_sms, f->kv.block_shift);
    f->resident.exchange = take(r, resident_exchange_bytes(&f->resident));
    forward_ready_resident(f);
    cuda_must(resident_clear(f->launch, &f->resident));
    cuda_must(resident_init());
    r->step = take(r, step_max_bytes(&r->limits));
    cuda_must(cudaHostAlloc((void **)&r->pinned, step_max_bytes(&r->limits), 0));
    cuda_must(cudaDeviceSynchronize());
}

void rig_deinit(struct rig *r)
{
    cuda_must(cudaDeviceSynchronize());
    for (int i = 0; i < r->n_taken; i++)
        cuda_must(cudaFree(r->taken[i]));
    cuda_must(cudaFreeHost(r->pinned));
    weights_deinit(&r->weights);
    free(r->block_table);
    device_close(&r->device);
}

void rig_renew(struct rig *r)
{
    struct step_counts *counts = (struct step_counts *)(void *)r->pinned;

    if (resident_take_tags(&counts->tag, &r->last_tag, r->config.n_layers))
        cuda_must(resident_clear(&r->device.launch, &r->forward.resident));
    cuda_must(cudaMemcpyAsync(r->step, r->pinned, sizeof(struct step_counts),
                              cudaMemcpyHostToDevice, r->device.launch.stream));
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
    struct batch *b;
    struct step_room room;
    struct step_view v;
    size_t bytes;

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
    b = make_batch(&parts);
    room = step_room_of(&r->limits, b);
    cuda_must(cudaStreamSynchronize(r->device.launch.stream));
    bytes = step_pack(r->pinned, &v, r->step, &r->limits, &room, b, 0);
    free(b);
    cuda_must(cudaMemcpy(r->step, r->pinned, bytes, cudaMemcpyHostToDevice));
    rig_renew(r);
    return v;
}

void rig_run(struct rig *r, const struct step_view *v, int n, int n_rows, bool resident)
{
    const struct forward_shape shape = {.n_tokens = n,
                                        .n_decodes = n,
                                        .n_rows = n_rows,
                                        .n_items = step_max_items(&r->limits, n),
                                        .path = resident ? PATH_RESIDENT : PATH_SKINNY};
    struct forward f = r->forward;
    struct err e;

    must(!resident || n <= f.resident_rows);
    memset(f.chain_path, PATH_SKINNY, sizeof(f.chain_path));
    if (forward_run(&f, v, &shape, &e) < 0) {
        fprintf(stderr, "%s\n", e.text);
        exit(1);
    }
}
