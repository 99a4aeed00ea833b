/* backend.c - the CUDA backend behind the contract of engine/backend.h: what it takes at open, and
 * how a step is enqueued and waited for.
 *
 * One stream. A step is one copy of metadata and then either a captured graph (decodes alone) or
 * its kernels one by one; sampled ids come back by writes of the last kernel to host memory. The
 * engine thread owns all of it; open may run on another thread. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cuda/device.h"
#include "cuda/inspect.h"
#include "cuda/forward.h"
#include "cuda/graphs.h"
#include "cuda/results.h"
#include "cuda/step.h"
#include "cuda/weights.h"
#include "engine/backend.h"
#include "engine/util/must.h"

enum {
    GRAPH_RESERVE = 256 << 20, /* of device memory, for what the driver takes as graphs come */
    ITEM_BLOCKS_PER_SM = 3,    /* blocks of decode attention that a multiprocessor has room for */
};

static const double KV_FRACTION = 0.9; /* where nobody says: some is left for others' contexts */

struct backend {
    const struct model *model;
    struct backend_options options;
    struct device device;
    struct weights weights;
    struct gemm *gemm;
    struct forward forward;
    struct graphs *graphs;
    struct step_limits limits;
    struct results results;
    char *pinned[BACKEND_IN_FLIGHT]; /* a step's metadata on its way */
    char *step_memory;               /* where it goes */
    int32_t *history;                /* [max_seq_len] tokens of one sequence being loaded */
    int32_t n_blocks;
    uint64_t block_bytes;
    uint64_t graph_bytes; /* that captures have taken */
    uint64_t n_submitted, n_waited;
    uint32_t last_tag;  /* of messages of the resident kernel */
    int dead;           /* the errno that ended it */
    uint8_t *wants_top; /* [max_seqs] by sampler state */
};

static int seqs_rounded(int max_seqs)
{
    int n = 1;

    while (n < max_seqs && n < 16)
        n *= 2;
    return max_seqs <= n ? n : (max_seqs + 15) / 16 * 16;
}

static int check_model(const struct model_config *c, struct err *e)
{
    if (c->head_dim != 64 && c->head_dim != 128)
        return err_set(e, -ENOTSUP, "CUDA: head_dim %d is not supported, 64 and 128 are",
                       c->head_dim);
    if (c->hidden_dim % 32 || c->ffn_dim % 32 || c->vocab_size % 4)
        return err_set(e, -ENOTSUP,
                       "CUDA: hidden_size and intermediate_size must be multiples of 32 and "
                       "vocab_size of 4");
    if (c->vocab_size > 1 << 22)
        return err_set(e, -ENOTSUP, "CUDA: vocab_size %d is over %d", c->vocab_size, 1 << 22);
    return 0;
}

static int set_limits(struct backend *b, struct err *e)
{
    const struct model_config *c = model_config(b->model);
    const struct backend_options *o = &b->options;
    const int groups = (c->n_heads / c->n_kv_heads + ATTN_GROUP - 1) / ATTN_GROUP;
    const int per_item = c->n_kv_heads * groups;
    const int seqs = seqs_rounded(o->max_seqs);
    const int wanted = b->device.launch.n_sms * ITEM_BLOCKS_PER_SM / per_item; /* one wave */

    if (o->max_seq_len > STEP_MAX_LEN)
        return err_set(e, -EINVAL,
                       "CUDA: scheduler.max_seq_len: %d is over %d, the longest sequence that a "
                       "device computes; unless it is set it is the model's length",
                       o->max_seq_len, STEP_MAX_LEN);
    b->limits = (struct step_limits){
        .max_tokens = o->max_batch_tokens > seqs ? o->max_batch_tokens : seqs,
        .max_seqs = seqs,
        .max_blocks = (o->max_seq_len + o->block_len - 1) / o->block_len,
        .block_len = o->block_len,
        .target_items = wanted < 1                 ? 1
                        : wanted > ATTN_MAX_SPLITS ? ATTN_MAX_SPLITS
                                                   : wanted,
        .invariant = o->invariant,
    };
    return 0;
}

