/* rank.c - see rank.h: from open to close, but for the device's memory. */
#include "cuda/rank.h"

#include <cublasLt.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/model/quantization.h"

/* Whether attn_decode_sm90() is for the rank's device and keys. */
static bool decode_is_sm90(const struct rank *rank)
{
    return rank->device.compute == 90 && rank->options.kv_dtype != KV_DTYPE_FP8;
}

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
static int set_limits(struct rank *rank, struct err *e)
{
    const struct model_config *c = &rank->config;
    const struct backend_options *o = &rank->options;
    const int groups = (c->n_heads / c->n_kv_heads + ATTN_GROUP - 1) / ATTN_GROUP;
    /* What must not depend on the number of ranks is planned as for one. */
    const int n_kv_heads = o->invariant ? model_config(rank->model)->n_kv_heads : c->n_kv_heads;
    const int per_item = n_kv_heads * groups;
    const int seqs = rank_graph_size(o->max_seqs);
    const int per_sm = decode_is_sm90(rank) ? ATTN_BLOCKS_PER_SM90 : ATTN_BLOCKS_PER_SM;
    const int wanted = rank->device.launch.n_sms * per_sm / per_item; /* one wave */
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
    rank->limits = (struct step_limits){
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
    most_seqs = step_most_seqs(&rank->limits);
    most_seqs = most_tokens < most_seqs ? most_tokens : most_seqs;
    if (o->max_seqs > most_seqs)
        return err_set(e, -EINVAL,
                       "CUDA: scheduler.max_seqs: %d exceeds %d, the most that a device computes "
                       "at a time with this max_batch_tokens and max_seq_len",
                       o->max_seqs, most_seqs);
    return 0;
}

/* Host memory of a slot and the event of its step. */
static int take_slot(struct rank *rank, int slot, struct err *e)
{
    const size_t n = (size_t)rank->limits.max_seqs, tops = n * SAMPLING_MAX_LOGPROBS;
    const size_t bytes = (n + tops) * (sizeof(int32_t) + sizeof(float));
    struct sampler_memory *m = &rank->forward.sampler;
    struct rank_slot *s = &rank->slots[slot];
    int32_t *ids = NULL;
    int r;

    if ((r = cuda_check(cudaHostAlloc((void **)&s->pinned, step_max_bytes(&rank->limits),
                                      cudaHostAllocDefault),
                        "pinning memory", e)) < 0 ||
        (r = cuda_check(cudaEventCreateWithFlags(&s->done,
                                                 cudaEventDisableTiming | cudaEventBlockingSync),
                        "creating an event", e)) < 0 ||
        (r = cuda_check(cudaHostAlloc((void **)&ids, bytes, cudaHostAllocMapped), "pinning memory",
                        e)) < 0)
        return r;
    if (rank->shard.rank == 0 &&
        (r = cuda_check(cudaHostAlloc((void **)&s->sums,
                                      n * (size_t)rank->config.hidden_dim * sizeof(*s->sums),
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

static int open_staging(struct kv_staging *staging, struct err *e)
{
    cudaEvent_t *const events[] = {&staging->begun, &staging->full[0], &staging->full[1],
                                   &staging->empty[0], &staging->empty[1]};
    int rc = cuda_check(cudaStreamCreateWithFlags(&staging->stream, cudaStreamNonBlocking),
                        "creating a stream", e);

    for (size_t i = 0; i < sizeof(events) / sizeof(*events) && rc == 0; i++)
        rc = cuda_check(cudaEventCreateWithFlags(events[i], cudaEventDisableTiming),
                        "creating an event", e);
    return rc;
}

static void close_staging(struct kv_staging *staging)
{
    const cudaEvent_t events[] = {staging->begun, staging->full[0], staging->full[1],
                                  staging->empty[0], staging->empty[1]};

    for (size_t i = 0; i < sizeof(events) / sizeof(*events); i++)
        if (events[i])
            (void)cudaEventDestroy(events[i]);
    if (staging->stream)
        (void)cudaStreamDestroy(staging->stream);
}

/* Blocks of the resident kernel: ranks that share a device have a part of its multiprocessors. */
static int resident_blocks(const struct rank *rank)
{
    const int32_t *ids = rank->options.devices;
    int n_sharing = 0;

    for (int i = 0; i < rank->n_local; i++)
        n_sharing += ids[i] == ids[rank->local];
    return rank->device.launch.n_sms / n_sharing;
}

/* The most ranks whose steps the resident kernel computes. */
static int resident_ranks(const struct rank *rank)
{
    const struct model_config *c = &rank->config;

    return c->n_experts || c->quant || rank->options.kv_dtype == KV_DTYPE_FP8 ? 1
                                                                              : RESIDENT_MAX_RANKS;
}

/* What stays while the rank sleeps. */
static int open_device(struct rank *rank, struct err *e)
{
    const struct model_config *c = &rank->config;
    const struct shard first = {.rank = 0, .tp_size = rank->shard.tp_size};
    struct device *d = &rank->device;
    struct forward *f = &rank->forward;
    bool resident = false;
    int64_t from, n_ids;
    int r;

    if ((r = device_open(d, rank->options.devices[rank->local], e)) < 0 ||
        (r = set_limits(rank, e)) < 0)
        return r;
    shard_range(&from, &n_ids, c, DIM_VOCAB, first);
    f->peers.n = rank->shard.tp_size;
    f->peers.me = rank->shard.rank;
    f->peers.embedding = (struct embedding){.rows_per_rank = (int)n_ids,
                                            .vocab_size = c->vocab_size,
                                            .dim = c->hidden_dim};
    f->e4m3 = d->compute == 90 && !rank->options.invariant;
    if (d->compute == 90 && !rank->options.invariant &&
        rank->shard.tp_size <= resident_ranks(rank) && rank->shard.tp_size == rank->n_local)
        r = cuda_check(resident_compiled(&resident), "querying the resident kernel", e);
    if (r < 0)
        return r;
    if (resident)
        forward_plan_resident(f, c, resident_blocks(rank),
                              __builtin_ctz((unsigned)rank->options.block_len),
                              rank->options.kv_dtype == KV_DTYPE_FP8);
    for (int i = 0; i < SAMPLER_SLOTS && r == 0; i++)
        r = take_slot(rank, i, e);
    if (r == 0 && rank->shard.tp_size > 1)
        r = cuda_check(cudaHostAlloc((void **)&f->peers.barrier.host_ns, sizeof(uint64_t),
                                     cudaHostAllocMapped),
                       "pinning memory", e);
    if (r == 0)
        r = open_staging(&f->staging, e);
    if (r == 0)
        r = cuda_check(attn_prefill_init(), "preparing attention", e);
    if (r == 0 && decode_is_sm90(rank))
        r = cuda_check(attn_decode_sm90_init(&f->decode_sm90), "preparing attention", e);
    if (r == 0)
        r = cuda_check(stream_gemm_init(&f->streams), "preparing products", e);
    if (r == 0 && c->n_experts)
        r = cuda_check(expert_gemm_init(&d->launch), "preparing experts", e);
    if (r == 0 && d->compute == 90 && !rank->options.invariant && c->quant &&
        c->quant->dtype == DTYPE_INT4)
        r = cuda_check(int4_gemm_init(&f->int4), "preparing products of 4 bits", e);
    if (r == 0 && f->resident_rows > 0)
        r = cuda_check(resident_init(), "preparing the resident kernel", e);
    f->config = c;
    f->weights = &rank->weights;
    f->launch = &d->launch;
    f->invariant = rank->options.invariant;
    return r;
}

static uint64_t bytes_taken(const struct rank *rank)
{
    uint64_t n = 0;

    for (int i = 0; i < DEVICE_N_USES; i++)
        n += rank->device.bytes[i];
    return n;
}

int rank_sleep(struct rank *rank, bool keep_blocks, struct err *e)
{
    const uint64_t before = bytes_taken(rank);
    int r = cuda_check(cudaSetDevice(rank->device.id), "choosing the device", e);

    if (r == 0)
        r = cuda_check(cudaStreamSynchronize(rank->device.launch.stream), "falling asleep", e);
    if (r < 0)
        return r;
    rank_give_back(rank, keep_blocks);
    rank->given_back += before - bytes_taken(rank);
    return 0;
}

int rank_check_wake(struct rank *rank, struct err *e)
{
    uint64_t free_bytes = 0;
    int r = cuda_check(cudaSetDevice(rank->device.id), "choosing the device", e);

    if (r == 0)
        r = device_free_bytes(&free_bytes, e);
    if (r == 0 && free_bytes < rank->given_back) /* seen before weights are read in vain */
        return err_set(e, -ENOMEM,
                       "%s: %.1f MiB of device memory needed, %.1f MiB are free: other programs "
                       "use it",
                       rank->device.name, (double)rank->given_back / 0x1p20,
                       (double)free_bytes / 0x1p20);
    return r;
}

void rank_deinit(struct rank *rank)
{
    (void)cudaSetDevice(rank->device.id);
    if (rank->device.launch.stream)
        (void)cudaStreamSynchronize(rank->device.launch.stream);
    host_tier_free(rank->host);
    rank_give_back(rank, false);
    free(rank->graphs.by_size);
    free(rank->whole_rows);
    free(rank->known.all);
    for (int i = 0; i < SAMPLER_SLOTS; i++) {
        if (rank->slots[i].pinned)
            (void)cudaFreeHost(rank->slots[i].pinned);
        if (rank->slots[i].sums)
            (void)cudaFreeHost(rank->slots[i].sums);
        if (rank->forward.sampler.host_ids[i])
            (void)cudaFreeHost(rank->forward.sampler.host_ids[i]);
        if (rank->slots[i].done)
            (void)cudaEventDestroy(rank->slots[i].done);
    }
    if (rank->forward.peers.barrier.host_ns)
        (void)cudaFreeHost(rank->forward.peers.barrier.host_ns);
    close_staging(&rank->forward.staging);
    device_close(&rank->device);
}

/* What was measured at earlier starts, under a key that says of what. */
static int read_known(struct rank *rank, struct err *e)
{
    const struct model_config *c = model_config(rank->model);
    int driver = 0, runtime = 0;
    int r;

    if ((r = cuda_check(cudaDriverGetVersion(&driver), "querying the driver's version", e)) < 0 ||
        (r = cuda_check(cudaRuntimeGetVersion(&runtime), "querying CUDA's version", e)) < 0)
        return r;
    snprintf(rank->key, sizeof(rank->key),
             "%.64s, compute %d, driver %d, CUDA %d, cuBLASLt %zu, %d MiB; %d layers of %d, "
             "heads %d/%d of %d, ffn %d, experts %d/%d, vocab %d, block %d, tp %d, %s/%d%s",
             rank->device.name, rank->device.compute, driver, runtime, cublasLtGetVersion(),
             GEMM_WORKSPACE >> 20, c->n_layers, c->hidden_dim, c->n_heads, c->n_kv_heads,
             c->head_dim, c->ffn_dim, c->n_experts_per_tok, c->n_experts, c->vocab_size,
             rank->options.block_len, rank->shard.tp_size, model_kept_as(c),
             c->quant ? c->quant->scale_cols : 0,
             rank->options.kv_dtype == KV_DTYPE_FP8 ? ", fp8 keys" : "");
    return algo_file_read(&rank->known, rank->options.cache_folder, rank->key, e);
}

/* A product of m rows as each layer has it, where cuBLASLt computes it: not all layers need be
 * quantized. */
static int load_product(struct rank *rank, enum forward_product kind, int m, struct err *e)
{
    bool loaded[N_GEMM_IN] = {false};
    int r = 0;

    for (int layer = 0; layer < rank->config.n_layers && r == 0; layer++) {
        const struct gemm_product p = forward_product(&rank->forward, kind, layer, m);

        if (loaded[p.in] || forward_is_ours(&rank->forward, kind, layer, m))
            continue;
        r = gemm_run(rank->gemm, rank->device.launch.stream, &p, e);
        loaded[p.in] = true;
    }
    return r;
}

int rank_choose(struct rank *rank, struct err *e)
{
    int r = 0;

    gemm_adopt(rank->gemm, &rank->known);
    forward_choose_paths(&rank->forward, &rank->known);
    rank_drop_graphs(rank);
    if (rank->shard.tp_size > 1)
        r = cuda_check(kernels_load(), "loading kernels", e);
    if (r == 0 && !rank->options.eager)
        r = rank_prepare_graph(rank, 1, false, false, e);
    return r < 0 ? r : cuda_check(cudaStreamSynchronize(rank->device.launch.stream), "starting", e);
}

int rank_load_products(struct rank *rank, int n_rows, struct err *e)
{
    const int m = gemm_rows(n_rows), most_logits = gemm_rows(rank->limits.max_seqs);
    int r = cuda_check(cudaSetDevice(rank->device.id), "choosing the device", e);

    for (int kind = 0; kind < N_PRODUCTS && r == 0; kind++)
        if (forward_has_product(&rank->forward, (enum forward_product)kind) &&
            (kind != PRODUCT_LM_HEAD || m <= most_logits))
            r = load_product(rank, (enum forward_product)kind, m, e);
    return r < 0 ? r : cuda_check(cudaStreamSynchronize(rank->device.launch.stream), "loading", e);
}

/* Keys and values of all layers; of E4M3 each row has a byte of scale. */
static uint64_t block_bytes_of(const struct model_config *c, const struct backend_options *o)
{
    const int row = o->kv_dtype == KV_DTYPE_FP8 ? c->head_dim + 1 : c->head_dim * 2;

    return 2 * (uint64_t)c->n_layers * (uint64_t)c->n_kv_heads * (uint64_t)o->block_len *
           (uint64_t)row;
}

int rank_open(struct rank *rank, const struct model *model, struct shard shard, int local,
              const struct backend_options *options, struct err *e)
{
    const struct model_config *c = &rank->config;
    int r;

    rank->model = model;
    rank->shard = shard;
    rank->local = local;
    rank->n_local = options->n_devices;
    rank->options = *options;
    rank->config = shard_config(model_config(model), shard);
    rank->block_bytes = block_bytes_of(c, options);
    rank->graphs.by_size =
        calloc((size_t)rank_graph_size(options->max_seqs) + 1, sizeof(*rank->graphs.by_size));
    if (options->n_processes > 1)
        rank->whole_rows = calloc((size_t)options->max_seqs, sizeof(*rank->whole_rows));
    if (!rank->graphs.by_size || (options->n_processes > 1 && !rank->whole_rows))
        return err_set(e, -ENOMEM, "out of memory");
    r = open_device(rank, e);
    return r < 0 ? r : read_known(rank, e);
}

static void fill_ledger(struct backend_info *out, const struct rank *rank)
{
    const uint64_t *taken = rank->device.bytes;
    uint64_t known, used, free_bytes;
    struct err ignored;

    out->weight_bytes = rank->weights.bytes;
    out->graph_bytes = rank->graphs.bytes;
    out->workspace_bytes = taken[DEVICE_ACTIVATIONS] + taken[DEVICE_SAMPLER] +
                           taken[DEVICE_STAGING] + taken[DEVICE_WORKSPACE] + taken[DEVICE_STEP];
    if (device_free_bytes(&free_bytes, &ignored) < 0)
        return;
    known =
        out->weight_bytes + out->tiers[TIER_DEVICE].bytes + out->graph_bytes + out->workspace_bytes;
    used = rank->device.total_bytes - free_bytes;
    out->total_bytes = rank->device.total_bytes;
    out->free_bytes = free_bytes;
    if (known > used) /* others had taken it while graphs were captured, and gave it back */
        out->graph_bytes -= known - used < out->graph_bytes ? known - used : out->graph_bytes;
    else
        out->other_bytes = used - known;
}

void rank_info(const struct rank *rank, struct backend_info *out)
{
    *out = (struct backend_info){
        .n_devices = 1,
        .tp_size = rank->shard.tp_size,
        .tiers[TIER_DEVICE] = {rank->n_blocks, rank->device.bytes[DEVICE_KV]},
        .block_bytes = rank->block_bytes,
        .kv_dtype = rank->forward.kv.fp8 ? KV_DTYPE_FP8 : KV_DTYPE_BF16,
        .masks = true,
        .sum_dim = rank->config.hidden_dim,
        .copies = rank->host != NULL,
        .offloads = rank_offloads(rank),
        .may_offload = rank_offloads(rank) && host_memory_is_pinned(rank->host_memory),
    };
    if (rank->host)
        out->tiers[TIER_HOST] = (struct backend_tier){host_memory_blocks(rank->host_memory),
                                                      host_memory_pinned_bytes(rank->host_memory),
                                                      host_memory_base(rank->host_memory)};
    snprintf(out->devices[0].name, sizeof(out->devices[0].name), "%.100s, %.0f GiB",
             rank->device.name, (double)rank->device.total_bytes / 0x1p30);
    snprintf(out->devices[0].pci, sizeof(out->devices[0].pci), "%s", rank->device.pci);
    snprintf(out->driver, sizeof(out->driver), "%s", rank->device.driver);
    fill_ledger(out, rank);
}
