/* quantize.cu - weights to bf16, for products of many rows where the matrix unit cannot take them
 * as they are; and activations to e4m3 where it can.
 *
 * Both are bound by memory. */
#include <cuda_fp8.h>

#include "cuda/kernels/quant.cuh"

static constexpr int THREADS = 256;
static constexpr int VEC = 8;     /* bf16 in 16 bytes */
static constexpr int GROUP = 128; /* activations of a scale, */
static constexpr int LANES = 16;  /* which so many threads have */
static constexpr float E4M3_MAX = 448.0f;
static constexpr float LEAST = 0x1p-100f; /* 448 / it is finite */

template <int KIND>
static __global__ void __launch_bounds__(THREADS)
    dequantize_kernel(uint4 *y,       /* [n, k / VEC] */
                      const uint4 *w, /* [n, k / VEC / UNITS] */
                      const struct quant q, int64_t n_vec, int vecs_of_row, int n_groups)
{
    static constexpr int UNITS = UNITS_OF<KIND>;
    const int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;

    chain_wait();
    if (i >= n_vec)
        return;
    const int64_t row = i / vecs_of_row;
    const int k = (int)(i % vecs_of_row) * VEC * UNITS;
    const quant_raw raw =
        quant_load<KIND>(q, (uint32_t)(row / q.scale_rows * n_groups + k / q.scale_cols));
    const uint32_t zero = int4_zero(raw.zero);
    const float scale = quant_scale<KIND>(q.scales_f16, raw.scale);
    const uint4 v = ld_stream(w + i);

#pragma unroll
    for (int u = 0; u < UNITS; u++)
        y[i * UNITS + u] = quant_scaled(quant_unit<KIND>(v, u, zero), scale);
}

template <int KIND>
static cudaError_t run(const struct launch *l, uint16_t *y, const void *w, const struct quant *q,
                       int n, int k)
{
    const int vecs_of_row = k / (VEC * UNITS_OF<KIND>);
    const int64_t n_vec = (int64_t)n * vecs_of_row;

    return launch_kernel(known<dequantize_kernel<KIND>>(),
                         dim3((unsigned)((n_vec + THREADS - 1) / THREADS)), THREADS, 0, l,
                         (uint4 *)y, (const uint4 *)w, *q, n_vec, vecs_of_row,
                         (k + q->scale_cols - 1) / q->scale_cols);
}

extern "C" cudaError_t dequantize(const struct launch *l, uint16_t *y, const void *w,
                                  const struct quant *q, int n, int k)
{
    if (k % 32 || q->element == ELEMENT_BF16 ||
        q->scale_cols % (q->element == ELEMENT_E4M3 ? 16 : 32))
        return cudaErrorInvalidValue;
    return q->element == ELEMENT_E4M3 ? run<KIND_E4M3>(l, y, w, q, n, k)
                                      : run<KIND_INT4>(l, y, w, q, n, k);
}

static __device__ __forceinline__ float largest(const uint4 &v)
{
    auto pair = [](uint32_t x) { return fmaxf(fabsf(bf16_low(x)), fabsf(bf16_high(x))); };

    return fmaxf(fmaxf(pair(v.x), pair(v.y)), fmaxf(pair(v.z), pair(v.w)));
}

static __device__ __forceinline__ uint2 to_e4m3(const uint4 &v, float factor)
{
    auto pair = [factor](uint32_t x) {
        return (uint32_t)__nv_cvt_float2_to_fp8x2(make_float2(bf16_low(x) * factor,
                                                              bf16_high(x) * factor),
                                                  __NV_SATFINITE, __NV_E4M3);
    };

    return make_uint2(pair(v.x) | pair(v.y) << 16, pair(v.z) | pair(v.w) << 16);
}

/* 448 / most. Zeros stay what they are, and what is too small for that becomes zero: an infinite
 * factor would make NaN of a zero beside it. */
