/* rms_norm.cu - y = x / rms(x) * w, one block a row; the rows may be gathered.
 *
 * Bound by memory: 6 * n_rows * dim bytes; the second pass over x finds it in L2. */
#include "cuda/kernels/common.cuh"

static constexpr int THREADS = 128;
static constexpr int VEC = 8;

static __global__ void __launch_bounds__(THREADS)
    rms_norm_kernel(uint4 *y,        /* [n_rows, dim / VEC] */
                    const float4 *x, /* [.., dim / 4] */
                    const uint4 *w,  /* [dim / VEC] */
                    const struct sampler_row *rows, const struct step_counts *counts, int n_vec,
                    float eps)
{
    __shared__ float sums[THREADS / WARP];

    chain_wait();
    const int i = (int)blockIdx.x;
    int row = i;
    float sum = 0.0f;

    if (rows) {
        if (i >= __ldcg(&counts->n_rows))
            return;
        row = __ldcg(&rows[i].row);
    }
    const float4 *from = x + (int64_t)row * n_vec * 2;
    for (int j = (int)threadIdx.x; j < n_vec * 2; j += THREADS) {
        const float4 v = __ldcg(from + j);

        sum += v.x * v.x + v.y * v.y + v.z * v.z + v.w * v.w;
    }
    sum = warp_sum(sum);
    if (threadIdx.x % WARP == 0)
        sums[threadIdx.x / WARP] = sum;
    __syncthreads();
    sum = 0.0f;
    for (int j = 0; j < THREADS / WARP; j++)
        sum += sums[j];
    const float scale = rsqrtf(sum / (float)(n_vec * VEC) + eps);
    for (int j = (int)threadIdx.x; j < n_vec; j += THREADS) {
        const float4 a = __ldcg(from + j * 2), b = __ldcg(from + j * 2 + 1);
        const uint4 g = w[j];
        uint4 out;

        out.x = bf16_pair(a.x * scale * bf16_low(g.x), a.y * scale * bf16_high(g.x));
        out.y = bf16_pair(a.z * scale * bf16_low(g.y), a.w * scale * bf16_high(g.y));
        out.z = bf16_pair(b.x * scale * bf16_low(g.z), b.y * scale * bf16_high(g.z));
        out.w = bf16_pair(b.z * scale * bf16_low(g.w), b.w * scale * bf16_high(g.w));
        y[(int64_t)i * n_vec + j] = out;
    }
}

extern "C" cudaError_t rms_norm(const struct launch *l, uint16_t *y, const float *x,
                                const uint16_t *w, const struct step_view *gather, int n_rows,
                                int dim, float eps)
{
    return launch_kernel(rms_norm_kernel, dim3((unsigned)n_rows), THREADS, 0, l, (uint4 *)y,
                         (const float4 *)x, (const uint4 *)w, gather ? gather->rows : nullptr,
                         gather ? gather->counts : nullptr, dim / VEC, eps);
}
