/* cpu_forward.h - the forward pass: a batch in, logits of the wanted rows out.
 *
 * Owns the activations, allocated once for the largest step; reads the weights; reads and writes
 * the KV pool. Step thread only. */
#ifndef NVLLM_ENGINE_CPU_CPU_FORWARD_H
#define NVLLM_ENGINE_CPU_CPU_FORWARD_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/batch.h"
#include "engine/cpu/cpu_ops.h"
#include "engine/cpu/cpu_pool.h"
#include "engine/model/weights.h"
#include "engine/util/err.h"

/* [n_blocks][n_layers][2][n_kv_heads][block_len][head_dim] */
struct kv_pool {
    char *base;
    int32_t n_blocks;
    int block_shift; /* block_len = 1 << block_shift */
    size_t block_bytes;
    size_t head_bytes; /* block_len * head_dim values */
    bool bf16;         /* else float */
};

struct forward;

struct forward_options {
    const struct cpu_ops *ops;
    struct cpu_pool *pool;
    const struct model_config *config;
    const struct weights *weights;
    const struct kv_pool *kv; /* base may be set later */
    int max_batch_tokens, max_seqs;
    _Atomic uint64_t *beat; /* 2 a layer; may be NULL */
};

enum { FORWARD_LOGIT_ROWS = 16 }; /* rows of the logits buffer */

int forward_new(struct forward **out, const struct forward_options *o, struct err *e);
void forward_free(struct forward *f);
uint64_t forward_bytes(const struct forward *f); /* of activations */

/* Computes all rows and stores their keys and values. ids: what the step before sampled. */
void forward_run(struct forward *f, const struct batch *b, const int32_t *ids);

/* Logits [n, vocab_size] of the wanted rows first .. first + n - 1, valid until the next call;
 * n <= FORWARD_LOGIT_ROWS. */
const float *forward_logits(struct forward *f, int first, int n);

#endif
