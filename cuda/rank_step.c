/* rank_step.c - a rank's steps: packed, enqueued as a graph or as kernels one by one, waited for.
 *
 * One stream for steps; copies of blocks have others (host_tier.h). A step is one copy of metadata
 * and then either a captured graph (decodes and drafts alone) or its kernels one by one; with masks
 * these end at the logits, and rank_sample() follows. Sampled ids come back by the last kernel's
 * writes to host memory. */
#include <math.h>
#include <unistd.h>

#include "cuda/rank.h"
#include "engine/util/must.h"

enum {
    POLLS = 2000, /* of an event before the thread sleeps for it: a few hundred microseconds */
    GRAPH_FINE = 16,
    OFFLOADED_POLL_US = 200,  /* between polls of an offloaded step: the bus may take seconds */
    OFFLOADED_POLLS = 300000, /* a minute, for which an offloaded step counts as alive */
};

/* Rows of the graph that n run in: a power of two, above GRAPH_FINE a multiple of that. */
int rank_graph_size(int n)
{
    int size = 1;

    if (n > GRAPH_FINE)
        return (n + GRAPH_FINE - 1) / GRAPH_FINE * GRAPH_FINE;
    while (size < n)
        size *= 2;
    return size;
}

/* Captures the graph of a size, a few milliseconds of host time, and notes the memory it takes. */
int rank_prepare_graph(struct rank *rank, int size, bool drafts, bool masks, struct err *e)
{
    const struct step_room room = step_room_of_graph(&rank->limits, size);
    const struct step_view view = step_view_at(&room, rank->step_memory);
    const struct forward_shape shape = {.n_tokens = size,
                                        .n_decodes = size,
                                        .drafts = drafts,
                                        .n_rows = size,
                                        .attn_blocks = step_graph_blocks(&rank->limits, size),
                                        .path = forward_path_of(&rank->forward, size, drafts),
                                        .logits_only = masks};
    struct graphs *g = &rank->graphs;
    cudaGraphExec_t *graph = &g->by_size[size][drafts][masks];
    const double begin = monotonic_seconds();
    uint64_t before = 0, after = 0;
    int r;

    if ((r = device_free_bytes(&before, e)) < 0 ||
        (r = forward_capture(graph, &rank->forward, &view, &shape, e)) < 0 ||
        (r = cuda_check(cudaGraphUpload(*graph, rank->device.launch.stream), "uploading a graph",
                        e)) < 0)
        return r;
    g->n_captures++;
    g->longest = fmax(g->longest, monotonic_seconds() - begin);
    r = device_free_bytes(&after, e);
    if (r == 0 && after < before)
        g->bytes += before - after;
    return r;
}

void rank_drop_graphs(struct rank *rank)
{
    for (int i = 0; rank->graphs.by_size && i <= rank->limits.max_seqs; i++)
        for (int kind = 0; kind < 4; kind++) {
            cudaGraphExec_t *graph = &rank->graphs.by_size[i][kind / 2][kind % 2];

            if (*graph)
                (void)cudaGraphExecDestroy(*graph);
            *graph = NULL;
        }
    rank->graphs.bytes = 0;
}

/* Sets sampler states before any row of this step is sampled. */
static int enqueue_updates(struct rank *rank, const struct step_view *v, const struct batch *batch,
                           struct err *e)
{
    const struct launch *l = &rank->device.launch;
    int r = 0;

    if (batch->n_updates > 0)
        r = cuda_check(sampler_update(l, &rank->forward.sampler, v, batch->n_updates),
                       "sampler_update", e);
    for (int i = 0; i < batch->n_updates && r == 0; i++) {
        const struct sampler_update *u = &batch_updates(batch)[i];

        must(u->state >= 0 && u->state < rank->options.max_seqs);
        if (!sampling_needs_history(&u->sampling))
            continue;
        must(u->n_history <= rank->options.max_seq_len);
        if (u->n_history > 0) /* a follower's batch is pinned: read by when the step has ended */
            r = cuda_check(cudaMemcpyAsync(rank->history, batch_history(batch, u),
                                           (size_t)u->n_history * sizeof(int32_t),
                                           cudaMemcpyHostToDevice, l->stream),
                           "copying a history", e);
        if (r == 0)
            r = cuda_check(sampler_history(l, &rank->forward.sampler, u->state, rank->history,
                                           u->n_prompt, u->n_history),
                           "sampler_history", e);
    }
    return r;
}