/* What no grid or index of a kernel holds, whatever memory there is. */
static int check_limits(const struct backend *b, struct err *e)
{
    const struct model_config *c = model_config(b->model);
    const struct backend_options *o = &b->options;
    /* threads of rope_store(), and those of its last block that have nothing to do */
    const int most_tokens = (INT32_MAX - 1024) / ((c->n_heads + 2 * c->n_kv_heads) * ROPE_LANES);
    int most_seqs;

    if (o->max_batch_tokens > most_tokens)
        return err_set(e, -EINVAL,
                       "CUDA: scheduler.max_batch_tokens: %d is over %d, the most that a device "
                       "computes at a time with this model",
                       o->max_batch_tokens, most_tokens);
    most_seqs = step_most_seqs(&b->limits);
    if (o->max_seqs > most_seqs)
        return err_set(e, -EINVAL,
                       "CUDA: scheduler.max_seqs: %d is over %d, the most that a device computes "
                       "at a time with this max_batch_tokens and max_seq_len",
                       o->max_seqs, most_seqs);
    return 0;
}

static void lay_activations(struct backend *b, struct arena *a)
{
    const struct model_config *c = model_config(b->model);
    struct forward *f = &b->forward;
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
    f->gate_up = arena_take(a, rows * (ffn > hidden ? ffn : hidden) * 2 * sizeof(uint16_t));
    f->act = arena_take(a, rows * ffn * sizeof(uint16_t));
    f->parts = arena_take(a, GEMM_PART_FLOATS * sizeof(float));
    f->partial =
        arena_take(a, partials * passes * ATTN_GROUP * ((size_t)c->head_dim + 2) * sizeof(float));
    f->tickets = arena_take(a, (size_t)b->limits.max_seqs * passes * sizeof(int32_t));
    f->prefill_partial = arena_take(a, attn_prefill_partial_bytes(c->head_dim));
    f->prefill_tickets = arena_take(a, ATTN_PREFILL_TICKETS * sizeof(int32_t));
    if (f->resident_rows > 0)
        f->resident.exchange = arena_take(a, resident_exchange_bytes(&f->resident));
}

static void lay_sampler(struct backend *b, struct arena *a)
{
    const size_t seqs = (size_t)b->limits.max_seqs;
    struct sampler_memory *m = &b->forward.sampler;
    const size_t stride = ((size_t)model_config(b->model)->vocab_size + 7) & ~(size_t)7;

    m->vocab_size = model_config(b->model)->vocab_size;
    m->logits_stride = (int64_t)stride;
    m->max_seqs = b->limits.max_seqs;
    m->invariant = b->options.invariant;
    b->forward.logits =
        arena_take(a, (size_t)gemm_rows(b->limits.max_seqs) * stride * sizeof(float));
    m->logits = b->forward.logits;
    m->adjusted = arena_take(a, seqs * stride * sizeof(float));
    m->states = arena_take(a, seqs * sizeof(*m->states));
    m->bias = arena_take(a, seqs * SAMPLING_MAX_BIAS * sizeof(*m->bias));
    m->seen = arena_take(a, seqs * stride * sizeof(*m->seen));
    m->scans = arena_take(a, sampler_scan_bytes(&b->device.launch, m));
    m->sampled = arena_take(a, seqs * sizeof(*m->sampled));
    b->history = arena_take(a, (size_t)b->options.max_seq_len * sizeof(int32_t));
    for (int i = 0; i < BACKEND_IN_FLIGHT; i++) {
        m->host_ids[i] = b->results.slots[i].ids;
        m->host_logprobs[i] = b->results.slots[i].logprobs;
        m->host_top_ids[i] = b->results.slots[i].top_ids;
        m->host_top_logprobs[i] = b->results.slots[i].top_logprobs;
    }
}

/* One use's memory, zeroed: rows that nothing has written yet are computed with, not looked at. */
static int take_arena(struct backend *b, enum device_use use,
                      void (*lay)(struct backend *, struct arena *), struct err *e)
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

