/* rank.c - see rank.h: from open to close. */
#include "cuda/rank.h"

#include <cublasLt.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/model/quantization.h"
#include "engine/model/rope.h"
#include "engine/util/must.h"

enum {
    GRAPH_RESERVE = 256 << 20, /* of device memory, for what the driver takes as graphs come */
    ITEM_BLOCKS_PER_SM = 3,    /* blocks of decode attention that a multiprocessor has room for */
};

static const double KV_FRACTION = 0.9; /* by default: some is left for others' contexts */

/* Rows that a step may have: of rope_store() the threads are counted, and those of its last block
 * that have nothing to do; of experts the groups, which are a grid's y. */
static int most_rows(const struct model_config *c)
{
    const int of_rope = (INT32_MAX - 1024) / ((c->n_heads + 2 * c->n_kv_heads) * ROPE_LANES);
    const int of_experts =
        c->n_experts ? (UINT16_MAX - c->n_experts) * EXPERT_FEW / c->n_experts_per_tok : INT32_MAX;

    return of_rope < of_experts ? of_rope : of_experts;
}

/* How large steps may be. Refuses what no grid or index of a kernel can hold. */
static int set_limits(struct rank *b, struct err *e)
{
    const struct model_config *c = &b->config;
    const struct backend_options *o = &b->options;
    const int groups = (c->n_heads / c->n_kv_heads + ATTN_GROUP - 1) / ATTN_GROUP;
    /* What must not depend on the number of ranks is planned as for one. */
    const int n_kv_heads = o->invariant ? model_config(b->model)->n_kv_heads : c->n_kv_heads;
    const int per_item = n_kv_heads * groups;
    const int seqs = rank_graph_size(o->max_seqs);
    const int wanted = b->device.launch.n_sms * ITEM_BLOCKS_PER_SM / per_item; /* one wave */
    const int most_tokens = most_rows(c);
    int most_seqs;

    if (o->max_seq_len > STEP_MAX_LEN)
        return err_set(e, -EINVAL,
                       "CUDA: scheduler.max_seq_len: %d exceeds %d, the longest sequence that a "
                       "device computes; the default is the model's length: set it lower",
                       o->max_seq_len, STEP_MAX_LEN);
    if (o->max_batch_tokens > most_tokens)
        return err_set(e, -EINVAL,
                       "CUDA: scheduler.max_batch_tokens: %d exceeds %d, the most that a device "
                       "computes at a time with this model",
                       o->max_batch_tokens, most_tokens);
    b->limits = (struct step_limits){
        .max_tokens = o->max_batch_tokens > seqs ? o->max_batch_tokens : seqs,
        .max_seqs = seqs,
        .max_blocks = (o->max_seq_len + o->block_len - 1) / o->block_len,
        .block_len = o->block_len,
        .draft_rows = o->invariant ? 1 : attn_rows(c->n_heads, c->n_kv_heads),
        .target_items = wanted < 1                 ? 1
                        : wanted > ATTN_MAX_SPLITS ? ATTN_MAX_SPLITS
                                                   : wanted,
        .invariant = o->invariant,
    };
    most_seqs = step_most_seqs(&b->limits);
    most_seqs = most_tokens < most_seqs ? most_tokens : most_seqs;
    if (o->max_seqs > most_seqs)
        return err_set(e, -EINVAL,
                       "CUDA: scheduler.max_seqs: %d exceeds %d, the most that a device computes "
                       "at a time with this max_batch_tokens and max_seq_len",
                       o->max_seqs, most_seqs);
    return 0;
}

/* What other ranks read and write. */
static void lay_shared(struct rank *b, struct arena *a, size_t rows)
{
    struct forward_ranks *r = &b->forward.ranks;

    for (int i = 0; i < 2; i++)
        r->parts[r->me][i] = arena_take(a, rows * (size_t)b->config.hidden_dim * sizeof(float));
    if (r->exchange.nccl)
        return;
    r->normed[r->me] = b->forward.normed;
    r->barrier.arrived[r->me] = arena_take(a, MAX_RANKS * sizeof(uint32_t));
    r->barrier.last = arena_take(a, sizeof(uint32_t));
    r->barrier.clock = arena_take(a, sizeof(*r->barrier.clock));
    r->inbox_bytes = (size_t)r->n * NORM_PUSHED_ROWS * (size_t)b->config.hidden_dim * sizeof(float);
    for (int i = 0; i < 2; i++)
        r->inbox[r->me][i] = arena_take(a, r->inbox_bytes);
}

