/* fetch_blocks.cu - one layer of blocks to where prefill attention reads them: of an offloaded
 * sequence from host memory, and E4M3 from wherever it is, which becomes bf16 on its way.
 *
 * Bound by the bus or by memory: 4 * n_kv_heads * block_len * head_dim bytes a block are written,
 * and as many read, of E4M3 half. The device's copy engines would take 0.7 us of the host for each
 * of these small pieces. */
#include "cuda/kernels/kv_rows.cuh"

static constexpr int THREADS = 1024;
static constexpr int AHEAD = 8; /* loads a thread has under way: 512 KiB in four blocks */

/* A piece is 16 bytes as they are stored; n_each: of a block. */
template <int HEAD_DIM, bool FP8>
static __global__ void __launch_bounds__(THREADS)
    fetch_blocks_kernel(uint4 *to, const struct kv_pool from, int layer, const int32_t *table,
                        int n_each, int64_t n)
{
    static constexpr int PIECES = HEAD_DIM / (FP8 ? 16 : 8); /* of a row */
    const int64_t stride = (int64_t)gridDim.x * THREADS;
    const int block_len = 1 << from.block_shift;

    chain_wait();
    for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < n; i += AHEAD * stride) {
        [[maybe_unused]] uint8_t exponents[AHEAD];
        uint4 x[AHEAD];

#pragma unroll
        for (int j = 0; j < AHEAD; j++) {
            const int64_t at = i + j * stride;

            if (at >= n)
                continue;
            const int row = (int)(at % n_each) / PIECES, head = row >> from.block_shift;
            const bool is_v = head >= from.n_kv_heads;
            const uint16_t *rows = from.base + block_at(from, __ldcg(table + at / n_each)) +
                                   layer * from.layer_stride + (is_v ? from.v_offset : 0);
            const struct kv_row source =
                row_of<HEAD_DIM, FP8>(rows, from, is_v ? head - from.n_kv_heads : head,
                                      row & (block_len - 1));

            x[j] = __ldcv((const uint4 *)source.data + at % PIECES);
            if (FP8)
                exponents[j] = __ldcv(source.exponent);
        }
#pragma unroll
        for (int j = 0; j < AHEAD; j++) {
            const int64_t at = i + j * stride;

            if (at >= n)
                continue;
            if constexpr (FP8) {
                const uint32_t factor = factor_of(exponents[j]);

                to[2 * at] = from_e4m3(make_uint2(x[j].x, x[j].y), factor);
                to[2 * at + 1] = from_e4m3(make_uint2(x[j].z, x[j].w), factor);
            } else {
                to[at] = x[j];
            }
        }
    }
}

extern "C" cudaError_t fetch_blocks(const struct launch *l, uint16_t *to,
                                    const struct kv_pool *from, int layer, const int32_t *table,
                                    int n, int n_thread_blocks)
{
    const int rows = 2 * from->n_kv_heads << from->block_shift;
    const int n_each = rows * from->head_dim / (from->fp8 ? 16 : 8);
    const auto kernel = from->head_dim == 128
                            ? (from->fp8 ? known<fetch_blocks_kernel<128, true>>()
                                         : known<fetch_blocks_kernel<128, false>>())
                            : (from->fp8 ? known<fetch_blocks_kernel<64, true>>()
                                         : known<fetch_blocks_kernel<64, false>>());

    return launch_kernel(kernel, dim3((unsigned)n_thread_blocks), THREADS, 0, l, (uint4 *)to, *from,
                         layer, table, n_each, (int64_t)n * n_each);
}