int rank_take_tags(struct rank *rank, uint32_t *tag, struct err *e)
{
    const struct launch *l = &rank->device.launch;
    int r;

    if (!resident_take_tags(tag, &rank->last_tag, rank->config.n_layers))
        return 0;
    r = cuda_check(resident_clear(l, &rank->forward.resident), "clearing exchanges", e);
    if (r == 0 && rank->shard.tp_size > 1)
        r = cuda_check(peer_barrier(l, &rank->forward.peers.barrier), "a barrier of ranks", e);
    return r;
}

/* Where the host has a part of a step's view that is packed at `packed`. */
static const void *at_host(const struct rank *rank, const char *packed, const void *part)
{
    return packed + ((const char *)part - rank->step_memory);
}

/* The offloaded sequence's chunk of a step that is packed at `packed`. */
static void describe_chunk(struct forward_shape *shape, const struct rank *rank,
                           const struct batch *batch, const struct step_view *view,
                           const char *packed)
{
    const int seq = batch->n_decodes + batch->n_drafted, shift = rank->forward.kv.block_shift;
    const int32_t *starts = at_host(rank, packed, view->table_start);
    const int first = batch_positions(batch)[batch_q_start(batch)[seq]];

    must(batch->n_seqs == seq + 1);
    shape->chunk_table = view->tables + starts[batch_decode_rows(batch)];
    shape->chunk_old = first >> shift;
    shape->chunk_blocks = (batch_kv_len(batch)[seq] + (1 << shift) - 1) >> shift;
    must(shape->chunk_blocks <= rank->forward.staging.max_blocks);
}

/* Whether rank 0 needs whole rows of logits that others have: a row with log probabilities, or that
 * is filtered. */
static bool needs_whole_rows(const struct rank *rank, const struct batch *batch)
{
    for (int i = 0; i < batch->n_updates; i++) {
        const struct sampler_update *u = &batch_updates(batch)[i];
        const struct sampling *s = &u->sampling;

        must(u->state >= 0 && u->state < rank->options.max_seqs);
        rank->whole_rows[u->state] =
            s->n_logprobs >= 0 ||
            (s->temperature > 0.0f && (s->top_k > 0 || s->top_p < 1.0f || s->min_p > 0.0f));
    }
    for (int i = 0; i < batch->n_rows; i++) {
        const int32_t state = batch_rows(batch)[i].state;

        must(state >= 0 && state < rank->options.max_seqs);
        if (rank->whole_rows[state])
            return true;
    }
    return false;
}

static int enqueue_step(struct rank *rank, const struct batch *batch, int slot, struct err *e)
{
    cudaStream_t stream = rank->device.launch.stream;
    const bool whole_rows = rank->whole_rows && needs_whole_rows(rank, batch);
    const int n_decodes = batch_decode_rows(batch);
    const bool graph = !rank->options.eager && n_decodes > 0 && batch->n_offloaded == 0 &&
                       batch->n_tokens == n_decodes && batch->n_sums == 0 && !whole_rows;
    const bool drafts = batch->n_drafted > 0, masks = batch->n_masks > 0;
    const int size = graph ? rank_graph_size(n_decodes) : 0;
    const struct step_room room =
        graph ? step_room_of_graph(&rank->limits, size) : step_room_of(&rank->limits, batch);
    const int n_tokens = graph ? size : batch->n_tokens;
    const enum forward_path path = forward_path_of(&rank->forward, n_tokens,
                                                   batch->n_seqs > batch->n_decodes ||
                                                       batch->n_offloaded > 0 || batch->n_sums > 0);
    struct forward_shape shape;
    struct step_view *view = &rank->slots[slot].view;
    const size_t bytes = step_pack(rank->slots[slot].pinned, view, rank->step_memory, &rank->limits,
                                   &room, batch, slot);
    struct step_counts *counts = (struct step_counts *)(void *)rank->slots[slot].pinned;
    int r = path == PATH_RESIDENT ? rank_take_tags(rank, &counts->tag, e) : 0;

    if (r < 0 ||
        (r = cuda_check(step_copy(&rank->device.launch, rank->step_memory, rank->slots[slot].pinned,
                                  bytes),
                        "step_copy", e)) < 0 ||
        (r = enqueue_updates(rank, view, batch, e)) < 0)
        return r;
    if (graph && rank->graphs.by_size[size][drafts][masks])
        return cuda_check(cudaGraphLaunch(rank->graphs.by_size[size][drafts][masks], stream),
                          "launching a graph", e);
    /* The first step of a size runs eagerly, which loads its kernels; then it is captured. */
    shape = (struct forward_shape){.n_tokens = n_tokens,
                                   .n_decodes = graph ? size : n_decodes,
                                   .drafts = drafts,
                                   .n_rows = graph ? size : batch->n_rows,
                                   .attn_blocks = counts->n_items,
                                   .n_tiles = counts->n_tiles,
                                   .tiles = at_host(rank, rank->slots[slot].pinned, view->tiles),
                                   .path = path,
                                   .whole_rows = whole_rows,
                                   .n_sums = batch->n_sums,
                                   .sums = rank->slots[slot].sums,
                                   .logits_only = masks};
    for (int i = batch->n_decodes + batch->n_drafted; i < batch->n_seqs; i++)
        if (batch_kv_len(batch)[i] > shape.max_kv_len)
            shape.max_kv_len = batch_kv_len(batch)[i];
    if (step_chunk_is_offloaded(&rank->limits, batch))
        describe_chunk(&shape, rank, batch, view, rank->slots[slot].pinned);
    r = forward_run(&rank->forward, view, &shape, e);
    return r == 0 && graph ? rank_prepare_graph(rank, size, drafts, masks, e) : r;
}

