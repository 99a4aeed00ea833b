// resident_attention.cuh - attention as two phases of the resident kernel: each block attends, for
// one KV head, to a share of all sequences' keys; then the parts of a sequence are joined.
//
// Keys and values of earlier steps come through the ring before q is there. The step's own key and
// value, which the block of a sequence's last keys stores, are taken from shared memory. Every
// block that needs q and k norms and rotates them itself: that costs less than another exchange.
#ifndef NVLLM_CUDA_KERNELS_RESIDENT_RESIDENT_ATTENTION_CUH
#define NVLLM_CUDA_KERNELS_RESIDENT_RESIDENT_ATTENTION_CUH

#include "cuda/kernels/resident/resident_product.cuh"

static constexpr int UNIT = 16;       // keys a warp takes at a time, in one block of the pool
static constexpr int MAX_GROUPS = 64; // blocks that share the keys of a KV head

// Numbers of a head's part in shared memory: o, max, sum, and so many that the next is aligned.
static __host__ __device__ __forceinline__ int part_length(int head_dim)
{
    return head_dim + 4;
}

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

// A thread's online softmax of query head `lane / 4`.
template <int HEAD_DIM> struct softmax {
    float max, sum;
    float o[HEAD_DIM / 8][2];
};

// Adds sixteen keys: p are a thread's scores, in powers of two and -INFINITY where there is no
// key, max the greatest of these and s.max; x its share of the values.
template <int HEAD_DIM>
static __device__ __forceinline__ void softmax_add(struct softmax<HEAD_DIM> &s, float (&p)[2][2],
                                                   float max, const uint4 (&x)[4][HEAD_DIM / 64])
{
    max = fmaxf(max, __shfl_xor_sync(ALL_LANES, max, 1));
    max = fmaxf(max, __shfl_xor_sync(ALL_LANES, max, 2));
    const float shrink = exp2_fast(s.max - max);
    s.max = max;
    s.sum *= shrink;
#pragma unroll
    for (int i = 0; i < 2; i++)
#pragma unroll
        for (int j = 0; j < 2; j++) {
            p[i][j] = exp2_fast(p[i][j] - max);
            s.sum += p[i][j];
        }
    const uint32_t p0 = bf16_pair(p[0][0], p[0][1]), p1 = bf16_pair(p[1][0], p[1][1]);
#pragma unroll
    for (int j = 0; j < HEAD_DIM / 64; j++) {
        const uint32_t *v0 = &x[0][j].x, *v1 = &x[1][j].x, *v2 = &x[2][j].x, *v3 = &x[3][j].x;

#pragma unroll
        for (int i = 0; i < 4; i++) {
            float *even = s.o[j * 8 + i * 2], *odd = s.o[j * 8 + i * 2 + 1];

            even[0] *= shrink, even[1] *= shrink;
            odd[0] *= shrink, odd[1] *= shrink;
            mma_8816(even[0], even[1], p0, p1, low_halves(v0[i], v1[i]), low_halves(v2[i], v3[i]));
            mma_8816(odd[0], odd[1], p0, p1, high_halves(v0[i], v1[i]), high_halves(v2[i], v3[i]));
        }
    }
}

// The cost of a second sequence in a block, in units that the block could read in that time: about
// 3 us. A step of 0.6B with 15 sequences, of 12, takes 970 and 888 us where all parts are equal,
// 866 and 834 where each sequence is whole (512 keys and more; H200, 2026-11-28).
static constexpr int SECOND_UNITS = 12;

