/* silu_mul.cu - y = silu(gate) * up, gate and up side by side in a row.
 *
 * Bound by memory: 6 * n_tokens * dim bytes. */
#include "cuda/kernels/common.cuh"

static constexpr int MAX_THREADS = 256;
static constexpr int VEC = 8;

static __global__ void __launch_bounds__(MAX_THREADS)
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
    const int n_vec = dim / VEC, n_blocks = (n_vec + MAX_THREADS - 1) / MAX_THREADS;
    const int threads = ((n_vec + n_blocks - 1) / n_blocks + WARP - 1) / WARP * WARP;

    return launch_kernel(known<silu_mul_kernel>(), dim3((unsigned)n_tokens, (unsigned)n_blocks),
                         threads, 0, l, (uint4 *)y, (const uint4 *)x, n_vec);
}
