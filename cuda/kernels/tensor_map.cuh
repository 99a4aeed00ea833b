// tensor_map.cuh - tensor maps of bf16 arrays, which bulk tensor copies read through.
#ifndef NVLLM_CUDA_KERNELS_TENSOR_MAP_CUH
#define NVLLM_CUDA_KERNELS_TENSOR_MAP_CUH

#include <cuda_runtime.h>
#include <cudaTypedefs.h>

// cuTensorMapEncodeTiled, of the driver that is loaded anyway; NULL where it has none.
static PFN_cuTensorMapEncodeTiled_v12000 find_encode()
{
    cudaDriverEntryPointQueryResult found;
    void *f = nullptr;

    return cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &f, 12000, cudaEnableDefault,
                                            &found) == cudaSuccess
               ? (PFN_cuTensorMapEncodeTiled_v12000)f
               : nullptr;
}

// An array of so many dimensions, whose boxes are 64 wide in the first and come to shared memory
// swizzled, with zeros where they reach past its end. strides: in bytes, of all but the first. L2
// promotes no line to one of 256 bytes, of which half would be read for nothing where it is gone
// before another box wants it. (A step of 8B with 8, 32, 64 streams on an H200, 2026-11-29: 4.36,
// 4.87, 5.86 ms with such lines, 4.23, 4.80, 5.80 without; with 128, and of 0.6B, the same.)
static cudaError_t encode_map(CUtensorMap *out, const void *base, int n, const cuuint64_t *sizes,
                              const cuuint64_t *strides, const cuuint32_t *box)
{
    static const PFN_cuTensorMapEncodeTiled_v12000 encode = find_encode();
    const cuuint32_t ones[4] = {1, 1, 1, 1};

    if (!encode)
        return cudaErrorNotSupported;
    return encode(out, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, (cuuint32_t)n, (void *)base, sizes,
                  strides, box, ones, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                  CU_TENSOR_MAP_L2_PROMOTION_NONE,
                  CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS
               ? cudaSuccess
               : cudaErrorInvalidValue;
}

#endif