static int take_steps(struct backend *b, struct err *e)
{
    const size_t bytes = step_max_bytes(&b->limits);
    int r = device_take(&b->device, DEVICE_STEP, bytes, e);

    b->step_memory = b->device.memory[DEVICE_STEP];
    for (int i = 0; i < BACKEND_IN_FLIGHT && r == 0; i++)
        r = cuda_check(cudaHostAlloc((void **)&b->pinned[i], bytes, cudaHostAllocDefault),
                       "pinning memory", e);
    return r;
}

/* The pool gets a fraction of what is free now, or so many bytes; whole blocks. */
static int take_blocks(struct backend *b, struct err *e)
{
    const struct model_config *c = model_config(b->model);
    const struct backend_options *o = &b->options;
    const int64_t v_offset = (int64_t)c->n_kv_heads * o->block_len * c->head_dim;
    uint64_t free_bytes = 0, bytes, n;
    int r = device_free_bytes(&b->device, &free_bytes, e);

    if (r < 0)
        return r;
    free_bytes = free_bytes > GRAPH_RESERVE ? free_bytes - GRAPH_RESERVE : 0;
    bytes =
        o->kv_bytes
            ? o->kv_bytes
            : (uint64_t)((o->kv_fraction > 0 ? o->kv_fraction : KV_FRACTION) * (double)free_bytes);
    b->block_bytes = (uint64_t)v_offset * 2 * (uint64_t)c->n_layers * sizeof(uint16_t);
    n = bytes / b->block_bytes;
    if (n > (uint64_t)(INT32_MAX / o->block_len))
        n = (uint64_t)(INT32_MAX / o->block_len);
    if (n == 0)
        return err_set(e, -ENOMEM,
                       "%s: %.1f MiB are left for KV blocks, and one block of %d tokens takes "
                       "%.1f MiB; a smaller block_len or a larger kv_memory helps",
                       b->device.name, (double)bytes / 0x1p20, o->block_len,
                       (double)b->block_bytes / 0x1p20);
    r = device_take(&b->device, DEVICE_KV, n * b->block_bytes, e);
    if (r < 0)
        return r;
    b->n_blocks = (int32_t)n;
    b->forward.kv = (struct kv_pool){.base = b->device.memory[DEVICE_KV],
                                     .block_stride = 2 * v_offset * c->n_layers,
                                     .layer_stride = 2 * v_offset,
                                     .v_offset = v_offset,
                                     .block_shift = __builtin_ctz((unsigned)o->block_len),
                                     .n_kv_heads = c->n_kv_heads,
                                     .head_dim = c->head_dim};
    return 0;
}

/* Captures a graph and notes what the driver takes for it. */
static int prepare_graph(struct backend *b, int size, struct err *e)
{
    uint64_t before = 0, after = 0;
    int r = device_free_bytes(&b->device, &before, e);

    if (r == 0)
        r = graphs_prepare(b->graphs, size, e);
    if (r == 0)
        r = device_free_bytes(&b->device, &after, e);
    if (r == 0 && after < before)
        b->graph_bytes += before - after;
    return r;
}

