/* embed.cu - residual[i] = embedding of token i, as float, or 0 where another process has it; a
 * token may name what a row sampled in the step before.
 *
 * Bound by memory: 6 * n_tokens * dim bytes. */
#include "cuda/kernels/common.cuh"

static constexpr int THREADS = 128; /* a row of 1024 bf16 is one load a thread */
static constexpr int VEC = 8;

static __global__ void __launch_bounds__(THREADS)
    embed_kernel(float4 *residual, /* [n_tokens, dim / 4] */
                 const __grid_constant__ struct embedding e, const int32_t *tokens,
                 const int32_t *sampled)
{
    chain_wait();
    const int row = (int)blockIdx.x, n_vec = e.dim / VEC;
    int token = __ldcg(tokens + row);

    if (token < 0)
        token = __ldcg(sampled + ~token);
    /* The row before had no valid logits: its sequence has ended, and this row is lost. */
    if (token < 0 || token >= e.vocab_size)
        token = 0;
    const uint4 *table = (const uint4 *)e.tables[token / e.rows_per_rank];
    const int64_t at = (int64_t)(token % e.rows_per_rank) * n_vec;
    for (int i = (int)threadIdx.x; i < n_vec; i += THREADS) {
        const uint4 v = table ? table[at + i] : make_uint4(0, 0, 0, 0);
        float4 *to = residual + ((int64_t)row * n_vec + i) * 2;

        to[0] = make_float4(bf16_low(v.x), bf16_high(v.x), bf16_low(v.y), bf16_high(v.y));
        to[1] = make_float4(bf16_low(v.z), bf16_high(v.z), bf16_low(v.w), bf16_high(v.w));
    }
}

extern "C" cudaError_t embed(const struct launch *l, float *residual, const struct embedding *table,
                             const struct step_view *v, const int32_t *sampled, int n_tokens)
{
    return launch_kernel(known<embed_kernel>(), dim3((unsigned)n_tokens), THREADS, 0, l,
                         (float4 *)residual, *table, v->tokens, sampled);
}
