/* cpu_sampler.h - from a row of logits to a token, as engine/sampling.h defines it.
 *
 * Keeps a state for each sequence: its sampling parameters and, if they have penalties, the ids it
 * has seen. Threads may sample different rows of a step at the same time. */
#ifndef NVLLM_ENGINE_CPU_CPU_SAMPLER_H
#define NVLLM_ENGINE_CPU_CPU_SAMPLER_H

#include "engine/batch.h"
#include "engine/cpu/cpu_ops.h"
#include "engine/util/err.h"

struct sampler;

/* Takes all memory: 2 bytes per id and 8.5 KiB for each state, 20 bytes per id for each thread. */
int sampler_new(struct sampler **out, const struct cpu_ops *ops, int vocab_size, int max_seqs,
                int n_threads, struct err *e);
void sampler_free(struct sampler *s);
uint64_t sampler_bytes(const struct sampler *s);

/* Sets a state as an update of the batch says. */
void sampler_set(struct sampler *s, const struct batch *batch, const struct sampler_update *u);

struct sample {
    int32_t id;          /* or BATCH_NUMERICS */
    float logprob;       /* 0 if not asked for */
    int32_t *top_ids;    /* [SAMPLING_MAX_LOGPROBS] of the caller; n_logprobs are set */
    float *top_logprobs; /* the same */
};

/* Samples one row and counts the id in the row's state. mask may be NULL. Rows of one state may run
 * at the same time if its sampling needs no history. */
void sampler_run(struct sampler *s, int thread, const float *logits, const struct batch_row *row,
                 const uint32_t *mask, struct sample *out);

#endif
