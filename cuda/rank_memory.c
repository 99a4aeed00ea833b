/* rank_memory.c - a rank's device memory: planned by what a model and its steps need, taken and
 * given back; see rank.h. */
#include <errno.h>
#include <stdlib.h>

#include "cuda/rank.h"
#include "engine/model/rope.h"
#include "engine/util/must.h"

enum { GRAPH_RESERVE = 256 << 20 }; /* of device memory, for what the driver takes as graphs come */

static const double KV_FRACTION = 0.9; /* by default: some is left for others' contexts */

/* What other ranks read and write. */
static void lay_shared(struct rank *rank, struct arena *a, size_t rows)
{
    struct peers *peers = &rank->forward.peers;

    for (int i = 0; i < 2; i++)
        peers->parts[peers->me][i] =
            arena_take(a, rows * (size_t)rank->config.hidden_dim * sizeof(float));
    if (peers->exchange.nccl)
        return;
    peers->normed[peers->me] = rank->forward.normed;
    peers->barrier.arrived[peers->me] = arena_take(a, MAX_RANKS * sizeof(uint32_t));
    peers->barrier.last = arena_take(a, sizeof(uint32_t));
    peers->barrier.clock = arena_take(a, sizeof(*peers->barrier.clock));
    peers->inbox_bytes =
        (size_t)peers->n * NORM_PUSHED_ROWS * (size_t)rank->config.hidden_dim * sizeof(float);
    for (int i = 0; i < 2; i++)
        peers->inbox[peers->me][i] = arena_take(a, peers->inbox_bytes);
}

static void lay_activations(struct rank *rank, struct arena *a)
{
    const struct model_config *c = &rank->config;
    struct forward *f = &rank->forward;
    const struct quantized_plan quantized = forward_plan_quantized(f);
    const size_t rows = (size_t)gemm_rows(rank->limits.max_tokens) +
                        (rank->options.invariant ? FORWARD_SPARE_ROWS : 0);
    const size_t qkv_dim = (size_t)(c->n_heads + 2 * c->n_kv_heads) * (size_t)c->head_dim;
    const size_t groups = (size_t)((c->n_heads / c->n_kv_heads + ATTN_GROUP - 1) / ATTN_GROUP);
    const size_t passes = (size_t)c->n_kv_heads * groups;
    const size_t partials = (size_t)step_max_partials(&rank->limits, rank->limits.max_seqs);
    const size_t hidden = (size_t)c->hidden_dim, ffn = (size_t)c->ffn_dim;

    f->rope =
        arena_take(a, (size_t)rank->options.max_seq_len * (size_t)c->head_dim * sizeof(float));
    f->residual = arena_take(a, rows * hidden * sizeof(float));
    f->normed = arena_take(a, rows * hidden * sizeof(uint16_t));
    f->rms = arena_take(a, rows * sizeof(float));
    f->qkv = arena_take(a, rows * qkv_dim * sizeof(uint16_t));
    f->attn = arena_take(a, rows * (size_t)c->n_heads * (size_t)c->head_dim * sizeof(uint16_t));
    if (c->n_experts) {
        experts_lay(&f->experts, a, c, rows);
        f->gate_up = f->experts.out;
    } else {
        f->gate_up = arena_take(a, rows * (ffn > hidden ? ffn : hidden) * 2 * sizeof(uint16_t));
        f->act = arena_take(a, rows * ffn * sizeof(uint16_t));
    }
    f->x_e4m3 = arena_take(a, rows * quantized.x_bytes);
    f->x_scales = arena_take(a, rows * quantized.n_x_scales * sizeof(float));
    f->dequantized = arena_take(a, quantized.n_dequantized * sizeof(uint16_t));
    f->int4_work.parts = arena_take(a, quantized.part_bytes);
    f->int4_work.counters = arena_take(a, quantized.n_counters * sizeof(int32_t));
    if (rank->shard.tp_size > 1)
        lay_shared(rank, a, rows);
    else
        f->parts = arena_take(a, FORWARD_PART_FLOATS * sizeof(float));
    f->partial =
        arena_take(a, partials * passes * ATTN_GROUP * ((size_t)c->head_dim + 2) * sizeof(float));
    f->counters = arena_take(a, (size_t)rank->limits.max_seqs * passes * sizeof(int32_t));
    f->prefill_partial = arena_take(a, attn_prefill_partial_bytes(c->head_dim));
    f->prefill_counters = arena_take(a, ATTN_PREFILL_COUNTERS * sizeof(int32_t));
    if (f->resident_rows > 0)
        f->resident.exchange = arena_take(a, resident_exchange_bytes(&f->resident));
    if (f->resident_rows > 0 && rank->shard.tp_size > 1)
        f->resident.sums = arena_take(a, resident_sum_bytes(&f->resident));
}