/* All of it is enqueued. */
static int end_step(struct rank *rank, const struct rank_slot *s, struct err *e)
{
    const int r = cuda_check(cudaEventRecord(s->done, rank->device.launch.stream), "a step", e);

    return r == 0 && rank->host ? host_tier_submit(rank->host, s->batch, s->done, e) : r;
}

int rank_submit(struct rank *rank, const struct batch *batch, int slot, struct err *e)
{
    struct rank_slot *s = &rank->slots[slot];
    int r = cuda_check(cudaSetDevice(rank->device.id), "choosing the device", e);

    must(batch->n_tokens >= 0 && batch->n_tokens <= rank->limits.max_tokens);
    must(batch->n_seqs > 0 ? step_n_seqs(batch) <= rank->options.max_seqs && rank->gemm
                           : rank->host != NULL);
    must(batch->n_rows <= rank->options.max_seqs && batch->n_updates <= rank->options.max_seqs &&
         batch->n_sums <= rank->options.max_seqs);
    must(batch->n_copies == 0 || rank->host);
    must(batch->n_offloaded == 0 ||
         (rank_offloads(rank) && host_memory_is_pinned(rank->host_memory)));
    s->offloaded = batch->n_offloaded > 0;
    s->batch = batch;
    s->step = batch->step;
    s->n_rows = batch->n_rows;
    s->n_sums = batch->n_sums;
    s->copies_only = batch->n_seqs == 0;
    if (r == 0 && !s->copies_only)
        r = enqueue_step(rank, batch, slot, e);
    return r < 0 || batch->n_masks > 0 ? r : end_step(rank, s, e);
}

int rank_sample(struct rank *rank, int slot, struct err *e)
{
    const struct rank_slot *s = &rank->slots[slot];
    int r = cuda_check(cudaSetDevice(rank->device.id), "choosing the device", e);

    if (r == 0)
        r = forward_sample(&rank->forward, &s->view, s->n_rows, e);
    return r == 0 ? end_step(rank, s, e) : r;
}

int rank_poll(const struct rank *rank, int slot, struct err *e)
{
    const cudaError_t code = cudaEventQuery(rank->slots[slot].done);

    return code == cudaErrorNotReady ? 0 : code == cudaSuccess ? 1 : cuda_check(code, "a step", e);
}

int rank_wait(const struct rank *rank, int slot, struct err *e)
{
    const struct rank_slot *s = &rank->slots[slot];
    cudaError_t code = cudaErrorNotReady;

    for (int i = 0; i < POLLS && code == cudaErrorNotReady; i++)
        code = cudaEventQuery(s->done);
    for (int i = 0; s->offloaded && i < OFFLOADED_POLLS && code == cudaErrorNotReady; i++) {
        (void)usleep(OFFLOADED_POLL_US);
        if (rank->options.beat)
            *rank->options.beat += 2;
        code = cudaEventQuery(s->done);
    }
    if (code == cudaErrorNotReady)
        code = cudaEventSynchronize(s->done);
    return cuda_check(code, "a step", e);
}

void rank_result(const struct rank *rank, int slot, struct step_result *out)
{
    const struct sampler_memory *m = &rank->forward.sampler;
    const struct rank_slot *s = &rank->slots[slot];

    *out = (struct step_result){.step = s->step,
                                .n_rows = s->n_rows,
                                .ids = m->host_ids[slot],
                                .logprobs = m->host_logprobs[slot],
                                .top_ids = m->host_top_ids[slot],
                                .top_logprobs = m->host_top_logprobs[slot],
                                .n_sums = s->n_sums,
                                .sum_dim = rank->config.hidden_dim,
                                .sums = s->sums};
}