static void lay_activations(struct rank *b, struct arena *a)
{
    const struct model_config *c = &b->config;
    struct forward *f = &b->forward;
    const struct quantized_plan quantized = forward_plan_quantized(f);
    const size_t rows =
        (size_t)gemm_rows(b->limits.max_tokens) + (b->options.invariant ? FORWARD_SPARE_ROWS : 0);
    const size_t qkv_dim = (size_t)(c->n_heads + 2 * c->n_kv_heads) * (size_t)c->head_dim;
    const size_t groups = (size_t)((c->n_heads / c->n_kv_heads + ATTN_GROUP - 1) / ATTN_GROUP);
    const size_t passes = (size_t)c->n_kv_heads * groups;
    const size_t partials = (size_t)step_max_partials(&b->limits, b->limits.max_seqs);
    const size_t hidden = (size_t)c->hidden_dim, ffn = (size_t)c->ffn_dim;

    f->rope = arena_take(a, (size_t)b->options.max_seq_len * (size_t)c->head_dim * sizeof(float));
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
    if (b->shard.tp_size > 1)
        lay_shared(b, a, rows);
    else
        f->parts = arena_take(a, GEMM_PART_FLOATS * sizeof(float));
    f->partial =
        arena_take(a, partials * passes * ATTN_GROUP * ((size_t)c->head_dim + 2) * sizeof(float));
    f->counters = arena_take(a, (size_t)b->limits.max_seqs * passes * sizeof(int32_t));
    f->prefill_partial = arena_take(a, attn_prefill_partial_bytes(c->head_dim));
    f->prefill_counters = arena_take(a, ATTN_PREFILL_COUNTERS * sizeof(int32_t));
    if (f->resident_rows > 0)
        f->resident.exchange = arena_take(a, resident_exchange_bytes(&f->resident));
    if (f->resident_rows > 0 && b->shard.tp_size > 1)
        f->resident.sums = arena_take(a, resident_sum_bytes(&f->resident));
}

static void lay_sampler(struct rank *b, struct arena *a)
{
    const size_t seqs = (size_t)b->limits.max_seqs;
    const bool apart = b->forward.ranks.exchange.nccl != NULL;
    const int me = b->shard.rank;
    struct sampler_memory *m = &b->forward.sampler;
    const size_t stride = ((size_t)b->forward.ranks.embedding.rows_per_rank + 7) & ~(size_t)7;

    m->n_ranks = b->shard.tp_size;
    m->me = me;
    m->ids_per_rank = b->forward.ranks.embedding.rows_per_rank;
    m->vocab_size = b->config.vocab_size;
    m->logits_stride = (int64_t)stride;
    m->max_seqs = b->limits.max_seqs;
    m->invariant = b->options.invariant;
    b->forward.logits =
        arena_take(a, (size_t)gemm_rows(b->limits.max_seqs) * stride * sizeof(float));
    m->logits[me] = b->forward.logits;
    m->adjusted[me] = arena_take(a, seqs * stride * sizeof(float));
    m->states = arena_take(a, seqs * sizeof(*m->states));
    m->bias = arena_take(a, seqs * SAMPLING_MAX_BIAS * sizeof(*m->bias));
    m->seen[me] = arena_take(a, seqs * stride * sizeof(**m->seen));
    if (me == 0 || apart)
        m->scans = arena_take(a, sampler_scan_bytes(&b->device.launch, m));
    for (int i = 1; i < m->n_ranks && me == 0 && apart; i++) { /* for copies of the others' */
        m->logits[i] = arena_take(a, seqs * stride * sizeof(float));
        m->adjusted[i] = arena_take(a, seqs * stride * sizeof(float));
    }
    m->sampled[me] = arena_take(a, seqs * sizeof(**m->sampled));
    b->history = arena_take(a, (size_t)b->options.max_seq_len * sizeof(int32_t));
}

