/* trap.h - faults of a device: a sticky error, a kernel that does not end, a read that fails. */
#ifndef NVLLM_TESTS_GPU_TRAP_H
#define NVLLM_TESTS_GPU_TRAP_H

#include <cuda_runtime_api.h>

#ifdef __cplusplus
extern "C" {
#endif

cudaError_t trap_device(cudaStream_t stream);
cudaError_t hang_device(cudaStream_t stream);
cudaError_t misread_device(cudaStream_t stream, const void *at);

#ifdef __cplusplus
}
#endif

#endif
