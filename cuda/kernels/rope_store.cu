/* rope_store.cu - what lies between the q, k, v product and attention: RMSNorm of each head of q
 * and k, rotation, and the way of k and v into the KV pool. 8 or 16 threads a token and head.
 *
 * Bound by memory: q is read and written, k and v read and stored. */
#include "cuda/kernels/common.cuh"

static constexpr int THREADS = 256;
static constexpr int EACH = 4; /* neighbours of each half of a head that a thread has */

static __device__ __forceinline__ void load_bf16(float (&to)[EACH], const uint16_t *from)
{
    const uint2 v = __ldcg((const uint2 *)from);

    to[0] = bf16_low(v.x), to[1] = bf16_high(v.x);
    to[2] = bf16_low(v.y), to[3] = bf16_high(v.y);
}

static __device__ __forceinline__ void store_bf16(uint16_t *to, const float (&from)[EACH])
{
    *(uint2 *)to = make_uint2(bf16_pair(from[0], from[1]), bf16_pair(from[2], from[3]));
}

template <int HEAD_DIM>
static __global__ void __launch_bounds__(THREADS)
    rope_store_kernel(uint16_t *qkv, const uint16_t *q_norm, const uint16_t *k_norm,
                      const float4 *table, struct kv_pool kv, int layer, const int32_t *positions,
                      const int32_t *slots, int n_tokens, int n_heads, float eps)
{
    static constexpr int HALF = HEAD_DIM / 2, LANES = HALF / EACH; /* threads of a head */

    const int all_heads = n_heads + 2 * kv.n_kv_heads;
    const int job = (int)(blockIdx.x * THREADS + threadIdx.x) / LANES;
    const int token = min(job / all_heads, n_tokens - 1), head = job % all_heads;
    const int at = (int)threadIdx.x % LANES * EACH;
    uint16_t *x = qkv + ((int64_t)token * all_heads + head) * HEAD_DIM;
    const bool is_q = head < n_heads, is_v = head >= n_heads + kv.n_kv_heads;
    const int position = __ldcg(positions + token), slot = __ldcg(slots + token);
    const uint16_t *norm = is_q ? q_norm : k_norm;
    float a[EACH], b[EACH], norm_a[EACH], norm_b[EACH];

    if (norm) {
        load_bf16(norm_a, norm + at);
        load_bf16(norm_b, norm + HALF + at);
    }
    chain_wait();
    load_bf16(a, x + at);
    load_bf16(b, x + HALF + at);
    /* Where the rotation lies depends on the position: it is asked for beside the others. */
    const float4 *turn = table + ((int64_t)position * HALF + at) / 2;
    const float4 t0 = __ldcg(turn), t1 = __ldcg(turn + 1);
    const float cosines[EACH] = {t0.x, t0.z, t1.x, t1.z}, sines[EACH] = {t0.y, t0.w, t1.y, t1.w};

    if (norm) { /* for all of a warp: the heads of one are not all v, or q */
        float sum = 0.0f;

        for (int i = 0; i < EACH; i++)
            sum += a[i] * a[i] + b[i] * b[i];
        for (int i = LANES / 2; i > 0; i /= 2)
            sum += __shfl_xor_sync(ALL_LANES, sum, i);
        const float scale = is_v ? 1.0f : rsqrtf(sum / HEAD_DIM + eps);
        for (int i = 0; i < EACH; i++) {
            a[i] *= is_v ? 1.0f : scale * norm_a[i];
            b[i] *= is_v ? 1.0f : scale * norm_b[i];
        }
    }
    for (int i = 0; i < EACH && !is_v; i++) {
        const float low = a[i];

        a[i] = low * cosines[i] - b[i] * sines[i];
        b[i] = b[i] * cosines[i] + low * sines[i];
    }
    if (job / all_heads >= n_tokens)
        return;
    if (!is_q) {
        const int kv_head = (head - n_heads) % kv.n_kv_heads;
        const int block_len = 1 << kv.block_shift;

        if (slot < 0)
            return; /* a row that only fills up a graph's batch */
        x = kv.base + (int64_t)(slot >> kv.block_shift) * kv.block_stride +
            layer * kv.layer_stride + (is_v ? kv.v_offset : 0) +
            ((int64_t)kv_head * block_len + (slot & (block_len - 1))) * HEAD_DIM;
    }
    store_bf16(x + at, a);
    store_bf16(x + HALF + at, b);
}

extern "C" cudaError_t rope_store(const struct launch *l, uint16_t *qkv, const uint16_t *q_norm,
                                  const uint16_t *k_norm, const float *table,
                                  const struct kv_pool *kv, int layer, const struct step_view *v,
                                  int n_tokens, int n_heads, float eps)
{
    const int per_head = kv->head_dim / 2 / EACH;
    const int64_t threads = (int64_t)n_tokens * (n_heads + 2 * kv->n_kv_heads) * per_head;
    auto *kernel = kv->head_dim == 128 ? rope_store_kernel<128> : rope_store_kernel<64>;

    if (!q_norm != !k_norm)
        return cudaErrorInvalidValue;
    return launch_kernel(kernel, dim3((unsigned)((threads + THREADS - 1) / THREADS)), THREADS, 0, l,
                         qkv, q_norm, k_norm, (const float4 *)table, *kv, layer, v->positions,
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
