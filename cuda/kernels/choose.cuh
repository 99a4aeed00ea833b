// choose.cuh - the experts that a row goes through, by the scores of its router: one warp, which
// has N of them a lane. Lane i has experts j * WARP + i.
#ifndef NVLLM_CUDA_KERNELS_CHOOSE_CUH
#define NVLLM_CUDA_KERNELS_CHOOSE_CUH

#include "cuda/kernels/common.cuh"

// In the order of floats, which are finite.
static __device__ __forceinline__ uint32_t in_order(float x)
{
    const uint32_t bits = __float_as_uint(x);

    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

static __device__ __forceinline__ float warp_max(float x)
{
    for (int i = WARP / 2; i > 0; i /= 2)
        x = fmaxf(x, __shfl_xor_sync(ALL_LANES, x, i));
    return x;
}

// Calls visit(i, expert, weight) for each expert that is chosen, the i-th by number, on its lane.
template <int N, typename Visit>
static __device__ __forceinline__ void choose_experts(float (&score)[N], int n_experts, int n_picks,
                                                      bool norm_topk, int lane, const Visit &visit)
{
    float max = -INFINITY, sum = 0.0f;
    uint32_t chosen = 0; // bit j: of the lane's experts
    bool finite = true;

#pragma unroll
    for (int j = 0; j < N; j++) {
        finite &= j * WARP + lane >= n_experts || isfinite(score[j]);
        max = j * WARP + lane < n_experts ? fmaxf(max, score[j]) : max;
    }
    if (!__all_sync(ALL_LANES, finite)) { // any will do
        for (int i = lane; i < n_picks; i += WARP)
            visit(i, i, NAN);
        return;
    }
    max = warp_max(max);
    for (int i = 0; i < n_picks; i++) {
        uint32_t best = 0; // below all finite ones
        int at = 0;

#pragma unroll
        for (int j = 0; j < N; j++) {
            const uint32_t key =
                chosen >> j & 1 || j * WARP + lane >= n_experts ? 0 : in_order(score[j]);

            if (key > best) {
                best = key;
                at = j;
            }
        }
        const uint32_t top = __reduce_max_sync(ALL_LANES, best);
        const uint32_t first =
            __reduce_min_sync(ALL_LANES, best == top ? (uint32_t)(at * WARP + lane) : UINT32_MAX);
        if (first % WARP == (uint32_t)lane)
            chosen |= 1u << first / WARP;
    }
#pragma unroll
    for (int j = 0; j < N; j++) {
        score[j] = j * WARP + lane < n_experts ? expf(score[j] - max) : 0.0f;
        sum += chosen >> j & 1 || !norm_topk ? score[j] : 0.0f;
    }
    sum = warp_sum(sum);
    int n = 0;
#pragma unroll
    for (int j = 0; j < N; j++) {
        const uint32_t lanes = __ballot_sync(ALL_LANES, chosen >> j & 1);

        if (chosen >> j & 1)
            visit(n + __popc(lanes & ((1u << lane) - 1)), j * WARP + lane, score[j] / sum);
        n += __popc(lanes);
    }
}

#endif
