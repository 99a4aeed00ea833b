// kv_rows.cuh - rows of keys and values as the KV pool has them: bf16, or E4M3 with a power of two
// as each row's scale.
//
// In a block each layer has its keys, and its values v_offset behind where the keys begin. Either
// is [n_kv_heads, block_len, HEAD_DIM] elements; with E4M3 [n_kv_heads, block_len] bytes follow,
// the exponents of the rows' scales: x stands for 2^(x - 127), 255 for NaN. (Were a head's scales
// behind its own elements, rows of other heads would lie across lines of memory.) A row's scale is
// the least with which its largest element is in range; one with a NaN or an infinity is NaN. All
// of it as bf16 is exact. Twin of the conversion: to_e4m3() of cpu_ops.h.
#ifndef NVLLM_CUDA_KERNELS_KV_ROWS_CUH
#define NVLLM_CUDA_KERNELS_KV_ROWS_CUH

#include <cuda_fp8.h>
#include <type_traits>

#include "cuda/kernels/common.cuh"

static constexpr int NAN_EXPONENT = 255;

// 8 elements of a row.
template <bool FP8> using kv_vector = std::conditional_t<FP8, uint2, uint4>;

// Which vector of a row a thread has as its number j: of a key, by its quarter, where the rows are
// not swizzled; of a value, by its group of four lanes. Of E4M3 neighbours, which one load brings.
template <bool FP8> static __device__ __forceinline__ int plain_k_vector(int j, int quarter)
{
    return FP8 ? (j / 2 * 4 + quarter) * 2 + j % 2 : j * 4 + quarter;
}

template <int HEAD_DIM, bool FP8> static __device__ __forceinline__ int v_vector(int j, int group)
{
    return FP8 ? group * (HEAD_DIM / 64) + j : j * 8 + group;
}

struct kv_row {
    uint16_t *data;    // elements
    uint8_t *exponent; // of E4M3
};

// Row `at` of a head in a block; `from` is where the layer's keys or values begin there.
template <int HEAD_DIM, bool FP8>
static __device__ __forceinline__ struct kv_row row_of(const uint16_t *from,
                                                       const struct kv_pool &kv, int head, int at)
{
    const int64_t row = ((int64_t)head << kv.block_shift) + at;
    uint8_t *const bytes = (uint8_t *)from;

    if (FP8)
        return {(uint16_t *)(bytes + row * HEAD_DIM),
                bytes + ((int64_t)kv.n_kv_heads << kv.block_shift) * HEAD_DIM + row};
    return {(uint16_t *)from + row * HEAD_DIM, nullptr};
}

// The row of the same key, where its values are.
static __device__ __forceinline__ struct kv_row values_of(struct kv_row k, int64_t v_offset)
{
    return {k.data + v_offset, k.exponent + 2 * v_offset};
}

// The larger magnitude of two pairs of bf16, each half by itself.
static __device__ __forceinline__ uint32_t larger_halves(uint32_t a, uint32_t b)
{
    return __vmaxu2(a, b & 0x7fff7fff);
}

static __device__ __forceinline__ uint32_t largest_of(const uint4 &x)
{
    return larger_halves(larger_halves(larger_halves(larger_halves(0, x.x), x.y), x.z), x.w);
}

// The same of a row that the four lanes of a quad hold.
template <int N> static __device__ __forceinline__ uint32_t largest_of_quad(const uint4 (&row)[N])
{
    const unsigned quad = 0xfu << (threadIdx.x % WARP / 4 * 4);
    uint32_t largest = 0;

#pragma unroll
    for (int j = 0; j < N; j++)
        largest = __vmaxu2(largest, largest_of(row[j]));
    largest = __vmaxu2(largest, __shfl_xor_sync(quad, largest, 1));
    return __vmaxu2(largest, __shfl_xor_sync(quad, largest, 2));
}

// The exponent of a row whose largest magnitude is one of two bf16: 448 is 1.75 * 2^8. 134 is what
// bf16 leaves beside the factor of 2^120 that E4M3 takes; larger elements become the largest.
static __device__ __forceinline__ int exponent_of(uint32_t largest)
{
    const int top = (int)max(largest & 0xffff, largest >> 16);

    if (top >= 0x7f80)
        return NAN_EXPONENT;
    return min(max((top >> 7) - 8 + ((top & 0x7f) > 0x60), 1), 134);
}

static __device__ __forceinline__ uint32_t pair_to_e4m3(uint32_t pair, int exponent)
{
    const float scale = __uint_as_float((uint32_t)(254 - exponent) << 23);

    return __nv_cvt_float2_to_fp8x2(make_float2(bf16_low(pair) * scale, bf16_high(pair) * scale),
                                    __NV_SATFINITE, __NV_E4M3);
}

static __device__ __forceinline__ uint2 to_e4m3(const uint4 &x, int exponent)
{
    return make_uint2(pair_to_e4m3(x.x, exponent) | pair_to_e4m3(x.y, exponent) << 16,
                      pair_to_e4m3(x.z, exponent) | pair_to_e4m3(x.w, exponent) << 16);
}

// What a row's elements are multiplied by, twice: 2^120, for the sake of e4m3_pair(), and the
// scale.
static __device__ __forceinline__ uint32_t factor_of(int exponent)
{
    return exponent == NAN_EXPONENT ? 0x7fff7fff : (uint32_t)(exponent + 120) * 0x00800080;
}

static __device__ __forceinline__ uint4 from_e4m3(const uint2 &x, uint32_t factor)
{
    return make_uint4(e4m3_pair<0>(x.x, factor), e4m3_pair<2>(x.x, factor),
                      e4m3_pair<0>(x.y, factor), e4m3_pair<2>(x.y, factor));
}

// A row as it is stored, of which the lanes of a quad have 8 neighbours of every 32 elements.
template <bool FP8, int N> struct stored_row {
    kv_vector<FP8> x[N];
    [[maybe_unused]] int exponent;
};

template <bool FP8, int N>
static __device__ __forceinline__ struct stored_row<FP8, N> stored_of(const uint4 (&row)[N]) {
    struct stored_row<FP8, N> y;

    if constexpr (FP8)
        y.exponent = exponent_of(largest_of_quad(row));
#pragma unroll
    for (int j = 0; j < N; j++)
        if constexpr (FP8)
            y.x[j] = to_e4m3(row[j], y.exponent);
        else
            y.x[j] = row[j];
    return y;
}

template <bool FP8, int N>
static __device__ __forceinline__ void put_row(struct kv_row to,
                                               const struct stored_row<FP8, N> &row, int quarter)
{
#pragma unroll
    for (int j = 0; j < N; j++)
        ((kv_vector<FP8> *)to.data)[j * 4 + quarter] = row.x[j];
    if (FP8 && quarter == 0)
        *to.exponent = (uint8_t)row.exponent;
}

#endif
