/* trap.h - stops the device with a sticky error. */
#ifndef NVLLM_TESTS_GPU_TRAP_H
#define NVLLM_TESTS_GPU_TRAP_H

#include <cuda_runtime_api.h>

#ifdef __cplusplus
extern "C"
#endif
    cudaError_t
    trap_device(cudaStream_t stream);

#endif
