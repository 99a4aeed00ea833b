/* fetch_blocks.cu - one layer of an offloaded sequence's blocks, from host memory to where prefill
 * attention reads them.
 *
 * Bound by the bus: 2 * n_kv_heads * block_len * head_dim * 2 bytes a block. The device's copy
 * engines would take 0.7 us of the host for each of these small pieces. */
#include "cuda/kernels/common.cuh"

static constexpr int THREADS = 1024;
static constexpr int AHEAD = 8; /* loads a thread has under way: 512 KiB in four blocks */

static __global__ void __launch_bounds__(THREADS)
    fetch_blocks_kernel(uint4 *to, const struct kv_pool from, int layer, const int32_t *table,
                        int n_each, int64_t n)
{
    const int64_t stride = (int64_t)gridDim.x * THREADS;

    chain_wait();
    for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < n; i += AHEAD * stride) {
        uint4 x[AHEAD];

#pragma unroll
        for (int j = 0; j < AHEAD; j++) {
            const int64_t at = i + j * stride;

            if (at < n)
                x[j] =
                    __ldcv((const uint4 *)(from.base + block_at(from, __ldcg(table + at / n_each)) +
                                           layer * from.layer_stride) +
                           at % n_each);
        }
#pragma unroll
        for (int j = 0; j < AHEAD; j++)
            if (i + j * stride < n)
                to[i + j * stride] = x[j];
    }
}

extern "C" cudaError_t fetch_blocks(const struct launch *l, uint16_t *to,
                                    const struct kv_pool *from, int layer, const int32_t *table,
                                    int n, int n_thread_blocks)
{
    const int n_each = (int)(2 * from->v_offset / 8);

    return launch_kernel(known<fetch_blocks_kernel>(), dim3((unsigned)n_thread_blocks), THREADS, 0,
                         l, (uint4 *)to, *from, layer, table, n_each, (int64_t)n * n_each);
}
