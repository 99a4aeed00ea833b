/* cpu_forward.h - the forward pass of a rank: a batch in, logits of the wanted rows out, and
 * sums of hidden states.
 *
 * Owns the activations, allocated once for the largest step; reads the weights; reads and writes
 * the KV pool. One thread at a time. */
#ifndef NVLLM_ENGINE_CPU_CPU_FORWARD_H
#define NVLLM_ENGINE_CPU_CPU_FORWARD_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/batch.h"
#include "engine/cpu/cpu_ops.h"
#include "engine/cpu/cpu_pool.h"
#include "engine/cpu/cpu_wait.h"
#include "engine/model/weights.h"
#include "engine/util/err.h"

/* [n_blocks][tp_size][n_layers][2][n_kv_heads of a rank][block_len][head_dim], all of it or as one
 * rank sees it: base is then the rank's part of block 0. */
struct kv_pool {
    char *base;
    int32_t n_blocks;
    int block_shift;    /* block_len = 1 << block_shift */
    size_t block_bytes; /* from block to block, the parts of all ranks */
    size_t head_bytes;  /* block_len * head_dim values, and of E4M3 block_len scales */
    enum dtype dtype;   /* f32, bf16 or E4M3 */
};

enum { FORWARD_LOGIT_ROWS = 16 }; /* rows of the logits buffer */

/* What ranks that compute a step together share. forward_new() of each enters its own. */
struct forward_team {
    struct cpu_barrier barrier;                     /* of as many threads as ranks */
    const struct weights *weights[SHARD_MAX_RANKS]; /* whose embeddings all read */
    /* Each rank's parts of the sums over ranks. Two, used in turn: a rank that writes the next sum
     * disturbs none that still reads the last, so each sum takes one barrier. */
    const float *parts[2][SHARD_MAX_RANKS];
};

struct forward;

struct forward_options {
    const struct cpu_ops *ops;
    struct cpu_pool *pool;
    const struct model_config *config; /* of the whole model */
    struct shard shard;
    struct forward_team *team; /* NULL: there is one rank */
    const struct weights *weights;
    const struct kv_pool *kv; /* of the rank; base may be set later */
    float *logits;            /* [FORWARD_LOGIT_ROWS, vocab_size] shared by all ranks */
    int max_seqs;
    _Atomic uint64_t *beat; /* 2 a layer; may be NULL */
};

int forward_new(struct forward **out, const struct forward_options *o, struct err *e);
void forward_free(struct forward *f);
uint64_t forward_bytes(const struct forward *f); /* of activations */

/* Computes all rows and stores their keys and values. ids: what the step before sampled. sums
 * [n_sums, hidden_dim] becomes what the batch asks for; NULL: another rank does it. All ranks of a
 * team run the same batch, each in its own thread, and wait for each other. */
void forward_run(struct forward *f, const struct batch *b, const int32_t *ids, float *sums);

/* Writes the rank's columns of the logits of the wanted rows first .. first + n - 1;
 * n <= FORWARD_LOGIT_ROWS. */
void forward_logits(struct forward *f, int first, int n);

#endif
