/* rms_norm.cu - y = x / rms(x) * w, one block a row; the rows may be gathered.
 *
 * Bound by memory: 6 * n_rows * dim bytes; a row is read once and kept in registers. */
#include "cuda/kernels/common.cuh"

static constexpr int MAX_THREADS = 1024;
static constexpr int VEC = 8; /* of 16 bytes of y */

/* N vectors a thread; all loads of a row are under way at once. */
template <int N>
static __global__ void __launch_bounds__(MAX_THREADS)
    rms_norm_kernel(uint4 *y,        /* [n_rows, dim / VEC] */
                    const float4 *x, /* [.., dim / 4] */
                    const uint4 *w,  /* [dim / VEC] */
                    const struct sampler_row *rows, const struct step_counts *counts, int n_vec,
                    float eps)
{
    __shared__ float sums[MAX_THREADS / WARP];
    const int i = (int)blockIdx.x, me = (int)threadIdx.x, n_threads = (int)blockDim.x;
    float4 low[N], high[N];
    uint4 g[N];
    const int n_rows = rows ? __ldcg(&counts->n_rows) : (int)gridDim.x;
    const int row = rows ? __ldcg(&rows[i].row) : i;
    float sum = 0.0f;

#pragma unroll
    for (int j = 0; j < N; j++)
        g[j] = w[min(me + j * n_threads, n_vec - 1)];
    chain_wait();
    if (i >= n_rows)
        return;
    const float4 *from = x + (int64_t)row * n_vec * 2;
#pragma unroll
    for (int j = 0; j < N; j++) {
        const int at = min(me + j * n_threads, n_vec - 1);

        low[j] = __ldcg(from + at * 2);
        high[j] = __ldcg(from + at * 2 + 1);
    }
#pragma unroll
    for (int j = 0; j < N; j++) {
        const float4 a = low[j], b = high[j];

        if (me + j * n_threads < n_vec)
            sum += a.x * a.x + a.y * a.y + a.z * a.z + a.w * a.w + b.x * b.x + b.y * b.y +
                   b.z * b.z + b.w * b.w;
    }
    sum = warp_sum(sum);
    if (me % WARP == 0)
        sums[me / WARP] = sum;
    __syncthreads();
    sum = 0.0f;
    for (int j = 0; j < n_threads / WARP; j++)
        sum += sums[j];
    const float scale = rsqrtf(sum / (float)(n_vec * VEC) + eps);
#pragma unroll
    for (int j = 0; j < N; j++) {
        const float4 a = low[j], b = high[j];
        uint4 out;

        out.x = bf16_pair(a.x * scale * bf16_low(g[j].x), a.y * scale * bf16_high(g[j].x));
        out.y = bf16_pair(a.z * scale * bf16_low(g[j].y), a.w * scale * bf16_high(g[j].y));
        out.z = bf16_pair(b.x * scale * bf16_low(g[j].z), b.y * scale * bf16_high(g[j].z));
        out.w = bf16_pair(b.z * scale * bf16_low(g[j].w), b.w * scale * bf16_high(g[j].w));
        if (me + j * n_threads < n_vec)
            y[(int64_t)i * n_vec + me + j * n_threads] = out;
    }
}

template <int N>
static cudaError_t run(const struct launch *l, uint16_t *y, const float *x, const uint16_t *w,
                       const struct step_view *gather, int n_rows, int n_vec, float eps)
{
    const int threads = ((n_vec + N - 1) / N + WARP - 1) / WARP * WARP;

    return launch_kernel(rms_norm_kernel<N>, dim3((unsigned)n_rows), threads, 0, l, (uint4 *)y,
                         (const float4 *)x, (const uint4 *)w, gather ? gather->rows : nullptr,
                         gather ? gather->counts : nullptr, n_vec, eps);
}

extern "C" cudaError_t rms_norm(const struct launch *l, uint16_t *y, const float *x,
                                const uint16_t *w, const struct step_view *gather, int n_rows,
                                int dim, float eps)
{
    const int n_vec = dim / VEC;

    if (n_vec <= 256)
        return run<1>(l, y, x, w, gather, n_rows, n_vec, eps);
    if (n_vec <= 2 * MAX_THREADS)
        return run<2>(l, y, x, w, gather, n_rows, n_vec, eps);
    return run<16>(l, y, x, w, gather, n_rows, n_vec, eps); /* more than there are registers for */
}
