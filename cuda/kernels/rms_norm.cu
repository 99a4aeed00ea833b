/* rms_norm.cu - y = x / rms(x) * w, one block a row; the rows may be gathered, or what is left of a
 * product in parts added to them first. Where the parts are other ranks' this is the all-reduce of
 * tensor parallelism: each rank takes all rows, or a share of them and gives y to all.
 *
 * Bound by memory: 6 * n_rows * dim bytes, 4 more a part and 4 to write x; a row is read once and
 * kept in registers. Parts of other ranks come over NVLink. */
#include "cuda/kernels/common.cuh"

static constexpr int MAX_THREADS = 1024;
static constexpr int VEC = 8; /* of 16 bytes of y */

static __device__ __forceinline__ void add(float4 &a, float4 b)
{
    a.x += b.x;
    a.y += b.y;
    a.z += b.z;
    a.w += b.w;
}

/* N vectors a thread; all loads of a row are under way at once. */
template <int N, int PARTS>
static __global__ void __launch_bounds__(MAX_THREADS)
    rms_norm_kernel(const __grid_constant__ struct norm n, const struct sampler_row *rows,
                    const struct step_counts *counts)
{
    const uint4 *w = (const uint4 *)n.w;
    const int n_vec = n.dim / VEC;
    __shared__ float sums[MAX_THREADS / WARP];
    const int i = (int)blockIdx.x, me = (int)threadIdx.x, n_threads = (int)blockDim.x;
    float4 low[N], high[N];
    uint4 g[N];
    const int n_rows = rows ? __ldcg(&counts->n_rows) : (int)gridDim.x;
    const int row = rows ? __ldcg(&rows[i].row) : n.first_row + i, to = rows ? i : row;
    float sum = 0.0f;

#pragma unroll
    for (int j = 0; j < N; j++)
        g[j] = w[min(me + j * n_threads, n_vec - 1)];
    chain_wait();
    if (i >= n_rows || (rows && (row < n.first_row || row >= n.first_row + n.owned_rows)))
        return;
    float4 *from = (float4 *)n.x + (int64_t)row * n_vec * 2;
#pragma unroll
    for (int j = 0; j < N; j++) {
        const int at = min(me + j * n_threads, n_vec - 1);

        low[j] = __ldcg(from + at * 2);
        high[j] = __ldcg(from + at * 2 + 1);
#pragma unroll
        for (int k = 0; k < PARTS; k++) {
            const float4 *part = (const float4 *)n.parts[k] + ((int64_t)row * n_vec + at) * 2;

            add(low[j], __ldcg(part));
            add(high[j], __ldcg(part + 1));
        }
    }
#pragma unroll
    for (int j = 0; j < N; j++) {
        const float4 a = low[j], b = high[j];

        if (PARTS > 0 && me + j * n_threads < n_vec) {
            from[(me + j * n_threads) * 2] = a;
            from[(me + j * n_threads) * 2 + 1] = b;
        }
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
    const float scale = rsqrtf(sum / (float)(n_vec * VEC) + n.eps);
#pragma unroll
    for (int j = 0; j < N; j++) {
        const float4 a = low[j], b = high[j];
        uint4 out;

        out.x = bf16_pair(a.x * scale * bf16_low(g[j].x), a.y * scale * bf16_high(g[j].x));
        out.y = bf16_pair(a.z * scale * bf16_low(g[j].y), a.w * scale * bf16_high(g[j].y));
        out.z = bf16_pair(b.x * scale * bf16_low(g[j].z), b.y * scale * bf16_high(g[j].z));
        out.w = bf16_pair(b.z * scale * bf16_low(g[j].w), b.w * scale * bf16_high(g[j].w));
        if (me + j * n_threads >= n_vec)
            continue;
        ((uint4 *)n.y[0])[(int64_t)to * n_vec + me + j * n_threads] = out;
        for (int k = 1; k < n.n_y; k++)
            ((uint4 *)n.y[k])[(int64_t)to * n_vec + me + j * n_threads] = out;
    }
}

template <int N, int PARTS> static cudaError_t run(const struct launch *l, const struct norm *n)
{
    const int n_vec = n->dim / VEC, threads = ((n_vec + N - 1) / N + WARP - 1) / WARP * WARP;

    return launch_kernel(rms_norm_kernel<N, PARTS>, dim3((unsigned)n->n_rows), threads, 0, l, *n,
                         n->gather ? n->gather->rows : nullptr,
                         n->gather ? n->gather->counts : nullptr);
}

template <int PARTS> static cudaError_t pick(const struct launch *l, const struct norm *n)
{
    if (n->dim <= 256 * VEC)
        return run<1, PARTS>(l, n);
    if (PARTS > 0 || n->dim <= 2 * MAX_THREADS * VEC)
        return run<2, PARTS>(l, n);
    return run<16, 0>(l, n); /* more than there are registers for */
}

extern "C" cudaError_t rms_norm(const struct launch *l, const struct norm *n)
{
    switch (n->n_parts) {
    case 0:
        return pick<0>(l, n);
    case 2:
        return pick<2>(l, n);
    case 4:
        return pick<4>(l, n);
    case 8:
        return pick<8>(l, n);
    default:
        return cudaErrorInvalidValue;
    }
}