/* One use's memory, zeroed: padding rows are computed with, though never looked at. */
static int take_arena(struct rank *b, enum device_use use,
                      void (*lay)(struct rank *, struct arena *), struct err *e)
{
    struct arena count = {0}, real = {0};
    int r;

    lay(b, &count);
    r = device_take(&b->device, use, count.used, e);
    if (r < 0)
        return r;
    real.base = b->device.memory[use];
    lay(b, &real);
    return cuda_check(cudaMemsetAsync(real.base, 0, real.used, b->device.launch.stream),
                      "clearing memory", e);
}

/* Host memory of a slot and the event of its step. */
static int take_slot(struct rank *b, int slot, struct err *e)
{
    const size_t n = (size_t)b->limits.max_seqs, tops = n * SAMPLING_MAX_LOGPROBS;
    const size_t bytes = (n + tops) * (sizeof(int32_t) + sizeof(float));
    struct sampler_memory *m = &b->forward.sampler;
    struct rank_slot *s = &b->slots[slot];
    int32_t *ids = NULL;
    int r;

    if ((r = cuda_check(cudaHostAlloc((void **)&s->pinned, step_max_bytes(&b->limits),
                                      cudaHostAllocDefault),
                        "pinning memory", e)) < 0 ||
        (r = cuda_check(cudaEventCreateWithFlags(&s->done,
                                                 cudaEventDisableTiming | cudaEventBlockingSync),
                        "creating an event", e)) < 0 ||
        (r = cuda_check(cudaHostAlloc((void **)&ids, bytes, cudaHostAllocMapped), "pinning memory",
                        e)) < 0)
        return r;
    if (b->shard.rank == 0 &&
        (r = cuda_check(cudaHostAlloc((void **)&s->sums,
                                      n * (size_t)b->config.hidden_dim * sizeof(*s->sums),
                                      cudaHostAllocMapped),
                        "pinning memory", e)) < 0)
        return r;
    memset(ids, 0, bytes);
    m->host_ids[slot] = ids;
    m->host_logprobs[slot] = (float *)(ids + n);
    m->host_top_ids[slot] = ids + 2 * n;
    m->host_top_logprobs[slot] = (float *)(ids + 2 * n + tops);
    return 0;
}

static uint64_t ring_bytes(const struct rank *b)
{
    const uint64_t n = (uint64_t)b->forward.ring.max_blocks;

    return n * (2 * b->block_bytes / (uint64_t)b->config.n_layers + sizeof(int32_t));
}

int rank_plan_ring(struct rank *b, struct err *e)
{
    const uint64_t n_host =
        b->options.tier_bytes[TIER_HOST] / b->block_bytes / (uint64_t)b->shard.tp_size;
    const uint64_t n = (uint64_t)b->n_blocks, most = (uint64_t)b->limits.max_blocks;
    uint64_t pool;

    if (n_host <= n || most <= n || b->options.n_processes > 1)
        return 0;
    b->forward.ring.max_blocks = (int)(n_host < most ? n_host : most);
    if (b->options.tier_bytes[TIER_DEVICE])
        return 0;
    pool = n * b->block_bytes;
    if (pool < ring_bytes(b) + b->block_bytes)
        return err_set(e, -ENOMEM,
                       "%s: too little memory for sequences in host memory; lower "
                       "cache.host_memory or scheduler.max_seq_len",
                       b->device.name);
    b->n_blocks = (int32_t)((pool - ring_bytes(b)) / b->block_bytes);
    return 0;
}

/* The pool gets a fraction of what is free now, or its share of so many bytes; whole blocks. */
static int plan_blocks(struct rank *b, struct err *e)
{
    const struct backend_options *o = &b->options;
    uint64_t free_bytes = 0, bytes, n;
    int r = device_free_bytes(&free_bytes, e);

    if (r < 0)
        return r;
    free_bytes = free_bytes > GRAPH_RESERVE ? free_bytes - GRAPH_RESERVE : 0;
    bytes =
        o->tier_bytes[TIER_DEVICE]
            ? o->tier_bytes[TIER_DEVICE] / (uint64_t)b->shard.tp_size
            : (uint64_t)((o->kv_fraction > 0 ? o->kv_fraction : KV_FRACTION) * (double)free_bytes);
    n = bytes / b->block_bytes;
    if (n > (uint64_t)(INT32_MAX / o->block_len))
        n = (uint64_t)(INT32_MAX / o->block_len);
    if (n == 0)
        return err_set(e, -ENOMEM,
                       "%s: %.1f MiB are left for KV blocks, and one block of %d tokens takes "
                       "%.1f MiB; lower block_len or raise kv_memory",
                       b->device.name, (double)bytes / 0x1p20, o->block_len,
                       (double)b->block_bytes / 0x1p20);
    b->n_blocks = (int32_t)n;
    return 0;
}

