/* quant.cuh - weights of 8 and 4 bits on their way to the matrix unit, as bf16: elements less their
 * zeros exactly, with their scales rounded. In the resident kernel they stay times a power of two,
 * and zeros of 4-bit weights are subtracted from the sums: see tiny_unit().
 *
 * A thread loads 16 bytes of a row, UNITS times 8 weights. Four lanes side by side hold a step of
 * 32 * UNITS weights, each its own consecutive ones; unit u of a lane is 8 weights that it gives
 * to two products of matrices. */
#ifndef NVLLM_CUDA_KERNELS_QUANT_CUH
#define NVLLM_CUDA_KERNELS_QUANT_CUH

#include <cuda_fp16.h>

#include "cuda/kernels/common.cuh"

/* INT4 by groups: of 128 weights or more all four lanes have the same scale. Of fewer they have
 * not, and exchange their words so that each unit of the four is 32 consecutive weights. */
enum weight_kind { KIND_BF16, KIND_E4M3, KIND_INT4, KIND_INT4_FINE };

template <int KIND>
static constexpr int UNITS_OF = KIND == KIND_BF16   ? 1
                                : KIND == KIND_E4M3 ? 2
                                                    : 4;

static __host__ __device__ inline int units_of(enum element element)
{
    return element == ELEMENT_INT4   ? UNITS_OF<KIND_INT4>
           : element == ELEMENT_E4M3 ? UNITS_OF<KIND_E4M3>
                                     : UNITS_OF<KIND_BF16>;
}

/* The k that four lanes load at a time: so much is a step, and whether groups are so small that it
 * has several. */
static inline int quant_step(const struct quant *q)
{
    return 32 * units_of(q->element);
}

static inline bool quant_is_fine(const struct quant *q, int k)
{
    return q->scale_cols < quant_step(q) && q->scale_cols < k;
}

/* log2 of the columns of a group; 31: all of k is one. */
static inline int quant_group_shift(const struct quant *q, int k)
{
    int shift = 0;

    while ((1 << shift) < q->scale_cols)
        shift++;
    return q->scale_cols >= k ? 31 : shift;
}

static inline bool quant_supports(const struct quant *q, int k)
{
    const bool power = (q->scale_cols & (q->scale_cols - 1)) == 0;

    return q->element == ELEMENT_BF16 ||
           (q->scales && q->scale_rows > 0 &&
            (q->scale_cols >= k ||
             (power && q->scale_cols >= (q->element == ELEMENT_INT4 ? 32 : quant_step(q)))));
}

/* Weights 2 i and 2 i + 1 of eight, less their zero: 128 + the weight, less zero, which is 128 +
 * its value, twice. */
static __device__ __forceinline__ uint32_t int4_pair(uint32_t eight, int i, uint32_t zero)
{
    const uint32_t raise = 0x43004300;
    uint32_t raised; /* in one instruction: one of the two constants must be a register */

    asm("lop3.b32 %0, %1, 0x000f000f, %2, 0xea;"
        : "=r"(raised)
        : "r"(eight >> (4 * i)), "r"(raise));
    const __nv_bfloat162 difference =
        __hsub2(*(const __nv_bfloat162 *)&raised, *(const __nv_bfloat162 *)&zero);
    uint32_t y;

    memcpy(&y, &difference, sizeof(y));
    return y;
}

/* 128 + a zero, twice. */
static __device__ __forceinline__ uint32_t int4_zero(uint32_t zero)
{
    return (0x4300 + zero) * 0x00010001;
}

/* Unit u as it was loaded. */
static __device__ __forceinline__ uint2 e4m3_eight(const uint4 &v, int u)
{
    return u == 0 ? make_uint2(v.x, v.y) : make_uint2(v.z, v.w);
}

static __device__ __forceinline__ uint32_t int4_eight(const uint4 &v, int u)
{
    return u == 0 ? v.x : u == 1 ? v.y : u == 2 ? v.z : v.w;
}

/* The 8 weights of unit u. */
template <int KIND>
static __device__ __forceinline__ uint4 quant_unit(const uint4 &v, int u, uint32_t zero)
{
    if constexpr (KIND == KIND_BF16) {
        return v;
    } else if constexpr (KIND == KIND_E4M3) {
        const uint2 a = e4m3_eight(v, u);

        return make_uint4(e4m3_pair<0>(a.x), e4m3_pair<2>(a.x), e4m3_pair<0>(a.y),
                          e4m3_pair<2>(a.y));
    } else {
        const uint32_t a = int4_eight(v, u);

        return make_uint4(int4_pair(a, 0, zero), int4_pair(a, 1, zero), int4_pair(a, 2, zero),
                          int4_pair(a, 3, zero));
    }
}