static void lay_sampler(struct rank *rank, struct arena *a)
{
    const size_t seqs = (size_t)rank->limits.max_seqs;
    const bool apart = rank->forward.peers.exchange.nccl != NULL;
    const int me = rank->shard.rank;
    struct sampler_memory *m = &rank->forward.sampler;
    const size_t stride = ((size_t)rank->forward.peers.embedding.rows_per_rank + 7) & ~(size_t)7;

    m->n_ranks = rank->shard.tp_size;
    m->me = me;
    m->ids_per_rank = rank->forward.peers.embedding.rows_per_rank;
    m->vocab_size = rank->config.vocab_size;
    m->logits_stride = (int64_t)stride;
    m->max_seqs = rank->limits.max_seqs;
    m->invariant = rank->options.invariant;
    rank->forward.logits =
        arena_take(a, (size_t)gemm_rows(rank->limits.max_seqs) * stride * sizeof(float));
    m->logits[me] = rank->forward.logits;
    m->adjusted[me] = arena_take(a, seqs * stride * sizeof(float));
    m->states = arena_take(a, seqs * sizeof(*m->states));
    m->bias = arena_take(a, seqs * SAMPLING_MAX_BIAS * sizeof(*m->bias));
    m->seen[me] = arena_take(a, seqs * stride * sizeof(**m->seen));
    if (me == 0 || apart)
        m->scans = arena_take(a, sampler_scan_bytes(&rank->device.launch, m));
    for (int i = 1; i < m->n_ranks && me == 0 && apart; i++) { /* for copies of the others' */
        m->logits[i] = arena_take(a, seqs * stride * sizeof(float));
        m->adjusted[i] = arena_take(a, seqs * stride * sizeof(float));
    }
    m->sampled[me] = arena_take(a, seqs * sizeof(**m->sampled));
    rank->history = arena_take(a, (size_t)rank->options.max_seq_len * sizeof(int32_t));
}

/* One use's memory, zeroed: padding rows are computed with, though never looked at. */
static int take_arena(struct rank *rank, enum device_use use,
                      void (*lay)(struct rank *, struct arena *), struct err *e)
{
    struct arena count = {0}, real = {0};
    int r;

    lay(rank, &count);
    r = device_take(&rank->device, use, count.used, e);
    if (r < 0)
        return r;
    real.base = rank->device.memory[use];
    lay(rank, &real);
    return cuda_check(cudaMemsetAsync(real.base, 0, real.used, rank->device.launch.stream),
                      "clearing memory", e);
}

/* Of one layer, in bf16. */
static uint64_t staging_buffer_bytes(const struct rank *rank)
{
    return (uint64_t)rank->forward.staging.max_blocks * 2 * (uint64_t)rank->config.n_kv_heads *
           (uint64_t)rank->options.block_len * (uint64_t)rank->config.head_dim * sizeof(uint16_t);
}

static uint64_t staging_bytes(const struct rank *rank)
{
    const struct kv_staging *staging = &rank->forward.staging;

    return (uint64_t)staging->n_buffers * staging_buffer_bytes(rank) +
           (uint64_t)staging->max_blocks * sizeof(*staging->table);
}

int rank_plan_staging(struct rank *rank, struct err *e)
{
    const struct backend_options *o = &rank->options;
    const uint64_t n_host =
        o->tier_bytes[TIER_HOST] / rank->block_bytes / (uint64_t)rank->shard.tp_size;
    const uint64_t n = (uint64_t)rank->n_blocks, most = (uint64_t)rank->limits.max_blocks;
    const bool offloads = n_host > n && most > n && o->n_processes == 1;
    const bool fp8 = o->kv_dtype == KV_DTYPE_FP8;
    const int least = (int)(offloads && n_host < most ? n_host : most);
    const int at_once = rank->limits.max_tokens / o->block_len; /* one step of short prompts */
    struct kv_staging *staging = &rank->forward.staging;
    uint64_t pool;

    if (!offloads && !fp8)
        return 0;
    staging->n_buffers = offloads ? 2 : 1;
    staging->max_blocks = least;
    /* The staging is a part of the pool, unless the pool's own size is given. */
    pool = o->tier_bytes[TIER_DEVICE] ? 0 : n * rank->block_bytes;
    if (fp8 && least < at_once) {
        staging->max_blocks = at_once;
        if (pool && pool < staging_bytes(rank) + rank->block_bytes)
            staging->max_blocks = least; /* fewer prompts at a time */
    }
    if (!pool)
        return 0;
    if (pool < staging_bytes(rank) + rank->block_bytes)
        return err_set(e, -ENOMEM,
                       "%s: too little memory for the layers that prompts read; lower "
                       "scheduler.max_seq_len%s",
                       rank->device.name, offloads ? " or cache.host_memory" : "");
    rank->n_blocks = (int32_t)((pool - staging_bytes(rank)) / rank->block_bytes);
    return 0;
}