// Divides the keys, by one warp, among the blocks of a KV head. Each sequence has blocks of its
// own if none need then read more than an equal share and SECOND_UNITS; else all units in a row are
// cut into equal parts. first_part is the number of a block.
static __device__ void plan_segments(struct resident_shared &s, const struct resident &a, int m)
{
    const int lane = (int)threadIdx.x, own = (int)blockIdx.x / a.kv.n_kv_heads;
    const int kv_len = lane < m ? __ldcg(a.step.kv_len + lane) : 0;
    const int units = (kv_len + UNIT - 1) / UNIT;
    const int all = __reduce_add_sync(ALL_LANES, units);
    const int groups = min(min((int)gridDim.x / a.kv.n_kv_heads, MAX_GROUPS), all);
    const int share = (all + groups - 1) / groups;
    bool apart = false;
    int n = 0; /* parts of the lane's sequence */

    for (int longest = share; longest <= share + SECOND_UNITS && !apart; longest++) {
        n = (units + longest - 1) / longest;
        apart = __reduce_add_sync(ALL_LANES, n) <= groups;
    }
    const int end = warp_prefix(apart ? n : units), begin = end - (apart ? n : units);
    int first = begin;     /* of its parts */
    int low = 0, high = 0; /* its units that are this block's */

    if (!apart) {
        first = ((begin + 1) * groups - 1) / all;
        n = (end * groups - 1) / all - first + 1;
        low = max(begin, own * all / groups) - begin;
        high = min(end, (own + 1) * all / groups) - begin;
    } else if (own >= first && own < first + n) {
        low = (own - first) * units / n;
        high = (own - first + 1) * units / n;
    }
    const bool mine = low < high;
    const uint32_t which = __ballot_sync(ALL_LANES, mine);

    if (lane < m) {
        s.kv_len[lane] = kv_len;
        s.first_part[lane] = first;
        s.n_parts[lane] = n;
    }
    if (mine)
        s.segments[__popc(which & ((1u << lane) - 1))] = {lane, low, high};
    if (lane == 0) {
        s.kv_head = (int)blockIdx.x % a.kv.n_kv_heads;
        s.own = own;
        s.group = a.n_heads / a.kv.n_kv_heads;
        s.n_segments = __popc(which);
        s.n_groups = groups;
    }
}

// The producer's side.
template <int HEAD_DIM>
static __device__ __forceinline__ void stream_keys(struct frame &f, int layer, uint64_t policy)
{
    static constexpr int EACH = 256 / HEAD_DIM; // units of a stage
    static constexpr uint32_t BYTES = UNIT * HEAD_DIM * 2;

    const struct resident &a = f.a;
    const int lane = lane_of(f), shift = a.kv.block_shift;
    const uint16_t *base =
        a.kv.base + layer * a.kv.layer_stride + ((int64_t)f.s.kv_head * HEAD_DIM << shift);
    struct ring &r = f.ring;

#pragma unroll 1
    for (int i = 0; i < f.s.n_segments; i++) {
        const struct segment g = f.s.segments[i];
        const int32_t *table = a.step.tables + __ldcg(a.step.table_start + g.seq);

#pragma unroll 1
        for (int first = g.begin; first < g.end; first += WARP) {
            const int unit = first + lane, n = min(WARP, g.end - first);
            const int block = unit < g.end ? __ldcg(table + (unit * UNIT >> shift)) : 0;

#pragma unroll 1
            for (int j = 0; j < n; j += EACH) {
                const int here = min(EACH, n - j);
                const uint32_t full = ring_full(r);
                int64_t ids[EACH];

#pragma unroll
                for (int k = 0; k < EACH; k++)
                    ids[k] = __shfl_sync(ALL_LANES, block, j + k);
                ring_wait_empty(r);
                if (elected()) {
                    barrier_expect(full, (uint32_t)here * 2 * BYTES);
#pragma unroll
                    for (int k = 0; k < EACH; k++) {
                        const int slot = (first + j + k) * UNIT & ((1 << shift) - 1);
                        const uint16_t *from = base + ids[k] * a.kv.block_stride + slot * HEAD_DIM;
                        const uint32_t to = ring_stage(r) + (uint32_t)k * 2 * BYTES;

                        if (k == here)
                            break;
                        copy_bytes(to, from, BYTES, full, policy);
                        copy_bytes(to + BYTES, from + a.kv.v_offset, BYTES, full, policy);
                    }
                }
                ring_next(r);
            }
        }
    }
}