/* Weights 2 i and 2 i + 1 of eight, whose zero is yet to be subtracted, times 2^-133, or 2^-129
 * where i is odd: a bf16 of which only the lowest eight bits are set, the exponent's last among
 * them, is that number times 2^-133. */
static __device__ __forceinline__ uint32_t int4_tiny(uint32_t eight, int i)
{
    return eight >> (i / 2 * 8) & (i % 2 ? 0x00f000f0 : 0x000f000f);
}

/* The 8 weights of unit u as tiny bf16, which take fewer instructions and which the matrix unit
 * multiplies as exactly: those of e4m3 times 2^-120, those of 4 bits as int4_tiny() has them. Keys
 * and values of e4m3 are read so, too. */
template <int KIND> static __device__ __forceinline__ uint4 tiny_unit(const uint4 &v, int u)
{
    static_assert(KIND != KIND_BF16);
    if constexpr (KIND == KIND_E4M3) {
        const uint2 a = e4m3_eight(v, u);

        return make_uint4(e4m3_tiny<0>(a.x), e4m3_tiny<2>(a.x), e4m3_tiny<0>(a.y),
                          e4m3_tiny<2>(a.y));
    } else {
        const uint32_t a = int4_eight(v, u);

        return make_uint4(int4_tiny(a, 0), int4_tiny(a, 1), int4_tiny(a, 2), int4_tiny(a, 3));
    }
}

/* The factor of x beside tiny weights, an exponent of two. */
static constexpr int HUGE_LOG = 64;

/* Undoes the factors of tiny_unit() and huge_of() in a sum of their products. */
template <int KIND> static constexpr float OF_TINY = KIND == KIND_E4M3 ? 0x1p56f : 0x1p69f;

/* Eight of x, to be multiplied with tiny weights: times 2^64, or 2^60 where the weights are 16
 * times as large. An x of 2^64 or more becomes infinite. */
template <int KIND> static __device__ __forceinline__ uint4 huge_of(const uint4 &x)
{
    static constexpr uint32_t EVEN = (127 + HUGE_LOG) * 0x00800080,
                              ODD = KIND == KIND_E4M3 ? EVEN : 0x5d805d80;

    return make_uint4(bf16_product(x.x, EVEN), bf16_product(x.y, ODD), bf16_product(x.z, EVEN),
                      bf16_product(x.w, ODD));
}

/* Word i of lane j of four becomes word j of lane i. */
static __device__ __forceinline__ void exchange_words(uint4 &v)
{
    const bool odd = threadIdx.x & 1, upper = threadIdx.x & 2;
    auto trade = [](uint32_t &first, uint32_t &second, bool keeps_second, int lane) {
        const uint32_t got = __shfl_xor_sync(ALL_LANES, keeps_second ? first : second, lane);

        (keeps_second ? first : second) = got;
    };

    trade(v.x, v.y, odd, 1);
    trade(v.z, v.w, odd, 1);
    trade(v.x, v.z, upper, 2);
    trade(v.y, v.w, upper, 2);
}

/* Scale and zero of a group, as they lie in memory: what is made of them waits for them, so that
 * many are under way at a time. */
struct quant_raw {
    uint32_t scale, zero;
};

template <int KIND>
static __device__ __forceinline__ quant_raw quant_load(const struct quant &q, uint32_t at)
{
    quant_raw raw = {0, 8};

    if (KIND == KIND_E4M3)
        raw.scale = __ldg((const uint32_t *)q.scales + at);
    else
        raw.scale = __ldg((const uint16_t *)q.scales + at);
    if (KIND != KIND_E4M3 && q.zeros)
        raw.zero = __ldg(q.zeros + at);
    return raw;
}

template <int KIND> static __device__ __forceinline__ float quant_scale(bool f16, uint32_t raw)
{
    if (KIND == KIND_E4M3)
        return __uint_as_float(raw);
    return f16 ? __half2float(__ushort_as_half((uint16_t)raw)) : bf16_low(raw);
}

/* Eight weights times their scale, rounded. */
static __device__ __forceinline__ uint4 quant_scaled(const uint4 &w, float scale)
{
    return make_uint4(bf16_pair(bf16_low(w.x) * scale, bf16_high(w.x) * scale),
                      bf16_pair(bf16_low(w.y) * scale, bf16_high(w.y) * scale),
                      bf16_pair(bf16_low(w.z) * scale, bf16_high(w.z) * scale),
                      bf16_pair(bf16_low(w.w) * scale, bf16_high(w.w) * scale));
}

#endif
