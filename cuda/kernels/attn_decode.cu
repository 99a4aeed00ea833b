/* attn_decode.cu - attention of one query row per sequence over its paged keys, split over the
 * machine by a plan made on the host (attn_item), with what comes before it: norm and rotation of
 * the row's heads, and storing its key and value in the pool.
 *
 * Bound by memory: 4 * kv_len * n_kv_heads * head_dim bytes per sequence, or of E4M3 half as many.
 * The query heads that share a KV head are the columns of one matrix product, sixteen keys its
 * rows. A block takes an item and KV head, or several items if there are more than blocks; its
 * warps alternate, 16 keys at a time. Loads are 16 bytes (but for values of E4M3 with heads of 64):
 * the order of the dimensions is permuted so that a thread loads what the tensor cores want of it.
 * Where a sequence is split, the block that finishes last joins the partial results.
 *
 * Keys of earlier steps are loaded before the kernel waits for the one before it: between two steps
 * lies a copy that waits for all of the first and that all of the second waits for.
 *
 * With drafts all keys are in the pool when the kernel begins, and rows of a sequence that follow
 * one another share a pass over them: their heads are columns of the same product, each with its
 * own last key. (16 rows at 3,000 keys on an H100, heads 16/8: 27 us; each by itself 49 us.) */
#include "cuda/kernels/kv_rows.cuh"
#include "cuda/kernels/rope.cuh"

static constexpr int WARPS = 4;
static constexpr int KEYS = ATTN_UNIT; /* they lie in one block of the pool */
static_assert(KEYS == 16 && ATTN_GROUP == 8, "the shape of a matrix product");
static_assert(ATTN_SPLIT_ALIGN % (WARPS * KEYS) == 0,
              "a warp takes the same keys of a split wherever the item begins");
static_assert(ATTN_MAX_SPLITS % WARP == 0, "join_splits() has as many for each lane");
static_assert(sizeof(struct attn_item) == 2 * sizeof(int4), "it is read as two");

/* Blocks per multiprocessor, by how many units a warp loads ahead: one where blocks fill the
 * machine (three blocks are 12 warps with 8 KiB each in flight), more where they are few. */
static constexpr int resident(int ahead)
{
    return ahead == 1 ? 3 : 2;
}

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

/* Which vector of a row a thread has as its number j: of E4M3 neighbours, which one load brings. It
 * is the sum of what j and what the lane give. */
template <bool FP8> static __device__ __forceinline__ int k_vector(int j, int quarter)
{
    return FP8 ? (j / 2 * 4 + quarter) * 2 + j % 2 : j * 4 + quarter;
}

template <int HEAD_DIM, bool FP8> static __device__ __forceinline__ int v_vector(int j, int group)
{
    return FP8 ? group * (HEAD_DIM / 64) + j : j * 8 + group;
}

/* N consecutive vectors with one load. */
template <int N, typename V>
static __device__ __forceinline__ void load_vectors(V *to, const V *from)
{
    if constexpr (N == 1) {
        *to = __ldcs(from);
    } else {
        static_assert(N == 2 && sizeof(V) == sizeof(uint2), "a load is 16 bytes at most");
        const uint4 pair = __ldcs((const uint4 *)from);

        to[0] = make_uint2(pair.x, pair.y);
        to[1] = make_uint2(pair.z, pair.w);
    }
}

