/* forward_attention.c - attention in the forward pass, with what is fetched for it: offloaded
 * sequences from host memory, and E4M3 as bf16. */
#include "cuda/forward_impl.h"
#include "engine/util/must.h"

enum {
    FETCH_BESIDE = 4, /* thread blocks, while others compute */
    FETCH_ALONE = 32,
};

/* Keys and values that a thread block of a product prefetches, at most. A step of 64 streams at
 * 512 tokens on an H100 with none, 32 and 64 KiB: 0.6B 2.62, 2.52 and 2.48 ms; 8B 7.87, 7.83
 * and 7.91 ms. */
enum { PREFETCH_BYTES = 32 << 10 };

/* Begins to fetch what earlier steps wrote of a layer, once attention has read what is there. */
static int fetch_old(const struct pass *p, int layer)
{
    const struct kv_staging *staging = &p->f->staging;
    const struct launch l = {.stream = staging->stream, .n_sms = p->f->launch->n_sms};
    const int i = layer % 2;
    cudaError_t code = cudaStreamWaitEvent(staging->stream, staging->empty[i], 0);

    if (code == cudaSuccess && p->s->chunk_old > 0)
        code = fetch_blocks(&l, staging->kv[i].base, &p->f->kv, layer, p->s->chunk_table,
                            p->s->chunk_old, FETCH_BESIDE);
    if (code == cudaSuccess)
        code = cudaEventRecord(staging->full[i], staging->stream);
    return cuda_check(code, "fetching an offloaded sequence", p->e);
}

/* Before a step's first layer. */
int pass_begin_offloaded(const struct pass *p)
{
    const struct kv_staging *staging = &p->f->staging;
    cudaError_t code = cudaEventRecord(staging->begun, p->f->launch->stream);
    int rc;

    if (code == cudaSuccess)
        code = cudaStreamWaitEvent(staging->stream, staging->begun, 0);
    rc = cuda_check(code, "fetching an offloaded sequence", p->e);
    for (int layer = 0; layer < 2 && layer < p->f->config->n_layers && rc == 0; layer++)
        rc = fetch_old(p, layer);
    return rc;
}

static int prefill(const struct pass *p, const struct attn *a, const struct attn_maps *maps,
                   const struct step_view *v, int n_tiles, int max_kv_len)
{
    const struct forward *f = p->f;
    struct attn_prefill t = {.partial = f->prefill_partial,
                             .counters = f->prefill_counters,
                             .n_tiles = n_tiles,
                             .n_splits = 1,
                             .max_kv_len = max_kv_len};

    if (!f->invariant)
        t.n_splits = attn_prefill_splits(f->launch, t.n_tiles * a->n_heads, t.max_kv_len);
    return cuda_check(maps->usable ? attn_prefill_sm90(f->launch, a, maps, v, &t)
                                   : attn_prefill(f->launch, a, v, &t),
                      "attn_prefill", p->e);
}

/* This step's keys and values have been stored in host memory; they come back from there, and the
 * others have been fetched meanwhile. */
static int prefill_offloaded(const struct pass *p, const struct attn *a)
{
    const struct forward *f = p->f;
    const struct forward_shape *s = p->s;
    const struct kv_staging *staging = &f->staging;
    const int i = a->layer % 2;
    const struct kv_pool *kv = &staging->kv[i];
    struct attn from = *a;
    struct step_view v = *p->v;
    cudaStream_t stream = f->launch->stream;
    int r = cuda_check(fetch_blocks(f->launch, kv->base + s->chunk_old * kv->block_stride, &f->kv,
                                    a->layer, s->chunk_table + s->chunk_old,
                                    s->chunk_blocks - s->chunk_old, FETCH_ALONE),
                       "fetch_blocks", p->e);

    from.kv = kv;
    from.layer = 0;
    v.tables = staging->table;
    if (r < 0 ||
        (r = cuda_check(cudaStreamWaitEvent(stream, staging->full[i], 0), "a layer", p->e)) < 0 ||
        (r = prefill(p, &from, &staging->maps[i], &v, s->n_tiles, s->max_kv_len)) < 0 ||
        (r = cuda_check(cudaEventRecord(staging->empty[i], stream), "a layer", p->e)) < 0)
        return r;
    return a->layer + 2 < f->config->n_layers ? fetch_old(p, a->layer + 2) : 0;
}

/* The kernels of prefill read bf16: E4M3 becomes that first, of as many sequences at a time as
 * there is room for. (A prompt of 16,384 of the 8B shape with FP8 weights on an H100: 0.379 s, from
 * keys in bf16 0.380 s.) */
