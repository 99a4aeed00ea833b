// sampler.cuh - what the sampler's kernels share: the order of ids, penalties, draws.
//
// The definition is engine/sampling.h; the arithmetic is the CPU's with floats for doubles.
#ifndef NVLLM_CUDA_KERNELS_SAMPLER_CUH
#define NVLLM_CUDA_KERNELS_SAMPLER_CUH

#include <cfloat>

#include "cuda/kernels/common.cuh"
#include "engine/philox.h"

static constexpr float LOG2_E = 1.44269504f;
static constexpr uint16_t SEEN_PROMPT = 0x8000, SEEN_MAX = 0x7fff;

static constexpr int TOP_K_LISTED = 64; // up to so many, what top_k may leave is listed on the way
static constexpr int LISTED = 128;      // ids a block lists: they are a few more than top_k
static constexpr int SCAN_THREADS = 256;
static constexpr int SCAN_WARPS = SCAN_THREADS / WARP;

// An id that is drawn for: its score is z / temperature + g.
struct draw {
    float z, g;
    int32_t id;
};

// What was found in a part of a row.
struct found {
    float raw_max, raw_sum; // the sum of exp(z - raw_max), where log probabilities are wanted
    float max;              // largest adjusted z, where the row is not drawn from as a whole
    int32_t max_id;
    struct draw best;
    int32_t broken; // NaN or Inf
};

// What one block leaves of its part.
struct scan {
    struct found found;
    int32_t n_listed;           // -1: more than there is room for
    float warp_max[SCAN_WARPS]; // adjusted, where ids are listed
    uint64_t listed[LISTED];    // keys
};

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

__device__ __forceinline__ float z_of(uint64_t key)
{
    const uint32_t bits = (uint32_t)(key >> 32);

    return __uint_as_float(bits & 0x80000000u ? bits & 0x7fffffffu : ~bits);
}

__device__ __forceinline__ int32_t id_of(uint64_t key)
{
    return (int32_t) ~(uint32_t)key;
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

__device__ __forceinline__ bool bans_stops(const struct sampler_row &row)
{
    return row.flags & 1;
}

// The row's mask, or NULL.
__device__ __forceinline__ const uint32_t *mask_of(const struct sampler_row &row,
                                                   const struct sampler_memory &m)
{
    const int mask = row.flags / 2 - 1;

    return mask < 0 ? nullptr : m.masks + (int64_t)mask * ((m.vocab_size + 31) / 32);
}

// Sampled not from the raw row but from its copy in adjusted.
__device__ __forceinline__ bool is_adjusted(const struct sampler_state &p,
                                            const struct sampler_row &row)
{
    return p.history || p.n_bias > 0 || row.flags >= 2 || (bans_stops(row) && p.n_stop_ids > 0);
}

__device__ __forceinline__ bool is_filtered(const struct sampler_state &p)
{
    return p.temperature > 0.0f && (p.top_k > 0 || p.top_p < 1.0f || p.min_p > 0.0f);
}

// Filtered, and the scan lists what may be left.
__device__ __forceinline__ bool is_listed(const struct sampler_state &p)
{
    return p.temperature > 0.0f && p.top_k > 0 && p.top_k <= TOP_K_LISTED;
}

// Step metadata: may be read before the preceding kernel has ended.
__device__ __forceinline__ struct sampler_row row_at(const struct sampler_row *rows, int i)
{
    const int4 r = __ldcg((const int4 *)rows + i);

    return {r.x, r.y, (uint32_t)r.z, r.w};
}

__device__ __forceinline__ float scale_of(const struct sampler_state &p)
{
    return 1.0f / fmaxf(p.temperature, 1e-30f);
}

__device__ __forceinline__ struct draw no_draw()
{
    return {-INFINITY, 0.0f, INT32_MAX};
}

// The difference of two scores: the largest z of the row is not needed, nor lost to rounding.
__device__ __forceinline__ bool beats(const struct draw &a, const struct draw &b, float scale)
{
    const float by = (a.z - b.z) * scale + (a.g - b.g);

    return by > 0.0f || (by == 0.0f && a.id < b.id);
}

// No w above it wins with z: g < -log(w).
__device__ __forceinline__ float winning_w(float z, const struct draw &best, float scale)
{
    return exp2_fast(((z - best.z) * scale - best.g) * LOG2_E) * 1.001f;
}

// Draws for one id; most lose without a logarithm.
__device__ __forceinline__ void draw_try(struct draw &best, float z, uint32_t word, int32_t id,
                                         float scale)
{
    const float w = philox_w(word);

    if (w > winning_w(z, best, scale))
        return;
    const struct draw d = {z, -logf(-log1pf(-w)), id};
    if (beats(d, best, scale))
        best = d;
}

// Every lane has the best of the warp.
__device__ __forceinline__ void warp_best(struct draw &best, float scale)
{
    for (int i = WARP / 2; i > 0; i /= 2) {
        const struct draw other = {__shfl_xor_sync(ALL_LANES, best.z, i),
                                   __shfl_xor_sync(ALL_LANES, best.g, i),
                                   __shfl_xor_sync(ALL_LANES, best.id, i)};

        if (beats(other, best, scale))
            best = other;
    }
}

// Every thread has the best of the block. shared: one a warp.
__device__ __forceinline__ void block_best(struct draw &best, float scale, struct draw *warps)
{
    warp_best(best, scale);
    __syncthreads();
    if (threadIdx.x % WARP == 0)
        warps[threadIdx.x / WARP] = best;
    __syncthreads();
    best = threadIdx.x % WARP < blockDim.x / WARP ? warps[threadIdx.x % WARP] : no_draw();
    warp_best(best, scale);
}

#endif
