/* embed.cu - residual[i] = embedding of token i, as float; a token may name what a row sampled in
 * the step before.
 *
 * Bound by memory: 6 * n_tokens * dim bytes. */
#include "cuda/kernels/common.cuh"

static constexpr int THREADS = 128; /* a row of 1024 bf16 is one load a thread */
static constexpr int VEC = 8;

static __global__ void __launch_bounds__(THREADS)
    embed_kernel(float4 *residual,   /* [n_tokens, dim / 4] */
                 const uint4 *table, /* [vocab_size, dim / VEC] */
                 const int32_t *tokens, const int32_t *sampled, int n_vec, int vocab_size)
{
    chain_wait();
    const int row = (int)blockIdx.x;
    int token = __ldcg(tokens + row);

    if (token < 0)
        token = __ldcg(sampled + ~token);
    /* The row before had no valid logits: its sequence has ended, and this row is lost. */
    if (token < 0 || token >= vocab_size)
        token = 0;
    for (int i = (int)threadIdx.x; i < n_vec; i += THREADS) {
        const uint4 v = table[(int64_t)token * n_vec + i];
        float4 *to = residual + ((int64_t)row * n_vec + i) * 2;

        to[0] = make_float4(bf16_low(v.x), bf16_high(v.x), bf16_low(v.y), bf16_high(v.y));
        to[1] = make_float4(bf16_low(v.z), bf16_high(v.z), bf16_low(v.w), bf16_high(v.w));
    }
}

extern "C" cudaError_t embed(const struct launch *l, float *residual, const uint16_t *table,
                             const struct step_view *v, const int32_t *sampled, int n_tokens,
                             int dim, int vocab_size)
{
    return launch_kernel(embed_kernel, dim3((unsigned)n_tokens), THREADS, 0, l, (float4 *)residual,
                         (const uint4 *)table, v->tokens, sampled, dim / VEC, vocab_size);
}
