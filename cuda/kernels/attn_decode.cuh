// attn_decode.cuh - what the two kernels of decode attention share: the row's heads made ready, the
// product of sixteen keys, and what becomes of the results. They differ in how keys come to
// registers: attn_decode.cu loads them, attn_decode_sm90.cu has them copied to shared memory first.
//
// The query heads that share a KV head are the columns of one matrix product, sixteen keys its
// rows. A block takes an item and KV head, or several items one after another; its warps alternate,
// 16 keys at a time. The order of the dimensions is permuted so that a thread gets what the tensor
// cores want of it by 16 bytes. Where a sequence is split, the block that finishes last joins the
// partial results.
//
// With drafts all keys are in the pool when the kernel begins, and rows of a sequence that follow
// one another share a pass over them: their heads are columns of the same product, each with its
// own last key. (16 rows at 3,000 keys on an H100, heads 16/8: 27 us; each by itself 49 us.)
#ifndef NVLLM_CUDA_KERNELS_ATTN_DECODE_CUH
#define NVLLM_CUDA_KERNELS_ATTN_DECODE_CUH

#include "cuda/kernels/kv_rows.cuh"
#include "cuda/kernels/rope.cuh"

static constexpr int WARPS = 4;
static constexpr int KEYS = ATTN_UNIT; /* they lie in one block of the pool */
static constexpr int STRIDE = WARPS * KEYS;
static_assert(KEYS == 16 && ATTN_GROUP == 8, "the shape of a matrix product");
static_assert(ATTN_SPLIT_ALIGN % STRIDE == 0,
              "a warp takes the same keys of a split wherever the item begins");
static_assert(ATTN_MAX_SPLITS % WARP == 0, "join_splits() has as many for each lane");
static_assert(sizeof(struct attn_item) == 2 * sizeof(int4), "it is read as two");

struct decode_args {
    struct attn a;
    struct rope rope;
    struct kv_pool kv;
    const struct step_counts *counts;
    const struct attn_item *items;
    const int32_t *tables;
    float *partial;
    int32_t *counters;
    int group, n_groups; /* query heads of a KV head; passes of ATTN_GROUP over them */
    float scale_log2;
};

/* A thread's share of sixteen keys and values, as they are stored. */
template <int HEAD_DIM, bool FP8> struct keys {
    kv_vector<FP8> k[2][HEAD_DIM / 32], v[4][HEAD_DIM / 64];
    [[maybe_unused]] uint8_t k_exponents[2];
    [[maybe_unused]] uint16_t v_exponents[2]; /* of two neighbours */
};

/* Which vector of a key a thread has as its number j: a kernel chooses, as it loads them. */
template <int HEAD_DIM, bool FP8>
static __device__ __forceinline__ int k_vector(int j, int quarter);

/* N consecutive vectors with one load. */
template <int N, typename V, typename Load>
static __device__ __forceinline__ void load_vectors(V *to, const V *from, Load load)
{
    if constexpr (N == 1) {
        *to = load(from);
    } else {
        static_assert(N == 2 && sizeof(V) == sizeof(uint2), "a load is 16 bytes at most");
        const uint4 pair = load((const uint4 *)from);

        to[0] = make_uint2(pair.x, pair.y);
        to[1] = make_uint2(pair.z, pair.w);
    }
}

/* key_at and value_at say where a vector of one of the sixteen rows is. */
template <int HEAD_DIM, bool FP8, typename KeyAt, typename ValueAt, typename Load>
static __device__ __forceinline__ void load_keys(struct keys<HEAD_DIM, FP8> &to, KeyAt key_at,
                                                 ValueAt value_at, const uint8_t *k_exponents,
                                                 const uint8_t *v_exponents, int lane, Load load)
{
    static constexpr int K_EACH = FP8 ? 2 : 1, V_EACH = FP8 ? HEAD_DIM / 64 : 1;
    const int group = lane / 4, quarter = lane % 4;

#pragma unroll
    for (int i = 0; i < 2; i++)
#pragma unroll
        for (int j = 0; j < HEAD_DIM / 32; j += K_EACH)
            load_vectors<K_EACH>(&to.k[i][j],
                                 key_at(group + i * 8, k_vector<HEAD_DIM, FP8>(j, quarter)), load);
#pragma unroll
    for (int i = 0; i < 4; i++)
#pragma unroll
        for (int j = 0; j < HEAD_DIM / 64; j += V_EACH)
            load_vectors<V_EACH>(&to.v[i][j],
                                 value_at(quarter * 2 + i % 2 + i / 2 * 8,
                                          v_vector<HEAD_DIM, FP8>(j, group)),
                                 load);
#pragma unroll
    for (int i = 0; FP8 && i < 2; i++) {
        to.k_exponents[i] = load(k_exponents + group + i * 8);
        to.v_exponents[i] = load((const uint16_t *)v_exponents + quarter + i * 4);
    }
}

