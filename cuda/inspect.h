/* inspect.h - a look inside an open CUDA backend, for tests that are linked with it. */
#ifndef NVLLM_CUDA_INSPECT_H
#define NVLLM_CUDA_INSPECT_H

#include <cuda_runtime_api.h>
#include <stdint.h>

#include "engine/backend.h"

/* Device memory: raw logits of the last step's sampled rows, in their order. */
const float *cuda_backend_logits(const struct backend *b, int64_t *stride);
cudaStream_t cuda_backend_stream(const struct backend *b);

#endif
