// hopper.cuh - inline PTX of compute capability 9.0a: wgmma, bulk tensor copies, mbarriers. Only
// for code that is compiled for sm_90a.
#ifndef NVLLM_CUDA_KERNELS_HOPPER_CUH
#define NVLLM_CUDA_KERNELS_HOPPER_CUH

#include <cuda.h>
#include <cstdint>

static __device__ __forceinline__ uint32_t shared_address(const volatile void *p)
{
    return (uint32_t)__cvta_generic_to_shared((const void *)p);
}

// Hides how x was computed, so that the compiler keeps it in a register. Addresses in shared memory
// above all it would otherwise compute anew at each use.
static __device__ __forceinline__ uint32_t kept(uint32_t x)
{
    asm volatile("" : "+r"(x));
    return x;
}

// True in one lane, always the same. All 32 must call it; it waits for them, but orders no memory.
// The compiler knows that one thread runs what depends on it: bulk copies there need no loop over
// lanes, as they do behind a comparison with the lane's number.
static __device__ __forceinline__ bool elected()
{
    uint32_t is_elected;

    asm volatile("{.reg .pred p; elect.sync _|p, 0xffffffff; selp.u32 %0, 1, 0, p;}"
                 : "=r"(is_elected));
    return is_elected;
}

// mbarriers: 8 bytes each, by address in shared memory. A wait names the parity of the phase that
// must be over; of a fresh mbarrier that is the phase before its first (parity 1).
static __device__ __forceinline__ void barrier_init(uint32_t barrier, int arrivals)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals)
                 : "memory");
}

static __device__ __forceinline__ void barrier_arrive(uint32_t barrier)
{
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

// Arrives, and the phase is not over before so many bytes have been copied.
static __device__ __forceinline__ void barrier_expect(uint32_t barrier, uint32_t bytes)
{
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
                 : "memory");
}

static __device__ __forceinline__ void barrier_wait(uint32_t barrier, uint32_t parity)
{
    asm volatile("{.reg .pred p;\n"
                 "again: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n"
                 "@!p bra again;}" ::"r"(barrier),
                 "r"(parity)
                 : "memory");
}

// Named barriers, between some of a block's warps.
static __device__ __forceinline__ void named_wait(int id, int threads)
{
    asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

static __device__ __forceinline__ void named_arrive(int id, int threads)
{
    asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

// Orders this thread's writes to shared memory before later bulk copies and wgmma.
static __device__ __forceinline__ void fence_async()
{
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// A map among a kernel's parameters, so that the first copy need not wait for it.
static __device__ __forceinline__ void prefetch_map(const CUtensorMap *map)
{
    asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

static __device__ __forceinline__ void copy_box_2d(uint32_t to, const CUtensorMap *map, int x,
                                                   int y, uint32_t barrier)
{
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%2, %3}], [%4];" ::"r"(to),
                 "l"(map), "r"(x), "r"(y), "r"(barrier)
                 : "memory");
}

static __device__ __forceinline__ void copy_box_3d(uint32_t to, const CUtensorMap *map, int x,
                                                   int y, int z, uint32_t barrier)
{
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%2, %3, %4}], [%5];" ::"r"(to),
                 "l"(map), "r"(x), "r"(y), "r"(z), "r"(barrier)
                 : "memory");
}

static __device__ __forceinline__ void copy_box_4d(uint32_t to, const CUtensorMap *map, int x,
                                                   int y, int z, int w, uint32_t barrier)
{
    asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%2, %3, %4, %5}], [%6];" ::"r"(to),
                 "l"(map), "r"(x), "r"(y), "r"(z), "r"(w), "r"(barrier)
                 : "memory");
}

// Of copies that pass through L2 once, like weights: they give way to what should stay there.
static __device__ __forceinline__ uint64_t stream_policy()
{
    uint64_t policy;

    asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
    return policy;
}

static __device__ __forceinline__ void copy_box_2d(uint32_t to, const CUtensorMap *map, int x,
                                                   int y, uint32_t barrier, uint64_t policy)
{
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
                 ".L2::cache_hint [%0], [%1, {%2, %3}], [%4], %5;" ::"r"(to),
                 "l"(map), "r"(x), "r"(y), "r"(barrier), "l"(policy)
                 : "memory");
}

static __device__ __forceinline__ void copy_box_4d(uint32_t to, const CUtensorMap *map, int x,
                                                   int y, int z, int w, uint32_t barrier,
                                                   uint64_t policy)
{
    asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
                 ".L2::cache_hint [%0], [%1, {%2, %3, %4, %5}], [%6], %7;" ::"r"(to),
                 "l"(map), "r"(x), "r"(y), "r"(z), "r"(w), "r"(barrier), "l"(policy)
                 : "memory");
}

