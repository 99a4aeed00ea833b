/* attn_decode.cu - attention of one query row a sequence over its paged keys, split over the
 * machine by a plan made on the host (attn_item).
 *
 * Bound by memory: 4 * kv_len * n_kv_heads * head_dim bytes a sequence. The query heads that share
 * a KV head are rows of one matrix product. A block takes one item and KV head, its warps turns of
 * 16 keys. Loads are 16 bytes: the order of the dimensions is permuted so that what a thread loads
 * is what the matrix unit wants of it. Where a sequence is split, the block that ends last joins
 * the partial results. */
#include "cuda/kernels/softmax.cuh"

static constexpr int WARPS = 4;
static constexpr int KEYS = 16; /* of a turn; they lie in one block of the pool */
static constexpr int RESIDENT =
    3; /* blocks of a multiprocessor: 12 warps with 8 KiB each in flight */

struct decode_args {
    struct attn a;
    struct kv_pool kv;
    const struct step_counts *counts;
    const struct attn_item *items;
    const int32_t *tables;
    float *partial;
    int32_t *tickets;
    int group, n_groups; /* query heads of a KV head; passes of ATTN_GROUP over them */
    float scale_log2;
};

/* A thread's share of sixteen keys and values. */
template <int HEAD_DIM> struct keys {
    uint4 k[2][HEAD_DIM / 32], v[4][HEAD_DIM / 64];
};

/* Sixteen keys, of which 0 .. last are the sequence's; the others are read from the last one: what
 * lies there may be no number at all. */
template <int HEAD_DIM>
static __device__ __forceinline__ void load(struct keys<HEAD_DIM> &to, const uint16_t *from,
                                            int64_t v_offset, int last, int lane)
{
    const int group = lane / 4, quarter = lane % 4;

#pragma unroll
    for (int i = 0; i < 2; i++)
#pragma unroll
        for (int j = 0; j < HEAD_DIM / 32; j++)
            to.k[i][j] = __ldcs(
                (const uint4 *)(from + min(i * 8 + group, last) * HEAD_DIM + j * 32 + quarter * 8));
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const int key = min(quarter * 2 + i % 2 + i / 2 * 8, last);

#pragma unroll
        for (int j = 0; j < HEAD_DIM / 64; j++)
            to.v[i][j] =
                __ldcs((const uint4 *)(from + v_offset + key * HEAD_DIM + j * 64 + group * 8));
    }
}

template <int HEAD_DIM>
static __device__ __forceinline__ void attend(struct softmax<HEAD_DIM> &s, const uint4 *q,
                                              const struct keys<HEAD_DIM> &x, int last, int lane,
                                              float scale_log2)
{
    const int quarter = lane % 4;
    float p[2][2] = {};

#pragma unroll
    for (int i = 0; i < 2; i++)
#pragma unroll
        for (int j = 0; j < HEAD_DIM / 32; j++) {
            mma_8816(p[i][0], p[i][1], q[j].x, q[j].y, x.k[i][j].x, x.k[i][j].y);
            mma_8816(p[i][0], p[i][1], q[j].z, q[j].w, x.k[i][j].z, x.k[i][j].w);
        }
    float max = s.max;
#pragma unroll
    for (int i = 0; i < 2; i++)
#pragma unroll
        for (int j = 0; j < 2; j++) {
            p[i][j] = i * 8 + quarter * 2 + j <= last ? p[i][j] * scale_log2 : -INFINITY;
            max = fmaxf(max, p[i][j]);
        }
    take_in(s, p, max, x.v, exp2f);
}

/* Where a thread's o[i][j] lies in the head. */
static __device__ __forceinline__ int dim_of(int i, int j, int quarter)
{
    return i / 8 * 64 + (quarter * 2 + j) * 8 + i % 8;
}

/* out = the splits' results weighted by their shares. First all shares, then all sums: loads that
 * do not wait for each other. */