/* The pool gets a fraction of what is free now, or its share of so many bytes; whole blocks. */
static int plan_blocks(struct rank *rank, struct err *e)
{
    const struct backend_options *o = &rank->options;
    uint64_t free_bytes = 0, bytes, n;
    int r = device_free_bytes(&free_bytes, e);

    if (r < 0)
        return r;
    free_bytes = free_bytes > GRAPH_RESERVE ? free_bytes - GRAPH_RESERVE : 0;
    bytes =
        o->tier_bytes[TIER_DEVICE]
            ? o->tier_bytes[TIER_DEVICE] / (uint64_t)rank->shard.tp_size
            : (uint64_t)((o->kv_fraction > 0 ? o->kv_fraction : KV_FRACTION) * (double)free_bytes);
    n = bytes / rank->block_bytes;
    if (n > (uint64_t)(INT32_MAX / o->block_len))
        n = (uint64_t)(INT32_MAX / o->block_len);
    if (n == 0 && o->tier_bytes[TIER_DEVICE])
        return err_set(
            e, -EINVAL,
            "cache.kv_memory: one block of %d tokens needs %.1f MiB on each device, whose "
            "share is %.1f MiB; raise it or lower cache.block_len",
            o->block_len, (double)rank->block_bytes / 0x1p20, (double)bytes / 0x1p20);
    if (n == 0)
        return err_set(e, -ENOMEM,
                       "%s: %.1f MiB are left for KV blocks, and one block of %d tokens takes "
                       "%.1f MiB; lower cache.block_len or free memory of the device",
                       rank->device.name, (double)bytes / 0x1p20, o->block_len,
                       (double)rank->block_bytes / 0x1p20);
    rank->n_blocks = (int32_t)n;
    return 0;
}

static int take_staging(struct rank *rank, struct err *e)
{
    struct kv_staging *staging = &rank->forward.staging;
    const struct kv_pool *kv = &rank->forward.kv;
    const uint64_t n = (uint64_t)staging->max_blocks, buffer = staging_buffer_bytes(rank);
    const int64_t v_offset = (int64_t)(buffer / n / (2 * sizeof(*kv->base)));
    char *at;
    int32_t *table = malloc(n * sizeof(*table));
    int rc;

    if (!table)
        return err_set(e, -ENOMEM, "out of memory");
    for (int i = 0; i < staging->max_blocks; i++)
        table[i] = i;
    rc = device_take(&rank->device, DEVICE_STAGING, staging_bytes(rank), e);
    at = rank->device.memory[DEVICE_STAGING];
    for (int i = 0; i < staging->n_buffers && rc == 0; i++, at += buffer)
        staging->kv[i] = (struct kv_pool){.base = (uint16_t *)(void *)at,
                                          .block_stride = 2 * v_offset,
                                          .v_offset = v_offset,
                                          .block_shift = kv->block_shift,
                                          .n_kv_heads = kv->n_kv_heads,
                                          .head_dim = kv->head_dim,
                                          .n_blocks = staging->max_blocks};
    staging->table = (int32_t *)(void *)at;
    if (rc == 0)
        rc = cuda_check(cudaMemcpy(staging->table, table, n * sizeof(*table),
                                   cudaMemcpyHostToDevice),
                        "copying a table", e);
    free(table);
    return rc;
}

static int take_pool(struct rank *rank, struct err *e)
{
    const struct model_config *c = &rank->config;
    const struct backend_options *o = &rank->options;
    const int64_t block_stride = (int64_t)(rank->block_bytes / sizeof(uint16_t));
    const int64_t layer_stride = block_stride / c->n_layers;
    int r = 0;

    if (!rank->device.memory[DEVICE_KV])
        r = device_take(&rank->device, DEVICE_KV, (uint64_t)rank->n_blocks * rank->block_bytes, e);
    if (r < 0)
        return r;
    rank->forward.kv = (struct kv_pool){.base = rank->device.memory[DEVICE_KV],
                                        .block_stride = block_stride,
                                        .layer_stride = layer_stride,
                                        .v_offset = layer_stride / 2,
                                        .block_shift = __builtin_ctz((unsigned)o->block_len),
                                        .n_kv_heads = c->n_kv_heads,
                                        .head_dim = c->head_dim,
                                        .n_blocks = rank->n_blocks,
                                        .fp8 = o->kv_dtype == KV_DTYPE_FP8};
    rank->limits.n_blocks = rank->n_blocks;
    return rank->forward.staging.n_buffers > 0 ? take_staging(rank, e) : 0;
}

