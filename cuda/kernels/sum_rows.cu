/* sum_rows.cu - sums of a sequence's hidden states, for embeddings; and rows side by side.
 *
 * Bound by memory: 2 * dim bytes a row. A thread adds two columns, row by row, so that the order
 * of a sum is always the same; the loads of several rows are under way at once. */
#include "cuda/kernels/common.cuh"

static constexpr int SUM_THREADS = 64;
static constexpr int GATHER_THREADS = 128;
static constexpr int AHEAD = 16; /* rows */

static __global__ void __launch_bounds__(SUM_THREADS)
    sum_kernel(float2 *y,         /* [n_sums, n_pairs] */
               const uint32_t *x, /* [.., n_pairs] */
               const struct batch_sum *sums, int n_pairs)
{
    const int at = (int)(blockIdx.x * SUM_THREADS + threadIdx.x), i = (int)blockIdx.y;
    float2 sum = make_float2(0.0f, 0.0f);

    chain_wait();
    if (at >= n_pairs)
        return;
    const int n_rows = __ldcg(&sums[i].n_rows);
    const uint32_t *from = x + (int64_t)__ldcg(&sums[i].row) * n_pairs + at;
    for (int row = 0; row < n_rows; row += AHEAD) {
        uint32_t v[AHEAD];

#pragma unroll
        for (int j = 0; j < AHEAD; j++)
            v[j] = row + j < n_rows ? __ldcg(from + (int64_t)(row + j) * n_pairs) : 0;
#pragma unroll
        for (int j = 0; j < AHEAD; j++) {
            sum.x += bf16_low(v[j]);
            sum.y += bf16_high(v[j]);
        }
    }
    y[(int64_t)i * n_pairs + at] = sum;
}

extern "C" cudaError_t sum_rows(const struct launch *l, float *y, const uint16_t *x,
                                const struct batch_sum *sums, int n_sums, int dim)
{
    const int n_pairs = dim / 2;

    return launch_kernel(known<sum_kernel>(),
                         dim3((unsigned)((n_pairs + SUM_THREADS - 1) / SUM_THREADS),
                              (unsigned)n_sums),
                         SUM_THREADS, 0, l, (float2 *)y, (const uint32_t *)x, sums, n_pairs);
}

static __global__ void __launch_bounds__(GATHER_THREADS)
    gather_kernel(uint4 *y,       /* [n_rows, n_vec] */
                  const uint4 *x, /* [.., n_vec] */
                  const struct sampler_row *rows, const struct step_counts *counts, int n_vec)
{
    const int i = (int)blockIdx.x;

    chain_wait();
    if (i >= __ldcg(&counts->n_rows))
        return;
    const uint4 *from = x + (int64_t)__ldcg(&rows[i].row) * n_vec;
    for (int at = (int)threadIdx.x; at < n_vec; at += GATHER_THREADS)
        y[(int64_t)i * n_vec + at] = __ldcg(from + at);
}

extern "C" cudaError_t gather_rows(const struct launch *l, uint16_t *y, const uint16_t *x,
                                   const struct step_view *v, int n_rows, int dim)
{
    return launch_kernel(known<gather_kernel>(), dim3((unsigned)n_rows), GATHER_THREADS, 0, l,
                         (uint4 *)y, (const uint4 *)x, v->rows, v->counts, dim / 8);
}
