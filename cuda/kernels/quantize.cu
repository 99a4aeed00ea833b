/* quantize.cu - weights to bf16, for products of many rows where the matrix unit cannot take them
 * as they are; and activations to e4m3 where it can.
 *
 * Both are bound by memory. */
#include "cuda/kernels/activations.cuh"
#include "cuda/kernels/quant.cuh"

static constexpr int VEC = 8;             /* bf16 in 16 bytes */
static constexpr int ROWS = 4;            /* of weights, which a thread has at a time */
static constexpr int LANES = GROUP / VEC; /* that have a group of activations */
static constexpr int WHOLE_ROW_THREADS = 512, KEPT = 4; /* where a row has one scale */

/* A thread has eight weights of each of ROWS rows, whose loads are under way together. */
template <int KIND>
static __global__ void __launch_bounds__(MAX_ROW_THREADS)
    dequantize_kernel(uint4 *y,      /* [n, n_vec] */
                      const void *w, /* [n, n_vec] words of INT4, pairs of words of E4M3 */
                      const struct quant q, int n, int n_vec, int n_groups)
{
    static constexpr int WORDS = 4 / UNITS_OF<KIND>;
    const int j = (int)(blockIdx.y * blockDim.x + threadIdx.x), first = (int)blockIdx.x * ROWS;
    const int group = j * VEC / q.scale_cols;
    uint2 v[ROWS];
    quant_raw raw[ROWS];

    if (j >= n_vec)
        return;
#pragma unroll
    for (int i = 0; i < ROWS; i++) {
        const int row = min(first + i, n - 1);
        const uint32_t *at = (const uint32_t *)w + ((int64_t)row * n_vec + j) * WORDS;

        v[i] = WORDS == 2 ? __ldg((const uint2 *)at) : make_uint2(__ldg(at), 0);
        raw[i] = quant_load<KIND>(q, (uint32_t)(row / q.scale_rows) * (uint32_t)n_groups +
                                         (uint32_t)group);
    }
    chain_wait(); /* products read y before it is written again */
#pragma unroll
    for (int i = 0; i < ROWS; i++)
        if (first + i < n)
            y[(int64_t)(first + i) * n_vec + j] =
                quant_scaled(quant_unit<KIND>(make_uint4(v[i].x, v[i].y, 0, 0), 0,
                                              int4_zero(raw[i].zero)),
                             quant_scale<KIND>(q.scales_f16, raw[i].scale));
}

template <int KIND>
static cudaError_t run(const struct launch *l, uint16_t *y, const void *w, const struct quant *q,
                       int n, int k)
{
    return launch_rows(known<dequantize_kernel<KIND>>(), (n + ROWS - 1) / ROWS, k / VEC, l,
                       (uint4 *)y, w, *q, n, k / VEC, (k + q->scale_cols - 1) / q->scale_cols);
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
    return fmaxf(largest(make_uint2(v.x, v.y)), largest(make_uint2(v.z, v.w)));
}

static __device__ __forceinline__ uint2 to_e4m3(const uint4 &v, float factor)
{
    return make_uint2(to_e4m3(make_uint2(v.x, v.y), factor), to_e4m3(make_uint2(v.z, v.w), factor));
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
static __global__ void __launch_bounds__(MAX_ROW_THREADS)
    quantize_groups_kernel(const struct e4m3_rows to, const uint4 *x, int n_vec)
{
    const int64_t row = blockIdx.x;
    const int j = (int)(blockIdx.y * blockDim.x + threadIdx.x);

    chain_wait();
    if (j >= n_vec)
        return; /* and with it all lanes of the group */
    const uint4 v = input<GATED>(x, row, n_vec, j);
    float most = largest(v);

#pragma unroll
    for (int i = LANES / 2; i > 0; i /= 2)
        most = fmaxf(most, __shfl_xor_sync(__activemask(), most, i));
    ((uint2 *)to.x)[row * n_vec + j] = to_e4m3(v, e4m3_factor(most));
    if (j % LANES == 0)
        to.scales[(int64_t)(j / LANES) * to.m + row] = e4m3_scale(most);
}

/* A row is kept in registers, as far as it fits there: KEPT vectors a thread. */
template <bool GATED>
static __global__ void __launch_bounds__(WHOLE_ROW_THREADS)
    quantize_rows_kernel(const struct e4m3_rows to, const uint4 *x, int n_vec)
{
    __shared__ float of_warps[WHOLE_ROW_THREADS / WARP];
    const int64_t row = blockIdx.x;
    const int me = (int)threadIdx.x, n_threads = (int)blockDim.x;
    uint2 *y = (uint2 *)to.x + row * n_vec;
    uint4 kept[KEPT];
    float most = 0.0f;

    chain_wait();
#pragma unroll
    for (int i = 0; i < KEPT; i++)
        kept[i] = input<GATED>(x, row, n_vec, min(me + i * n_threads, n_vec - 1));
#pragma unroll
    for (int i = 0; i < KEPT; i++)
        most = fmaxf(most, largest(kept[i]));
    for (int j = me + KEPT * n_threads; j < n_vec; j += n_threads)
        most = fmaxf(most, largest(input<GATED>(x, row, n_vec, j)));
    most = block_largest(most, of_warps);
    const float factor = e4m3_factor(most);
#pragma unroll
    for (int i = 0; i < KEPT; i++)
        if (me + i * n_threads < n_vec)
            y[me + i * n_threads] = to_e4m3(kept[i], factor);
    for (int j = me + KEPT * n_threads; j < n_vec; j += n_threads)
        y[j] = to_e4m3(input<GATED>(x, row, n_vec, j), factor);
    if (me == 0)
        to.scales[row] = e4m3_scale(most);
}

template <bool GATED>
static cudaError_t run_quantize(const struct launch *l, const struct e4m3_rows *y,
                                const uint16_t *x, int k)
{
    const int n_vec = k / VEC, lanes = (n_vec + KEPT - 1) / KEPT;
    const int threads = (min(lanes, WHOLE_ROW_THREADS) + WARP - 1) / WARP * WARP;

    if (y->groups)
        return launch_rows(known<quantize_groups_kernel<GATED>>(), y->m, n_vec, l, *y,
                           (const uint4 *)x, n_vec);
    return launch_kernel(known<quantize_rows_kernel<GATED>>(), dim3((unsigned)y->m), threads, 0, l,
                         *y, (const uint4 *)x, n_vec);
}

extern "C" cudaError_t quantize(const struct launch *l, const struct e4m3_rows *y,
                                const uint16_t *x, int k, bool gated)
{
    if (k % (y->groups ? GROUP : VEC))
        return cudaErrorInvalidValue;
    return gated ? run_quantize<true>(l, y, x, k) : run_quantize<false>(l, y, x, k);
}