template <int HEAD_DIM>
static __device__ void join_splits(uint16_t *out, const float *from, int64_t stride, int n_heads,
                                   int n_splits)
{
    __shared__ float shares[ATTN_GROUP][ATTN_MAX_SPLITS];
    static constexpr int ENTRY = HEAD_DIM + 2;
    static constexpr int EACH = ATTN_MAX_SPLITS / WARP;

    const int warp = (int)threadIdx.x / WARP, lane = (int)threadIdx.x % WARP;

    for (int head = warp; head < n_heads; head += WARPS) {
        float maxes[EACH], sums[EACH], max = -1e30f, sum = 0.0f;

#pragma unroll
        for (int i = 0; i < EACH; i++) {
            const float *part = from + (lane + i * WARP) * stride + head * ENTRY + HEAD_DIM;
            const bool there = lane + i * WARP < n_splits;

            maxes[i] = there ? __ldcg(part) : -1e30f;
            sums[i] = there ? __ldcg(part + 1) : 0.0f;
            max = fmaxf(max, maxes[i]);
        }
        for (int i = WARP / 2; i > 0; i /= 2)
            max = fmaxf(max, __shfl_xor_sync(ALL_LANES, max, i));
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            maxes[i] = exp2f(maxes[i] - max);
            sum += sums[i] * maxes[i];
        }
        sum = warp_sum(sum);
#pragma unroll
        for (int i = 0; i < EACH; i++)
            shares[head][lane + i * WARP] = maxes[i] / sum;
    }
    __syncthreads();
    for (int i = (int)threadIdx.x; i < n_heads * HEAD_DIM; i += WARPS * WARP) {
        const int head = i / HEAD_DIM, dim = i % HEAD_DIM;
        const float *part = from + head * ENTRY + dim;
        float o = 0.0f;

#pragma unroll 8
        for (int j = 0; j < n_splits; j++)
            o += __ldcg(part + j * stride) * shares[head][j];
        out[i] = bf16_bits(o);
    }
}