/* Two layers of the longest sequence that may be offloaded. */
static int take_ring(struct rank *b, struct err *e)
{
    struct ring *r = &b->forward.ring;
    const struct kv_pool *kv = &b->forward.kv;
    const uint64_t n = (uint64_t)r->max_blocks, layer = n * (uint64_t)kv->layer_stride;
    int32_t *table = malloc(n * sizeof(*table));
    int rc;

    if (!table)
        return err_set(e, -ENOMEM, "out of memory");
    for (int i = 0; i < r->max_blocks; i++)
        table[i] = i;
    rc = device_take(&b->device, DEVICE_RING, ring_bytes(b), e);
    for (int i = 0; i < 2 && rc == 0; i++) {
        r->kv[i] = *kv;
        r->kv[i].base = (uint16_t *)b->device.memory[DEVICE_RING] + (uint64_t)i * layer;
        r->kv[i].block_stride = kv->layer_stride;
        r->kv[i].n_blocks = r->max_blocks;
    }
    r->table = (int32_t *)(void *)((uint16_t *)b->device.memory[DEVICE_RING] + 2 * layer);
    if (rc == 0)
        rc = cuda_check(cudaMemcpy(r->table, table, n * sizeof(*table), cudaMemcpyHostToDevice),
                        "copying a table", e);
    free(table);
    return rc;
}

static int take_pool(struct rank *b, struct err *e)
{
    const struct model_config *c = &b->config;
    const struct backend_options *o = &b->options;
    const int64_t v_offset = (int64_t)c->n_kv_heads * o->block_len * c->head_dim;
    int r = 0;

    if (!b->device.memory[DEVICE_KV])
        r = device_take(&b->device, DEVICE_KV, (uint64_t)b->n_blocks * b->block_bytes, e);
    if (r < 0)
        return r;
    b->forward.kv = (struct kv_pool){.base = b->device.memory[DEVICE_KV],
                                     .block_stride = 2 * v_offset * c->n_layers,
                                     .layer_stride = 2 * v_offset,
                                     .v_offset = v_offset,
                                     .block_shift = __builtin_ctz((unsigned)o->block_len),
                                     .n_kv_heads = c->n_kv_heads,
                                     .head_dim = c->head_dim,
                                     .n_blocks = b->n_blocks};
    b->limits.n_blocks = b->n_blocks;
    return b->forward.ring.max_blocks > 0 ? take_ring(b, e) : 0;
}

/* Where the rank's part of a block in host memory begins. */
static size_t host_part(const struct rank *b)
{
    return (size_t)b->local * b->block_bytes;
}

/* With a host tier: where its blocks are, and the maps of the ring. */
static int place_host(struct rank *b, int n_rows, struct err *e)
{
    struct forward *f = &b->forward;
    const struct model_config *c = &b->config;
    const char *host = host_memory_base(b->host_memory) + host_part(b);
    int r = 0;

    f->kv.host_stride = b->n_local * f->kv.block_stride;
    f->kv.host_offset = (host - (const char *)f->kv.base) / (ptrdiff_t)sizeof(*f->kv.base) -
                        b->n_blocks * f->kv.host_stride;
    for (int i = 0; i < 2 && f->ring.max_blocks > 0 && b->device.compute == 90 && r == 0; i++)
        r = cuda_check(attn_maps_init(&f->ring.maps[i], &f->ring.kv[i], f->ring.max_blocks, f->qkv,
                                      (c->n_heads + 2 * c->n_kv_heads) * c->head_dim, n_rows),
                       "preparing attention", e);
    return r;
}

