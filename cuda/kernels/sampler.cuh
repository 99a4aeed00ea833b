// sampler.cuh - what the sampler's kernels share: the order of ids, penalties, draws.
//
// The definition is engine/sampling.h; the arithmetic follows the CPU's, with floats where that has
// doubles.
#ifndef NVLLM_CUDA_SAMPLER_CUH
#define NVLLM_CUDA_SAMPLER_CUH

#include <cfloat>

#include "cuda/kernels/common.cuh"
#include "engine/philox.h"

static constexpr uint16_t SEEN_PROMPT = 0x8000, SEEN_MAX = 0x7fff;

// What one block found in its part of a row.
struct scan {
    float raw_max, raw_sum; // the sum of exp(z - raw_max), where log probabilities are wanted
    float max;              // largest adjusted z
    int32_t max_id;
    float best; // largest score of a draw
    int32_t best_id;
    int32_t broken; // NaN or Inf
};

// The largest of a row, from its parts; every thread has it.
__device__ __forceinline__ float row_max(const struct scan *parts, int n_parts)
{
    float max = -INFINITY;

    for (int i = 0; i < n_parts; i++)
        max = fmaxf(max, __ldcg(&parts[i].max));
    return max;
}

__device__ __forceinline__ void add_sums(float &max, float &sum, float max2, float sum2)
{
    const float both = fmaxf(max, max2);

    sum = sum * __expf(max - both) + sum2 * __expf(max2 - both);
    max = both;
}

// Larger z first, lower id first; -0 is 0.
__device__ __forceinline__ uint32_t order_of(float z)
{
    const uint32_t bits = __float_as_uint(z + 0.0f);

    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

__device__ __forceinline__ uint64_t key_of(float z, int32_t id)
{
    return (uint64_t)order_of(z) << 32 | ~(uint32_t)id;
}

__device__ __forceinline__ float bounded(float z)
{
    if (z > FLT_MAX)
        return FLT_MAX;
    return z == z ? z : -INFINITY;
}

__device__ __forceinline__ float penalized(float z, uint16_t seen, const struct sampler_state &p)
{
    const int count = seen & SEEN_MAX;

    if (!seen)
        return z;
    z = z > 0.0f ? z / p.repetition : z * p.repetition;
    if (count > 0)
        z -= p.presence + p.frequency * (float)count;
    return bounded(z);
}

// The row is not drawn from as it is, but from its copy in adjusted.
__device__ __forceinline__ bool is_adjusted(const struct sampler_state &p,
                                            const struct sampler_row &row)
{
    return p.history || p.n_bias > 0 || (row.ban_stops && p.n_stop_ids > 0);
}

__device__ __forceinline__ bool is_filtered(const struct sampler_state &p)
{
    return p.temperature > 0.0f && (p.top_k > 0 || p.top_p < 1.0f || p.min_p > 0.0f);
}

__device__ __forceinline__ float scale_of(const struct sampler_state &p)
{
    return 1.0f / fmaxf(p.temperature, 1e-30f);
}

__device__ __forceinline__ bool beats(float a, int32_t a_id, float b, int32_t b_id)
{
    return a > b || (a == b && a_id < b_id);
}

// Tries x + g for one id; most draws are seen to lose without a logarithm: g < -log(w).
__device__ __forceinline__ void draw_try(float &best, int32_t &best_id, float x, uint32_t word,
                                         int32_t id)
{
    const float w = philox_w(word);

    if (w > __expf(x - best) * 1.001f)
        return;
    const float score = x - logf(-log1pf(-w));
    if (beats(score, id, best, best_id)) {
        best = score;
        best_id = id;
    }
}

// The block's best: thread 0 has it. shared: a float and an int a warp.
__device__ __forceinline__ void block_best(float &best, int32_t &id, float *scores, int32_t *ids)
{
    const int warp = (int)threadIdx.x / WARP, n_warps = (int)blockDim.x / WARP;

    for (int i = WARP / 2; i > 0; i /= 2) {
        const float other = __shfl_xor_sync(ALL_LANES, best, i);
        const int32_t other_id = __shfl_xor_sync(ALL_LANES, id, i);

        if (beats(other, other_id, best, id)) {
            best = other;
            id = other_id;
        }
    }
    __syncthreads();
    if (threadIdx.x % WARP == 0) {
        scores[warp] = best;
        ids[warp] = id;
    }
    __syncthreads();
    if (threadIdx.x == 0)
        for (int i = 1; i < n_warps; i++)
            if (beats(scores[i], ids[i], best, id)) {
                best = scores[i];
                id = ids[i];
            }
}

#endif
