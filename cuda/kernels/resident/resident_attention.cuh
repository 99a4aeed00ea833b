// resident_attention.cuh - attention as two phases of the resident kernel: each block attends, for
// one KV head, to a share of all sequences' keys; then the parts of a sequence are joined.
//
// Keys and values of earlier steps come through the ring before q is there. The step's own key and
// value, which the block of a sequence's last keys stores, are put in their place in a stage. Every
// block that needs q and k norms and rotates them itself: that costs less than another exchange.
#ifndef NVLLM_CUDA_KERNELS_RESIDENT_RESIDENT_ATTENTION_CUH
#define NVLLM_CUDA_KERNELS_RESIDENT_RESIDENT_ATTENTION_CUH

#include "cuda/kernels/kv_rows.cuh"
#include "cuda/kernels/resident/resident_product.cuh"

static constexpr int UNIT = 16;       // keys that are copied together, of one block of the pool
static constexpr int MAX_GROUPS = 64; // blocks that share the keys of a KV head

// Numbers of a head's part in shared memory: o, max, sum, and so many that the next is aligned.
static __host__ __device__ __forceinline__ int part_length(int head_dim)
{
    return head_dim + 4;
}

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

// A thread's online softmax: of query head `lane / 4` the maximum over the warp's keys and the sum
// over the thread's own; of heads `lane % 4 * 2` and the next, o over the warp's keys, two
// dimensions at a time.
template <int HEAD_DIM> struct softmax {
    float max, sum;
    float o[HEAD_DIM / 16][4]; /* a dimension of both heads, then the other */
};

// Adds the keys of a unit: p are a thread's scores, exponents of two, and -INFINITY where there is
// no key, max the greatest of these and s.max; x its share of the values, of E4M3 to be multiplied
// by scales.
template <int HEAD_DIM, bool FP8>
static __device__ __forceinline__ void softmax_add(struct softmax<HEAD_DIM> &s, float (&p)[4],
                                                   float max, const uint4 (&x)[4][HEAD_DIM / 64],
                                                   const float (&scales)[4])
{
    const int quarter = (int)threadIdx.x % 4;

    max = fmaxf(max, __shfl_xor_sync(ALL_LANES, max, 1));
    max = fmaxf(max, __shfl_xor_sync(ALL_LANES, max, 2));
    const float shrink = exp2_fast(s.max - max);
    const float first = __shfl_sync(ALL_LANES, shrink, quarter * 8);
    const float second = __shfl_sync(ALL_LANES, shrink, quarter * 8 + 4);
    s.max = max;
    s.sum *= shrink;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        p[i] = exp2_fast(p[i] - max);
        s.sum += p[i];
        if (FP8)
            p[i] *= scales[i];
    }
#pragma unroll
    for (int i = 0; i < HEAD_DIM / 16; i++) {
        s.o[i][0] *= first, s.o[i][1] *= second;
        s.o[i][2] *= first, s.o[i][3] *= second;
    }
    const uint32_t p0 = bf16_pair(p[0], p[1]), p1 = bf16_pair(p[2], p[3]);
#pragma unroll
    for (int j = 0; j < HEAD_DIM / 64; j++) {
        const uint32_t *v0 = &x[0][j].x, *v1 = &x[1][j].x, *v2 = &x[2][j].x, *v3 = &x[3][j].x;

#pragma unroll
        for (int i = 0; i < 4; i++)
            mma_16816(s.o[j * 4 + i], low_halves(v0[i], v1[i]), high_halves(v0[i], v1[i]),
                      low_halves(v2[i], v3[i]), high_halves(v2[i], v3[i]), p0, p1);
    }
}

// The cost of a second sequence in a block, in units that the block could read in that time: about
// 4 us. A step of 0.6B with 9, 10, 12, 15 sequences takes 760, 770, 787, 839 us; with a cost of 12
// units 777, 789, 790, 833, of 6 778, 794, 825, 836 (512 keys and more; H200, 2026-11-30).
static constexpr int SECOND_UNITS = 18;

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