template <int HEAD_DIM, bool FP8>
static __device__ __forceinline__ uint4 key_of(const struct keys<HEAD_DIM, FP8> &x, int i, int j)
{
    if constexpr (FP8)
        return from_e4m3(x.k[i][j], factor_of(x.k_exponents[i]));
    else
        return x.k[i][j];
}

template <int HEAD_DIM, bool FP8>
static __device__ __forceinline__ uint4 value_of(const struct keys<HEAD_DIM, FP8> &x, int i, int j)
{
    if constexpr (FP8)
        return from_e4m3(x.v[i][j], factor_of(x.v_exponents[i / 2] >> (i % 2 * 8) & 0xff));
    else
        return x.v[i][j];
}

template <int HEAD_DIM, bool FP8>
static __device__ __forceinline__ void set_value(struct keys<HEAD_DIM, FP8> &x, int i, int j,
                                                 const kv_vector<FP8> &v, int exponent)
{
    x.v[i][j] = v;
    if (FP8)
        x.v_exponents[i / 2] = i % 2 ? (x.v_exponents[i / 2] & 0xff) | exponent << 8
                                     : (x.v_exponents[i / 2] & 0xff00) | exponent;
}

/* A thread's online softmax of query heads 2 * (lane % 4) and the next: the sums are over the keys
 * it has seen, max and o over all of the warp's. */
template <int HEAD_DIM> struct running {
    float max[2], sum[2];
    float o[HEAD_DIM / 16][4]; /* two dimensions, of each the two heads */
};

/* Sixteen keys and their values, of which for each of the two heads 0 .. last count. */
template <int HEAD_DIM, bool FP8>
static __device__ __forceinline__ void attend(struct running<HEAD_DIM> &s, const uint4 *q,
                                              const struct keys<HEAD_DIM, FP8> &x,
                                              const int (&last)[2], int lane, float scale_log2)
{
    const int group = lane / 4;
    float p[4] = {}, other[4] = {}; /* two sums, so that one product need not wait for all others */
    float max[2], shrink[2];

#pragma unroll
    for (int j = 0; j < HEAD_DIM / 32; j++) {
        const uint4 k0 = key_of(x, 0, j), k1 = key_of(x, 1, j);

        mma_16816(p, k0.x, k1.x, k0.y, k1.y, q[j].x, q[j].y);
        mma_16816(other, k0.z, k1.z, k0.w, k1.w, q[j].z, q[j].w);
    }
#pragma unroll
    for (int i = 0; i < 4; i++)
        p[i] = i / 2 * 8 + group <= last[i % 2] ? (p[i] + other[i]) * scale_log2 : -INFINITY;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        max[i] = fmaxf(s.max[i], fmaxf(p[i], p[2 + i]));
        for (int k = 4; k < WARP; k *= 2)
            max[i] = fmaxf(max[i], __shfl_xor_sync(ALL_LANES, max[i], k));
        shrink[i] = exp2_fast(s.max[i] - max[i]);
        s.max[i] = max[i];
        p[i] = exp2_fast(p[i] - max[i]);
        p[2 + i] = exp2_fast(p[2 + i] - max[i]);
        s.sum[i] = s.sum[i] * shrink[i] + (p[i] + p[2 + i]);
    }
    const uint32_t p0 = transposed(bf16_pair(p[0], p[1]));
    const uint32_t p1 = transposed(bf16_pair(p[2], p[3]));