static int prefill_e4m3(const struct pass *p, const struct attn *a)
{
    const struct forward *f = p->f;
    const struct kv_staging *staging = &f->staging;
    const struct attn_tile *tiles = p->s->tiles;
    struct attn from = *a;
    struct step_view v = *p->v;
    int r = 0;

    from.kv = &staging->kv[0];
    from.layer = 0;
    for (int first = 0, end; first < p->s->n_tiles && r == 0; first = end) {
        const int32_t table = tiles[first].table;
        int n_blocks = 0, max_kv_len = 0;

        for (end = first; end < p->s->n_tiles; end++) {
            const int behind =
                tiles[end].table - table + ((tiles[end].kv_len - 1) >> f->kv.block_shift) + 1;

            if (behind > staging->max_blocks)
                break;
            n_blocks = behind;
            if (tiles[end].kv_len > max_kv_len)
                max_kv_len = tiles[end].kv_len;
        }
        must(end > first);
        v.tiles = p->v->tiles + first;
        v.tables = staging->table - table;
        r = cuda_check(fetch_blocks(f->launch, from.kv->base, &f->kv, a->layer,
                                    p->v->tables + table, n_blocks, f->launch->n_sms),
                       "fetch_blocks", p->e);
        if (r == 0)
            r = prefill(p, &from, &staging->maps[0], &v, end - first, max_kv_len);
    }
    return r;
}

/* Not in steps with prompts: these keep memory busy and need L2. */
struct kv_prefetch pass_kv_prefetch(const struct pass *p, int layer, int turn, int n_turns)
{
    const struct kv_pool *kv = &p->f->kv;
    const int64_t layer_bytes = kv->layer_stride * (int64_t)sizeof(*kv->base);
    const int64_t n_pieces = (layer_bytes + PREFETCH_BYTES - 1) / PREFETCH_BYTES;

    if (layer >= p->f->config->n_layers || p->s->attn_blocks == 0 || p->s->n_tiles > 0)
        return (struct kv_prefetch){0};
    return (struct kv_prefetch){.layer = (const char *)kv->base + layer * layer_bytes,
                                .block_stride = kv->block_stride * (int64_t)sizeof(*kv->base),
                                .n_blocks = kv->n_blocks,
                                .block_shift = kv->block_shift,
                                .piece_bytes = (int)(layer_bytes / n_pieces / 16 * 16),
                                .n_pieces = (int)n_pieces,
                                .turn = turn,
                                .n_turns = n_turns,
                                .counts = p->v->counts,
                                .kv_len = p->v->kv_len,
                                .table_start = p->v->table_start,
                                .tables = p->v->tables};
}

/* Prompts are normed, rotated and stored by rope_store(); decodes in the attention kernel, which
 * reads keys of earlier steps before the kernel ahead of it ends. With drafts all keys are stored
 * first, and then it waits. */
int pass_attention(const struct pass *p, const struct layer_weights *w, int layer)
{
    const struct forward *f = p->f;
    const int n_decodes = p->s->n_decodes, n_prompts = p->s->n_tokens - n_decodes;
    struct launch decode = *f->launch;
    const struct attn a = {.out = f->attn,
                           .q = f->qkv,
                           .q_stride = (f->config->n_heads + 2 * f->config->n_kv_heads) *
                                       f->config->head_dim,
                           .n_heads = f->config->n_heads,
                           .layer = layer,
                           .kv = &f->kv,
                           .drafts = p->s->drafts && !f->invariant};
    const struct rope rope = {.q_norm = w->q_norm.data,
                              .k_norm = w->k_norm.data,
                              .table = f->rope,
                              .eps = f->config->rms_norm_eps};
    int r;

    decode.chained = decode.chained && !p->s->drafts;
    if (n_prompts > 0 && (r = cuda_check(rope_store(f->launch, f->qkv, &rope, &f->kv, layer, p->v,
                                                    n_decodes, n_prompts, f->config->n_heads, true),
                                         "rope_store", p->e)) < 0)
        return r;
    if (p->s->drafts && (r = cuda_check(rope_store(f->launch, f->qkv, &rope, &f->kv, layer, p->v, 0,
                                                   n_decodes, f->config->n_heads, false),
                                        "rope_store", p->e)) < 0)
        return r;
    if (p->s->attn_blocks > 0 &&
        (r = cuda_check((f->decode_sm90 ? attn_decode_sm90 : attn_decode)(
                            &decode, &a, &rope, p->v, f->partial, f->counters, p->s->attn_blocks),
                        "attn_decode", p->e)) < 0)
        return r;
    if (p->s->chunk_blocks > 0)
        return prefill_offloaded(p, &a);
    if (f->kv.fp8)
        return prefill_e4m3(p, &a);
    return p->s->n_tiles > 0 ? prefill(p, &a, &f->maps, p->v, p->s->n_tiles, p->s->max_kv_len) : 0;
}
