/* attention_rig.h - attention's kernels with all that a call of them needs, for any sequences over
 * blocks in mixed order: for their test and their benchmark. */
#ifndef NVLLM_TESTS_GPU_ATTENTION_RIG_H
#define NVLLM_TESTS_GPU_ATTENTION_RIG_H

#include "tests/gpu/gpu_rig.h"

enum { RIG_MAX_LEN = 40960 };

struct scene {
    int n_heads, n_kv, dim, block_shift;
    int n_seqs, n_decodes;
    const int32_t *q_len, *kv_len; /* [n_seqs] */
    bool invariant;
    int n_splits;  /* of prefill tiles; 0: one */
    bool bare;     /* decodes' heads are rotated, but not normed */
    int n_items;   /* that the plan of decodes aims at; 0: 40 */
    int n_drafted; /* sequences behind the decodes with rows of drafts; 0: none */
    bool fp8;      /* keys and values are E4M3: for decodes and drafts alone */
};

/* Rows of decodes and drafts. */
static inline int scene_decode_rows(const struct scene *s)
{
    int n = s->n_decodes;

    for (int i = s->n_decodes; i < s->n_decodes + s->n_drafted; i++)
        n += s->q_len[i];
    return n;
}

/* Where the sequences' keys lie. */
struct paged {
    struct kv_pool kv; /* without memory, of pool_bytes */
    size_t pool_bytes;
    int32_t *table;                  /* [n_seqs, max_blocks] */
    int max_blocks, n_blocks, layer; /* the last one is attended to */
};

struct run {
    struct device_array q, out, norms; /* norms: [2, dim] */
    int32_t *q_start;                  /* [n_seqs + 1] */
    int n_tokens;
    struct attn attn;
    struct rope rope;
    struct step_view view;
    struct step_counts counts;
    struct step_room room;
    float *partial;
    int32_t *counters;
    struct attn_prefill prefill;
    bool hopper;           /* by the kernels for compute capability 9.0 */
    struct attn_maps maps; /* where the step has a chunk, for prefill by one of them */
};

struct paged paged_new(const struct scene *s, int n_layers);

/* Random queries, outputs poisoned. */
struct run run_new(const struct scene *s);

/* Plans the step over these keys, which have memory; again for another kernel. */
void run_pack(struct run *r, const struct scene *s, const struct paged *p, bool hopper);

/* n_blocks: of decode attention, for each KV head. */
void run_launch(const struct run *r, int n_blocks);

#endif