static int open_parts(struct backend *b, struct err *e)
{
    const struct model_config *c = model_config(b->model);
    struct device *d = &b->device;
    struct forward *f = &b->forward;
    bool resident = false;
    int r = device_open(d, b->options.device, e);

    if (r < 0)
        return r;
    r = set_limits(b, e);
    if (r == 0)
        r = check_limits(b, e);
    if (r < 0)
        return r;
    if (d->compute == 90 && !b->options.invariant)
        r = cuda_check(resident_compiled(&resident), "asking for the resident kernel", e);
    if (r < 0)
        return r;
    if (resident)
        forward_plan_resident(f, c, d->launch.n_sms, __builtin_ctz((unsigned)b->options.block_len));
    r = cuda_weights_load(&b->weights, d, b->model, (struct shard){0, 1}, &b->options, e);
    if (r == 0)
        r = results_init(&b->results, b->limits.max_seqs, e);
    if (r == 0)
        r = take_arena(b, DEVICE_ACTIVATIONS, lay_activations, e);
    if (r == 0)
        r = take_arena(b, DEVICE_SAMPLER, lay_sampler, e);
    if (r == 0)
        r = device_take(d, DEVICE_WORKSPACE, GEMM_WORKSPACE, e);
    if (r == 0)
        r = take_steps(b, e);
    if (r == 0)
        r = gemm_new(&b->gemm, d, d->memory[DEVICE_WORKSPACE], b->options.cache_folder,
                     b->options.invariant, e);
    if (r == 0)
        r = cuda_check(attn_prefill_init(), "preparing attention", e);
    if (r == 0 && f->resident_rows > 0)
        r = cuda_check(resident_init(), "preparing the resident kernel", e);
    if (r < 0)
        return r;
    f->config = c;
    f->weights = &b->weights;
    f->launch = &d->launch;
    f->gemm = b->gemm;
    f->invariant = b->options.invariant;
    r = cuda_check(rope_table(f->launch, f->rope, b->options.max_seq_len, c->head_dim,
                              c->rope_theta),
                   "rope_table", e);
    if (r == 0)
        r = take_blocks(b, e);
    if (r == 0 && d->compute == 90)
        r = cuda_check(attn_maps_init(&f->maps, &f->kv, b->n_blocks, f->qkv,
                                      (c->n_heads + 2 * c->n_kv_heads) * c->head_dim,
                                      gemm_rows(b->limits.max_tokens)),
                       "preparing attention", e);
    if (r == 0)
        forward_ready_resident(f);
    if (r == 0 && f->resident_rows > 0)
        r = cuda_check(resident_clear(f->launch, &f->resident), "clearing messages", e);
    if (r == 0)
        r = graphs_new(&b->graphs, f, &b->limits, b->step_memory, e);
    if (r == 0 && !b->options.eager)
        r = prepare_graph(b, 1, e);
    if (r == 0)
        r = cuda_check(cudaStreamSynchronize(d->launch.stream), "starting", e);
    return r;
}

static void cuda_close(struct backend *b)
{
    if (!b)
        return;
    (void)cudaSetDevice(b->device.id);
    if (b->device.launch.stream)
        (void)cudaStreamSynchronize(b->device.launch.stream);
    graphs_free(b->graphs);
    gemm_free(b->gemm);
    for (int i = 0; i < BACKEND_IN_FLIGHT; i++)
        if (b->pinned[i])
            (void)cudaFreeHost(b->pinned[i]);
    results_deinit(&b->results);
    weights_deinit(&b->weights);
    device_close(&b->device);
    free(b->wants_top);
    free(b);
}

static int cuda_open(struct backend **out, const struct model *model,
                     const struct backend_options *options, struct err *e)
{
    struct backend *b;
    int r = check_model(model_config(model), e);

    must(options->block_len >= 16 && options->block_len <= 4096 && options->max_seqs > 0 &&
         options->max_batch_tokens > 0 && options->max_seq_len > 0);
    if (r < 0)
        return r;
    if (options->kv_dtype == KV_DTYPE_F32)
        return err_set(e, -ENOTSUP, "CUDA: keys and values are bf16 on a device, not f32");
    b = calloc(1, sizeof(*b));
    if (!b)
        return err_set(e, -ENOMEM, "out of memory");
    b->model = model;
    b->options = *options;
    b->wants_top = calloc((size_t)options->max_seqs, 1);
    r = b->wants_top ? open_parts(b, e) : err_set(e, -ENOMEM, "out of memory");
    if (r < 0) {
        cuda_close(b);
        return r;
    }
    *out = b;
    return 0;
}