// bytes: a multiple of 16, as both addresses are.
static __device__ __forceinline__ void copy_bytes(uint32_t to, const void *from, uint32_t bytes,
                                                  uint32_t barrier)
{
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes "
                 "[%0], [%1], %2, [%3];" ::"r"(to),
                 "l"(from), "r"(bytes), "r"(barrier)
                 : "memory");
}

static __device__ __forceinline__ void copy_bytes(uint32_t to, const void *from, uint32_t bytes,
                                                  uint32_t barrier, uint64_t policy)
{
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes"
                 ".L2::cache_hint [%0], [%1], %2, [%3], %4;" ::"r"(to),
                 "l"(from), "r"(bytes), "r"(barrier), "l"(policy)
                 : "memory");
}

// The phase is not over before what the thread has copied by copy_async() has arrived. It must wait
// for another arrival besides, which comes after this.
static __device__ __forceinline__ void barrier_expect_async(uint32_t barrier)
{
    asm volatile("cp.async.mbarrier.arrive.shared.b64 [%0];" ::"r"(barrier) : "memory");
}

// 16 bytes of shared memory.
static __device__ __forceinline__ uint4 ld_shared(uint32_t at)
{
    uint4 v;

    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "r"(at));
    return v;
}

static __device__ __forceinline__ uint2 ld_shared_u32x2(uint32_t at)
{
    uint2 v;

    asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];" : "=r"(v.x), "=r"(v.y) : "r"(at));
    return v;
}

static __device__ __forceinline__ float2 ld_shared_f32x2(uint32_t at)
{
    float2 v;

    asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(v.x), "=f"(v.y) : "r"(at));
    return v;
}

static __device__ __forceinline__ uint32_t ld_shared_u32(uint32_t at)
{
    uint32_t v;

    asm volatile("ld.shared.u32 %0, [%1];" : "=r"(v) : "r"(at));
    return v;
}

static __device__ __forceinline__ uint32_t ld_shared_u16(uint32_t at)
{
    uint16_t v;

    asm volatile("ld.shared.u16 %0, [%1];" : "=h"(v) : "r"(at));
    return v;
}

static __device__ __forceinline__ uint32_t ld_shared_u8(uint32_t at)
{
    uint32_t v;

    asm volatile("ld.shared.u8 %0, [%1];" : "=r"(v) : "r"(at));
    return v;
}

// A warpgroup's registers per thread from here on; all of its threads call it.
template <int N> static __device__ __forceinline__ void registers_grow()
{
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(N));
}

template <int N> static __device__ __forceinline__ void registers_shrink()
{
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(N));
}

// A wgmma descriptor of a matrix in shared memory, of swizzled atoms: 8 rows of 128 bytes, aligned
// to 1024. stride: bytes from atom to atom along the rows; leading: across, where a product is
// wider than an atom.
static __device__ __forceinline__ uint64_t matrix_at(uint32_t at, uint32_t leading, uint32_t stride)
{
    return (uint64_t)((at & 0x3ffff) >> 4) | (uint64_t)(leading >> 4) << 16 |
           (uint64_t)(stride >> 4) << 32 | (uint64_t)1 << 62;
}

// A step of so many bytes.
static __device__ __forceinline__ uint64_t matrix_step(uint64_t matrix, uint32_t bytes)
{
    return matrix + (bytes >> 4);
}

