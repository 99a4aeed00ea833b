/* exchange.h - what the ranks of a step give each other where they cannot reach each other's
 * memory: through NCCL, on the rank's stream, in captured graphs too. All ranks call the same
 * functions in the same order. */
#ifndef NVLLM_CUDA_EXCHANGE_H
#define NVLLM_CUDA_EXCHANGE_H

#include "cuda/kernels/kernels.h"
#include "cuda/nccl.h"

struct exchange {
    const struct nccl *nccl; /* NULL: ranks reach each other's memory, and need no exchange */
    struct ncclComm *comm;   /* of all ranks */
};

/* data [n] becomes the sum of all ranks', the same bits on each; bf16 or float. */
int exchange_sum(const struct exchange *x, const struct launch *l, void *data, size_t n, bool bf16,
                 struct err *e);

/* Runs both passes of the sampler over n_rows rows. What ranks have found goes to rank 0; with
 * whole_rows so do their logits, into the places that rank 0's memory has for them. What it samples
 * goes to all. */
int exchange_sample(const struct exchange *x, const struct launch *l,
                    const struct sampler_memory *m, const struct step_view *v, int n_rows,
                    bool whole_rows, struct err *e);

/* Once, before other work: connects the ranks in every way that steps do, which takes memory. */
int exchange_warm_up(const struct exchange *x, int rank, int n_ranks, cudaStream_t stream,
                     struct err *e);

#endif
