/* silu_mul.cu - y = silu(gate) * up, gate and up side by side in a row.
 *
 * Bound by memory: 6 * n_tokens * dim bytes. */
#include "cuda/kernels/common.cuh"

static constexpr int VEC = 8;

static __global__ void __launch_bounds__(MAX_ROW_THREADS)
    silu_mul_kernel(uint4 *y,       /* [n_tokens, dim / VEC] */
                    const uint4 *x, /* [n_tokens, 2, dim / VEC] */
                    int n_vec)
{
    const int j = (int)(blockIdx.y * blockDim.x + threadIdx.x);
    const int64_t row = blockIdx.x;
    const uint4 *gate = x + row * 2 * n_vec + j;

    chain_wait();
    if (j >= n_vec)
        return;
    const uint4 g = __ldcg(gate), u = __ldcg(gate + n_vec);
    y[row * n_vec + j] = silu_mul_vec(g, u);
}

extern "C" cudaError_t silu_mul(const struct launch *l, uint16_t *y, const uint16_t *x,
                                int n_tokens, int dim)
{
    return launch_rows(known<silu_mul_kernel>(), n_tokens, dim / VEC, l, (uint4 *)y,
                       (const uint4 *)x, dim / VEC);
}
