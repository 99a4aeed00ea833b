/* attention_rig.c - see attention_rig.h. */
#include "tests/gpu/attention_rig.h"

#include "engine/model/rope.h"
#include "engine/util/must.h"

struct paged paged_new(const struct scene *s, int n_layers)
{
    const int block_len = 1 << s->block_shift;
    const int64_t rows = (int64_t)s->n_kv * block_len;
    const int64_t v_offset = s->fp8 ? rows * (s->dim + 1) / 2 : rows * s->dim;
    struct paged p = {.kv = {.block_stride = 2 * v_offset * n_layers,
                             .n_blocks = INT32_MAX,
                             .layer_stride = 2 * v_offset,
                             .v_offset = v_offset,
                             .block_shift = s->block_shift,
                             .n_kv_heads = s->n_kv,
                             .head_dim = s->dim,
                             .fp8 = s->fp8},
                      .layer = n_layers - 1};
    uint32_t at = 0;

    for (int i = 0; i < s->n_seqs; i++) {
        const int blocks = (s->kv_len[i] + block_len - 1) / block_len;

        p.max_blocks = blocks > p.max_blocks ? blocks : p.max_blocks;
        p.n_blocks += blocks;
    }
    p.table = host_new((size_t)(s->n_seqs * p.max_blocks), sizeof(*p.table));
    for (int i = 0; i < s->n_seqs; i++)
        for (int j = 0; j < p.max_blocks; j++)
            p.table[i * p.max_blocks + j] =
                j * block_len < s->kv_len[i] ? scattered(at++, (uint32_t)p.n_blocks) : -1;
    p.pool_bytes = (size_t)p.n_blocks * (size_t)p.kv.block_stride * sizeof(uint16_t);
    return p;
}

struct run run_new(const struct scene *s)
{
    struct run r = {.attn = {.q_stride = (s->n_heads + 2 * s->n_kv) * s->dim,
                             .n_heads = s->n_heads},
                    .q_start = host_new((size_t)s->n_seqs + 1, sizeof(int32_t))};
    float inv_freq[ROPE_MAX_PAIRS];
    float *table = device_new((size_t)RIG_MAX_LEN * (size_t)s->dim * sizeof(float));

    for (int i = 0; i < s->n_seqs; i++)
        r.q_start[i + 1] = r.q_start[i] + s->q_len[i];
    r.n_tokens = r.q_start[s->n_seqs];
    r.q = array_bf16((size_t)r.n_tokens * (size_t)r.attn.q_stride, 1.5f);
    r.out = array_new((size_t)r.n_tokens * (size_t)(s->n_heads * s->dim) * sizeof(uint16_t));
    r.norms = array_bf16((size_t)(2 * s->dim), 1.0f);
    rope_frequencies(&(struct model_config){.head_dim = s->dim, .rope_theta = 1e6}, inv_freq);
    cuda_must(rope_table(&device.launch, table, RIG_MAX_LEN, inv_freq, s->dim / 2, 1.0f));
    r.attn.q = r.q.device;
    r.attn.out = r.out.device;
    r.rope = (struct rope){.q_norm = s->bare ? NULL : r.norms.device,
                           .k_norm = s->bare ? NULL : (uint16_t *)r.norms.device + s->dim,
                           .table = table,
                           .eps = 1e-6f};
    return r;
}

static void make_rooms(struct run *r, const struct scene *s, const struct step_limits *l)
{
    const size_t passes =
        (size_t)(s->n_kv * ((s->n_heads / s->n_kv + ATTN_GROUP - 1) / ATTN_GROUP));
    const int n_seqs = scene_decode_rows(s) + s->n_seqs - s->n_decodes - s->n_drafted;
    const size_t partials = (size_t)step_max_partials(l, n_seqs);

    r->partial = array_new(partials * passes * ATTN_GROUP * (size_t)(s->dim + 2) * 4).device;
    r->counters = device_new((size_t)n_seqs * passes * sizeof(*r->counters));
    r->prefill =
        (struct attn_prefill){.partial = array_new(attn_prefill_partial_bytes(s->dim)).device,
                              .counters = device_new(ATTN_PREFILL_COUNTERS * sizeof(int32_t)),
                              .n_tiles = r->counts.n_tiles,
                              .n_splits = s->n_splits ? s->n_splits : 1};
    for (int i = s->n_decodes + s->n_drafted; i < s->n_seqs; i++)
        if (s->kv_len[i] > r->prefill.max_kv_len)
            r->prefill.max_kv_len = s->kv_len[i];
}

void run_pack(struct run *r, const struct scene *s, const struct paged *p, bool hopper)
{
    const size_t n = (size_t)r->n_tokens;
    const struct step_limits limits = {.max_tokens = r->n_tokens,
                                       .max_seqs = scene_decode_rows(s) + s->n_seqs,
                                       .max_blocks = p->max_blocks,
                                       .block_len = 1 << s->block_shift,
                                       .target_items = s->n_items ? s->n_items : 40,
                                       .draft_rows = attn_rows(s->n_heads, s->n_kv),
                                       .invariant = s->invariant};
    const struct device_array step = array_new(step_max_bytes(&limits));
    int32_t *positions = host_new(n, sizeof(*positions)), *slots = host_new(n, sizeof(*slots));
    const struct batch_parts parts = {.step = 1,
                                      .n_tokens = r->n_tokens,
                                      .n_seqs = s->n_seqs,
                                      .n_decodes = s->n_decodes,
                                      .n_drafted = s->n_drafted,
                                      .max_blocks = p->max_blocks,
                                      .tokens = host_new(n, sizeof(int32_t)),
                                      .positions = positions,
                                      .slots = slots,
                                      .q_start = r->q_start,
                                      .kv_len = s->kv_len,
                                      .block_table = p->table};

    for (int i = 0; i < s->n_decodes + s->n_drafted; i++)
        for (int row = r->q_start[i]; row < r->q_start[i + 1]; row++) {
            const int at = s->kv_len[i] - r->q_start[i + 1] + row;

            positions[row] = at;
            slots[row] = (p->table[i * p->max_blocks + (at >> s->block_shift)] << s->block_shift) +
                         (at & (limits.block_len - 1));
        }
    r->room = pack_parts(step.host, &r->view, step.device, &limits, &parts, 0);
    r->counts = *(struct step_counts *)step.host;
    array_to_device(&step);
    make_rooms(r, s, &limits);
    r->attn.kv = &p->kv;
    r->attn.layer = p->layer;
    r->attn.drafts = s->n_drafted > 0;
    r->hopper = hopper;
    r->maps.usable = false;
    if (hopper && r->counts.n_tiles && !s->fp8) {
        cuda_must(attn_maps_init(&r->maps, &p->kv, p->n_blocks, r->q.device, r->attn.q_stride,
                                 r->n_tokens));
        must(r->maps.usable);
    }
}

void run_launch(const struct run *r, int n_blocks)
{
    const struct launch *l = &device.launch;

    if (r->counts.n_items)
        cuda_must((r->hopper && !r->attn.kv->fp8 ? attn_decode_sm90
                                                 : attn_decode)(l, &r->attn, &r->rope, &r->view,
                                                                r->partial, r->counters, n_blocks));
    if (r->counts.n_tiles && !r->attn.kv->fp8)
        cuda_must(r->maps.usable ? attn_prefill_sm90(l, &r->attn, &r->maps, &r->view, &r->prefill)
                                 : attn_prefill(l, &r->attn, &r->view, &r->prefill));
}