static int open_ring(struct ring *r, struct err *e)
{
    cudaEvent_t *const events[] = {&r->begun, &r->full[0], &r->full[1], &r->empty[0], &r->empty[1]};
    int rc = cuda_check(cudaStreamCreateWithFlags(&r->stream, cudaStreamNonBlocking),
                        "creating a stream", e);

    for (size_t i = 0; i < sizeof(events) / sizeof(*events) && rc == 0; i++)
        rc = cuda_check(cudaEventCreateWithFlags(events[i], cudaEventDisableTiming),
                        "creating an event", e);
    return rc;
}

static void close_ring(struct ring *r)
{
    const cudaEvent_t events[] = {r->begun, r->full[0], r->full[1], r->empty[0], r->empty[1]};

    for (size_t i = 0; i < sizeof(events) / sizeof(*events); i++)
        if (events[i])
            (void)cudaEventDestroy(events[i]);
    if (r->stream)
        (void)cudaStreamDestroy(r->stream);
}

/* Blocks of the resident kernel: ranks that share a device have a part of its multiprocessors. */
static int resident_blocks(const struct rank *b)
{
    const int32_t *ids = b->options.devices;
    int n_sharing = 0;

    for (int i = 0; i < b->n_local; i++)
        n_sharing += ids[i] == ids[b->local];
    return b->device.launch.n_sms / n_sharing;
}

/* What stays while the rank sleeps. */
static int open_device(struct rank *b, struct err *e)
{
    const struct model_config *c = &b->config;
    const struct shard first = {.rank = 0, .tp_size = b->shard.tp_size};
    struct device *d = &b->device;
    struct forward *f = &b->forward;
    bool resident = false;
    int64_t from, n_ids;
    int r;

    if ((r = device_open(d, b->options.devices[b->local], e)) < 0 || (r = set_limits(b, e)) < 0)
        return r;
    shard_range(&from, &n_ids, c, DIM_VOCAB, first);
    f->ranks.n = b->shard.tp_size;
    f->ranks.me = b->shard.rank;
    f->ranks.embedding = (struct embedding){.rows_per_rank = (int)n_ids,
                                            .vocab_size = c->vocab_size,
                                            .dim = c->hidden_dim};
    f->e4m3 = d->compute == 90 && !b->options.invariant;
    if (d->compute == 90 && !b->options.invariant && !c->quant &&
        b->shard.tp_size <= RESIDENT_MAX_RANKS && b->shard.tp_size == b->n_local &&
        (c->n_experts == 0 || b->shard.tp_size == 1))
        r = cuda_check(resident_compiled(&resident), "querying the resident kernel", e);
    if (r < 0)
        return r;
    if (resident)
        forward_plan_resident(f, c, resident_blocks(b),
                              __builtin_ctz((unsigned)b->options.block_len));
    for (int i = 0; i < SAMPLER_SLOTS && r == 0; i++)
        r = take_slot(b, i, e);
    if (r == 0 && b->shard.tp_size > 1)
        r = cuda_check(cudaHostAlloc((void **)&f->ranks.barrier.host_ns, sizeof(uint64_t),
                                     cudaHostAllocMapped),
                       "pinning memory", e);
    if (r == 0)
        r = open_ring(&f->ring, e);
    if (r == 0)
        r = cuda_check(attn_prefill_init(), "preparing attention", e);
    if (r == 0)
        r = cuda_check(stream_gemm_init(&f->streams), "preparing products", e);
    if (r == 0 && c->n_experts)
        r = cuda_check(expert_gemm_init(&d->launch), "preparing experts", e);
    if (r == 0 && f->resident_rows > 0)
        r = cuda_check(resident_init(), "preparing the resident kernel", e);
    f->config = c;
    f->weights = &b->weights;
    f->launch = &d->launch;
    f->invariant = b->options.invariant;
    return r;
}

