// rope.cuh - RMSNorm of a head of q or k and its rotation, by the four lanes of a quad, each of
// which has 8 neighbours of every 32 dimensions: what attention's matrix products want of it. Sums
// and roundings are spelled out, so that all who call it give the same bits.
#ifndef NVLLM_CUDA_KERNELS_ROPE_CUH
#define NVLLM_CUDA_KERNELS_ROPE_CUH

#include "cuda/kernels/common.cuh"

// What a lane needs besides the head: weights of the norm, cos and sin of the position.
template <int HEAD_DIM> struct rotation {
    uint4 norm[HEAD_DIM / 32];
    float4 circle[HEAD_DIM / 64][4];
};

static __device__ __forceinline__ const uint16_t *norm_of(const struct rope &r, bool is_q)
{
    return is_q ? r.q_norm : r.k_norm;
}

// Nothing that a kernel of the step writes: this may be before chain_wait().
template <int HEAD_DIM>
static __device__ __forceinline__ void load_rotation(struct rotation<HEAD_DIM> &t,
                                                     const struct rope &r, const uint16_t *norm,
                                                     int position, int quarter)
{
    const float *circle = r.table + (int64_t)position * HEAD_DIM + quarter * 16;

#pragma unroll
    for (int j = 0; j < HEAD_DIM / 64; j++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            t.circle[j][i] = __ldg((const float4 *)(circle + j * 64) + i);
#pragma unroll
    for (int j = 0; norm && j < HEAD_DIM / 32; j++)
        t.norm[j] = __ldg((const uint4 *)(norm + j * 32 + quarter * 8));
}

template <int HEAD_DIM>
static __device__ __forceinline__ void norm_and_rotate(uint4 (&head)[HEAD_DIM / 32],
                                                       const struct rotation<HEAD_DIM> &t,
                                                       bool has_norm, float eps)
{
    static constexpr int N = HEAD_DIM / 32;
    float x[N][8], sum = 0.0f;

#pragma unroll
    for (int j = 0; j < N; j++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            x[j][2 * i] = bf16_low((&head[j].x)[i]);
            x[j][2 * i + 1] = bf16_high((&head[j].x)[i]);
            sum = __fmaf_rn(x[j][2 * i], x[j][2 * i], sum);
            sum = __fmaf_rn(x[j][2 * i + 1], x[j][2 * i + 1], sum);
        }
    if (has_norm) {
        const unsigned quad = 0xfu << (threadIdx.x % WARP / 4 * 4);

        sum = __fadd_rn(sum, __shfl_xor_sync(quad, sum, 1));
        sum = __fadd_rn(sum, __shfl_xor_sync(quad, sum, 2));
        const float scale = rsqrtf(__fmaf_rn(sum, 1.0f / HEAD_DIM, eps));
#pragma unroll
        for (int j = 0; j < N; j++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const uint32_t w = (&t.norm[j].x)[i];

                x[j][2 * i] = __fmul_rn(x[j][2 * i], __fmul_rn(scale, bf16_low(w)));
                x[j][2 * i + 1] = __fmul_rn(x[j][2 * i + 1], __fmul_rn(scale, bf16_high(w)));
            }
    }
#pragma unroll
    for (int j = 0; j < N / 2; j++)
#pragma unroll
        for (int i = 0; i < 8; i++) {
            const float4 pair = t.circle[j][i / 2];
            const float cosine = i % 2 ? pair.z : pair.x, sine = i % 2 ? pair.w : pair.y;
            const float low = x[j][i], high = x[j + N / 2][i];

            x[j][i] = __fmaf_rn(low, cosine, -__fmul_rn(high, sine));
            x[j + N / 2][i] = __fmaf_rn(high, cosine, __fmul_rn(low, sine));
        }
#pragma unroll
    for (int j = 0; j < N; j++)
        head[j] = make_uint4(bf16_pair(x[j][0], x[j][1]), bf16_pair(x[j][2], x[j][3]),
                             bf16_pair(x[j][4], x[j][5]), bf16_pair(x[j][6], x[j][7]));
}

#endif