// One head of q, k or v of a row, received, normed and rotated into shared memory by one warp. A
// lane has two neighbours of the first half and two of the second; with heads of 64 half of the
// lanes have none.
template <int HEAD_DIM>
static __device__ __forceinline__ void receive_head(const struct frame &f, int layer,
                                                    const struct segment &g, int index)
{
    static constexpr int LANES = HEAD_DIM / 4;

    const struct resident &a = f.a;
    const int lane = lane_of(f), kv_head = f.s.kv_head, group = f.s.group;
    const bool is_q = index < group, is_v = index == group + 1, there = lane < LANES;
    const int head =
        is_q ? kv_head * group + index : a.n_heads + (is_v ? a.kv.n_kv_heads : 0) + kv_head;
    const tagged_word *from =
        f.s.out.qkv + ((int64_t)g.seq * (a.n_heads + 2 * a.kv.n_kv_heads) + head) * (HEAD_DIM / 2);
    const uint16_t *norm = is_v ? nullptr : is_q ? a.w.q_norm : a.w.k_norm;
    const int at = there ? lane * 2 : 0, position = __ldg(a.step.positions + g.seq);
    const int slot = __ldg(a.step.slots + g.seq);
    const float4 rope =
        __ldg((const float4 *)(a.rope + (int64_t)position * HEAD_DIM) + (there ? lane : 0));
    uint32_t norm_low = 0x3f803f80, norm_high = 0x3f803f80; /* 1, 1 */
    uint32_t low, high;

    if (norm) {
        norm += layer * a.w.layer_stride;
        norm_low = __ldg((const uint32_t *)(norm + at));
        norm_high = __ldg((const uint32_t *)(norm + HEAD_DIM / 2 + at));
    }
    /* Words come in pairs: even lanes get two of the first half, odd ones two of the second. */
    {
        const int half = lane % 2 * LANES;
        struct tagged_pair got[1];

        receive(
            got, f.tag, [&](int) { return there; },
            [&](int) { return from + half + lane / 2 * 2; });
        __syncwarp();
        const uint32_t x = (uint32_t)got[0].a, y = (uint32_t)got[0].b;
        const uint32_t other = __shfl_xor_sync(ALL_LANES, lane % 2 ? x : y, 1);

        low = lane % 2 ? other : x;
        high = lane % 2 ? y : other;
    }
    float2 p = make_float2(bf16_low(low), bf16_high(low));
    float2 q = make_float2(bf16_low(high), bf16_high(high));
    if (norm) {
        const float sum = there ? p.x * p.x + p.y * p.y + q.x * q.x + q.y * q.y : 0.0f;
        const float scale = rsqrtf(warp_sum(sum) / HEAD_DIM + a.eps);

        p = make_float2(p.x * scale * bf16_low(norm_low), p.y * scale * bf16_high(norm_low));
        q = make_float2(q.x * scale * bf16_low(norm_high), q.y * scale * bf16_high(norm_high));
    }
    if (!is_v) {
        const float2 old = p;

        p = make_float2(p.x * rope.x - q.x * rope.y, p.y * rope.z - q.y * rope.w);
        q = make_float2(q.x * rope.x + old.x * rope.y, q.y * rope.z + old.y * rope.w);
    }
    if (!there)
        return;
    low = bf16_pair(p.x, p.y);
    high = bf16_pair(q.x, q.y);
    uint32_t *to = is_q ? (uint32_t *)f.s.q + index * (HEAD_DIM / 2)
                        : (uint32_t *)(is_v ? f.s.value : f.s.key);
    to[lane] = low;
    to[LANES + lane] = high;
    if (is_q || slot < 0 || g.end * UNIT < f.s.kv_len[g.seq])
        return;
    const int shift = a.kv.block_shift;
    to = (uint32_t *)(a.kv.base + (int64_t)(slot >> shift) * a.kv.block_stride +
                      layer * a.kv.layer_stride + (is_v ? a.kv.v_offset : 0) +
                      (((int64_t)kv_head << shift) + (slot & ((1 << shift) - 1))) * HEAD_DIM);
    to[lane] = low;
    to[LANES + lane] = high;
}