int rank_take_memory(struct rank *b, struct err *e)
{
    const struct model_config *c = &b->config;
    struct device *d = &b->device;
    struct forward *f = &b->forward;
    float inv_freq[ROPE_MAX_PAIRS];
    int r;

    if ((r = cuda_weights_load(&b->weights, d, b->model, b->shard, &b->options, e)) < 0 ||
        (r = take_arena(b, DEVICE_ACTIVATIONS, lay_activations, e)) < 0 ||
        (r = take_arena(b, DEVICE_SAMPLER, lay_sampler, e)) < 0 ||
        (r = device_take(d, DEVICE_WORKSPACE, GEMM_WORKSPACE, e)) < 0 ||
        (r = device_take(d, DEVICE_STEP, step_max_bytes(&b->limits), e)) < 0 ||
        (r = gemm_new(&b->gemm, d->memory[DEVICE_WORKSPACE], b->options.invariant, b->shard.tp_size,
                      e)) < 0)
        return r;
    b->step_memory = d->memory[DEVICE_STEP];
    f->gemm = b->gemm;
    must(c->head_dim / 2 <= ROPE_MAX_PAIRS);
    rope_frequencies(c, inv_freq);
    r = cuda_check(rope_table(f->launch, f->rope, b->options.max_seq_len, inv_freq, c->head_dim / 2,
                              rope_scale(c)),
                   "rope_table", e);
    for (int i = 0; i < 2 && f->ranks.inbox_bytes > 0 && r == 0; i++)
        r = cuda_check(cudaMemsetAsync(f->ranks.inbox[b->shard.rank][i], 0xff, f->ranks.inbox_bytes,
                                       d->launch.stream),
                       "clearing memory", e);
    return r == 0 && b->n_blocks == 0 ? plan_blocks(b, e) : r;
}

int rank_take_blocks(struct rank *b, struct err *e)
{
    const struct model_config *c = &b->config;
    struct device *d = &b->device;
    struct forward *f = &b->forward;
    int r = take_pool(b, e);

    if (r == 0 && b->host)
        host_tier_move_device(b->host, d->memory[DEVICE_KV]);
    else if (r == 0 && b->host_memory)
        r = host_tier_new(&b->host, b->host_memory, host_part(b), b->block_bytes,
                          (size_t)b->n_local * b->block_bytes, d->memory[DEVICE_KV], b->n_blocks,
                          e);
    if (r == 0 && b->host)
        r = place_host(b, gemm_rows(b->limits.max_tokens), e);
    if (r == 0 && d->compute == 90)
        r = cuda_check(attn_maps_init(&f->maps, &f->kv, b->n_blocks, f->qkv,
                                      (c->n_heads + 2 * c->n_kv_heads) * c->head_dim,
                                      gemm_rows(b->limits.max_tokens)),
                       "preparing attention", e);
    if (r == 0 && f->resident_rows > 0)
        r = cuda_check(resident_clear(f->launch, &f->resident), "clearing exchanges", e);
    return r < 0 ? r : cuda_check(cudaStreamSynchronize(d->launch.stream), "clearing memory", e);
}

void rank_give_back(struct rank *b, bool keep_blocks)
{
    rank_drop_graphs(b);
    gemm_free(b->gemm);
    b->gemm = NULL;
    weights_deinit(&b->weights);
    for (int i = 0; i < DEVICE_N_USES; i++)
        if (i != DEVICE_KV || !keep_blocks)
            device_give_back(&b->device, (enum device_use)i);
}

static uint64_t bytes_taken(const struct rank *b)
{
    uint64_t n = 0;

    for (int i = 0; i < DEVICE_N_USES; i++)
        n += b->device.bytes[i];
    return n;
}

int rank_sleep(struct rank *b, bool keep_blocks, struct err *e)
{
    const uint64_t before = bytes_taken(b);
    int r = cuda_check(cudaSetDevice(b->device.id), "choosing the device", e);

    if (r == 0)
        r = cuda_check(cudaStreamSynchronize(b->device.launch.stream), "falling asleep", e);
    if (r < 0)
        return r;
    rank_give_back(b, keep_blocks);
    b->given_back += before - bytes_taken(b);
    return 0;
}

int rank_check_wake(struct rank *b, struct err *e)
{
    uint64_t free_bytes = 0;
    int r = cuda_check(cudaSetDevice(b->device.id), "choosing the device", e);

    if (r == 0)
        r = device_free_bytes(&free_bytes, e);
    if (r == 0 && free_bytes < b->given_back) /* seen before weights are read in vain */
        return err_set(e, -ENOMEM,
                       "%s: %.1f MiB of device memory needed, %.1f MiB are free: other programs "
                       "use it",
                       b->device.name, (double)b->given_back / 0x1p20, (double)free_bytes / 0x1p20);
    return r;
}

