// softmax.cuh - the resident kernel's online softmax of up to eight query heads over sixteen keys
// at a time, and the weighted sum of values.
#ifndef NVLLM_CUDA_KERNELS_SOFTMAX_CUH
#define NVLLM_CUDA_KERNELS_SOFTMAX_CUH

#include "cuda/kernels/common.cuh"

// A thread's online softmax of query head `lane / 4`.
template <int HEAD_DIM> struct softmax {
    float max, sum;
    float o[HEAD_DIM / 8][2];
};

// Adds sixteen keys: p are a thread's scores, in powers of two and -INFINITY where there is no
// key, max the greatest of these and s.max; x its share of the values.
template <int HEAD_DIM>
static __device__ __forceinline__ void softmax_add(struct softmax<HEAD_DIM> &s, float (&p)[2][2],
                                                   float max, const uint4 (&x)[4][HEAD_DIM / 64])
{
    max = fmaxf(max, __shfl_xor_sync(ALL_LANES, max, 1));
    max = fmaxf(max, __shfl_xor_sync(ALL_LANES, max, 2));
    const float shrink = exp2_fast(s.max - max);
    s.max = max;
    s.sum *= shrink;
#pragma unroll
    for (int i = 0; i < 2; i++)
#pragma unroll
        for (int j = 0; j < 2; j++) {
            p[i][j] = exp2_fast(p[i][j] - max);
            s.sum += p[i][j];
        }
    const uint32_t p0 = bf16_pair(p[0][0], p[0][1]), p1 = bf16_pair(p[1][0], p[1][1]);
#pragma unroll
    for (int j = 0; j < HEAD_DIM / 64; j++) {
        const uint32_t *v0 = &x[0][j].x, *v1 = &x[1][j].x, *v2 = &x[2][j].x, *v3 = &x[3][j].x;

#pragma unroll
        for (int i = 0; i < 4; i++) {
            float *even = s.o[j * 8 + i * 2], *odd = s.o[j * 8 + i * 2 + 1];

            even[0] *= shrink, even[1] *= shrink;
            odd[0] *= shrink, odd[1] *= shrink;
            mma_8816(even[0], even[1], p0, p1, low_halves(v0[i], v1[i]), low_halves(v2[i], v3[i]));
            mma_8816(odd[0], odd[1], p0, p1, high_halves(v0[i], v1[i]), high_halves(v2[i], v3[i]));
        }
    }
}

#endif
