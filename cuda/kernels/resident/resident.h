/* resident.h - the whole decode step of few rows, embedding to logits, as one kernel whose blocks
 * stay on their multiprocessors. Compute capability 9.0 alone.
 *
 * Blocks hand each other results as messages through memory, see resident_message.cuh. */
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
    RESIDENT_COPIES = 4,        /* of messages that all blocks read */
};

/* Of layer 0; those of layer i are i * layer_stride elements further. As in layer_weights. */
struct resident_weights {
    const uint16_t *attn_norm, *qkv, *qkv_bias, *q_norm, *k_norm, *o, *mlp_norm, *gate_up, *down;
    int64_t layer_stride;
    const uint16_t *embed, *lm_head, *norm;
};

struct resident {
    struct resident_weights w;
    int n_layers, hidden, ffn, n_heads, vocab_size;
    float eps;
    const float *rope; /* rope_table() */
    struct kv_pool kv;
    struct step_view step;  /* decodes alone: row i is sequence i */
    const int32_t *sampled; /* by rows of the step before */
    float *logits;          /* of counts->n_rows rows, stride logits_stride */
    int64_t logits_stride;
    void *messages;   /* resident_message_bytes(), by resident_clear() once */
    int max_rows;     /* counts->n_tokens is at most that */
    int n_blocks;     /* one a multiprocessor */
    long long *marks; /* for benchmarks that are built for it: clocks, [n_blocks, RESIDENT_MARKS] */
};

enum { RESIDENT_MARKS = 1024 };

/* What depends on the model and on the number of blocks alone. */
size_t resident_message_bytes(const struct resident *r);

/* Bytes at the beginning of each copy, RESIDENT_COPIES equal parts of the messages, that are all
 * ones between two steps. For tests. */
size_t resident_blank_bytes(const struct resident *r);

/* Whether the kernel can compute steps of up to r->max_rows rows: the model's shape, and whether
 * activations of so many rows leave shared memory for the weights on their way. */
bool resident_supports(const struct resident *r);

/* Tags for a run: counts->tag, the number behind *last, and one for each layer. None may come again
 * while messages that bear it may still lie in memory, and none may be UINT32_MAX. Returns whether
 * they begin again: resident_clear() first, behind the runs before. *last is 0 at the start. */
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

/* Messages of a new model, or of old tags: enqueues that they hold nothing. */
cudaError_t resident_clear(const struct launch *l, const struct resident *r);

/* False where the kernel was not compiled for 9.0a: it is empty then. */
cudaError_t resident_compiled(bool *out);
cudaError_t resident_init(void); /* once a device: its shared memory is over the default */
cudaError_t resident_run(const struct launch *l, const struct resident *r);

#ifdef __cplusplus
}
#endif

#endif