#pragma unroll
    for (int j = 0; j < HEAD_DIM / 64; j++) {
        const uint4 v[4] = {value_of(x, 0, j), value_of(x, 1, j), value_of(x, 2, j),
                            value_of(x, 3, j)};
        const uint32_t *v0 = &v[0].x, *v1 = &v[1].x, *v2 = &v[2].x, *v3 = &v[3].x;

#pragma unroll
        for (int i = 0; i < 4; i++) {
            float(&o)[4] = s.o[j * 4 + i];

            o[0] *= shrink[0], o[1] *= shrink[1];
            o[2] *= shrink[0], o[3] *= shrink[1];
            mma_16816(o, low_halves(v0[i], v1[i]), high_halves(v0[i], v1[i]),
                      low_halves(v2[i], v3[i]), high_halves(v2[i], v3[i]), p0, p1);
        }
    }
}

/* Nothing is known of the values behind the last one. */
template <int HEAD_DIM, bool FP8>
static __device__ __forceinline__ void clear_behind(struct keys<HEAD_DIM, FP8> &x, int last,
                                                    int lane)
{
    const int quarter = lane % 4;

#pragma unroll
    for (int i = 0; i < 4; i++)
#pragma unroll
        for (int j = 0; j < HEAD_DIM / 64; j++)
            if (quarter * 2 + i % 2 + i / 2 * 8 > last)
                set_value(x, i, j, kv_vector<FP8>{}, 0);
}

/* The row's heads as attention wants them, of several rows those of each; and its key and value as
 * they are stored. */
template <int HEAD_DIM, bool FP8> struct row {
    uint4 q[ATTN_GROUP][HEAD_DIM / 8];
    kv_vector<FP8> k[HEAD_DIM / 8], v[HEAD_DIM / 8];
    uint8_t k_exponent, v_exponent;
};

/* Whether the step's own key is among the item's. */
template <bool DRAFTS>
static __device__ __forceinline__ bool has_newest(const struct attn_item &item)
{
    return !DRAFTS && item.end == item.kv_len;
}

/* The block's heads: KV head `kv`, of whose query heads it takes n from `first` on, in its pass. */
struct heads {
    int kv, pass, first, n;
};

static __device__ __forceinline__ struct heads heads_of(const struct decode_args &d)
{
    const int kv = (int)blockIdx.x / d.n_groups, pass = (int)blockIdx.x % d.n_groups;

    return {kv, pass, kv * d.group + pass * ATTN_GROUP,
            min(ATTN_GROUP, d.group - pass * ATTN_GROUP)};
}

/* Where a key of the item lies. */
template <int HEAD_DIM, bool FP8>
static __device__ __forceinline__ struct kv_row
place_of(const struct decode_args &d, const struct attn_item &item, int kv_head, int key)
{
    const int64_t block = __ldcg(d.tables + item.table + (key >> d.kv.block_shift));

    return row_of<HEAD_DIM, FP8>(d.kv.base + d.a.layer * d.kv.layer_stride + block_at(d.kv, block),
                                 d.kv, kv_head, key & ((1 << d.kv.block_shift) - 1));
}

/* Each warp makes a part of the row: the first the query heads, one per quad, of all rows; the
 * second the key and the third the value, where they are the item's. */
enum row_part { PART_Q, PART_K, PART_V, PART_NONE };

template <bool DRAFTS>
static __device__ __forceinline__ enum row_part part_of(const struct attn_item &item)
{
    const int warp = (int)threadIdx.x / WARP;

    return warp == PART_Q || (warp < PART_NONE && has_newest<DRAFTS>(item)) ? (enum row_part)warp
                                                                            : PART_NONE;
}

/* What a lane makes its share of. */
template <int HEAD_DIM> struct raw_row {
    uint4 x[HEAD_DIM / 32];
    struct rotation<HEAD_DIM> rotation;
};

