/* activations.cuh - bf16 as e4m3, by a scale that makes 448 of the largest among what shares it. */
#ifndef NVLLM_CUDA_KERNELS_ACTIVATIONS_CUH
#define NVLLM_CUDA_KERNELS_ACTIVATIONS_CUH

#include <cuda_fp8.h>

#include "cuda/kernels/common.cuh"

static constexpr int GROUP = 128; /* activations of a scale, where a row has several */
static constexpr float E4M3_MAX = 448.0f;

/* Of four. */
static __device__ __forceinline__ float largest(const uint2 &four)
{
    auto pair = [](uint32_t x) { return fmaxf(fabsf(bf16_low(x)), fabsf(bf16_high(x))); };

    return fmaxf(pair(four.x), pair(four.y));
}

/* 448 / most. Zeros stay what they are, and what is too small for that becomes zero: an infinite
 * factor would make NaN of a zero beside it. Of more than 2^126 the quotient is 0. */
static __device__ __forceinline__ float e4m3_factor(float most)
{
    static constexpr float LEAST = 0x1p-100f; /* 448 / it is finite */

    return most > LEAST ? __fdividef(E4M3_MAX, most) : 0.0f;
}

static __device__ __forceinline__ float e4m3_scale(float most)
{
    return most * (1.0f / E4M3_MAX);
}

static __device__ __forceinline__ uint32_t to_e4m3(const uint2 &four, float factor)
{
    auto pair = [factor](uint32_t x) {
        return (uint32_t)__nv_cvt_float2_to_fp8x2(make_float2(bf16_low(x) * factor,
                                                              bf16_high(x) * factor),
                                                  __NV_SATFINITE, __NV_E4M3);
    };

    return pair(four.x) | pair(four.y) << 16;
}

/* Of numbers that are not negative, whose bits have their order. */
static __device__ __forceinline__ float warp_largest(float x)
{
    return __uint_as_float(__reduce_max_sync(ALL_LANES, __float_as_uint(x)));
}

/* Of all threads of the block; of_warps: a float of shared memory a warp. */
static __device__ __forceinline__ float block_largest(float x, float *of_warps)
{
    x = warp_largest(x);
    if (threadIdx.x % WARP == 0)
        of_warps[threadIdx.x / WARP] = x;
    __syncthreads();
    for (int i = 0; i < (int)blockDim.x / WARP; i++)
        x = fmaxf(x, of_warps[i]);
    return x;
}

#endif
