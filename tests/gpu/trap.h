/* trap.h - faults of a device: a sticky error, a kernel that does not end. */
#ifndef NVLLM_TESTS_GPU_TRAP_H
#define NVLLM_TESTS_GPU_TRAP_H

#include <cuda_runtime_api.h>

#ifdef __cplusplus
extern "C" {
#endif

cudaError_t trap_device(cudaStream_t stream);
cudaError_t hang_device(cudaStream_t stream);

#ifdef __cplusplus
}
#endif

#endif