// Sixteen keys at k and values at v, of which 0 .. last are the sequence's; the last stands in for
// the others, whose memory may hold NaN. fresh: the one in new_key and new_value instead, or -1.
template <int HEAD_DIM>
static __device__ __forceinline__ void attend(struct softmax<HEAD_DIM> &s, uint32_t q, uint32_t k,
                                              uint32_t v, uint32_t new_key, uint32_t new_value,
                                              int last, int fresh, float scale)
{
    const int lane = (int)threadIdx.x % WARP, group = lane / 4, quarter = lane % 4;
    float p[2][2], even_sum[2][2] = {}, odd_sum[2][2] = {};
    uint4 x[4][HEAD_DIM / 64];

#pragma unroll
    for (int i = 0; i < 2; i++) {
        const int key = min(i * 8 + group, last);
        const uint32_t at = (key == fresh ? new_key : k + (uint32_t)key * HEAD_DIM * 2);

#pragma unroll
        for (int j = 0; j < HEAD_DIM / 32; j++) {
            const uint4 a = ld_shared(q + (uint32_t)(j * 64));
            const uint4 b = ld_shared(at + (uint32_t)(j * 64 + quarter * 16));

            mma_8816(even_sum[i][0], even_sum[i][1], a.x, a.y, b.x, b.y);
            mma_8816(odd_sum[i][0], odd_sum[i][1], a.z, a.w, b.z, b.w);
        }
    }
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const int key = min(quarter * 2 + i % 2 + i / 2 * 8, last);
        const uint32_t at = (key == fresh ? new_value : v + (uint32_t)key * HEAD_DIM * 2);

#pragma unroll
        for (int j = 0; j < HEAD_DIM / 64; j++)
            x[i][j] = ld_shared(at + (uint32_t)(j * 128 + group * 16));
    }
    float max = s.max;
#pragma unroll
    for (int i = 0; i < 2; i++)
#pragma unroll
        for (int j = 0; j < 2; j++) {
            p[i][j] = i * 8 + quarter * 2 + j <= last ? (even_sum[i][j] + odd_sum[i][j]) * scale
                                                      : -INFINITY;
            max = fmaxf(max, p[i][j]);
        }
    softmax_add(s, p, max, x);
}