/* What is known of the device's memory; what it has besides what was taken here is "other". */
static void fill_ledger(struct backend_info *out, const struct backend *b)
{
    const uint64_t *taken = b->device.bytes;
    uint64_t known, used, free_bytes;
    struct err ignored;

    out->weight_bytes = b->weights.bytes;
    out->kv_bytes = (uint64_t)b->n_blocks * b->block_bytes;
    out->graph_bytes = b->graph_bytes;
    out->workspace_bytes = taken[DEVICE_ACTIVATIONS] + taken[DEVICE_SAMPLER] +
                           taken[DEVICE_WORKSPACE] + taken[DEVICE_STEP];
    if (device_free_bytes(&b->device, &free_bytes, &ignored) < 0)
        return;
    known = out->weight_bytes + out->kv_bytes + out->graph_bytes + out->workspace_bytes;
    used = b->device.total_bytes - free_bytes;
    out->total_bytes = b->device.total_bytes;
    out->free_bytes = free_bytes;
    if (known > used) /* others had taken it while graphs were captured, and gave it back */
        out->graph_bytes -= known - used < out->graph_bytes ? known - used : out->graph_bytes;
    else
        out->other_bytes = used - known;
}

static void cuda_info(const struct backend *b, struct backend_info *out)
{
    memset(out, 0, sizeof(*out));
    snprintf(out->device, sizeof(out->device), "%.100s, %.0f GiB", b->device.name,
             (double)b->device.total_bytes / 0x1p30);
    snprintf(out->driver, sizeof(out->driver), "%s", b->device.driver);
    out->n_blocks = b->n_blocks;
    out->block_bytes = b->block_bytes;
    out->kv_dtype = KV_DTYPE_BF16;
    fill_ledger(out, b);
}

/* States of sequences that begin with this step, before any of its rows is sampled. */
static int enqueue_loads(struct backend *b, const struct step_view *v, const struct batch *batch,
                         struct err *e)
{
    const struct launch *l = &b->device.launch;
    int r = 0;

    if (batch->n_loads > 0)
        r = cuda_check(sampler_load(l, &b->forward.sampler, v, batch->n_loads), "sampler_load", e);
    for (int i = 0; i < batch->n_loads && r == 0; i++) {
        const struct batch_load *load = &batch->loads[i];

        b->wants_top[load->state] = load->sampling->n_logprobs > 0;
        if (!sampling_needs_history(load->sampling))
            continue;
        must(load->n_tokens <= b->options.max_seq_len);
        if (load->n_tokens > 0) /* from pageable memory: the call has read it when it returns */
            r = cuda_check(cudaMemcpyAsync(b->history, load->tokens,
                                           (size_t)load->n_tokens * sizeof(int32_t),
                                           cudaMemcpyHostToDevice, l->stream),
                           "copying a history", e);
        if (r == 0)
            r = cuda_check(sampler_history(l, &b->forward.sampler, load->state, b->history,
                                           load->n_prompt, load->n_tokens),
                           "sampler_history", e);
    }
    return r;
}

/* Where tags begin again, what bears old ones is cleared first. */
static int take_tags(struct backend *b, uint32_t *tag, struct err *e)
{
    const bool again = resident_take_tags(tag, &b->last_tag, model_config(b->model)->n_layers);

    return again && b->forward.resident_rows > 0
               ? cuda_check(resident_clear(&b->device.launch, &b->forward.resident),
                            "clearing messages", e)
               : 0;
}

