/* cpu_ranks.h - the ranks that compute a step together, one of them without tensor parallelism:
 * each has its shard of the weights, its heads of the KV pool, its activations and its threads.
 *
 * Called by one thread at a time. */
#ifndef NVLLM_ENGINE_CPU_CPU_RANKS_H
#define NVLLM_ENGINE_CPU_CPU_RANKS_H

#include "engine/cpu/cpu_forward.h"

struct cpu_ranks;

struct cpu_ranks_options {
    const struct model *model; /* valid until cpu_ranks_free() */
    const struct cpu_ops *ops;
    int32_t tp_size;
    int n_threads; /* divided among the ranks, of which each has one at least */
    int max_seqs;
    _Atomic uint64_t *beat;                   /* 2 a layer; may be NULL */
    void (*progress)(void *ctx, double done); /* of reading weights; may be NULL */
    void *progress_ctx;
};

/* Takes all memory but the KV pool and reads the weights. -ENOTSUP: tensor parallelism cannot
 * divide this model so. */
int cpu_ranks_new(struct cpu_ranks **out, const struct cpu_ranks_options *o, struct err *e);
void cpu_ranks_free(struct cpu_ranks *r);

/* The pool of all ranks, before the first step. */
void cpu_ranks_use(struct cpu_ranks *r, const struct kv_pool *kv);

/* Computes all rows on all ranks; ids and sums as of forward_run(). */
void cpu_ranks_run(struct cpu_ranks *r, const struct batch *b, const int32_t *ids, float *sums);

/* Logits [n, vocab_size] of the wanted rows first .. first + n - 1, valid until the next call;
 * n <= FORWARD_LOGIT_ROWS. */
const float *cpu_ranks_logits(struct cpu_ranks *r, int first, int n);

/* Gives the memory of the weights back, and reads them again, with progress. */
void cpu_ranks_drop_weights(struct cpu_ranks *r);
int cpu_ranks_read_weights(struct cpu_ranks *r, struct err *e);

struct cpu_pool *cpu_ranks_pool(const struct cpu_ranks *r); /* rank 0's, for other work */
int cpu_ranks_threads(const struct cpu_ranks *r);           /* of all ranks */
uint64_t cpu_ranks_weight_bytes(const struct cpu_ranks *r);
uint64_t cpu_ranks_work_bytes(const struct cpu_ranks *r); /* activations and logits */

/* Bytes of weights that all ranks would take. -ENOTSUP as above. */
int cpu_ranks_measure(uint64_t *out, const struct model_config *c, int32_t tp_size, struct err *e);

#endif