void rank_deinit(struct rank *b)
{
    (void)cudaSetDevice(b->device.id);
    if (b->device.launch.stream)
        (void)cudaStreamSynchronize(b->device.launch.stream);
    host_tier_free(b->host);
    rank_give_back(b, false);
    free(b->graphs.by_size);
    free(b->whole_rows);
    free(b->known.all);
    for (int i = 0; i < SAMPLER_SLOTS; i++) {
        if (b->slots[i].pinned)
            (void)cudaFreeHost(b->slots[i].pinned);
        if (b->slots[i].sums)
            (void)cudaFreeHost(b->slots[i].sums);
        if (b->forward.sampler.host_ids[i])
            (void)cudaFreeHost(b->forward.sampler.host_ids[i]);
        if (b->slots[i].done)
            (void)cudaEventDestroy(b->slots[i].done);
    }
    if (b->forward.ranks.barrier.host_ns)
        (void)cudaFreeHost(b->forward.ranks.barrier.host_ns);
    close_ring(&b->forward.ring);
    device_close(&b->device);
}

/* What was measured at earlier starts, under a key that says of what. */
static int read_known(struct rank *b, struct err *e)
{
    const struct model_config *c = model_config(b->model);
    int driver = 0, runtime = 0;
    int r;

    if ((r = cuda_check(cudaDriverGetVersion(&driver), "querying the driver's version", e)) < 0 ||
        (r = cuda_check(cudaRuntimeGetVersion(&runtime), "querying CUDA's version", e)) < 0)
        return r;
    snprintf(b->key, sizeof(b->key),
             "%.64s, compute %d, driver %d, CUDA %d, cuBLASLt %zu, %d MiB; %d layers of %d, "
             "heads %d/%d of %d, ffn %d, experts %d/%d, vocab %d, block %d, tp %d, %s/%d",
             b->device.name, b->device.compute, driver, runtime, cublasLtGetVersion(),
             GEMM_WORKSPACE >> 20, c->n_layers, c->hidden_dim, c->n_heads, c->n_kv_heads,
             c->head_dim, c->ffn_dim, c->n_experts_per_tok, c->n_experts, c->vocab_size,
             b->options.block_len, b->shard.tp_size,
             dtype_info[c->quant ? c->quant->dtype : DTYPE_BF16].name,
             c->quant ? c->quant->scale_cols : 0);
    return algo_file_read(&b->known, b->options.cache_folder, b->key, e);
}

/* A product of m rows as each layer has it: not all layers need be quantized. */
static int load_product(struct rank *b, enum forward_product kind, int m, struct err *e)
{
    bool loaded[N_GEMM_IN] = {false};
    int r = 0;

    for (int layer = 0; layer < b->config.n_layers && r == 0; layer++) {
        const struct gemm_product p = forward_product(&b->forward, kind, layer, m);

        if (!loaded[p.in])
            r = gemm_run(b->gemm, b->device.launch.stream, &p, e);
        loaded[p.in] = true;
    }
    return r;
}

/* Loads all that a step may launch: see kernels_load(). */
static int load_kernels(struct rank *b, struct err *e)
{
    const int last = gemm_rows(b->limits.max_tokens), most_logits = gemm_rows(b->limits.max_seqs);
    int r = cuda_check(kernels_load(), "loading kernels", e);

    for (int m = gemm_rows(1); m <= last && r == 0; m = gemm_rows(m + 1))
        for (int kind = 0; kind < N_PRODUCTS && r == 0; kind++)
            if (forward_has_product(&b->forward, (enum forward_product)kind) &&
                (kind != PRODUCT_LM_HEAD || m <= most_logits))
                r = load_product(b, (enum forward_product)kind, m, e);
    return r < 0 ? r : cuda_check(cudaStreamSynchronize(b->device.launch.stream), "loading", e);
}

int rank_choose(struct rank *b, struct err *e)
{
    int r = 0;

    gemm_adopt(b->gemm, &b->known);
    forward_choose_paths(&b->forward, &b->known);
    rank_drop_graphs(b);
    if (b->shard.tp_size > 1)
        r = load_kernels(b, e);
    if (r == 0 && !b->options.eager)
        r = rank_prepare_graph(b, 1, false, false, e);
    return r < 0 ? r : cuda_check(cudaStreamSynchronize(b->device.launch.stream), "starting", e);
}

