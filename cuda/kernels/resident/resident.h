/* resident.h - the whole decode step of few rows, embedding to logits, as one kernel whose blocks
 * stay on their multiprocessors. Compute capability 9.0 alone.
 *
 * Blocks hand each other results as messages through memory, see resident_exchange.cuh. Where a
 * model is divided between two ranks, the kernels of both do so: each block adds to its columns of
 * the residual what its twin on the other rank has computed. */
#ifndef NVLLM_CUDA_KERNELS_RESIDENT_RESIDENT_H
#define NVLLM_CUDA_KERNELS_RESIDENT_RESIDENT_H

#include "cuda/kernels/kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

enum {
    RESIDENT_MAX_ROWS = 16,
    RESIDENT_MAX_GROUP = 8,     /* query heads of a KV head */
    RESIDENT_MAX_COLUMNS = 128, /* of q, k, v or of the residual that one block computes */
    RESIDENT_COPIES = 4,        /* of exchanged data, so that fewer blocks poll one line of L2 */
    RESIDENT_FEW_ROWS = 8,      /* with quantized weights or keys of fp8: x is the 8-wide operand */
    RESIDENT_MAX_RANKS = 2,
    RESIDENT_MAX_EXPERTS = 128,
    RESIDENT_MAX_PICKS = 16,
};

/* How qkv, o, gate_up and down are quantized, all alike, as struct matrix says: E4M3 in blocks of
 * 128 x 128 or with a scale for each row, INT4 in groups of 128 columns. */
struct resident_quant {
    enum element element;
    bool of_rows; /* of ELEMENT_E4M3: a scale for each row */
    bool zeros;   /* of ELEMENT_INT4: there are zeros */
    bool f16;     /* of ELEMENT_INT4: scales are f16, not bf16 */
};

struct resident_scales {
    const void *scales;
    const uint8_t *zeros;
};

/* Of layer 0, as in layer_weights; those of layer i are i * layer_stride words of 16 bits further.
 */
struct resident_weights {
    const uint16_t *attn_norm, *qkv, *qkv_bias, *q_norm, *k_norm, *o, *mlp_norm, *router, *gate_up,
        *down;
    struct resident_scales qkv_scales, o_scales, gate_up_scales, down_scales;
    int64_t layer_stride;
    const uint16_t *lm_head, *norm;
};

struct resident {
    struct resident_weights w;
    struct resident_quant quant;
    struct embedding embedding;
    int n_layers, hidden, n_heads;
    int ffn;                /* columns of the activation: those of all experts of a row */
    int n_experts, n_picks; /* of a layer, of a row; 0 and 1: one FFN without a router */
    bool norm_topk;         /* as in expert_route */
    int n_logits;           /* rows of the LM head, even; of two ranks each has its own */
    float eps;
    const float *rope; /* rope_table() */
    struct kv_pool kv;
    struct step_view step;  /* decodes alone: row i is sequence i */
    const int32_t *sampled; /* by rows of the step before */
    float *logits;          /* of counts->n_rows rows, stride logits_stride */
    int64_t logits_stride;
    void *exchange; /* resident_exchange_bytes(), by resident_clear() once */
    /* Of two ranks: resident_sum_bytes(), cleared with the exchange, where the twin's sums come,
     * and where the twin has them. NULL: there is one. */
    uint64_t *sums, *twin_sums;
    int me;                   /* the rank: both add in the same order */
    struct peer_clock *clock; /* counts the wait for the twin */
    int max_rows;             /* counts->n_tokens is at most that */
    int n_blocks;             /* one a multiprocessor */
    long long *marks; /* for benchmarks that are built for it: clocks, [n_blocks, RESIDENT_MARKS] */
};

enum { RESIDENT_MARKS = 1024 };

/* What depends on the model and on the number of blocks alone. */
size_t resident_exchange_bytes(const struct resident *r);
size_t resident_sum_bytes(const struct resident *r);

/* Bytes at the beginning of each of the RESIDENT_COPIES equal parts of the exchange that are all
 * ones between two steps: sentinels. For tests. */
size_t resident_sentinel_bytes(const struct resident *r);

/* Whether the kernel can compute steps of up to r->max_rows rows: the model's shape, and whether
 * activations of so many rows leave shared memory for the weights on their way. With experts one
 * row: several would go through different ones. Quantized: no experts, at most RESIDENT_FEW_ROWS;
 * columns in multiples of 512 (E4M3 in blocks; rows in multiples of 128), 64 (E4M3 with a scale for
 * each row), 1,024 (INT4) or 2,048 (INT4 with zeros), as scales and zeros of a row are copied in
 * multiples of 16 bytes. Experts, quantized weights and keys of fp8 are for one rank alone: the
 * caller sees to that.
 *
 * With keys of fp8 at most RESIDENT_FEW_ROWS, too. (A step of 0.6B with 5 and 8 rows takes 0.74 and
 * 0.77 of the chain's time with 512 keys each, 0.78 and 0.82 with 2,048, 0.91 and 0.92 with 8,192,
 * 0.97 with 30,000; with 16 rows it would take 0.87, 0.95, 1.02, 1.08: H200, 2026-11-30.) */
bool resident_supports(const struct resident *r);

/* Tags for a run: counts->tag is the one after *last, 0 at first, and each layer takes one. No tag
 * may recur while words that bear it may still lie in memory, and none may be UINT32_MAX. Returns
 * whether tags start again: then resident_clear() comes first, after the earlier runs. */
static inline bool resident_take_tags(uint32_t *tag, uint32_t *last, int n_layers)
{
    const uint32_t n = (uint32_t)n_layers + 1;
    const bool again = *last >= UINT32_MAX - n;

    if (again)
        *last = 0;
    *tag = *last + 1;
    *last += n;
    return again;
}

/* Enqueues that the exchange holds nothing: once at the start, and where tags start again. Neither
 * twin may begin a run before both have. */
cudaError_t resident_clear(const struct launch *l, const struct resident *r);

/* False where the kernel was not compiled for 9.0a: it is empty then. */
cudaError_t resident_compiled(bool *out);
cudaError_t resident_init(void); /* once a device: its shared memory is over the default */
cudaError_t resident_run(const struct launch *l, const struct resident *r);

#ifdef __cplusplus
}
#endif

#endif
