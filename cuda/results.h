/* results.h - where a step's sampled ids come back: memory of the host that the device writes, one
 * of each step in flight, and an event that says it is complete.
 *
 * Engine thread only. */
#ifndef NVLLM_CUDA_RESULTS_H
#define NVLLM_CUDA_RESULTS_H

#include "cuda/kernels/kernels.h"
#include "engine/backend.h"

struct result_slot {
    int32_t *ids;
    float *logprobs;
    int32_t *top_ids;
    float *top_logprobs;
    cudaEvent_t done;
    uint64_t step;
    int32_t n_rows;
    bool wants_top;
};

struct results {
    struct result_slot slots[BACKEND_IN_FLIGHT];
    struct result_slot last; /* what the caller holds until its next wait */
};

int results_init(struct results *r, int max_rows, struct err *e);
void results_deinit(struct results *r); /* zero-initialised is fine */

/* Waits for a slot's step; out points into r->last. */
int results_wait(struct results *r, int slot, struct step_result *out, struct err *e);

#endif
