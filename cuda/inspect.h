/* inspect.h - a look inside an open CUDA backend, for tests that are linked with it. */
#ifndef NVLLM_CUDA_INSPECT_H
#define NVLLM_CUDA_INSPECT_H

#include <cuda_runtime_api.h>
#include <stdint.h>

#include "cuda/algo_file.h"
#include "engine/backend.h"

/* Device memory: raw logits of the last step's sampled rows, in their order. */
const float *cuda_backend_logits(const struct backend *b, int64_t *stride);
cudaStream_t cuda_backend_stream(const struct backend *b);
void *cuda_backend_blocks(const struct backend *b); /* device memory: n_blocks of block_bytes */

/* What came for the first time. */
struct cuda_first_use {
    int n_known, n_heuristic; /* products by a recorded choice, by cuBLASLt's */
    int n_captures;
    double longest_capture; /* seconds, of one graph */
};
const struct algo_records *
cuda_backend_known(const struct backend *b); /* measured choices in use */
struct cuda_first_use cuda_backend_first_use(const struct backend *b);

#endif
