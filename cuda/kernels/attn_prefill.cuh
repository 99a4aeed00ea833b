// attn_prefill.cuh - what both kernels of prefill attention share: results of split keys. A split's
// rows of a tile are o [ATTN_TILE, HEAD_DIM], then maximum and sum [ATTN_TILE, 2].
#ifndef NVLLM_CUDA_KERNELS_ATTN_PREFILL_CUH
#define NVLLM_CUDA_KERNELS_ATTN_PREFILL_CUH

#include "cuda/kernels/common.cuh"

static constexpr int JOIN_THREADS = 4 * WARP, JOIN_ROWS = 64;

template <int HEAD_DIM> static constexpr __host__ __device__ int64_t split_floats()
{
    return (int64_t)ATTN_TILE * (HEAD_DIM + 2);
}

// A row's place among a split's maxima and sums.
template <int HEAD_DIM>
static __device__ __forceinline__ float2 *stats_of(const float *split, int row)
{
    return (float2 *)(split + ATTN_TILE * HEAD_DIM) + row;
}

// Joins JOIN_ROWS rows of a tile from `begin` on, several rows of four columns a thread at a time.
// A split without keys of a row has a sum of zero there. out: row 0 of the tile.
template <int HEAD_DIM>
static __device__ void join_splits(uint16_t *out, int64_t row_stride, const float *splits,
                                   int begin, int n_rows, int n_splits)
{
    static constexpr int COLUMNS = HEAD_DIM / 4, STEP = JOIN_THREADS / COLUMNS, ROWS = 8;
    static constexpr int64_t SPLIT = split_floats<HEAD_DIM>();
    const int thread = (int)threadIdx.x % JOIN_THREADS, column = thread % COLUMNS * 4;

    for (int first = begin; first < begin + JOIN_ROWS; first += STEP * ROWS) {
        const int row = first + thread / COLUMNS;
        const float *o_at = splits + row * HEAD_DIM + column;
        const float2 *sum_at = stats_of<HEAD_DIM>(splits, row);
        float top[ROWS], sum[ROWS] = {}, o[ROWS][4] = {};

        for (int i = 0; i < ROWS; i++)
            top[i] = -1e30f;
#pragma unroll 2
        for (int j = 0; j < n_splits; j++)
#pragma unroll
            for (int i = 0; i < ROWS; i++)
                if (row + i * STEP < n_rows)
                    top[i] = fmaxf(top[i], __ldcg(sum_at + j * SPLIT / 2 + i * STEP).x);
#pragma unroll 2
        for (int j = 0; j < n_splits; j++)
#pragma unroll
            for (int i = 0; i < ROWS; i++)
                if (row + i * STEP < n_rows) {
                    const float2 its = __ldcg(sum_at + j * SPLIT / 2 + i * STEP);
                    const float4 v =
                        __ldcg((const float4 *)(o_at + j * SPLIT + i * STEP * HEAD_DIM));
                    const float share = exp2_fast(its.x - top[i]);

                    sum[i] += its.y * share;
                    o[i][0] += v.x * share;
                    o[i][1] += v.y * share;
                    o[i][2] += v.z * share;
                    o[i][3] += v.w * share;
                }
#pragma unroll
        for (int i = 0; i < ROWS; i++)
            if (row + i * STEP < n_rows)
                *(uint2 *)(out + (row + i * STEP) * row_stride + column) =
                    make_uint2(bf16_pair(o[i][0] / sum[i], o[i][1] / sum[i]),
                               bf16_pair(o[i][2] / sum[i], o[i][3] / sum[i]));
    }
}

#endif