static int enqueue_step(struct backend *b, const struct batch *batch, int slot, struct err *e)
{
    cudaStream_t stream = b->device.launch.stream;
    const bool graph =
        !b->options.eager && batch->n_decodes > 0 && batch->n_tokens == batch->n_decodes;
    const int size = graph ? graphs_size(b->graphs, batch->n_decodes) : 0;
    const struct step_room room =
        graph ? step_room_of_graph(&b->limits, size) : step_room_of(&b->limits, batch);
    struct forward_shape shape;
    struct step_view view;
    const size_t bytes =
        step_pack(b->pinned[slot], &view, b->step_memory, &b->limits, &room, batch, slot);
    struct step_counts *counts = (struct step_counts *)(void *)b->pinned[slot];
    int r = take_tags(b, &counts->tag, e);

    if (r == 0)
        r = cuda_check(cudaMemcpyAsync(b->step_memory, b->pinned[slot], bytes,
                                       cudaMemcpyHostToDevice, stream),
                       "copying a step", e);

    gemm_step(b->gemm);
    if (r == 0)
        r = enqueue_loads(b, &view, batch, e);
    if (r < 0)
        return r;
    if (graph && graphs_ready(b->graphs, size))
        return graphs_run(b->graphs, size, e);
    /* The first steps of a size run eagerly, until its products are timed; then it is captured. */
    shape = (struct forward_shape){.n_tokens = graph ? size : batch->n_tokens,
                                   .n_decodes = graph ? size : batch->n_decodes,
                                   .n_rows = graph ? size : batch->n_rows,
                                   .n_items = counts->n_items,
                                   .n_tiles = counts->n_tiles};
    for (int i = batch->n_decodes; i < batch->n_seqs; i++)
        if (batch->kv_len[i] > shape.max_kv_len)
            shape.max_kv_len = batch->kv_len[i];
    r = forward_run(&b->forward, &view, &shape, e);
    return r == 0 && graph && gemm_settled(b->gemm) ? prepare_graph(b, size, e) : r;
}

static int cuda_submit(struct backend *b, const struct batch *batch, struct err *e)
{
    const int slot = (int)(b->n_submitted % BACKEND_IN_FLIGHT);
    struct result_slot *result = &b->results.slots[slot];
    int r;

    must(b->n_submitted - b->n_waited < BACKEND_IN_FLIGHT);
    must(batch->n_tokens > 0 && batch->n_tokens <= b->limits.max_tokens);
    must(batch->n_seqs > 0 && batch->n_seqs <= b->options.max_seqs);
    must(batch->n_rows <= batch->n_seqs && batch->n_loads <= b->options.max_seqs);
    if (b->dead)
        return err_set(e, b->dead, "CUDA: the device failed before");
    r = cuda_check(cudaSetDevice(b->device.id), "choosing the device", e);
    if (r == 0)
        r = enqueue_step(b, batch, slot, e);
    if (r == 0)
        r = cuda_check(cudaEventRecord(result->done, b->device.launch.stream), "a step", e);
    if (r < 0) {
        b->dead = r;
        return r;
    }
    result->step = batch->step;
    result->n_rows = batch->n_rows;
    result->wants_top = false;
    for (int i = 0; i < batch->n_rows; i++)
        result->wants_top |= b->wants_top[batch->rows[i].state];
    b->n_submitted++;
    return 0;
}

static int cuda_wait(struct backend *b, struct step_result *out, struct err *e)
{
    int r;

    must(b->n_waited < b->n_submitted);
    r = results_wait(&b->results, (int)(b->n_waited % BACKEND_IN_FLIGHT), out, e);
    if (r < 0) {
        b->dead = r;
        return r;
    }
    b->n_waited++;
    return 0;
}

const float *cuda_backend_logits(const struct backend *b, int64_t *stride)
{
    *stride = b->forward.sampler.logits_stride;
    return b->forward.logits;
}

cudaStream_t cuda_backend_stream(const struct backend *b)
{
    return b->device.launch.stream;
}

struct cuda_first_use cuda_backend_first_use(const struct backend *b)
{
    struct cuda_first_use use = {.products = gemm_counts(b->gemm)};

    graphs_captures(b->graphs, &use.n_captures, &use.longest_capture);
    return use;
}

void *cuda_backend_blocks(const struct backend *b)
{
    return b->forward.kv.base;
}

__attribute__((visibility("default"))) extern const struct backend_ops nvllm_backend;
const struct backend_ops nvllm_backend = {
    .abi = BACKEND_ABI,
    .name = "cuda",
    .open = cuda_open,
    .info = cuda_info,
    .submit = cuda_submit,
    .wait = cuda_wait,
    .close = cuda_close,
};