/* One item and KV head, and the joining if it was the last of its sequence. */
template <int HEAD_DIM>
static __device__ void run_item(const struct decode_args &d, const struct attn_item &item,
                                int head_group)
{
    __shared__ float outs[WARPS][ATTN_GROUP][HEAD_DIM];
    __shared__ float maxes[WARPS][ATTN_GROUP], sums[WARPS][ATTN_GROUP];
    __shared__ int is_last;
    static constexpr int ENTRY = HEAD_DIM + 2;

    const int warp = (int)threadIdx.x / WARP, lane = (int)threadIdx.x % WARP;
    const int group = lane / 4, quarter = lane % 4;
    const int kv_head = head_group / d.n_groups, pass = head_group % d.n_groups;
    const int n_heads = min(ATTN_GROUP, d.group - pass * ATTN_GROUP);
    const int first_head = kv_head * d.group + pass * ATTN_GROUP;
    const int block_len = 1 << d.kv.block_shift;
    const int32_t *table = d.tables + item.table;
    const uint16_t *pool =
        d.kv.base + d.a.layer * d.kv.layer_stride + (int64_t)kv_head * block_len * HEAD_DIM;
    uint4 q[HEAD_DIM / 32] = {};
    struct softmax<HEAD_DIM> s = {
        - 1e30f, 0.0f,
        {
        }
    };

    auto place = [&](int key) {
        const int64_t block = __ldcg(table + (key >> d.kv.block_shift));

        return pool + block * d.kv.block_stride + (key & (block_len - 1)) * HEAD_DIM;
    };
    chain_wait();
    if (group < n_heads)
#pragma unroll
        for (int j = 0; j < HEAD_DIM / 32; j++)
            q[j] = __ldcg((const uint4 *)(d.a.q + item.seq * d.a.q_stride +
                                          (first_head + group) * HEAD_DIM + j * 32 + quarter * 8));
    for (int key = item.begin + warp * KEYS; key < item.end; key += WARPS * KEYS) {
        const int last = item.end - 1 - key;
        struct keys<HEAD_DIM> x;

        load(x, place(key), d.kv.v_offset, last, lane);
        attend(s, q, x, last, lane, d.scale_log2);
    }
    s.sum += __shfl_xor_sync(ALL_LANES, s.sum, 1);
    s.sum += __shfl_xor_sync(ALL_LANES, s.sum, 2);
    if (quarter == 0) {
        maxes[warp][group] = s.max;
        sums[warp][group] = s.sum;
    }
    for (int i = 0; i < HEAD_DIM / 8; i++)
        for (int j = 0; j < 2; j++)
            outs[warp][group][dim_of(i, j, quarter)] = s.o[i][j];
    __syncthreads();

    uint16_t *out = d.a.out + ((int64_t)item.seq * d.a.n_heads + first_head) * HEAD_DIM;
    const int64_t entries = (int64_t)d.kv.n_kv_heads * d.n_groups * ATTN_GROUP;
    const int64_t entry = (int64_t)head_group * ATTN_GROUP;
    for (int i = (int)threadIdx.x; i < n_heads * HEAD_DIM; i += WARPS * WARP) {
        const int head = i / HEAD_DIM, dim = i % HEAD_DIM;
        float max = maxes[0][head], sum = 0.0f, o = 0.0f;

        for (int j = 1; j < WARPS; j++)
            max = fmaxf(max, maxes[j][head]);
        for (int j = 0; j < WARPS; j++) {
            const float shrink = exp2f(maxes[j][head] - max);

            sum += sums[j][head] * shrink;
            o += outs[j][head][dim] * shrink;
        }
        if (item.n_splits == 1) {
            out[i] = bf16_bits(o / sum);
            continue;
        }
        float *to =
            d.partial + ((int64_t)(item.partial + item.split) * entries + entry + head) * ENTRY;
        to[dim] = o;
        if (dim == 0) {
            to[HEAD_DIM] = max;
            to[HEAD_DIM + 1] = sum;
        }
    }
    if (item.n_splits == 1)
        return;
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) {
        int32_t *ticket = d.tickets + (int64_t)item.seq * d.kv.n_kv_heads * d.n_groups + head_group;

        is_last = atomicAdd(ticket, 1) == item.n_splits - 1;
        if (is_last)
            *ticket = 0;
    }
    __syncthreads();
    if (!is_last)
        return;
    __threadfence();
    const float *from = d.partial + ((int64_t)item.partial * entries + entry) * ENTRY;
    join_splits<HEAD_DIM>(out, from, entries * ENTRY, n_heads, item.n_splits);
}

template <int HEAD_DIM>
static __global__ void __launch_bounds__(WARPS *WARP, RESIDENT)
    attn_decode_kernel(const struct decode_args d)
{
    const int4 *from = (const int4 *)(d.items + blockIdx.y);
    const int4 a = __ldcg(from), b = __ldcg(from + 1);
    const struct attn_item item = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};

    if ((int)blockIdx.y >= __ldcg(&d.counts->n_items))
        return;

    run_item<HEAD_DIM>(d, item, (int)blockIdx.x);
}

extern "C" cudaError_t attn_decode(const struct launch *l, const struct attn *a,
                                   const struct step_view *v, float *partial, int32_t *tickets,
                                   int grid_items)
{
    struct decode_args d = {*a,        *a->kv,  v->counts, v->items,
                            v->tables, partial, tickets,   a->n_heads / a->kv->n_kv_heads,
                            0,         0.0f};
    auto *kernel = a->kv->head_dim == 128 ? attn_decode_kernel<128> : attn_decode_kernel<64>;

    d.n_groups = (d.group + ATTN_GROUP - 1) / ATTN_GROUP;
    d.scale_log2 = (float)(1.4426950408889634 / sqrt((double)a->kv->head_dim));
    const dim3 grid((unsigned)(a->kv->n_kv_heads * d.n_groups), (unsigned)grid_items);
    return launch_kernel(kernel, grid, WARPS * WARP, 0, l, d);
}