template <int HEAD_DIM, bool DRAFTS>
static __device__ __forceinline__ void load_row(struct raw_row<HEAD_DIM> &to,
                                                const struct decode_args &d,
                                                const struct attn_item &item, enum row_part part)
{
    const int lane = (int)threadIdx.x % WARP, group = lane / 4, quarter = lane % 4;
    const struct heads h = heads_of(d);
    const int column = DRAFTS ? min(group, item.n_rows * h.n - 1) : min(group, h.n - 1);
    const int row = DRAFTS ? column / h.n : 0;
    const int head = part == PART_Q ? h.first + (DRAFTS ? column % h.n : column)
                                    : d.a.n_heads + (part == PART_V ? d.kv.n_kv_heads : 0) + h.kv;
    const uint16_t *from = d.a.q + (item.seq + row) * d.a.q_stride + head * HEAD_DIM;

#pragma unroll
    for (int j = 0; j < HEAD_DIM / 32; j++)
        to.x[j] = __ldcg((const uint4 *)from + j * 4 + quarter);
    if (part != PART_V)
        load_rotation(to.rotation, d.rope, norm_of(d.rope, part == PART_Q),
                      item.kv_len - (DRAFTS ? item.n_rows - row : 1), quarter);
}

/* Where query heads need several passes, the first stores key and value in the pool. */
template <int HEAD_DIM, bool FP8>
static __device__ __forceinline__ void
make_row(struct row<HEAD_DIM, FP8> &to, struct raw_row<HEAD_DIM> &from, const struct decode_args &d,
         const struct attn_item &item, enum row_part part)
{
    const int lane = (int)threadIdx.x % WARP, group = lane / 4, quarter = lane % 4;
    const struct heads h = heads_of(d);
    const bool is_v = part == PART_V;

    if (!is_v)
        norm_and_rotate(from.x, from.rotation, d.rope.q_norm != nullptr, d.rope.eps);
    if (part == PART_Q) {
#pragma unroll
        for (int j = 0; j < HEAD_DIM / 32; j++)
            to.q[group][j * 4 + quarter] = from.x[j];
        return;
    }
    const auto stored = stored_of<FP8>(from.x);

    if (group != 0)
        return;
    put_row({is_v ? (uint16_t *)to.v : (uint16_t *)to.k, is_v ? &to.v_exponent : &to.k_exponent},
            stored, quarter);
    if (h.pass == 0) {
        const struct kv_row pool = place_of<HEAD_DIM, FP8>(d, item, h.kv, item.kv_len - 1);

        put_row(is_v ? values_of(pool, d.kv.v_offset) : pool, stored, quarter);
    }
}

/* Puts this step's key and value in their place among sixteen, and after it. */
template <int HEAD_DIM, bool FP8>
static __device__ __forceinline__ void
put_newest(struct keys<HEAD_DIM, FP8> &x, const struct row<HEAD_DIM, FP8> &row, int last, int lane)
{
    const int group = lane / 4, quarter = lane % 4;

#pragma unroll
    for (int i = 0; i < 2; i++) {
#pragma unroll
        for (int j = 0; j < HEAD_DIM / 32; j++)
            if (i * 8 + group >= last)
                x.k[i][j] = row.k[k_vector<HEAD_DIM, FP8>(j, quarter)];
        if (FP8 && i * 8 + group >= last)
            x.k_exponents[i] = row.k_exponent;
    }
#pragma unroll
    for (int i = 0; i < 4; i++)
#pragma unroll
        for (int j = 0; j < HEAD_DIM / 64; j++)
            if (quarter * 2 + i % 2 + i / 2 * 8 >= last)
                set_value(x, i, j, row.v[v_vector<HEAD_DIM, FP8>(j, group)], row.v_exponent);
}

/* What the warps make of a split. */
template <int HEAD_DIM> struct results {
    float o[WARPS][ATTN_GROUP][HEAD_DIM];
    float max[WARPS][ATTN_GROUP], sum[WARPS][ATTN_GROUP];
};

template <int HEAD_DIM, bool FP8>
static __device__ __forceinline__ void put_result(struct results<HEAD_DIM> &to,
                                                  struct running<HEAD_DIM> &s, int n_heads)
{
    const int warp = (int)threadIdx.x / WARP, lane = (int)threadIdx.x % WARP;
    const int group = lane / 4, quarter = lane % 4;

#pragma unroll
    for (int i = 0; i < 2; i++) {
        const int head = quarter * 2 + i;

        for (int k = 4; k < WARP; k *= 2)
            s.sum[i] += __shfl_xor_sync(ALL_LANES, s.sum[i], k);
        if (group == 0) {
            to.max[warp][head] = s.max[i];
            to.sum[warp][head] = s.sum[i];
        }
#pragma unroll
        for (int j = 0; j < HEAD_DIM / 16; j++) {
            const int dim = v_vector<HEAD_DIM, FP8>(j / 4, group) * 8 + j % 4 * 2;

            if (head < n_heads)
                *(float2 *)&to.o[warp][head][dim] = make_float2(s.o[j][i], s.o[j][2 + i]);
        }
    }
}

