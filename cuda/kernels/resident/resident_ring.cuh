// resident_ring.cuh - the ring of stages in shared memory through which a block reads weights, keys
// and values: filled by bulk copies, far ahead of their use.
//
// A stage holds eight rows of up to CHUNK weights, or keys and values. One warp fills
// stages and eight empty them, in the same order, so they share nothing but two mbarriers a stage.
#ifndef NVLLM_CUDA_KERNELS_RESIDENT_RESIDENT_RING_CUH
#define NVLLM_CUDA_KERNELS_RESIDENT_RESIDENT_RING_CUH

#include "cuda/kernels/common.cuh"
#include "cuda/kernels/hopper.cuh"

static constexpr int CONSUMERS = 8;                  // warps that compute
static constexpr int COLS = 8;                       // rows of weights of a tile: columns of y
static constexpr int K_STEP = 32;                    // k of two products of the matrix unit
static constexpr int CHUNK = 1024;                   // k of a stage
static constexpr int ROW_BYTES = CHUNK * 2 + 64;     // padded against bank conflicts
static constexpr int STAGE_BYTES = COLS * ROW_BYTES; // also 16 KiB of keys and values
static constexpr int MAX_STAGES = 14;

struct ring {
    uint32_t memory, full, empty; // addresses in shared memory
    int n;                        // stages
    int at;
    uint32_t parity; // of `full` when stage `at` comes
};

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

// Weights pass through L2 once; the exchanged data should stay there.
static __device__ __forceinline__ uint64_t stream_policy()
{
    uint64_t policy;

    asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
    return policy;
}

static __device__ __forceinline__ void bulk_copy(uint32_t to, const void *from, uint32_t bytes,
                                                 uint32_t barrier, uint64_t policy)
{
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes"
                 ".L2::cache_hint [%0], [%1], %2, [%3], %4;" ::"r"(to),
                 "l"(from), "r"(bytes), "r"(barrier), "l"(policy)
                 : "memory");
}

static __device__ __forceinline__ uint32_t ring_stage(const struct ring &r)
{
    return r.memory + (uint32_t)(r.at * STAGE_BYTES);
}

static __device__ __forceinline__ void ring_next(struct ring &r)
{
    if (++r.at == r.n) {
        r.at = 0;
        r.parity ^= 1;
    }
}

// The producer's: waits until the stage is empty. The fence orders the consumers' loads, of the
// generic proxy, before the bulk copies that follow, of the async proxy.
static __device__ __forceinline__ void ring_wait_empty(const struct ring &r)
{
    barrier_wait(r.empty + (uint32_t)r.at * 8, r.parity ^ 1);
    fence_async();
}

// The consumers': waits until the stage is full. Every warp waits for every stage and releases it,
// even one that it does not read: none may get a whole ring ahead.
static __device__ __forceinline__ void ring_wait_full(const struct ring &r)
{
    barrier_wait(r.full + (uint32_t)r.at * 8, r.parity);
}

// Every lane arrives, for its own loads. One arrival per warp after __syncwarp() is as right and no
// faster, but compute-sanitizer then misses that the other lanes' loads precede the next copy.
static __device__ __forceinline__ void ring_release(struct ring &r)
{
    barrier_arrive(r.empty + (uint32_t)r.at * 8);
    ring_next(r);
}

static __device__ __forceinline__ uint4 ld_shared(uint32_t at)
{
    uint4 v;

    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "r"(at));
    return v;
}

#endif
#endif
