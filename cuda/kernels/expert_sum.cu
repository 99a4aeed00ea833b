/* expert_sum.cu - y = sum over the experts of a row of weight * what the expert gives, in order.
 *
 * Bound by memory: 2 * n_rows * n_picks * dim bytes, and those of y. */
#include "cuda/kernels/common.cuh"

static constexpr int VEC = 8;

template <int OUT>
static __global__ void __launch_bounds__(MAX_ROW_THREADS)
    sum_kernel(void *y,        /* [n_rows, n_vec * VEC] */
               const uint4 *x, /* [n_rows, n_picks, n_vec] */
               const float *weights, int n_picks, int n_vec)
{
    const int at = (int)(blockIdx.y * blockDim.x + threadIdx.x);
    const int64_t row = blockIdx.x;
    float sum[VEC] = {};

    chain_wait();
    if (at >= n_vec)
        return;
#pragma unroll 8
    for (int i = 0; i < n_picks; i++) {
        const uint4 v = __ldcg(x + (row * n_picks + i) * n_vec + at);
        const float w = __ldcg(weights + row * n_picks + i);
        const uint32_t pairs[VEC / 2] = {v.x, v.y, v.z, v.w};

#pragma unroll
        for (int j = 0; j < VEC / 2; j++) {
            sum[2 * j] = __fmaf_rn(w, bf16_low(pairs[j]), sum[2 * j]);
            sum[2 * j + 1] = __fmaf_rn(w, bf16_high(pairs[j]), sum[2 * j + 1]);
        }
    }
    if constexpr (OUT == EXPERT_SUM_BF16) {
        ((uint4 *)y)[row * n_vec + at] =
            make_uint4(bf16_pair(sum[0], sum[1]), bf16_pair(sum[2], sum[3]),
                       bf16_pair(sum[4], sum[5]), bf16_pair(sum[6], sum[7]));
    } else {
#pragma unroll
        for (int j = 0; j < VEC; j += 4) {
            float4 *to = (float4 *)y + ((row * n_vec + at) * VEC + j) / 4;
            float4 v = OUT == EXPERT_SUM_ADD_F32 ? __ldcg(to) : make_float4(0, 0, 0, 0);

            v.x += sum[j], v.y += sum[j + 1], v.z += sum[j + 2], v.w += sum[j + 3];
            *to = v;
        }
    }
}

extern "C" cudaError_t expert_sum(const struct launch *l, void *y, enum expert_sum_out out,
                                  const uint16_t *x, const struct expert_picks *p, int n_rows,
                                  int dim)
{
    const auto kernel = out == EXPERT_SUM_ADD_F32 ? known<sum_kernel<EXPERT_SUM_ADD_F32>>()
                        : out == EXPERT_SUM_F32   ? known<sum_kernel<EXPERT_SUM_F32>>()
                                                  : known<sum_kernel<EXPERT_SUM_BF16>>();

    return launch_rows(kernel, n_rows, dim / VEC, l, y, (const uint4 *)x, p->weights, p->n_picks,
                       dim / VEC);
}