/* Where the rank's part of a block in host memory begins. */
static size_t host_part(const struct rank *rank)
{
    return (size_t)rank->local * rank->block_bytes;
}

/* With a host tier: where its blocks are. */
static void place_host(struct rank *rank)
{
    struct forward *f = &rank->forward;
    const char *host = host_memory_base(rank->host_memory) + host_part(rank);

    f->kv.host_stride = rank->n_local * f->kv.block_stride;
    f->kv.host_offset = (host - (const char *)f->kv.base) / (ptrdiff_t)sizeof(*f->kv.base) -
                        rank->n_blocks * f->kv.host_stride;
}

/* Of the pool, where it is bf16, and of the staging. */
static int make_maps(struct rank *rank, struct err *e)
{
    struct forward *f = &rank->forward;
    const int64_t q_stride =
        (rank->config.n_heads + 2 * rank->config.n_kv_heads) * rank->config.head_dim;
    const int n_rows = gemm_rows(rank->limits.max_tokens);
    cudaError_t code = cudaSuccess;

    if (rank->device.compute != 90)
        return 0;
    if (!f->kv.fp8)
        code = attn_maps_init(&f->maps, &f->kv, rank->n_blocks, f->qkv, q_stride, n_rows);
    for (int i = 0; i < f->staging.n_buffers && code == cudaSuccess; i++)
        code = attn_maps_init(&f->staging.maps[i], &f->staging.kv[i], f->staging.max_blocks, f->qkv,
                              q_stride, n_rows);
    return cuda_check(code, "preparing attention", e);
}

int rank_take_memory(struct rank *rank, struct err *e)
{
    const struct model_config *c = &rank->config;
    struct device *d = &rank->device;
    struct forward *f = &rank->forward;
    float inv_freq[ROPE_MAX_PAIRS];
    int r = cuda_weights_load(&rank->weights, d, rank->model, rank->shard, &rank->options, e);

    if (r < 0 || (r = take_arena(rank, DEVICE_ACTIVATIONS, lay_activations, e)) < 0 ||
        (r = take_arena(rank, DEVICE_SAMPLER, lay_sampler, e)) < 0 ||
        (r = device_take(d, DEVICE_WORKSPACE, GEMM_WORKSPACE, e)) < 0 ||
        (r = device_take(d, DEVICE_STEP, step_max_bytes(&rank->limits), e)) < 0 ||
        (r = gemm_new(&rank->gemm, d->memory[DEVICE_WORKSPACE], rank->options.invariant,
                      rank->shard.tp_size, e)) < 0)
        return r;
    rank->step_memory = d->memory[DEVICE_STEP];
    f->gemm = rank->gemm;
    must(c->head_dim / 2 <= ROPE_MAX_PAIRS);
    rope_frequencies(c, inv_freq);
    r = cuda_check(rope_table(f->launch, f->rope, rank->options.max_seq_len, inv_freq,
                              c->head_dim / 2, rope_scale(c)),
                   "rope_table", e);
    for (int i = 0; i < 2 && f->peers.inbox_bytes > 0 && r == 0; i++)
        r = cuda_check(cudaMemsetAsync(f->peers.inbox[rank->shard.rank][i], 0xff,
                                       f->peers.inbox_bytes, d->launch.stream),
                       "clearing memory", e);
    return r == 0 && rank->n_blocks == 0 ? plan_blocks(rank, e) : r;
}

int rank_take_blocks(struct rank *rank, struct err *e)
{
    struct device *d = &rank->device;
    struct forward *f = &rank->forward;
    int r = take_pool(rank, e);

    if (r == 0 && rank->host)
        host_tier_move_device(rank->host, d->memory[DEVICE_KV]);
    else if (r == 0 && rank->host_memory)
        r = host_tier_new(&rank->host, rank->host_memory, host_part(rank), rank->block_bytes,
                          (size_t)rank->n_local * rank->block_bytes, d->memory[DEVICE_KV],
                          rank->n_blocks, e);
    if (r == 0 && rank->host)
        place_host(rank);
    if (r == 0)
        r = make_maps(rank, e);
    if (r == 0 && f->resident_rows > 0)
        r = cuda_check(resident_clear(f->launch, &f->resident), "clearing exchanges", e);
    return r < 0 ? r : cuda_check(cudaStreamSynchronize(d->launch.stream), "clearing memory", e);
}

void rank_give_back(struct rank *rank, bool keep_blocks)
{
    rank_drop_graphs(rank);
    gemm_free(rank->gemm);
    rank->gemm = NULL;
    weights_deinit(&rank->weights);
    for (int i = 0; i < DEVICE_N_USES; i++)
        if (i != DEVICE_KV || !keep_blocks)
            device_give_back(&rank->device, (enum device_use)i);
}
