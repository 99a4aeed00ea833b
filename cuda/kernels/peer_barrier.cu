/* peer_barrier.cu - a barrier of ranks, each on its own device.
 *
 * One warp. A rank writes its arrival to the memory of each other rank and polls its own memory, so
 * nobody reads over NVLink while waiting. Barriers are numbered, so nothing is reset. Bound by one
 * write over NVLink, 0.74 us (two H200, 2026-11-22), and a launch. */
#include "cuda/kernels/common.cuh"

/* By the rules of PTX the release makes visible what earlier kernels of this stream wrote: their
 * end comes before it in causality order. */
static __device__ __forceinline__ void announce(uint32_t *at, uint32_t number)
{
    asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(at), "r"(number) : "memory");
}

static __device__ __forceinline__ uint32_t read_arrival(const uint32_t *at)
{
    uint32_t number;

    asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(number) : "l"(at) : "memory");
    return number;
}

static __device__ __forceinline__ void count(const struct peer_barrier &b, uint64_t begin)
{
    struct peer_clock *c = b.clock;
    const uint64_t ns = __ldcg(&c->ns), from = b.mark == PEER_END ? __ldcg(&c->begin) : begin;

    if (b.mark == PEER_BEGIN)
        c->begin = begin;
    else
        c->ns = ns + (now_ns() - from);
    if (b.mark == PEER_STEP_END)
        *(volatile uint64_t *)b.host_ns = ns + (now_ns() - from);
}

static __global__ void __launch_bounds__(WARP)
    peer_barrier_kernel(const __grid_constant__ struct peer_barrier b)
{
    const int peer = (int)threadIdx.x;

    chain_wait();
    const uint64_t begin = now_ns();
    const uint32_t number = __ldcg(b.last) + 1;
    __syncwarp();
    if (peer == 0)
        *b.last = number;
    if (peer < b.n_ranks) {
        announce(b.arrived[peer] + b.me, number);
        while ((int32_t)(read_arrival(b.arrived[b.me] + peer) - number) < 0)
            trap_when_late(begin);
    }
    __syncwarp();
    if (peer == 0 && b.clock)
        count(b, begin);
}

extern "C" cudaError_t peer_barrier(const struct launch *l, const struct peer_barrier *b)
{
    return launch_kernel(known<peer_barrier_kernel>(), dim3(1), WARP, 0, l, *b);
}