// Adds up a segment over the warps, those without keys too, and sends it: the result where the
// sequence has no other part, else this part of it.
template <int HEAD_DIM>
static __device__ __forceinline__ void send_segment(const struct frame &f, int layer,
                                                    const struct segment &g)
{
    static constexpr int ENTRY = HEAD_DIM + 2, PAIRS = HEAD_DIM / 2;

    const int n_kv = f.a.kv.n_kv_heads, kv_head = f.s.kv_head, group = f.s.group;
    const int step = group * part_length(HEAD_DIM);
    const bool alone = f.s.n_parts[g.seq] == 1;

#pragma unroll 1
    for (int i = (int)f.thread; i < group * PAIRS; i += CONSUMERS * WARP) {
        const int head = i / PAIRS, dim = i % PAIRS * 2;
        const float *from = f.scratch + head * part_length(HEAD_DIM);
        uint4 *const packet = copy_of_lane(f, buffer_of_attn(f, layer)) +
                              packet_at(g.seq, (kv_head * group + head) * HEAD_DIM + dim);
        float2 part[CONSUMERS], stats[CONSUMERS], o = {};
        float max = -1e30f, sum = 0.0f;

#pragma unroll
        for (int j = 0; j < CONSUMERS; j++) {
            part[j] = *(const float2 *)(from + j * step + dim);
            stats[j] = *(const float2 *)(from + j * step + HEAD_DIM);
        }
#pragma unroll
        for (int j = 0; j < CONSUMERS; j++)
            max = fmaxf(max, stats[j].x);
#pragma unroll
        for (int j = 0; j < CONSUMERS; j++) {
            const float shrink = exp2_fast(stats[j].x - max);

            sum += stats[j].y * shrink;
            o.x += part[j].x * shrink;
            o.y += part[j].y * shrink;
        }
        if (alone) { /* a head is a whole number of warps' pairs */
            store_packet(packet, packet_of(bf16_pair(__fdividef(o.x, sum), __fdividef(o.y, sum))));
            continue;
        }
        tagged_word *to =
            f.s.out.parts + (((int64_t)(g.seq + f.s.own) * n_kv + kv_head) * group + head) * ENTRY;
        send_pair(to + dim, __float_as_uint(o.x), __float_as_uint(o.y), f.tag);
        if (dim == 0)
            send_pair(to + HEAD_DIM, __float_as_uint(max), __float_as_uint(sum), f.tag);
    }
}

template <int HEAD_DIM>
static __device__ __forceinline__ void attend_segment(struct frame &f, int layer,
                                                      const struct segment &g)
{
    static constexpr int EACH = 256 / HEAD_DIM;
    static constexpr uint32_t BYTES = UNIT * HEAD_DIM * 2;

    const int warp = warp_of(f), lane = lane_of(f);
    const int row = lane / 4, quarter = lane % 4, group = f.s.group;
    const uint32_t new_key = shared_address(f.s.key), new_value = shared_address(f.s.value);
    const float scale = 1.4426950408889634f * rsqrtf((float)HEAD_DIM);
    /* rows past the group repeat its last head; their results are not used */
    const uint32_t q =
        shared_address(f.s.q) + (uint32_t)(min(row, group - 1) * HEAD_DIM * 2 + quarter * 16);
    struct softmax<HEAD_DIM> s = {
        - 1e30f
    };

#pragma unroll 1
    for (int i = warp; i < group + 2; i += CONSUMERS)
        receive_head<HEAD_DIM>(f, layer, g, i);
    named_sync(ALL_CONSUMERS);
    mark(f);
#pragma unroll 1
    for (int first = g.begin; first < g.end; first += EACH) {
        ring_wait_full(f.ring);
#pragma unroll 1
        for (int i = 0; i < EACH && first + i < g.end; i++) {
            const int unit = first + i, last = f.s.kv_len[g.seq] - 1 - unit * UNIT;
            const uint32_t at = ring_stage(f.ring) + (uint32_t)i * 2 * BYTES;

            if ((unit - g.begin) % CONSUMERS == warp)
                attend(s, q, at, at + BYTES, new_key, new_value, min(last, UNIT - 1),
                       last < UNIT ? last : -1, scale);
        }
        ring_release(f.ring);
    }
    s.sum += __shfl_xor_sync(ALL_LANES, s.sum, 1);
    s.sum += __shfl_xor_sync(ALL_LANES, s.sum, 2);
    if (row < group) {
        float *to = f.scratch + (warp * group + row) * part_length(HEAD_DIM);

        if (quarter == 0)
            *(float2 *)(to + HEAD_DIM) = make_float2(s.max, s.sum);
#pragma unroll
        for (int i = 0; i < HEAD_DIM / 8; i += 4)
#pragma unroll
            for (int j = 0; j < 2; j++)
                *(float4 *)(to + i / 8 * 64 + (quarter * 2 + j) * 8 + i % 8) =
                    make_float4(s.o[i][j], s.o[i + 1][j], s.o[i + 2][j], s.o[i + 3][j]);
    }
    named_sync(ALL_CONSUMERS);
    send_segment<HEAD_DIM>(f, layer, g);
    named_sync(ALL_CONSUMERS);
}