// A stage of keys is made of eight pieces, which lie in it as rows of weights do: rows of a unit's
// keys or values, 2 KiB of them at most, and a pad. The pieces of a unit are those of its keys, one
// or two, and then those of its values. In the pad lie exponents, if it is E4M3. (Of heads of 64
// with E4M3 a piece is 1 KiB, so half of a stage is unused.)
//
// A bulk copy takes the producer 60 clocks, as long as memory takes for 1 KiB. So there are no more
// pieces, though smaller ones with a pad each would have no bank conflicts, and exponents come by
// cp.async, one instruction for all eight pieces. (A step of 0.6B with four times 30,000 keys takes
// 2,548 us, with bulk copies of exponents 3,120. Bulk tensor copies, which could swizzle the rows,
// made all copies of the kernel 4 % slower. H200, 2026-11-30.)
static constexpr int PIECES_OF_STAGE = COLS;
template <int HEAD_DIM, bool FP8> static constexpr int ROW = HEAD_DIM *(FP8 ? 1 : 2);
template <int HEAD_DIM, bool FP8>
static constexpr int PIECES = ROW<HEAD_DIM, FP8> *UNIT > CHUNK * 2 ? 2 : 1;
template <int HEAD_DIM, bool FP8> static constexpr int ROWS = UNIT / PIECES<HEAD_DIM, FP8>;
template <int HEAD_DIM, bool FP8>
static constexpr int UNITS_OF_STAGE = PIECES_OF_STAGE / (2 * PIECES<HEAD_DIM, FP8>);
static_assert(CHUNK * 2 + UNIT <= ROW_BYTES, "exponents have room");

// The producer's side.
template <int HEAD_DIM, bool FP8>
static __device__ __forceinline__ void stream_keys(struct frame &f, int layer, uint64_t policy)
{
    static constexpr int EACH = UNITS_OF_STAGE<HEAD_DIM, FP8>, N = PIECES<HEAD_DIM, FP8>;
    static constexpr uint32_t BYTES = ROWS<HEAD_DIM, FP8> * ROW<HEAD_DIM, FP8>; /* of a piece */

    const struct resident &a = f.a;
    const int lane = lane_of(f), shift = a.kv.block_shift;
    const int k = lane % PIECES_OF_STAGE / (2 * N), is_v = lane / N % 2, piece = lane % N;
    const uint16_t *base = a.kv.base + layer * a.kv.layer_stride;
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
                const int slot = (first + j + k) * UNIT & ((1 << shift) - 1);
                const int64_t id = __shfl_sync(ALL_LANES, block, j + k);
                const struct kv_row key =
                    row_of<HEAD_DIM, FP8>(base + id * a.kv.block_stride, a.kv, f.s.kv_head,
                                          slot + piece * ROWS<HEAD_DIM, FP8>);
                const struct kv_row from = is_v ? values_of(key, a.kv.v_offset) : key;
                const uint32_t to = ring_stage(r) + (uint32_t)(lane * ROW_BYTES);
                const uint32_t full = ring_full(r), n_pieces = (uint32_t)(min(EACH, n - j) * 2 * N);
                const bool mine = lane < PIECES_OF_STAGE && j + k < n;

                ring_wait_empty(r);
                if (FP8 && mine) {
                    copy_async(to + CHUNK * 2, from.exponent, true);
                    barrier_expect_async(full);
                }
                __syncwarp();
                if (lane == 0)
                    barrier_expect(full, n_pieces * BYTES);
                __syncwarp();
                if (mine)
                    copy_bytes(to, from.data, BYTES, full, policy);
                ring_next(r);
            }
        }
    }
}

