/* trap.h - stops the device with a sticky error. */
#ifndef NVLLM_TESTS_GPU_TRAP_H
#define NVLLM_TESTS_GPU_TRAP_H

#include "cuda/kernels/kernels.h"

#ifdef __cplusplus
extern "C"
#endif
    cudaError_t
    trap_device(const struct launch *l);

#endif