static __device__ __forceinline__ float factor_of(float most)
{
    return most > LEAST ? __fdiv_rn(E4M3_MAX, most) : 0.0f;
}

/* Vector j of a row of x, or of what gate and up give, which lie side by side. */
template <bool GATED>
static __device__ __forceinline__ uint4 input(const uint4 *x, int64_t row, int n_vec, int j)
{
    if (!GATED)
        return __ldcg(x + row * n_vec + j);
    return silu_mul_vec(__ldcg(x + row * 2 * n_vec + j), __ldcg(x + (row * 2 + 1) * n_vec + j));
}

template <bool GATED>
static __global__ void __launch_bounds__(THREADS)
    quantize_groups_kernel(uint2 *y,       /* [m, n_vec] */
                           float *scales,  /* [n_vec / LANES, m] */
                           const uint4 *x, /* [m, n_vec], or twice as wide */
                           int m, int n_vec)
{
    const int64_t at = (int64_t)blockIdx.x * THREADS + threadIdx.x, row = at / n_vec;
    const int j = (int)(at % n_vec);

    chain_wait();
    if (row >= m)
        return; /* and with it all lanes of the group */
    const uint4 v = input<GATED>(x, row, n_vec, j);
    float most = largest(v);

#pragma unroll
    for (int i = LANES / 2; i > 0; i /= 2)
        most = fmaxf(most, __shfl_xor_sync(__activemask(), most, i));
    y[at] = to_e4m3(v, factor_of(most));
    if (j % LANES == 0)
        scales[(int64_t)(j / LANES) * m + row] = most / E4M3_MAX;
}

template <bool GATED>
static __global__ void __launch_bounds__(THREADS)
    quantize_rows_kernel(uint2 *y, float *scales /* [m] */, const uint4 *x, int n_vec)
{
    __shared__ float of_warps[THREADS / WARP];
    const int64_t row = blockIdx.x;
    float most = 0.0f;

    chain_wait();
    for (int j = (int)threadIdx.x; j < n_vec; j += THREADS)
        most = fmaxf(most, largest(input<GATED>(x, row, n_vec, j)));
    for (int j = WARP / 2; j > 0; j /= 2)
        most = fmaxf(most, __shfl_xor_sync(ALL_LANES, most, j));
    if (threadIdx.x % WARP == 0)
        of_warps[threadIdx.x / WARP] = most;
    __syncthreads();
#pragma unroll
    for (int j = 0; j < THREADS / WARP; j++)
        most = fmaxf(most, of_warps[j]);
    for (int j = (int)threadIdx.x; j < n_vec; j += THREADS)
        y[row * n_vec + j] = to_e4m3(input<GATED>(x, row, n_vec, j), factor_of(most));
    if (threadIdx.x == 0)
        scales[row] = most / E4M3_MAX;
}

template <bool GATED>
static cudaError_t run_quantize(const struct launch *l, uint8_t *y, float *scales,
                                const uint16_t *x, int m, int k, bool groups)
{
    const int64_t n_threads = (int64_t)m * (k / VEC);

    if (groups)
        return launch_kernel(known<quantize_groups_kernel<GATED>>(),
                             dim3((unsigned)((n_threads + THREADS - 1) / THREADS)), THREADS, 0, l,
                             (uint2 *)y, scales, (const uint4 *)x, m, k / VEC);
    return launch_kernel(known<quantize_rows_kernel<GATED>>(), dim3((unsigned)m), THREADS, 0, l,
                         (uint2 *)y, scales, (const uint4 *)x, k / VEC);
}

extern "C" cudaError_t quantize(const struct launch *l, uint8_t *y, float *scales,
                                const uint16_t *x, int m, int k, bool groups, bool gated)
{
    if (k % (groups ? GROUP : VEC))
        return cudaErrorInvalidValue;
    return gated ? run_quantize<true>(l, y, scales, x, m, k, groups)
                 : run_quantize<false>(l, y, scales, x, m, k, groups);
}