// The step's key or value, of which a lane of the first HEAD_DIM / 4 has a pair of each half: as
// the pool has it, in shared memory, and in the pool, too, if slot is not negative.
template <int HEAD_DIM, bool FP8>
static __device__ __forceinline__ void keep_row(const struct frame &f, int layer, bool is_v,
                                                int slot, uint32_t low, uint32_t high)
{
    static constexpr int LANES = HEAD_DIM / 4;
    using pair = std::conditional_t<FP8, uint16_t, uint32_t>;

    const struct kv_pool &kv = f.a.kv;
    const int lane = lane_of(f), in_block = slot & ((1 << kv.block_shift) - 1);
    uint8_t *const own = (uint8_t *)(is_v ? f.s.value : f.s.key);
    int exponent = 0;
    pair pairs[2];
    const auto put = [&](const struct kv_row &to) {
        for (int i = 0; i < 2; i++)
            ((pair *)to.data)[i * LANES + lane] = pairs[i];
        if (FP8 && lane == 0)
            *to.exponent = (uint8_t)exponent;
    };

    if constexpr (FP8) {
        const uint32_t largest = lane < LANES ? larger_halves(low & 0x7fff7fff, high) : 0;

        exponent = exponent_of(__reduce_max_sync(ALL_LANES, max(largest & 0xffff, largest >> 16)));
        pairs[0] = (uint16_t)pair_to_e4m3(low, exponent);
        pairs[1] = (uint16_t)pair_to_e4m3(high, exponent);
    } else {
        pairs[0] = low;
        pairs[1] = high;
    }
    if (lane >= LANES)
        return;
    put({(uint16_t *)own, own + HEAD_DIM});
    if (slot < 0)
        return;
    const struct kv_row k =
        row_of<HEAD_DIM, FP8>(kv.base + (int64_t)(slot >> kv.block_shift) * kv.block_stride +
                                  layer * kv.layer_stride,
                              kv, f.s.kv_head, in_block);
    put(is_v ? values_of(k, kv.v_offset) : k);
}

// One head of q, k or v of a row, received, normed and rotated into shared memory by one warp. A
// lane has two neighbours of the first half and two of the second; with heads of 64 half of the
// lanes have none.
template <int HEAD_DIM, bool FP8>
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
    low = bf16_pair(p.x, p.y);
    high = bf16_pair(q.x, q.y);
    if (is_q) {
        uint32_t *to = (uint32_t *)f.s.q + index * (HEAD_DIM / 2);

        if (there) {
            to[lane] = low;
            to[LANES + lane] = high;
        }
        return;
    }
    keep_row<HEAD_DIM, FP8>(f, layer, is_v, g.end * UNIT < f.s.kv_len[g.seq] ? -1 : slot, low,
                            high);
}

// Keys or values of a unit: how far apart they are in a stage.
template <int HEAD_DIM, bool FP8>
static constexpr uint32_t EXTENT = PIECES<HEAD_DIM, FP8> *ROW_BYTES;

// A row of keys or values in a stage.
struct row_in_stage {
    uint32_t at, exponent; // where they are
};

// Row i of a unit, whose keys or values begin at `rows`.
template <int HEAD_DIM, bool FP8>
static __device__ __forceinline__ struct row_in_stage row_in(uint32_t rows, uint32_t i)
{
    static constexpr uint32_t N = ROWS<HEAD_DIM, FP8>;

    return {rows + i / N * ROW_BYTES + i % N * ROW<HEAD_DIM, FP8>, rows + CHUNK * 2 + i};
}

// Which key of a unit is in a column of the i-th eight of a product. Rows of 256 bytes of a piece
// have the same banks. So neighbouring columns, whose keys are read at once, are of both pieces of
// a unit, as are the even columns and the odd ones, whose values are.
static __device__ __forceinline__ int key_in(int i, int column)
{
    return (column / 2 + column) % 2 * 8 + column / 2 * 2 + i;
}

// E4M3 is multiplied as tiny bf16, queries and the weights of values beside it are huge: see
// quant.cuh. The scales of its rows, powers of two, are left to scores and to the weights of
// values.
template <bool FP8> static constexpr float UNDO = FP8 ? OF_TINY<KIND_E4M3> : 1.0f;

static __device__ __forceinline__ float scale_of_row(uint32_t at, int more)
{
    const int e = (int)ld_shared_u8(at);

    return e == NAN_EXPONENT ? NAN : __uint_as_float((uint32_t)(e + more) << 23);
}

// N times eight elements of a row, as plain_k_vector() and v_vector() number them: by 16 bytes at a
// time, `stride` apart.
template <bool FP8, int N>
static __device__ __forceinline__ void load_eights(uint4 (&to)[N], uint32_t at, uint32_t stride)
{
    if constexpr (!FP8) {
#pragma unroll
        for (int j = 0; j < N; j++)
            to[j] = ld_shared(at + (uint32_t)j * stride);
    } else if constexpr (N == 1) {
        const uint2 half = ld_shared_u32x2(at);

        to[0] = tiny_unit<KIND_E4M3>(make_uint4(half.x, half.y, 0, 0), 0);
    } else {
#pragma unroll
        for (int j = 0; j < N; j += 2) {
            const uint4 v = ld_shared(at + (uint32_t)(j / 2) * stride);

            to[j] = tiny_unit<KIND_E4M3>(v, 0);
            to[j + 1] = tiny_unit<KIND_E4M3>(v, 1);
        }
    }
}