// wgmma is asynchronous: its registers are not touched between the fence before and the wait after.
static __device__ __forceinline__ void wgmma_fence()
{
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

static __device__ __forceinline__ void wgmma_commit()
{
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

template <int PENDING> static __device__ __forceinline__ void wgmma_wait()
{
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
}

// Keeps the compiler from moving uses of registers across this point.
template <int N> static __device__ __forceinline__ void pin(float (&x)[N])
{
#pragma unroll
    for (int i = 0; i < N; i++)
        asm volatile("" : "+f"(x[i])::"memory");
}

#define ACCUMULATORS_4(d, i) "+f"(d[i]), "+f"(d[(i) + 1]), "+f"(d[(i) + 2]), "+f"(d[(i) + 3])
#define ACCUMULATORS_8(d, i) ACCUMULATORS_4(d, i), ACCUMULATORS_4(d, (i) + 4)
#define ACCUMULATORS_16(d, i)                                                                      \
    ACCUMULATORS_4(d, i), ACCUMULATORS_4(d, (i) + 4), ACCUMULATORS_4(d, (i) + 8),                  \
        ACCUMULATORS_4(d, (i) + 12)

// d = a b^T, or += where add: a [64, K], b [N, K] in shared memory, K neighbours, 32 bytes, in a
// row; N is twice what a thread has of d. SUMS, MATRICES and PREDICATE name the operands: d, a and
// b, add.
#define WGMMA_SS(N_SUMS, N, SUMS, MATRICES, PREDICATE, ...)                                        \
    template <bool E4M3 = false>                                                                   \
    static __device__ __forceinline__ void wgmma_ss(float(&d)[N_SUMS], uint64_t a, uint64_t b,     \
                                                    bool add)                                      \
    {                                                                                              \
        if constexpr (E4M3)                                                                        \
            asm volatile("{.reg .pred p; setp.ne.b32 p, " PREDICATE ", 0; "                        \
                         "wgmma.mma_async.sync.aligned.m64n" N "k32.f32.e4m3.e4m3 {" SUMS          \
                         "}, " MATRICES ", p, 1, 1;}"                                              \
                         : __VA_ARGS__                                                             \
                         : "l"(a), "l"(b), "r"((int)add));                                         \
        else                                                                                       \
            asm volatile("{.reg .pred p; setp.ne.b32 p, " PREDICATE ", 0; "                        \
                         "wgmma.mma_async.sync.aligned.m64n" N "k16.f32.bf16.bf16 {" SUMS          \
                         "}, " MATRICES ", p, 1, 1, 0, 0;}"                                        \
                         : __VA_ARGS__                                                             \
                         : "l"(a), "l"(b), "r"((int)add));                                         \
    }
#define SUMS_8  "%0, %1, %2, %3, %4, %5, %6, %7"
#define SUMS_16 SUMS_8 ", %8, %9, %10, %11, %12, %13, %14, %15"
#define SUMS_24 SUMS_16 ", %16, %17, %18, %19, %20, %21, %22, %23"
#define SUMS_32 SUMS_24 ", %24, %25, %26, %27, %28, %29, %30, %31"
#define SUMS_48                                                                                    \
    SUMS_32 ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47"
#define SUMS_64                                                                                    \
    SUMS_48 ", %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"

WGMMA_SS(8, "16", SUMS_8, "%8, %9", "%10", ACCUMULATORS_8(d, 0))
WGMMA_SS(16, "32", SUMS_16, "%16, %17", "%18", ACCUMULATORS_16(d, 0))
WGMMA_SS(24, "48", SUMS_24, "%24, %25", "%26", ACCUMULATORS_16(d, 0), ACCUMULATORS_8(d, 16))
WGMMA_SS(32, "64", SUMS_32, "%32, %33", "%34", ACCUMULATORS_16(d, 0), ACCUMULATORS_16(d, 16))
WGMMA_SS(48, "96", SUMS_48, "%48, %49", "%50", ACCUMULATORS_16(d, 0), ACCUMULATORS_16(d, 16),
         ACCUMULATORS_16(d, 32))
WGMMA_SS(64, "128", SUMS_64, "%64, %65", "%66", ACCUMULATORS_16(d, 0), ACCUMULATORS_16(d, 16),
         ACCUMULATORS_16(d, 32), ACCUMULATORS_16(d, 48))

// d = a b, or += where add: a [64, 16] in registers, b in shared memory. With K_ROWS b is [16, N],
// 64 neighbours in a row; else [N, 16], 16 neighbours in a row. N is twice what a thread has of d.
template <int K_ROWS>
static __device__ __forceinline__ void wgmma_rs(float (&d)[64], const uint32_t *a, uint64_t b,
                                                bool add)
{
    asm volatile("{.reg .pred p; setp.ne.b32 p, %69, 0; "
                 "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {" SUMS_64 "}, "
                 "{%64, %65, %66, %67}, %68, p, 1, 1, %70;}"
                 : ACCUMULATORS_16(d, 0), ACCUMULATORS_16(d, 16), ACCUMULATORS_16(d, 32),
                   ACCUMULATORS_16(d, 48)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"((int)add), "n"(K_ROWS));
}

template <int K_ROWS>
static __device__ __forceinline__ void wgmma_rs(float (&d)[32], const uint32_t *a, uint64_t b,
                                                bool add)
{
    asm volatile("{.reg .pred p; setp.ne.b32 p, %37, 0; "
                 "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {" SUMS_32 "}, "
                 "{%32, %33, %34, %35}, %36, p, 1, 1, %38;}"
                 : ACCUMULATORS_16(d, 0), ACCUMULATORS_16(d, 16)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"((int)add), "n"(K_ROWS));
}

template <int K_ROWS>
static __device__ __forceinline__ void wgmma_rs(float (&d)[16], const uint32_t *a, uint64_t b,
                                                bool add)
{
    asm volatile("{.reg .pred p; setp.ne.b32 p, %21, 0; "
                 "wgmma.mma_async.sync.aligned.m64n32k16.f32.bf16.bf16 {" SUMS_16 "}, "
                 "{%16, %17, %18, %19}, %20, p, 1, 1, %22;}"
                 : ACCUMULATORS_16(d, 0)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"((int)add), "n"(K_ROWS));
}

#undef WGMMA_SS
#undef SUMS_8
#undef SUMS_16
#undef SUMS_24
#undef SUMS_32
#undef SUMS_48
#undef SUMS_64
#undef ACCUMULATORS_4
#undef ACCUMULATORS_8
#undef ACCUMULATORS_16

#endif