int rank_load_products(struct rank *b, struct err *e)
{
    const struct gemm_product p = forward_product(&b->forward, PRODUCT_QKV, 0, gemm_rows(1));
    cudaStream_t stream = b->device.launch.stream;
    int r = gemm_run(b->gemm, stream, &p, e);

    return r < 0 || (r = cuda_check(cudaStreamSynchronize(stream), "loading", e)) < 0 ? r : 1;
}

int rank_open(struct rank *b, const struct model *model, struct shard shard, int local,
              const struct backend_options *options, struct err *e)
{
    const int64_t block = 2 * (int64_t)options->block_len * (int64_t)sizeof(uint16_t);
    const struct model_config *c = &b->config;
    int r;

    b->model = model;
    b->shard = shard;
    b->local = local;
    b->n_local = options->n_devices;
    b->options = *options;
    b->config = shard_config(model_config(model), shard);
    b->block_bytes = (uint64_t)(block * c->n_layers * c->n_kv_heads * c->head_dim);
    b->graphs.by_size =
        calloc((size_t)rank_graph_size(options->max_seqs) + 1, sizeof(*b->graphs.by_size));
    if (options->n_processes > 1)
        b->whole_rows = calloc((size_t)options->max_seqs, sizeof(*b->whole_rows));
    if (!b->graphs.by_size || (options->n_processes > 1 && !b->whole_rows))
        return err_set(e, -ENOMEM, "out of memory");
    r = open_device(b, e);
    return r < 0 ? r : read_known(b, e);
}

static void fill_ledger(struct backend_info *out, const struct rank *b)
{
    const uint64_t *taken = b->device.bytes;
    uint64_t known, used, free_bytes;
    struct err ignored;

    out->weight_bytes = b->weights.bytes;
    out->graph_bytes = b->graphs.bytes;
    out->workspace_bytes = taken[DEVICE_ACTIVATIONS] + taken[DEVICE_SAMPLER] + taken[DEVICE_RING] +
                           taken[DEVICE_WORKSPACE] + taken[DEVICE_STEP];
    if (device_free_bytes(&free_bytes, &ignored) < 0)
        return;
    known =
        out->weight_bytes + out->tiers[TIER_DEVICE].bytes + out->graph_bytes + out->workspace_bytes;
    used = b->device.total_bytes - free_bytes;
    out->total_bytes = b->device.total_bytes;
    out->free_bytes = free_bytes;
    if (known > used) /* others had taken it while graphs were captured, and gave it back */
        out->graph_bytes -= known - used < out->graph_bytes ? known - used : out->graph_bytes;
    else
        out->other_bytes = used - known;
}

void rank_info(const struct rank *b, struct backend_info *out)
{
    *out = (struct backend_info){
        .n_devices = 1,
        .tp_size = b->shard.tp_size,
        .tiers[TIER_DEVICE] = {b->n_blocks, b->device.bytes[DEVICE_KV]},
        .block_bytes = b->block_bytes,
        .kv_dtype = KV_DTYPE_BF16,
        .masks = true,
        .drafts = true,
        .sum_dim = b->config.hidden_dim,
        .copies = b->host != NULL,
        .offloads = b->forward.ring.max_blocks > 0,
        .may_offload = b->forward.ring.max_blocks > 0 && host_memory_is_pinned(b->host_memory),
    };
    if (b->host)
        out->tiers[TIER_HOST] = (struct backend_tier){host_memory_blocks(b->host_memory),
                                                      host_memory_pinned_bytes(b->host_memory),
                                                      host_memory_base(b->host_memory)};
    snprintf(out->devices[0].name, sizeof(out->devices[0].name), "%.100s, %.0f GiB", b->device.name,
             (double)b->device.total_bytes / 0x1p30);
    snprintf(out->devices[0].pci, sizeof(out->devices[0].pci), "%s", b->device.pci);
    snprintf(out->driver, sizeof(out->driver), "%s", b->device.driver);
    fill_ledger(out, b);
}