// Puts the step's own key and value in their place in a unit, by one warp.
template <int HEAD_DIM, bool FP8>
static __device__ __forceinline__ void put_newest(const struct frame &f, uint32_t keys, int i)
{
    static constexpr int N = HEAD_DIM / 8;
    using vector = kv_vector<FP8>;

    const int lane = lane_of(f), is_v = lane / N, j = lane % N;
    const uint8_t *const own = (const uint8_t *)(is_v ? f.s.value : f.s.key);
    const struct row_in_stage to =
        row_in<HEAD_DIM, FP8>(is_v ? keys + EXTENT<HEAD_DIM, FP8> : keys, i);

    if (is_v < 2) {
        ((vector *)__cvta_shared_to_generic(to.at))[j] = ((const vector *)own)[j];
        if (FP8 && j == 0)
            *(uint8_t *)__cvta_shared_to_generic(to.exponent) = own[HEAD_DIM];
    }
    __syncwarp();
}

// Adds a unit of keys and values, of which 0 .. last are the sequence's; the last stands in for the
// others, whose memory may hold NaN.
template <int HEAD_DIM, bool FP8>
static __device__ __forceinline__ void attend(struct softmax<HEAD_DIM> &s,
                                              const uint4 (&q)[HEAD_DIM / 32], uint32_t keys,
                                              int last, float scale)
{
    static constexpr int N = UNIT / 8; /* products: each of eight keys, of which a thread has two */
    static constexpr int OF_VALUE = FP8 ? HEAD_DIM / 8 : 16; /* bytes of a thread, side by side */

    const int lane = (int)threadIdx.x % WARP, group = lane / 4, quarter = lane % 4;
    float p[N * 2], even_sum[N][4] = {}, odd_sum[N][4] = {}; /* the last two are of no head */
    float k_scales[N * 2] = {}, v_scales[N * 2] = {};        /* of E4M3 */
    uint4 k[N][HEAD_DIM / 32], x[N * 2][HEAD_DIM / 64];

#pragma unroll
    for (int i = 0; i < N; i++) {
        const struct row_in_stage row = row_in<HEAD_DIM, FP8>(keys, min(key_in(i, group), last));

        load_eights<FP8>(k[i], row.at + (uint32_t)quarter * 16, 64);
    }
#pragma unroll
    for (int j = 0; j < HEAD_DIM / 32; j++)
#pragma unroll
        for (int i = 0; i < N; i++) {
            mma_16816(even_sum[i], q[j].x, 0, q[j].y, 0, k[i][j].x, k[i][j].y);
            mma_16816(odd_sum[i], q[j].z, 0, q[j].w, 0, k[i][j].z, k[i][j].w);
        }
#pragma unroll
    for (int i = 0; i < N * 2; i++) {
        const struct row_in_stage row =
            row_in<HEAD_DIM, FP8>(keys, min(key_in(i / 2, quarter * 2 + i % 2), last));

        load_eights<FP8>(x[i], row.at + EXTENT<HEAD_DIM, FP8> + (uint32_t)(group * OF_VALUE), 128);
        if (FP8) {
            k_scales[i] = scale_of_row(row.exponent, 0);
            v_scales[i] = scale_of_row(row.exponent + EXTENT<HEAD_DIM, FP8>, HUGE_LOG);
        }
    }
    float max = s.max;
#pragma unroll
    for (int i = 0; i < N * 2; i++) {
        const float sum = even_sum[i / 2][i % 2] + odd_sum[i / 2][i % 2];

        p[i] = key_in(i / 2, quarter * 2 + i % 2) <= last
                   ? sum * (FP8 ? k_scales[i] * scale : scale)
                   : -INFINITY;
        max = fmaxf(max, p[i]);
    }
    softmax_add<HEAD_DIM, FP8>(s, p, max, x, v_scales);
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

// A warp attends to every eighth unit. It passes by the other stages in a small loop of their own,
// since nothing hides the latency of a turn of the larger one.
template <int HEAD_DIM, bool FP8>
static __device__ __forceinline__ void attend_segment(struct frame &f, int layer,
                                                      const struct segment &g)
{
    static constexpr int EACH = UNITS_OF_STAGE<HEAD_DIM, FP8>;
    static_assert(EACH <= CONSUMERS, "a warp has one unit of a stage at most");
    static_assert(!FP8 || PIECES<HEAD_DIM, FP8> == 1, "exponents lie in the first piece");

    const int warp = warp_of(f), lane = lane_of(f), row = lane / 4, quarter = lane % 4;
    const int group = f.s.group, kv_len = f.s.kv_len[g.seq], begin = g.begin, end = g.end;
    const int n_stages = (end - begin + EACH - 1) / EACH;
    const float scale = UNDO<FP8> * 1.4426950408889634f * rsqrtf((float)HEAD_DIM);
    struct softmax<HEAD_DIM> s = {
        - 1e30f
    };
    uint4 q[HEAD_DIM / 32];
    int passed = 0; /* stages of the segment */

#pragma unroll 1
    for (int i = warp; i < group + 2; i += CONSUMERS)
        receive_head<HEAD_DIM, FP8>(f, layer, g, i);
    named_sync(ALL_CONSUMERS);
    mark(f);
    /* rows past the group repeat its last head; their results are not used */
#pragma unroll
    for (int j = 0; j < HEAD_DIM / 32; j++) {
        q[j] = f.s.q[min(row, group - 1) * (HEAD_DIM / 8) + plain_k_vector<FP8>(j, quarter)];
        if (FP8)
            q[j] = huge_of<KIND_E4M3>(q[j]);
    }
#pragma unroll 1
    for (int unit = begin + warp; unit < end; unit += CONSUMERS) {
        const int last = kv_len - 1 - unit * UNIT; /* key, from the unit's first */

#pragma unroll 1
        for (; passed < (unit - begin) / EACH; passed++)
            ring_pass(f.ring);
        ring_wait_full(f.ring);
        const uint32_t keys =
            ring_stage(f.ring) + (uint32_t)((unit - begin) % EACH) * 2 * EXTENT<HEAD_DIM, FP8>;
        if (last < UNIT)
            put_newest<HEAD_DIM, FP8>(f, keys, last);
        attend<HEAD_DIM, FP8>(s, q, keys, min(last, UNIT - 1), scale);
        ring_release(f.ring);
        passed++;
    }
#pragma unroll 1
    for (; passed < n_stages; passed++)
        ring_pass(f.ring);
    s.sum += __shfl_xor_sync(ALL_LANES, s.sum, 1);
    s.sum += __shfl_xor_sync(ALL_LANES, s.sum, 2);
    if (row < group && quarter == 0)
        *(float2 *)(f.scratch + (warp * group + row) * part_length(HEAD_DIM) + HEAD_DIM) =
            make_float2(s.max, s.sum);
#pragma unroll
    for (int i = 0; i < 2; i++) {
        float *const to = f.scratch + (warp * group + quarter * 2 + i) * part_length(HEAD_DIM);

        if (quarter * 2 + i < group)
#pragma unroll
            for (int j = 0; j < HEAD_DIM / 16; j += 2)
                *(float4 *)(to + v_vector<HEAD_DIM, FP8>(j / 4, row) * 8 + j % 4 * 2) =
                    make_float4(s.o[j][i] * UNDO<FP8>, s.o[j][2 + i] * UNDO<FP8>,
                                s.o[j + 1][i] * UNDO<FP8>, s.o[j + 1][2 + i] * UNDO<FP8>);
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

    wait_pair(from + HEAD_DIM, f.tag);
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
template <int HEAD_DIM, bool FP8>
static __device__ __forceinline__ void attention(struct frame &f, int layer)
{
    static constexpr int N = HEAD_DIM / 16; // pieces of a head

    const int warp = warp_of(f), n = f.s.n_groups, items = f.m * f.s.group * N;

#pragma unroll 1
    for (int i = 0; i < f.s.n_segments; i++)
        attend_segment<HEAD_DIM, FP8>(f, layer, f.s.segments[i]);
    if (f.s.n_segments == 0)
        mark(f); /* as many as other blocks, which have one segment in the benchmark */
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