// Joins sixteen dimensions of a head, by one warp: four parts at once, two dimensions a lane.
template <int HEAD_DIM>
static __device__ __forceinline__ void join_item(const struct frame &f, int layer, int seq,
                                                 int head, int piece)
{
    static constexpr int ENTRY = HEAD_DIM + 2, BATCH = 4;

    const int lane = lane_of(f), n = f.s.n_parts[seq];
    const int n_kv = f.a.kv.n_kv_heads, group = f.s.group, kv_head = f.s.kv_head;
    const int stride = n_kv * group * ENTRY;
    const tagged_word *from =
        f.s.out.parts + (seq + f.s.first_part[seq]) * stride + (kv_head * group + head) * ENTRY;
    uint4 *const to =
        copy_of_lane(f, buffer_of_attn(f, layer)) +
        packet_at(seq, (kv_head * group + head) * HEAD_DIM + piece * 16 + lane % 8 * 2);
    float max = -1e30f, sum = 0.0f;
    float2 o = {};
    auto add = [&](float other_max, float other_sum, float2 other) {
        const float both = fmaxf(max, other_max);
        const float a = exp2_fast(max - both), b = exp2_fast(other_max - both);

        max = both;
        sum = sum * a + other_sum * b;
        o.x = o.x * a + other.x * b;
        o.y = o.y * a + other.y * b;
    };

#pragma unroll 1
    for (int base = 0; base < n; base += 4 * BATCH) {
        int at[2 * BATCH];
        struct tagged_pair got[2 * BATCH];

#pragma unroll
        for (int i = 0; i < BATCH; i++) {
            const int part = base + i * 4 + lane / 8;

            at[i] = part < n ? part * stride + piece * 16 + lane % 8 * 2 : -1;
            at[BATCH + i] = part < n ? part * stride + HEAD_DIM : -1;
        }
        receive(
            got, f.tag, [&](int i) { return at[i] >= 0; }, [&](int i) { return from + at[i]; });
#pragma unroll
        for (int i = 0; i < BATCH; i++)
            if (at[i] >= 0)
                add(float_of(got[BATCH + i].a), float_of(got[BATCH + i].b),
                    make_float2(float_of(got[i].a), float_of(got[i].b)));
    }
    __syncwarp();
#pragma unroll
    for (int i = 8; i < WARP; i *= 2) {
        const float other_max = __shfl_xor_sync(ALL_LANES, max, i);
        const float other_sum = __shfl_xor_sync(ALL_LANES, sum, i);

        add(other_max, other_sum,
            make_float2(__shfl_xor_sync(ALL_LANES, o.x, i), __shfl_xor_sync(ALL_LANES, o.y, i)));
    }
    const uint4 packet = packet_of(bf16_pair(__fdividef(o.x, sum), __fdividef(o.y, sum)));
    if (lane < 8)
        store_packet(to, packet);
}

// The consumers' side of both phases.
template <int HEAD_DIM> static __device__ __forceinline__ void attention(struct frame &f, int layer)
{
    static constexpr int N = HEAD_DIM / 16; // pieces of a head

    const int warp = warp_of(f), n = f.s.n_groups, items = f.m * f.s.group * N;

#pragma unroll 1
    for (int i = 0; i < f.s.n_segments; i++)
        attend_segment<HEAD_DIM>(f, layer, f.s.segments[i]);
    mark(f);
    if (f.s.own >= n)
        return;
#pragma unroll 1
    for (int i = f.s.own + warp * n; i < items; i += CONSUMERS * n) {
        const int seq = f.m == 1 ? 0 : i / (f.s.group * N);

        if (f.s.n_parts[seq] > 1)
            join_item<HEAD_DIM>(f, layer, seq, i / N - seq * f.s.group, i % N);
    }
}

#endif
#endif
