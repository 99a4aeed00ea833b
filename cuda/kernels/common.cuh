// common.cuh - what the kernels share: 16-byte vectors of bf16, warp reductions, chained launches.
#ifndef NVLLM_CUDA_KERNELS_COMMON_CUH
#define NVLLM_CUDA_KERNELS_COMMON_CUH

#include <cuda_bf16.h>
#include <cuda_runtime.h>
#include <cstdint>

#include "cuda/kernels/kernels.h"

static constexpr int WARP = 32;
static constexpr unsigned ALL_LANES = 0xffffffffu;

// Waits until the preceding kernel has ended and its writes are visible, and lets the next one
// launch. Reads of what that kernel wrote must bypass L1, which may hold older lines (__ldcg).
// Before the wait a kernel may only read what no kernel of the step writes: weights, keys and
// values of earlier steps and, but for the kernel behind step_copy(), step metadata; and write
// nothing.
__device__ __forceinline__ void chain_wait()
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// A weight: read once by this block, never written while kernels run.
__device__ __forceinline__ uint4 ld_stream(const void *p)
{
    uint4 v;

    asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(p));
    return v;
}

__device__ __forceinline__ float bf16_low(uint32_t pair)
{
    return __uint_as_float(pair << 16);
}

__device__ __forceinline__ float bf16_high(uint32_t pair)
{
    return __uint_as_float(pair & 0xffff0000u);
}

__device__ __forceinline__ uint32_t bf16_pair(float low, float high)
{
    __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
    uint32_t bits;

    memcpy(&bits, &pair, sizeof(bits));
    return bits;
}

__device__ __forceinline__ float bf16_to_float(uint16_t bits)
{
    return __uint_as_float((uint32_t)bits << 16);
}

__device__ __forceinline__ uint16_t bf16_bits(float x)
{
    return __bfloat16_as_ushort(__float2bfloat16_rn(x));
}

__device__ __forceinline__ uint32_t low_halves(uint32_t a, uint32_t b)
{
    return __byte_perm(a, b, 0x5410);
}

__device__ __forceinline__ uint32_t high_halves(uint32_t a, uint32_t b)
{
    return __byte_perm(a, b, 0x7632);
}

// 2^x; the smallest results are rounded to zero, which saves scaling them.
__device__ __forceinline__ float exp2_fast(float x)
{
    float y;

    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

__device__ __forceinline__ float silu(float x)
{
    return __fdividef(x, 1.0f + __expf(-x));
}

// silu(gate) * up of 8 bf16.
__device__ __forceinline__ uint4 silu_mul_vec(const uint4 &gate, const uint4 &up)
{
    auto pair = [](uint32_t g, uint32_t u) {
        return bf16_pair(silu(bf16_low(g)) * bf16_low(u), silu(bf16_high(g)) * bf16_high(u));
    };

    return make_uint4(pair(gate.x, up.x), pair(gate.y, up.y), pair(gate.z, up.z),
                      pair(gate.w, up.w));
}

__device__ __forceinline__ float warp_sum(float x)
{
    for (int i = WARP / 2; i > 0; i /= 2)
        x += __shfl_xor_sync(ALL_LANES, x, i);
    return x;
}

// The sum of what the lanes up to this one have.
template <typename T> static __device__ __forceinline__ T warp_prefix(T x)
{
    for (int i = 1; i < WARP; i *= 2) {
        const T other = __shfl_up_sync(ALL_LANES, x, i);

        x += (int)threadIdx.x % WARP >= i ? other : 0;
    }
    return x;
}

// Bytes i and i + 1 of four e4m3 as bf16, times 2^-120: exponent and mantissa move to where bf16
// has them, below a sign that fills the bits above. This holds for subnormals, too; they stay so.
template <int I> static __device__ __forceinline__ uint32_t e4m3_tiny(uint32_t four)
{
    uint32_t spread;

    asm("prmt.b32 %0, %1, 0, %2;"
        : "=r"(spread)
        : "r"(four), "n"((0x8 + I + 1) << 12 | (I + 1) << 8 | (0x8 + I) << 4 | I));
    return spread << 4 & 0x87f087f0;
}

// Two bf16 times two others, rounded.
static __device__ __forceinline__ uint32_t bf16_product(uint32_t a, uint32_t b)
{
    const __nv_bfloat162 product =
        __hmul2(*(const __nv_bfloat162 *)&a, *(const __nv_bfloat162 *)&b);
    uint32_t y;

    memcpy(&y, &product, sizeof(y));
    return y;
}

// Bytes i and i + 1 of four e4m3 as bf16, times 2^-120 and a bf16 that factor has twice. Its
// default is 2^120, which gives their own values.
template <int I>
static __device__ __forceinline__ uint32_t e4m3_pair(uint32_t four, uint32_t factor = 0x7b807b80)
{
    return bf16_product(e4m3_tiny<I>(four), factor);
}

// d = a * b + d; a 16 x 16 row major, b 16 x 8 column major, bf16; d 16 x 8 float.
__device__ __forceinline__ void mma_16816(float (&d)[4], uint32_t a0, uint32_t a1, uint32_t a2,
                                          uint32_t a3, uint32_t b0, uint32_t b1)
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, "
                 "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

// The same where only rows 0 .. 7 of a are there.
__device__ __forceinline__ void mma_8816(float &d0, float &d1, uint32_t a0, uint32_t a2,
                                         uint32_t b0, uint32_t b1)
{
    [[maybe_unused]] float none0, none1;

    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, "
                 "{%4, %5, %6, %5}, {%7, %8}, {%0, %1, %9, %9};"
                 : "+f"(d0), "+f"(d1), "=f"(none0), "=f"(none1)
                 : "r"(a0), "r"(0), "r"(a2), "r"(b0), "r"(b1), "f"(0.0f));
}

