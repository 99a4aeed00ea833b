/* rank.c - see rank.h: from open to close, but for the device's memory. */
#include "cuda/rank.h"

#include <cublasLt.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/model/quantization.h"

enum { ITEM_BLOCKS_PER_SM = 3 }; /* of decode attention that a multiprocessor has room for */

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
    f->peers.n = b->shard.tp_size;
    f->peers.me = b->shard.rank;
    f->peers.embedding = (struct embedding){.rows_per_rank = (int)n_ids,
                                            .vocab_size = c->vocab_size,
                                            .dim = c->hidden_dim};
    f->e4m3 = d->compute == 90 && !b->options.invariant;
    if (d->compute == 90 && !b->options.invariant && !c->quant &&
        b->options.kv_dtype != KV_DTYPE_FP8 && b->shard.tp_size <= RESIDENT_MAX_RANKS &&
        b->shard.tp_size == b->n_local && (c->n_experts == 0 || b->shard.tp_size == 1))
        r = cuda_check(resident_compiled(&resident), "querying the resident kernel", e);
    if (r < 0)
        return r;
    if (resident)
        forward_plan_resident(f, c, resident_blocks(b),
                              __builtin_ctz((unsigned)b->options.block_len));
    for (int i = 0; i < SAMPLER_SLOTS && r == 0; i++)
        r = take_slot(b, i, e);
    if (r == 0 && b->shard.tp_size > 1)
        r = cuda_check(cudaHostAlloc((void **)&f->peers.barrier.host_ns, sizeof(uint64_t),
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
    if (r == 0 && d->compute == 90 && !b->options.invariant && c->quant &&
        c->quant->dtype == DTYPE_INT4)
        r = cuda_check(int4_gemm_init(&f->int4), "preparing products of 4 bits", e);
    if (r == 0 && f->resident_rows > 0)
        r = cuda_check(resident_init(), "preparing the resident kernel", e);
    f->config = c;
    f->weights = &b->weights;
    f->launch = &d->launch;
    f->invariant = b->options.invariant;
    return r;
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
    if (b->forward.peers.barrier.host_ns)
        (void)cudaFreeHost(b->forward.peers.barrier.host_ns);
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

/* A product of m rows as each layer has it, where cuBLASLt computes it: not all layers need be
 * quantized. */
static int load_product(struct rank *b, enum forward_product kind, int m, struct err *e)
{
    bool loaded[N_GEMM_IN] = {false};
    int r = 0;

    for (int layer = 0; layer < b->config.n_layers && r == 0; layer++) {
        const struct gemm_product p = forward_product(&b->forward, kind, layer, m);

        if (loaded[p.in] || forward_is_ours(&b->forward, kind, layer, m))
            continue;
        r = gemm_run(b->gemm, b->device.launch.stream, &p, e);
        loaded[p.in] = true;
    }
    return r;
}

int rank_choose(struct rank *b, struct err *e)
{
    int r = 0;

    gemm_adopt(b->gemm, &b->known);
    forward_choose_paths(&b->forward, &b->known);
    rank_drop_graphs(b);
    if (b->shard.tp_size > 1)
        r = cuda_check(kernels_load(), "loading kernels", e);
    if (r == 0 && !b->options.eager)
        r = rank_prepare_graph(b, 1, false, false, e);
    return r < 0 ? r : cuda_check(cudaStreamSynchronize(b->device.launch.stream), "starting", e);
}

int rank_load_products(struct rank *b, int n_rows, struct err *e)
{
    const int m = gemm_rows(n_rows), most_logits = gemm_rows(b->limits.max_seqs);
    int r = cuda_check(cudaSetDevice(b->device.id), "choosing the device", e);

    for (int kind = 0; kind < N_PRODUCTS && r == 0; kind++)
        if (forward_has_product(&b->forward, (enum forward_product)kind) &&
            (kind != PRODUCT_LM_HEAD || m <= most_logits))
            r = load_product(b, (enum forward_product)kind, m, e);
    return r < 0 ? r : cuda_check(cudaStreamSynchronize(b->device.launch.stream), "loading", e);
}

/* Keys and values of all layers; of E4M3 each row has a byte of scale. */
static uint64_t block_bytes_of(const struct model_config *c, const struct backend_options *o)
{
    const int row = o->kv_dtype == KV_DTYPE_FP8 ? c->head_dim + 1 : c->head_dim * 2;

    return 2 * (uint64_t)c->n_layers * (uint64_t)c->n_kv_heads * (uint64_t)o->block_len *
           (uint64_t)row;
}

int rank_open(struct rank *b, const struct model *model, struct shard shard, int local,
              const struct backend_options *options, struct err *e)
{
    const struct model_config *c = &b->config;
    int r;

    b->model = model;
    b->shard = shard;
    b->local = local;
    b->n_local = options->n_devices;
    b->options = *options;
    b->config = shard_config(model_config(model), shard);
    b->block_bytes = block_bytes_of(c, options);
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
        .kv_dtype = b->forward.kv.fp8 ? KV_DTYPE_FP8 : KV_DTYPE_BF16,
        .masks = true,
        .sum_dim = b->config.hidden_dim,
        .copies = b->host != NULL,
        .offloads = rank_offloads(b),
        .may_offload = rank_offloads(b) && host_memory_is_pinned(b->host_memory),
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