/* The warps' results as one: to where out(head) says, or if it is only a part to partial, [heads,
 * HEAD_DIM + 2]. */
template <int HEAD_DIM, typename Out>
static __device__ __forceinline__ void fold_warps(Out out, float *partial,
                                                  const struct results<HEAD_DIM> &from, int n_heads)
{
    for (int i = (int)threadIdx.x; i < n_heads * HEAD_DIM; i += WARPS * WARP) {
        const int head = i / HEAD_DIM, dim = i % HEAD_DIM;
        float max = from.max[0][head], sum = 0.0f, o = 0.0f;

        for (int j = 1; j < WARPS; j++)
            max = fmaxf(max, from.max[j][head]);
        for (int j = 0; j < WARPS; j++) {
            const float shrink = exp2f(from.max[j][head] - max);

            sum += from.sum[j][head] * shrink;
            o += from.o[j][head][dim] * shrink;
        }
        if (!partial) {
            out(head)[dim] = bf16_bits(o / sum);
            continue;
        }
        float *to = partial + head * (HEAD_DIM + 2);
        to[dim] = o;
        if (dim == 0) {
            to[HEAD_DIM] = max;
            to[HEAD_DIM + 1] = sum;
        }
    }
}

/* Counts n splits as done. Release: blocks that add later see what this block wrote before. */
static __device__ __forceinline__ int add_done(int32_t *counters, int n)
{
    int before;

    asm volatile("atom.acq_rel.gpu.global.add.s32 %0, [%1], %2;"
                 : "=r"(before)
                 : "l"(counters), "r"(n)
                 : "memory");
    return before;
}

/* out = the splits' results weighted by their shares. All shares come first, so loads overlap. */
template <int HEAD_DIM, typename Out>
static __device__ void join_splits(Out out, const float *from, int64_t stride, int n_heads,
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
    /* Two dimensions at a time, of all heads at once, so that many loads are under way. */
    static constexpr int PAIRS = HEAD_DIM / 2, AT_ONCE = WARPS * WARP;
    float2 o[ATTN_GROUP * PAIRS / AT_ONCE] = {};
#pragma unroll 4
    for (int j = 0; j < n_splits; j++) {
#pragma unroll
        for (int i = 0; i < ATTN_GROUP * PAIRS / AT_ONCE; i++) {
            const int at = (int)threadIdx.x + i * AT_ONCE, head = at / PAIRS;

            if (head >= n_heads)
                continue;
            const float2 x =
                __ldcg((const float2 *)(from + j * stride + head * ENTRY) + at % PAIRS);
            o[i].x += x.x * shares[head][j];
            o[i].y += x.y * shares[head][j];
        }
    }
#pragma unroll
    for (int i = 0; i < ATTN_GROUP * PAIRS / AT_ONCE; i++) {
        const int at = (int)threadIdx.x + i * AT_ONCE;

        if (at / PAIRS < n_heads)
            ((uint32_t *)out(at / PAIRS))[at % PAIRS] = bf16_pair(o[i].x, o[i].y);
    }
}

static __device__ __forceinline__ struct attn_item read_item(const struct decode_args &d, int i)
{
    const int4 *from = (const int4 *)(d.items + i);
    const int4 both[2] = {__ldcg(from), __ldcg(from + 1)};
    struct attn_item item;

    memcpy(&item, both, sizeof(item));
    return item;
}

/* One item and KV head, and the join if it was the last of its sequence. make(row, part) has the
 * warp make its part; with_each(key, end, attend) has it attend(x, key) to its keys up to `end`,
 * sixteen at a time, and moves key on; when_read() comes behind the last of them. With DRAFTS the
 * heads of several rows go on with one another as if they were one row's. */