// Rows of shared memory are COLUMNS bf16; 16-byte vectors are swizzled so that those of eight rows
// in one column lie in different banks.
template <int COLUMNS> static __device__ __forceinline__ int swizzle(int row, int piece)
{
    return (row * (COLUMNS / 8) + (piece ^ (row & 7))) * 16;
}

// Zeros where the source is not valid.
static __device__ __forceinline__ void copy_async(uint32_t to, const void *from, bool valid)
{
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(to), "l"(from),
                 "r"(valid ? 16 : 0)
                 : "memory");
}

static __device__ __forceinline__ void st_shared(uint32_t to, const uint4 &v)
{
    asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(v.x), "r"(v.y), "r"(v.z),
                 "r"(v.w)
                 : "memory");
}

static __device__ __forceinline__ void ldmatrix(uint32_t (&r)[4], uint32_t at)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(at)
                 : "memory");
}

// The transpose of an 8 x 8 matrix of bf16 that has a row in each quad.
static __device__ __forceinline__ uint32_t transposed(uint32_t x)
{
    uint32_t y;

    asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(y) : "r"(x));
    return y;
}

static __device__ __forceinline__ uint64_t now_ns()
{
    uint64_t ns;

    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(ns));
    return ns;
}

// Fails the device where another rank has been waited for since `begin` and does not come.
static __device__ __forceinline__ void trap_when_late(uint64_t begin)
{
    if (now_ns() - begin > PEER_SECONDS * 1000000000ull)
        __trap();
}

// What attention's scores are multiplied by to be exponents of two.
static inline float scale_log2_of(int head_dim)
{
    return (float)(1.4426950408889634 / sqrt((double)head_dim));
}

// A kernel that kernels_load() loads: launch_kernel() takes no other.
template <typename... Params> struct known_kernel {
    void (*f)(Params...);
};

bool kernel_add(const void *kernel); // true

template <auto KERNEL> const bool kernel_is_known = kernel_add((const void *)KERNEL);

template <typename... Params> known_kernel<Params...> known_of(void (*f)(Params...), bool)
{
    return {f};
}

template <auto KERNEL> static auto known()
{
    return known_of(KERNEL, kernel_is_known<KERNEL>);
}

template <typename... Params, typename... Args>
static cudaError_t launch_kernel(known_kernel<Params...> kernel, dim3 grid, int threads,
                                 size_t shared_bytes, const struct launch *l, Args... args)
{
    cudaLaunchAttribute attribute = {};
    cudaLaunchConfig_t config = {};

    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = 1;
    config.gridDim = grid;
    config.blockDim = dim3((unsigned)threads);
    config.dynamicSmemBytes = shared_bytes;
    config.stream = l->stream;
    config.attrs = &attribute;
    config.numAttrs = l->chained ? 1 : 0;
    return cudaLaunchKernelEx(&config, kernel.f, static_cast<Params>(args)...);
}

// Launches a kernel of n rows, or of n groups of rows, with a thread for each of a row's vectors:
// blocks of at most MAX_ROW_THREADS, .x of them the row, .y what of it, with few threads idle.
static constexpr int MAX_ROW_THREADS = 256;

template <typename... Params, typename... Args>
static cudaError_t launch_rows(known_kernel<Params...> kernel, int n, int n_vec,
                               const struct launch *l, Args... args)
{
    const int n_blocks = (n_vec + MAX_ROW_THREADS - 1) / MAX_ROW_THREADS;
    const int threads = ((n_vec + n_blocks - 1) / n_blocks + WARP - 1) / WARP * WARP;

    return launch_kernel(kernel, dim3((unsigned)n, (unsigned)n_blocks), threads, 0, l, args...);
}

// Whether a kernel with static shared memory has any code: one for a single compute capability is
// empty where it was compiled for another.
template <typename F> static cudaError_t find_compiled(F *kernel, bool *compiled)
{
    struct cudaFuncAttributes attributes;
    const cudaError_t r = cudaFuncGetAttributes(&attributes, (const void *)kernel);

    *compiled = r == cudaSuccess && attributes.sharedSizeBytes > 0;
    return r;
}

/* Where a block begins, in elements from the pool's base. */
static __device__ __forceinline__ int64_t block_at(const struct kv_pool &kv, int64_t id)
{
    return id < kv.n_blocks ? id * kv.block_stride : id * kv.host_stride + kv.host_offset;
}

#endif
