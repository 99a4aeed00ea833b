/* rope_store.cu - what lies between the q, k, v product and attention for rows of prompts: RMSNorm
 * of each head of q and k, rotation, and the way of k and v into the KV pool. Four threads a token
 * and head. Decodes have it in attention itself (attn_decode.cu), drafts all but q here too.
 *
 * Bound by memory: q is read and written, k and v read and stored. */
#include <string.h>

#include "cuda/kernels/kv_rows.cuh"
#include "cuda/kernels/rope.cuh"

static constexpr int THREADS = 256;
static constexpr int LANES = ROPE_LANES; /* of a head */

template <int HEAD_DIM, bool FP8>
static __global__ void __launch_bounds__(THREADS)
    rope_store_kernel(uint16_t *qkv, const struct rope r, const struct kv_pool kv, int layer,
                      const int32_t *positions, const int32_t *slots, int n_tokens, int n_heads,
                      int first_head)
{
    const int all_heads = n_heads + 2 * kv.n_kv_heads, n_jobs = all_heads - first_head;
    const int job = (int)(blockIdx.x * THREADS + threadIdx.x) / LANES;
    const int token = job / n_jobs, head = first_head + job % n_jobs;
    const int at = (int)threadIdx.x % LANES * 8;
    const bool is_q = head < n_heads, is_v = head >= n_heads + kv.n_kv_heads;
    const uint16_t *norm = norm_of(r, is_q);
    uint16_t *x = qkv + ((int64_t)token * all_heads + head) * HEAD_DIM;
    struct rotation<HEAD_DIM> t;
    uint4 values[HEAD_DIM / 32];

    if (token >= n_tokens)
        return;
    const int slot = __ldcg(slots + token);
    if (!is_v)
        load_rotation(t, r, norm, __ldcg(positions + token), at / 8);
    chain_wait();
#pragma unroll
    for (int j = 0; j < HEAD_DIM / 32; j++)
        values[j] = __ldcg((const uint4 *)(x + j * 32 + at));
    if (!is_v)
        norm_and_rotate(values, t, norm != nullptr, r.eps);
    if (is_q) {
        put_row({x, nullptr}, stored_of<false>(values), at / 8);
        return;
    }
    if (slot < 0)
        return; /* a row that only fills up a graph's batch */
    const uint16_t *rows = kv.base + block_at(kv, slot >> kv.block_shift) +
                           layer * kv.layer_stride + (is_v ? kv.v_offset : 0);

    put_row(row_of<HEAD_DIM, FP8>(rows, kv, (head - n_heads) % kv.n_kv_heads,
                                  slot & ((1 << kv.block_shift) - 1)),
            stored_of<FP8>(values), at / 8);
}

extern "C" cudaError_t rope_store(const struct launch *l, uint16_t *qkv, const struct rope *r,
                                  const struct kv_pool *kv, int layer, const struct step_view *v,
                                  int first, int n_tokens, int n_heads, bool with_q)
{
    const int all_heads = n_heads + 2 * kv->n_kv_heads, first_head = with_q ? 0 : n_heads;
    const int64_t threads = (int64_t)n_tokens * (all_heads - first_head) * LANES;
    const auto kernel = kv->head_dim == 128 ? (kv->fp8 ? known<rope_store_kernel<128, true>>()
                                                       : known<rope_store_kernel<128, false>>())
                                            : (kv->fp8 ? known<rope_store_kernel<64, true>>()
                                                       : known<rope_store_kernel<64, false>>());

    if (!r->q_norm != !r->k_norm)
        return cudaErrorInvalidValue;
    return launch_kernel(kernel, dim3((unsigned)((threads + THREADS - 1) / THREADS)), THREADS, 0, l,
                         qkv + (int64_t)first * all_heads * kv->head_dim, *r, *kv, layer,
                         v->positions + first, v->slots + first, n_tokens, n_heads, first_head);
}

struct frequencies {
    float of[ROPE_MAX_PAIRS];
};

/* In float as the reference: the angle is the rounded product of position and rounded frequency. */
static __global__ void rope_table_kernel(float2 *table, int n, const struct frequencies inv_freq,
                                         int n_pairs, float scale)
{
    const int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;

    if (i >= (int64_t)n * n_pairs)
        return;
    const float angle = (float)(i / n_pairs) * inv_freq.of[i % n_pairs];
    table[i] = make_float2((float)cos((double)angle) * scale, (float)sin((double)angle) * scale);
}

extern "C" cudaError_t rope_table(const struct launch *l, float *table, int max_seq_len,
                                  const float *inv_freq, int n_pairs, float scale)
{
    const int64_t n = (int64_t)max_seq_len * n_pairs;
    const struct launch alone = {l->stream, false, l->n_sms, l->max_shared};
    struct frequencies by_value;

    if (n_pairs > ROPE_MAX_PAIRS)
        return cudaErrorInvalidValue;
    memcpy(by_value.of, inv_freq, (size_t)n_pairs * sizeof(*inv_freq));
    return launch_kernel(known<rope_table_kernel>(), dim3((unsigned)((n + 255) / 256)), 256, 0,
                         &alone, (float2 *)table, max_seq_len, by_value, n_pairs, scale);
}