/* The step's own key and those after it are replaced later. */
template <int HEAD_DIM, bool FP8>
static __device__ __forceinline__ void load(struct keys<HEAD_DIM, FP8> &to, struct kv_row from,
                                            int64_t v_offset, int lane)
{
    static constexpr int K_EACH = FP8 ? 2 : 1, V_EACH = FP8 ? HEAD_DIM / 64 : 1;

    const int group = lane / 4, quarter = lane % 4;
    const struct kv_row values = values_of(from, v_offset);
    const auto *const k =
        (const kv_vector<FP8> *)from.data + group * HEAD_DIM / 8 + k_vector<FP8>(0, quarter);
    const auto *const v = (const kv_vector<FP8> *)values.data + quarter * HEAD_DIM / 4 +
                          v_vector<HEAD_DIM, FP8>(0, group);

#pragma unroll
    for (int i = 0; i < 2; i++)
#pragma unroll
        for (int j = 0; j < HEAD_DIM / 32; j += K_EACH)
            load_vectors<K_EACH>(&to.k[i][j], k + i * HEAD_DIM + k_vector<FP8>(j, 0));
#pragma unroll
    for (int i = 0; i < 4; i++)
#pragma unroll
        for (int j = 0; j < HEAD_DIM / 64; j += V_EACH)
            load_vectors<V_EACH>(&to.v[i][j], v + (i % 2 + i / 2 * 8) * HEAD_DIM / 8 +
                                                  v_vector<HEAD_DIM, FP8>(j, 0));
#pragma unroll
    for (int i = 0; FP8 && i < 2; i++) {
        to.k_exponents[i] = __ldcs(from.exponent + group + i * 8);
        to.v_exponents[i] = __ldcs((const uint16_t *)values.exponent + quarter + i * 4);
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

/* Each warp makes a part of the row: the first the query heads, one per quad, of all rows; the
 * second the key and the third the value, where `newest`. slot() is where the key goes in the pool;
 * data NULL: another block stores it. */
template <int HEAD_DIM, bool DRAFTS, bool FP8, typename Slot>
static __device__ __forceinline__ void
make_row(struct row<HEAD_DIM, FP8> &to, const struct decode_args &d, const struct attn_item &item,
         int kv_head, int first_head, int n_heads, bool newest, Slot slot)
{
    const int warp = (int)threadIdx.x / WARP, lane = (int)threadIdx.x % WARP;
    const int group = lane / 4, quarter = lane % 4;
    const bool is_q = warp == 0, is_v = warp == 2;
    const int column = DRAFTS ? min(group, item.n_rows * n_heads - 1) : min(group, n_heads - 1);
    const int row = DRAFTS ? column / n_heads : 0;

    if (is_q || (warp <= 2 && newest)) {
        const int head = is_q ? first_head + (DRAFTS ? column % n_heads : column)
                              : d.a.n_heads + (is_v ? d.kv.n_kv_heads : 0) + kv_head;
        const uint16_t *from = d.a.q + (item.seq + row) * d.a.q_stride + head * HEAD_DIM;
        const uint16_t *norm = norm_of(d.rope, is_q);
        struct rotation<HEAD_DIM> t;
        uint4 x[HEAD_DIM / 32];

#pragma unroll
        for (int j = 0; j < HEAD_DIM / 32; j++)
            x[j] = __ldcg((const uint4 *)from + j * 4 + quarter);
        if (!is_v) {
            load_rotation(t, d.rope, norm, item.kv_len - (DRAFTS ? item.n_rows - row : 1), quarter);
            norm_and_rotate(x, t, norm != nullptr, d.rope.eps);
        }
        if (is_q) {
#pragma unroll
            for (int j = 0; j < HEAD_DIM / 32; j++)
                to.q[group][j * 4 + quarter] = x[j];
        } else {
            const auto stored = stored_of<FP8>(x);

            if (group == 0) {
                const struct kv_row pool = slot();

                put_row({is_v ? (uint16_t *)to.v : (uint16_t *)to.k,
                         is_v ? &to.v_exponent : &to.k_exponent},
                        stored, quarter);
                if (pool.data)
                    put_row(is_v ? values_of(pool, d.kv.v_offset) : pool, stored, quarter);
            }
        }
    }
    __syncthreads();
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
                x.k[i][j] = row.k[k_vector<FP8>(j, quarter)];
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

/* One item and KV head, and the join if it was the last of its sequence. AHEAD changes no bit. With
 * DRAFTS the heads of several rows go on with one another as if they were one row's. */
template <int HEAD_DIM, int AHEAD, bool DRAFTS, bool FP8>
static __device__ void run_item(const struct decode_args &d, const struct attn_item &item,
                                int head_group)
{
    __shared__ struct results<HEAD_DIM> results;
    __shared__ struct row<HEAD_DIM, FP8> row;
    __shared__ int is_last;
    static constexpr int ENTRY = HEAD_DIM + 2, STRIDE = WARPS * KEYS;

    const int warp = (int)threadIdx.x / WARP, lane = (int)threadIdx.x % WARP;
    const int group = lane / 4, quarter = lane % 4;
    const int kv_head = head_group / d.n_groups, pass = head_group % d.n_groups;
    const int n_heads = min(ATTN_GROUP, d.group - pass * ATTN_GROUP);
    const int first_head = kv_head * d.group + pass * ATTN_GROUP;
    const int block_len = 1 << d.kv.block_shift;
    const int n_columns = DRAFTS ? item.n_rows * n_heads : n_heads;
    const bool newest = !DRAFTS && item.end == item.kv_len; /* the step's own key is among these */
    const int n_old = item.end - newest;                    /* where those in the pool end */
    const int32_t *table = d.tables + item.table;
    const uint16_t *pool = d.kv.base + d.a.layer * d.kv.layer_stride +
                           kv_head * plane_stride<HEAD_DIM, FP8>(block_len);
    auto out = [&](int column) {
        const int row = DRAFTS ? column / n_heads : 0, head = column - row * n_heads;

        return d.a.out + ((int64_t)(item.seq + row) * d.a.n_heads + first_head + head) * HEAD_DIM;
    };
    const int64_t entries = (int64_t)d.kv.n_kv_heads * d.n_groups * ATTN_GROUP;
    float *partial = d.partial + (item.partial * entries + head_group * ATTN_GROUP) * ENTRY;
    struct keys<HEAD_DIM, FP8> x[AHEAD];
    uint4 q[HEAD_DIM / 32];

    auto place = [&](int key) {
        const int64_t block = __ldcg(table + (min(key, n_old - DRAFTS) >> d.kv.block_shift));

        return row_of<HEAD_DIM, FP8>(pool + block_at(d.kv, block), block_len,
                                     key & (block_len - 1));
    };
    int limit[2]; /* the last key of each of the thread's two heads */
#pragma unroll
    for (int i = 0; i < 2; i++)
        limit[i] = item.kv_len - 1 -
                   (DRAFTS ? item.n_rows - 1 - min(quarter * 2 + i, n_columns - 1) / n_heads : 0);
    int key = item.begin + warp * KEYS, split = item.split;
#pragma unroll
    for (int i = 0; i < AHEAD; i++)
        if (key + i * STRIDE < n_old)
            load(x[i], place(key + i * STRIDE), d.kv.v_offset, lane);
    chain_wait();
    make_row<HEAD_DIM, DRAFTS, FP8>(row, d, item, kv_head, first_head, n_heads, newest, [&] {
        return pass == 0 ? place(n_old) : kv_row{nullptr, nullptr};
    });
#pragma unroll
    for (int j = 0; j < HEAD_DIM / 32; j++)
        q[j] = row.q[group][k_vector<FP8>(j, quarter)];
    for (int end = item.begin;; split++) {
        struct running<HEAD_DIM> s = {
        };

        s.max[0] = s.max[1] = -1e30f;
        end = min(end + item.units * KEYS, item.end);
        while (key < end) {
#pragma unroll
            for (int i = 0; i < AHEAD; i++, key += STRIDE) {
                const int last = item.end - 1 - key, later = key + AHEAD * STRIDE;
                const struct kv_row from = place(later); /* known when these are done */

                if (i > 0 && key >= end)
                    break;
                if (newest && last < KEYS)
                    put_newest(x[i], row, last, lane);
                if (DRAFTS && last < KEYS - 1)
                    clear_behind(x[i], last, lane);
                attend(s, q, x[i], {DRAFTS ? limit[0] - key : last, DRAFTS ? limit[1] - key : last},
                       lane, d.scale_log2);
                if (later < n_old)
                    load(x[i], from, d.kv.v_offset, lane);
            }
        }
        put_result<HEAD_DIM, FP8>(results, s, n_columns);
        __syncthreads();
        fold_warps(out, item.n_splits == 1 ? nullptr : partial + split * entries * ENTRY, results,
                   n_columns);
        if (end == item.end)
            break;
        __syncthreads();
#pragma unroll
        for (int i = 0; AHEAD > 1 && i < AHEAD; i++) /* those in flight may lie elsewhere in x */
            if (key + i * STRIDE < n_old)
                load(x[i], place(key + i * STRIDE), d.kv.v_offset, lane);
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

static __device__ __forceinline__ struct attn_item read_item(const struct decode_args &d, int i)
{
    const int4 *from = (const int4 *)(d.items + i);
    const int4 both[2] = {__ldcg(from), __ldcg(from + 1)};
    struct attn_item item;

    memcpy(&item, both, sizeof(item));
    return item;
}

template <int HEAD_DIM, int AHEAD, bool DRAFTS, bool FP8>
static __global__ void __launch_bounds__(WARPS *WARP, resident(AHEAD))
    attn_decode_kernel(const struct decode_args d)
{
    int i = (int)blockIdx.y;
    struct attn_item item = read_item(d, i);
    const int n_items = __ldcg(&d.counts->n_items);

    if (i >= n_items)
        return;
    for (;;) {
        run_item<HEAD_DIM, AHEAD, DRAFTS, FP8>(d, item, (int)blockIdx.x);
        i += (int)gridDim.y;
        if (i >= n_items)
            return;
        item = read_item(d, i);
    }
}

template <int HEAD_DIM, bool FP8> static auto kernel_of(bool few, bool drafts)
{
    if (drafts)
        return few ? known<attn_decode_kernel<HEAD_DIM, 2, true, FP8>>()
                   : known<attn_decode_kernel<HEAD_DIM, 1, true, FP8>>();
    return few ? known<attn_decode_kernel<HEAD_DIM, 2, false, FP8>>()
               : known<attn_decode_kernel<HEAD_DIM, 1, false, FP8>>();
}

extern "C" cudaError_t attn_decode(const struct launch *l, const struct attn *a,
                                   const struct rope *r, const struct step_view *v, float *partial,
                                   int32_t *counters, int n_blocks)
{
    const int group = a->n_heads / a->kv->n_kv_heads;
    const struct decode_args d = {.a = *a,
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

    if (!r->q_norm != !r->k_norm)
        return cudaErrorInvalidValue;
    const dim3 grid((unsigned)(a->kv->n_kv_heads * d.n_groups), (unsigned)n_blocks);
    const bool few = (int64_t)grid.x * grid.y <= (int64_t)resident(2) * l->n_sms;
    const auto kernel = a->kv->head_dim == 128
                            ? (a->kv->fp8 ? kernel_of<128, true>(few, a->drafts)
                                          : kernel_of<128, false>(few, a->drafts))
                            : (a->kv->fp8 ? kernel_of<64, true>(few, a->drafts)
                                          : kernel_of<64, false>(few, a->drafts));

    return launch_kernel(kernel, grid, WARPS * WARP, 0, l, d);
}
