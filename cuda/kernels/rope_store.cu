/* rope_store.cu - what lies between the q, k, v product and attention: RMSNorm of each head of q
 * and k, rotation, and the way of k and v into the KV pool. One warp a token and head.
 *
 * Bound by memory: q is read and written, k and v read and stored. */
#include "cuda/kernels/common.cuh"

static constexpr int WARPS = 8;

/* N neighbouring bf16, 1 or 2. */
template <int N> static __device__ __forceinline__ void load_bf16(float *to, const uint16_t *from)
{
    if constexpr (N == 2) {
        const uint32_t pair = __ldcg((const uint32_t *)from);

        to[0] = bf16_low(pair);
        to[1] = bf16_high(pair);
    } else {
        to[0] = bf16_to_float(__ldcg(from));
    }
}

template <int N> static __device__ __forceinline__ void store_bf16(uint16_t *to, const float *from)
{
    if constexpr (N == 2)
        *(uint32_t *)to = bf16_pair(from[0], from[1]);
    else
        *to = bf16_bits(from[0]);
}

/* A lane's share of a head is EACH neighbours of the first half and EACH of the second. */
template <int HEAD_DIM>
static __global__ void __launch_bounds__(WARPS *WARP)
    rope_store_kernel(uint16_t *qkv, const uint16_t *q_norm, const uint16_t *k_norm,
                      const float2 *table, struct kv_pool kv, int layer, const int32_t *positions,
                      const int32_t *slots, int n_tokens, int n_heads, float eps)
{
    static constexpr int HALF = HEAD_DIM / 2, EACH = HALF / WARP;

    const int all_heads = n_heads + 2 * kv.n_kv_heads;
    const int job = (int)(blockIdx.x * WARPS + threadIdx.x / WARP);
    const int token = job / all_heads, head = job % all_heads;
    const int at = (int)(threadIdx.x % WARP) * EACH;

    if (token >= n_tokens)
        return;
    uint16_t *x = qkv + (int64_t)token * all_heads * HEAD_DIM + (int64_t)head * HEAD_DIM;
    const bool is_q = head < n_heads, is_v = head >= n_heads + kv.n_kv_heads;
    const int position = __ldcg(positions + token), slot = __ldcg(slots + token);
    const uint16_t *norm = is_q ? q_norm : k_norm;
    float2 turns[EACH];
    float a[EACH], b[EACH], norm_a[EACH], norm_b[EACH];

    for (int i = 0; i < EACH; i++) {
        turns[i] = table[(int64_t)position * HALF + at + i];
        norm_a[i] = norm ? bf16_to_float(norm[at + i]) : 1.0f;
        norm_b[i] = norm ? bf16_to_float(norm[HALF + at + i]) : 1.0f;
    }
    chain_wait();
    load_bf16<EACH>(a, x + at);
    load_bf16<EACH>(b, x + HALF + at);
    if (!is_v && norm) {
        float sum = 0.0f;

        for (int i = 0; i < EACH; i++)
            sum += a[i] * a[i] + b[i] * b[i];
        const float scale = rsqrtf(warp_sum(sum) / HEAD_DIM + eps);
        for (int i = 0; i < EACH; i++) {
            a[i] *= scale * norm_a[i];
            b[i] *= scale * norm_b[i];
        }
    }
    if (!is_v) {
        for (int i = 0; i < EACH; i++) {
            const float2 turn = turns[i];
            const float low = a[i];

            a[i] = low * turn.x - b[i] * turn.y;
            b[i] = b[i] * turn.x + low * turn.y;
        }
    }
    if (!is_q) {
        const int kv_head = (head - n_heads) % kv.n_kv_heads;
        const int block_len = 1 << kv.block_shift;

        if (slot < 0)
            return; /* a row that only fills up a graph's batch */
        x = kv.base + (int64_t)(slot >> kv.block_shift) * kv.block_stride +
            layer * kv.layer_stride + (is_v ? kv.v_offset : 0) +
            ((int64_t)kv_head * block_len + (slot & (block_len - 1))) * HEAD_DIM;
    }
    store_bf16<EACH>(x + at, a);
    store_bf16<EACH>(x + HALF + at, b);
}

extern "C" cudaError_t rope_store(const struct launch *l, uint16_t *qkv, const uint16_t *q_norm,
                                  const uint16_t *k_norm, const float *table,
                                  const struct kv_pool *kv, int layer, const struct step_view *v,
                                  int n_tokens, int n_heads, float eps)
{
    const int jobs = n_tokens * (n_heads + 2 * kv->n_kv_heads);
    auto *kernel = kv->head_dim == 128 ? rope_store_kernel<128> : rope_store_kernel<64>;

    return launch_kernel(kernel, dim3((unsigned)((jobs + WARPS - 1) / WARPS)), WARPS * WARP, 0, l,
                         qkv, q_norm, k_norm, (const float2 *)table, *kv, layer, v->positions,
                         v->slots, n_tokens, n_heads, eps);
}

/* In float as the reference computes it: the angle is the rounded product of the position and the
 * rounded frequency. */
static __global__ void rope_table_kernel(float2 *table, int n, int half, double theta)
{
    const int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;

    if (i >= (int64_t)n * half)
        return;
    const float frequency = (float)(1.0 / pow(theta, 2.0 * (double)(i % half) / (2.0 * half)));
    const float angle = (float)(i / half) * frequency;
    table[i] = make_float2((float)cos((double)angle), (float)sin((double)angle));
}

extern "C" cudaError_t rope_table(const struct launch *l, float *table, int max_seq_len,
                                  int head_dim, double theta)
{
    const int64_t n = (int64_t)max_seq_len * (head_dim / 2);

    rope_table_kernel<<<(unsigned)((n + 255) / 256), 256, 0, l->stream>>>((float2 *)table,
                                                                          max_seq_len, head_dim / 2,
                                                                          theta);
    return cudaGetLastError();
}