template <int HEAD_DIM, bool DRAFTS, bool FP8, typename Make, typename WithEach, typename WhenRead>
static __device__ __forceinline__ void run_item(const struct decode_args &d,
                                                const struct attn_item &item, Make make,
                                                WithEach with_each, WhenRead when_read)
{
    __shared__ struct results<HEAD_DIM> results;
    __shared__ struct row<HEAD_DIM, FP8> row;
    __shared__ int is_last;
    static constexpr int ENTRY = HEAD_DIM + 2;

    const int warp = (int)threadIdx.x / WARP, lane = (int)threadIdx.x % WARP;
    const int group = lane / 4, quarter = lane % 4;
    const int head_group = (int)blockIdx.x;
    const struct heads h = heads_of(d);
    const int n_columns = DRAFTS ? item.n_rows * h.n : h.n;
    const bool newest = has_newest<DRAFTS>(item);
    const enum row_part part = part_of<DRAFTS>(item);
    auto out = [&](int column) {
        const int row = DRAFTS ? column / h.n : 0, head = column - row * h.n;

        return d.a.out + ((int64_t)(item.seq + row) * d.a.n_heads + h.first + head) * HEAD_DIM;
    };
    const int64_t entries = (int64_t)d.kv.n_kv_heads * d.n_groups * ATTN_GROUP;
    float *partial = d.partial + (item.partial * entries + head_group * ATTN_GROUP) * ENTRY;
    uint4 q[HEAD_DIM / 32];
    int limit[2]; /* the last key of each of the thread's two heads */

#pragma unroll
    for (int i = 0; i < 2; i++)
        limit[i] = item.kv_len - 1 -
                   (DRAFTS ? item.n_rows - 1 - min(quarter * 2 + i, n_columns - 1) / h.n : 0);
    if (part != PART_NONE)
        make(row, part);
    __syncthreads();
#pragma unroll
    for (int j = 0; j < HEAD_DIM / 32; j++)
        q[j] = row.q[group][k_vector<HEAD_DIM, FP8>(j, quarter)];
    int key = item.begin + warp * KEYS, split = item.split;
    for (int end = item.begin;; split++) {
        struct running<HEAD_DIM> s = {
        };

        s.max[0] = s.max[1] = -1e30f;
        end = min(end + item.units * KEYS, item.end);
        with_each(key, end, [&](struct keys<HEAD_DIM, FP8> &x, int key) {
            const int last = item.end - 1 - key;

            if (newest && last < KEYS)
                put_newest(x, row, last, lane);
            if (DRAFTS && last < KEYS - 1)
                clear_behind(x, last, lane);
            attend(s, q, x, {DRAFTS ? limit[0] - key : last, DRAFTS ? limit[1] - key : last}, lane,
                   d.scale_log2);
        });
        if (end == item.end)
            when_read();
        put_result<HEAD_DIM, FP8>(results, s, n_columns);
        __syncthreads();
        fold_warps(out, item.n_splits == 1 ? nullptr : partial + split * entries * ENTRY, results,
                   n_columns);
        if (end == item.end)
            break;
        __syncthreads();
    }
    if (item.n_splits == 1)
        return;
    __syncthreads();
    if (threadIdx.x == 0) {
        int32_t *counters =
            d.counters + (int64_t)item.seq * d.kv.n_kv_heads * d.n_groups + head_group;
        const int n = split + 1 - item.split;

        is_last = n == item.n_splits || add_done(counters, n) + n == item.n_splits;
        if (is_last)
            *counters = 0;
    }
    __syncthreads();
    if (is_last)
        join_splits<HEAD_DIM>(out, partial, entries * ENTRY, n_columns, item.n_splits);
}

static struct decode_args decode_args_of(const struct attn *a, const struct rope *r,
                                         const struct step_view *v, float *partial,
                                         int32_t *counters)
{
    const int group = a->n_heads / a->kv->n_kv_heads;

    return {.a = *a,
            .rope = *r,
            .kv = *a->kv,
            .counts = v->counts,
            .items = v->items,
            .tables = v->tables,
            .partial = partial,
            .counters = counters,
            .group = group,
            .n_groups = (group + ATTN_GROUP - 1) / ATTN_GROUP,
            .scale_log2 = scale_log2_of(a->kv->head_dim)};
}

#endif
