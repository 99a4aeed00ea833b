/* inspect.h - a look inside an open CUDA backend, for tests that are linked with it. */
#ifndef NVLLM_CUDA_INSPECT_H
#define NVLLM_CUDA_INSPECT_H

#include "cuda/rank.h"

const struct rank *cuda_backend_rank(const struct backend *b);
const struct algo_records *cuda_backend_known(const struct backend *b); /* choices in use */

#endif
