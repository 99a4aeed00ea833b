// resident_operands.cuh - what a product of the resident kernel multiplies: the producer's stages
// of weights and their scales, x as it arrives, and both on their way to the matrix unit.
//
// Weights come through the ring; the eight warps divide a row's k in steps, 64 bytes of each row of
// w. As in skinny.cuh the order of k within a step is permuted in both operands so that a thread
// loads 16 bytes of either. w is mma's 8-wide operand and x the 16-wide one, except for up to 8
// rows with quantized weights, or with those of bf16 whose row is one stage: there two tiles of w
// are the 16-wide operand, which takes half as many mma and no zeros beside x.
//
// Quantized weights become tiny bf16 in registers, and x huge beside them (quant.cuh). The sum of a
// step, all of whose weights are of one group, is multiplied by the scale. Scales come with the
// weights: those of FP8 behind the stage's first row, those of 4 bits behind all stages, then their
// zeros. A step goes with several K_STEPs of x, which lie in shared memory, their pieces of 16
// bytes swizzled: the lanes of a step read several K_STEPs at once.
#ifndef NVLLM_CUDA_KERNELS_RESIDENT_RESIDENT_OPERANDS_CUH
#define NVLLM_CUDA_KERNELS_RESIDENT_RESIDENT_OPERANDS_CUH

#include "cuda/kernels/quant.cuh"
#include "cuda/kernels/resident/resident_frame.cuh"

static constexpr int REGISTER_STAGES = 3; // stages of bf16 that go with x in registers, at most

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

// Words of 16 bits of a row of w, in which stages and steps count; k: of that many weights.
template <int KIND> static __device__ __forceinline__ int words_of(int k)
{
    return k / UNITS_OF<KIND>;
}

// Where the weights from k `at` on lie for a column of y, of GATE_UP for its gate or for its up.
// EXPERTS: the kernel computes mixtures, too.
template <bool EXPERTS>
static __device__ __forceinline__ const uint16_t *
weights_at(const struct frame &f, const struct job &j, int column, bool up, int at)
{
    if (!EXPERTS || f.a.n_experts == 0 || (j.kind != GATE_UP && j.kind != DOWN))
        return j.w + ((int64_t)(up ? j.n : 0) + column) * j.k + at;
    const int each = columns_of_expert(f.a);
    if (j.kind == DOWN)
        return j.w + ((int64_t)f.s.picks[at / each].expert * j.n + column) * each + at % each;
    return j.w + ((f.s.picks[column / each].expert * 2LL + up) * each + column % each) * j.k + at;
}

// The producer's side: each tile's rows of w. Each lane copies one, which the compiler makes a loop
// over lanes. That it is slow helps: when one thread issues them, as below, the copies of a stage
// come at once, and probably more are in flight than memory serves well (8B at one stream on an
// H200, 2026-11-28: 3.99 ms a step, not 3.76).
template <bool EXPERTS>
static __device__ __forceinline__ void stream_weights(struct frame &f, const struct job &j,
                                                      uint64_t policy)
{
    struct ring &r = f.ring;
    const int lane = lane_of(f), both = j.kind == GATE_UP;

#pragma unroll 1
    for (int i = 0; i < j.mine << both; i++) {
        const int column = tile_of_block(i >> both) * COLS, rows = min(COLS, j.n - column);

#pragma unroll 1
        for (int at = 0; at < j.k; at += j.chunk) {
            const uint32_t bytes = (uint32_t)min(j.chunk, j.k - at) * 2;
            const uint16_t *from =
                weights_at<EXPERTS>(f, j, column + lane % COLS, both && i % 2, at);

            ring_wait_empty(r);
            if (lane == 0)
                barrier_expect(ring_full(r), bytes * (uint32_t)rows);
            __syncwarp();
            if (lane < rows)
                copy_bytes(ring_stage(r) + (uint32_t)(lane * ROW_BYTES), from, bytes, ring_full(r),
                           policy);
            ring_next(r);
        }
    }
}

// Where a stage's scales lie, and its zeros, one byte each. Those of weights of 4 bits, of row i,
// begin at number i * group_stride().
template <int KIND> static __device__ __forceinline__ uint32_t ring_scales(const struct ring &r)
{
    return KIND == KIND_INT4 ? r.memory + (uint32_t)(r.n * STAGE_BYTES + r.at * SCALES_OF_STAGE)
                             : ring_stage(r) + CHUNK * 2;
}

static __device__ __forceinline__ uint32_t ring_zeros(const struct ring &r)
{
    return r.memory + (uint32_t)(r.n * (STAGE_BYTES + SCALES_OF_STAGE) + r.at * ZEROS_OF_STAGE);
}

// One thread: `bytes` of each row of a tile. The rows lie `stride` bytes apart in memory and
// `to_stride` in the stage.
static __device__ __forceinline__ void copy_rows(uint32_t to, uint32_t to_stride, const char *from,
                                                 int64_t stride, uint32_t bytes, uint32_t full,
                                                 uint64_t policy)
{
#pragma unroll
    for (int i = 0; i < COLS; i++)
        copy_bytes(to + i * to_stride, from + i * stride, bytes, full, policy);
}

// The producer's side of quantized weights: tiles two by two, stage by stage of each in turn. For
// 32 bytes of weights there is one byte of scales (FP8 in blocks: 4 for 128; INT4: 2 for 64), for
// 64 one of zeros. FP8 with a scale for each row has 4 bytes a row.
//
// The fewer copies the better: FP8 has nine a stage. So has INT4 where a row is one stage, as the
// scales of all eight rows then lie side by side; zeros are one copy more. Longer rows have 16, or
// 24. One thread issues them (8B at one stream on an H200, 2026-11-28: FP8 2.39 ms a step; a lane
// each: 2.68).
template <int KIND>
static __device__ __forceinline__ void stream_quantized(struct frame &f, const struct job &j,
                                                        uint64_t policy)
{
    struct ring &r = f.ring;
    const struct resident_quant &q = f.a.quant;
    const struct resident_scales s = scales_of(f, j);
    const int both = j.kind == GATE_UP, n = j.mine << both, row_bytes = words_of<KIND>(j.k) * 2;

#pragma unroll 1
    for (int first = 0; first < n; first += 2)
#pragma unroll 1
        for (int at = 0; at < row_bytes; at += CHUNK * 2)
#pragma unroll 1
            for (int i = first; i < min(first + 2, n); i++) {
                const int row = tile_of_block(i >> both) * COLS + (both && i % 2 ? j.n : 0);
                const uint32_t bytes = (uint32_t)min(CHUNK * 2, row_bytes - at);
                const uint32_t full = kept(ring_full(r));
                const char *w = (const char *)j.w + row * (int64_t)row_bytes + at;
                auto of_groups = [&](uint32_t to, const void *all, int per) {
                    const int64_t stride = row_bytes / per;
                    const char *from = (const char *)all + row * stride + at / per;

                    if (row_bytes <= CHUNK * 2)
                        copy_bytes(to, from, COLS * bytes / per, full, policy);
                    else
                        copy_rows(kept(to), CHUNK * 2 / per, from, stride, bytes / per, full,
                                  policy);
                };

                ring_wait_empty(r);
                if (elected()) {
                    if (KIND == KIND_E4M3) { /* one piece of scales is for all rows */
                        const int64_t at_scale =
                            q.of_rows ? row * 4 : row / 128 * (int64_t)(row_bytes / 32) + at / 32;
                        const uint32_t own = q.of_rows ? COLS * 4 : bytes / 32;

                        barrier_expect(full, COLS * bytes + own);
                        copy_bytes(ring_scales<KIND>(r), (const char *)s.scales + at_scale, own,
                                   full, policy);
                    } else {
                        barrier_expect(full,
                                       COLS * (bytes + bytes / 32 + (q.zeros ? bytes / 64 : 0)));
                        of_groups(ring_scales<KIND>(r), s.scales, 32);
                        if (q.zeros)
                            of_groups(ring_zeros(r), s.zeros, 64);
                    }
                    copy_rows(kept(ring_stage(r)), ROW_BYTES, w, row_bytes, bytes, full, policy);
                }
                ring_next(r);
            }
}

static constexpr int K_STEPS = CHUNK / K_STEP / CONSUMERS; // of a warp in a whole stage

// A thread's part of a stage's x, and of its rows of w, of bf16.
template <int HALVES> struct x_part {
    uint4 v[HALVES][K_STEPS];
};
struct w_part {
    uint4 v[K_STEPS];
};

// Steps of a row of so many words that are this warp's.
static __device__ __forceinline__ int k_steps_of_warp(const struct frame &f, int words)
{
    return (words / K_STEP - warp_of(f) + CONSUMERS - 1) / CONSUMERS;
}

// The row of the step that is row `row` of x.
static __device__ __forceinline__ int source_of(const struct frame &f, const struct job &j, int row)
{
    return j.kind == LM_HEAD && row < f.m ? f.s.source[row] : row;
}

// With several rows a warp polls one packet before it loads all, see wait_pair(). load_first()
// issues the first load, so that other work can overlap it. n: this warp's steps.
static __device__ __forceinline__ uint4 load_first(const struct frame &f, const uint4 *from, int n)
{
    return f.m > 1 && n > 0 ? load_packet(from) : make_uint4(0, 0, 0, 0);
}

static __device__ __forceinline__ void wait_first(uint4 seen, const uint4 *from)
{
    uint32_t polls = 0;

    while (is_sentinel(seen)) {
        count_poll(polls);
        seen = load_packet(from);
    }
    __syncwarp();
}

// This warp's k steps of the rows of x, to registers. Missing rows and steps past the end are zero.
// meanwhile() runs while loads are in flight: nothing else hides its latency.
template <int HALVES, int STAGES, typename Meanwhile>
static __device__ __forceinline__ void receive_registers(struct x_part<HALVES> (&x)[STAGES],
                                                         const struct frame &f, const struct job &j,
                                                         const Meanwhile &meanwhile)
{
    static constexpr int STEP = CONSUMERS * RESIDENT_MAX_ROWS * 4; // from a k step to the next

    const int warp = warp_of(f), lane = lane_of(f);
    const int n = k_steps_of_warp(f, j.k);
    const uint4 *const first_packet = j.x + packet_at(source_of(f, j, 0), warp * K_STEP);
    const uint4 seen = load_first(f, first_packet, n);
    const uint4 *from[HALVES];

#pragma unroll
    for (int h = 0; h < HALVES; h++) {
        const int row = lane / 4 + h * 8;

        from[h] = j.x + packet_at(source_of(f, j, row), warp * K_STEP) + lane % 4;
#pragma unroll
        for (int c = 0; c < STAGES; c++)
#pragma unroll
            for (int i = 0; i < K_STEPS; i++)
                x[c].v[h][i] =
                    row < f.m && c * K_STEPS + i < n ? sentinel() : make_uint4(0, 0, 0, 0);
    }
    wait_first(seen, first_packet);
    receive_packets(
        [&](auto visit) {
#pragma unroll
            for (int c = 0; c < STAGES; c++)
                if (c * CHUNK < j.k)
#pragma unroll
                    for (int i = 0; i < K_STEPS; i++)
#pragma unroll
                        for (int h = 0; h < HALVES; h++)
                            visit(x[c].v[h][i], from[h] + (c * K_STEPS + i) * STEP);
        },
        meanwhile);
    __syncwarp();
}

// Where piece `piece` of 16 bytes of a K_STEP of a row lies in shared memory.
template <int KIND>
static __device__ __forceinline__ int x_at(const struct frame &f, int step, int row, int piece)
{
    const int swizzled = KIND == KIND_BF16 ? piece : piece ^ step % 4;

    return ((step << f.rows_log) + row) * 64 + swizzled * 16;
}

// The same to shared memory, where x is too long for registers: [K_STEP, row, 64 bytes]. With one
// row no load is in flight yet when meanwhile() runs.
template <int KIND, typename Meanwhile>
static __device__ __forceinline__ void receive_shared(const struct frame &f, const struct job &j,
                                                      const Meanwhile &meanwhile)
{
    static constexpr int BATCH = 8, UNITS = UNITS_OF<KIND>;

    const int warp = warp_of(f), lane = lane_of(f), last_row = (1 << f.rows_log) - 1;
    const int n = k_steps_of_warp(f, words_of<KIND>(j.k)) * UNITS * 4 << f.rows_log;
    const uint4 *const first_packet = j.x + packet_at(source_of(f, j, 0), warp * UNITS * K_STEP);
    const uint4 seen = load_first(f, first_packet, n);
    /* the K_STEP of this warp's piece u */
    auto step_of = [&](int u) {
        const int i = u >> (f.rows_log + 2);

        return (warp + i / UNITS * CONSUMERS) * UNITS + i % UNITS;
    };

    meanwhile();
    wait_first(seen, first_packet);
#pragma unroll 1
    for (int first = lane; first < n; first += WARP * BATCH) {
        int at[BATCH];
        uint4 got[BATCH];

#pragma unroll
        for (int i = 0; i < BATCH; i++) {
            const int u = first + i * WARP, row = u >> 2 & last_row;

            got[i] = u < n && row < f.m ? sentinel() : make_uint4(0, 0, 0, 0);
            at[i] = (step_of(u) * RESIDENT_MAX_ROWS + source_of(f, j, row)) * 4 + u % 4;
        }
        receive_packets(
            [&](auto visit) {
#pragma unroll
                for (int i = 0; i < BATCH; i++)
                    visit(got[i], j.x + at[i]);
            },
            [] {});
#pragma unroll
        for (int i = 0; i < BATCH; i++) {
            const int u = first + i * WARP, row = u >> 2 & last_row;

            if constexpr (KIND != KIND_BF16)
                got[i] = huge_of<KIND>(got[i]);
            if (u < n && row < f.m)
                *(uint4 *)(f.x + x_at<KIND>(f, step_of(u), row, u % 4)) = got[i];
        }
    }
    __syncwarp();
}

// Up to k; past it x is zero and w is any part of the row: no stale NaN.
template <int HALVES>
static __device__ __forceinline__ void load_x(struct x_part<HALVES> &x, const struct frame &f,
                                              int at, int k)
{
    const int warp = warp_of(f), lane = lane_of(f);
    const int first = at / K_STEP + warp, mine = (k - at) / K_STEP - warp;

#pragma unroll
    for (int h = 0; h < HALVES; h++) {
        const int row = min(lane / 4 + h * 8, f.m - 1);
        const uint32_t from =
            shared_address(f.x) + (uint32_t)x_at<KIND_BF16>(f, first, row, lane % 4);

#pragma unroll
        for (int i = 0; i < K_STEPS; i++) {
            x.v[h][i] = make_uint4(0, 0, 0, 0);
            if (i * CONSUMERS < mine)
                x.v[h][i] = ld_shared(from + (uint32_t)(i * CONSUMERS * 64 << f.rows_log));
        }
    }
}

// 16 bytes of a thread's row, of a step of a stage.
static __device__ __forceinline__ uint4 load_step(const struct frame &f, const struct ring &r,
                                                  int step)
{
    const int lane = lane_of(f);

    return ld_shared(ring_stage(r) + (uint32_t)(lane / 4 * ROW_BYTES + step * 64 + lane % 4 * 16));
}

static __device__ __forceinline__ void load_w(struct w_part &w, const struct frame &f,
                                              const struct ring &r, int words)
{
    const int warp = warp_of(f), lane = lane_of(f), mine = words / K_STEP - warp;
    const uint32_t from = ring_stage(r) + (uint32_t)(lane / 4 * ROW_BYTES + lane % 4 * 16);

    ring_wait_full(r);
#pragma unroll
    for (int i = 0; i < K_STEPS; i++)
        w.v[i] =
            ld_shared(from + (uint32_t)(i * CONSUMERS < mine ? (warp + i * CONSUMERS) * 64 : 0));
}

// The next two stages, or one, of so many words each: loads of the second overlap sums of the
// first.
static __device__ __forceinline__ void load_two(struct w_part &a, struct w_part &b,
                                                const struct frame &f, int words, int words_next,
                                                bool two)
{
    load_w(a, f, f.ring, words);
    if (two) {
        struct ring next = f.ring;

        ring_next(next);
        load_w(b, f, next, words_next);
    }
}

template <int HALVES>
static __device__ __forceinline__ void
multiply(float (&d)[K_STEPS][4], const struct x_part<HALVES> &x, const struct w_part &w)
{
#pragma unroll
    for (int i = 0; i < K_STEPS; i++) {
        const uint4 a = x.v[0][i], c = x.v[HALVES - 1][i], b = w.v[i];

        if (HALVES == 1) {
            mma_16816(d[i], a.x, 0, a.y, 0, b.x, b.y);
            mma_16816(d[i], a.z, 0, a.w, 0, b.z, b.w);
        } else {
            mma_16816(d[i], a.x, c.x, a.y, c.y, b.x, b.y);
            mma_16816(d[i], a.z, c.z, a.w, c.w, b.z, b.w);
        }
    }
}

// What two tiles give as the wide operand, placed as put_pair() says.
static __device__ __forceinline__ void multiply_pair(float (&sum)[2][2], const struct x_part<1> &x,
                                                     const struct w_part &a, const struct w_part &b)
{
    float d[K_STEPS][4] = {};

#pragma unroll
    for (int i = 0; i < K_STEPS; i++)
        mma_16816(d[i], a.v[i].x, b.v[i].x, a.v[i].y, b.v[i].y, x.v[0][i].x, x.v[0][i].y);
#pragma unroll
    for (int i = 0; i < K_STEPS; i++)
        mma_16816(d[i], a.v[i].z, b.v[i].z, a.v[i].w, b.v[i].w, x.v[0][i].z, x.v[0][i].w);
#pragma unroll
    for (int t = 0; t < 2; t++)
#pragma unroll
        for (int j = 0; j < 2; j++)
            sum[t][j] = (d[0][t * 2 + j] + d[1][t * 2 + j]) + (d[2][t * 2 + j] + d[3][t * 2 + j]);
}

// Groups of weights of 4 bits from one row of a stage to the next; words: of a row of w. A shorter
// last stage keeps the stride.
static __device__ __forceinline__ int group_stride(int words)
{
    return min(words, CHUNK) / K_STEP;
}

// The zero of a thread's row in step i of this warp in a stage. ZEROS: there are some.
template <bool ZEROS>
static __device__ __forceinline__ float load_zero(const struct frame &f, const struct ring &r,
                                                  int i, int words)
{
    const int step = warp_of(f) + i * CONSUMERS, row = lane_of(f) / 4;
    const uint32_t at = ring_zeros(r) + (uint32_t)(row * group_stride(words) + step);

    static_assert(K_STEP * UNITS_OF<KIND_INT4> == GROUP_COLS);
    return ZEROS ? (float)ld_shared_u8(at) : 8.0f;
}

// Its scale. That of a step past the row's end is 0: its weights and zeros are stale bytes, which
// become finite numbers whatever they are, and its x is zero or, of an earlier product, of the same
// row. So only a row that has a NaN or an infinity already gets one.
template <int KIND>
static __device__ __forceinline__ float load_scale(const struct frame &f, const struct ring &r,
                                                   int i, int at, int words)
{
    const struct resident_quant &q = f.a.quant;
    const int step = warp_of(f) + i * CONSUMERS, row = lane_of(f) / 4;
    const uint32_t first = ring_scales<KIND>(r);
    const bool there = step < (words - at) / K_STEP;

    static_assert(K_STEP * UNITS_OF<KIND_E4M3> * 2 == GROUP_COLS);
    uint32_t raw = 0;
    if constexpr (KIND == KIND_E4M3) {
        if (there)
            raw = ld_shared_u32(first + (uint32_t)(q.of_rows ? row : step / 2) * 4);
    } else { /* kept(): the compiler would make each load a branch */
        raw = kept(ld_shared_u16(first + (uint32_t)(row * group_stride(words) + step) * 2));
        raw = there ? raw : 0;
    }
    return quant_scale<KIND>(q.f16, raw);
}

// Whole stages that a row of so many words needs.
static __device__ __forceinline__ int stages_of(int words)
{
    return (words + CHUNK - 1) / CHUNK;
}

// The sums of x over step i of this warp, of a stage that begins at word `at`, of each row. Those
// of all its steps lie side by side.
static __device__ __forceinline__ float *sums_of_step(const struct frame &f, int i, int at,
                                                      int words)
{
    const int step = (warp_of(f) * stages_of(words) + at / CHUNK) * K_STEPS + i;

    return (float *)(f.x + f.s.layout.x_sums) + (step << f.rows_log);
}

// These sums of whole stages, as products of ones with x: eight pairs of a step and a row at a
// time. A warp reads only sums that it wrote. Where they lie depends on the row's length; the
// barriers between products keep one product's writes from another's reads.
static __device__ __forceinline__ void sum_steps(const struct frame &f, int words)
{
    static constexpr int UNITS = UNITS_OF<KIND_INT4>;

    const int lane = lane_of(f), n = stages_of(words) * K_STEPS << f.rows_log;
    const uint4 one = tiny_unit<KIND_INT4>(make_uint4(0x11111111, 0, 0, 0), 0); /* weights of 1 */
    float *const to = sums_of_step(f, 0, 0, words);

#pragma unroll 2
    for (int first = 0; first < n; first += 8) {
        const int i = min(first + lane / 4, n - 1), row = i & ((1 << f.rows_log) - 1);
        const int step = ((i >> f.rows_log) * CONSUMERS + warp_of(f)) * UNITS + lane % 4;
        float d[2 * UNITS][4] = {}; /* one product does not wait for another */

#pragma unroll
        for (int u = 0; u < UNITS; u++) {
            const int at = x_at<KIND_INT4>(f, step, min(row, f.m - 1), u);
            const uint4 x = ld_shared(shared_address(f.x) + (uint32_t)at);

            mma_16816(d[u], one.x, 0, one.y, 0, x.x, x.y);
            mma_16816(d[UNITS + u], one.z, 0, one.w, 0, x.z, x.w);
        }
#pragma unroll
        for (int half = UNITS; half > 0; half /= 2)
#pragma unroll
            for (int u = 0; u < half; u++) {
                d[u][0] += d[half + u][0];
                d[u][1] += d[half + u][1];
            }
        if (lane < 4 && first + lane * 2 < n)
            *(float2 *)(to + first + lane * 2) = make_float2(d[0][0], d[0][1]);
    }
    __syncwarp();
}

// Adds what the next stages of two tiles give, or of one, twice, to the sums of each, placed as
// put_pair() says. The stages begin at word `at` of rows of so many.
//
// Zeros of 4-bit weights are subtracted once a step: zero times the sum of the step's x.
template <int KIND, bool ZEROS>
static __device__ __forceinline__ void multiply_quantized(float (&sum)[2][2], struct frame &f,
                                                          int at, int words, bool two)
{
    static constexpr int UNITS = UNITS_OF<KIND>;

    const int lane = lane_of(f), quarter = lane % 4, row = min(lane / 4, f.m - 1);
    const int step = (at / K_STEP + warp_of(f)) * UNITS + quarter * UNITS / 4;
    float d[K_STEPS][4] = {};
    uint4 a[K_STEPS], b[K_STEPS];
    struct ring next = f.ring;

    ring_wait_full(f.ring);
    if (two) {
        ring_next(next);
        ring_wait_full(next);
    }
#pragma unroll
    for (int i = 0; i < K_STEPS; i++) {
        a[i] = load_step(f, f.ring, warp_of(f) + i * CONSUMERS);
        b[i] = load_step(f, next, warp_of(f) + i * CONSUMERS);
    }
#pragma unroll
    for (int u = 0; u < UNITS; u++) {
        const uint32_t from =
            shared_address(f.x) + (uint32_t)x_at<KIND>(f, step, row, quarter * UNITS % 4 + u);
        uint4 x[K_STEPS], v[K_STEPS], w[K_STEPS];

        /* neighbouring products are of different steps: each waits for the one before of its own */
#pragma unroll
        for (int i = 0; i < K_STEPS; i++) {
            x[i] = ld_shared(from + (uint32_t)(i * CONSUMERS * UNITS * 64 << f.rows_log));
            v[i] = tiny_unit<KIND>(a[i], u);
            w[i] = tiny_unit<KIND>(b[i], u);
            mma_16816(d[i], v[i].x, w[i].x, v[i].y, w[i].y, x[i].x, x[i].y);
        }
#pragma unroll
        for (int i = 0; i < K_STEPS; i++)
            mma_16816(d[i], v[i].z, w[i].z, v[i].w, w[i].w, x[i].z, x[i].w);
    }
#pragma unroll
    for (int i = 0; i < K_STEPS; i++) {
        const float of_a = load_scale<KIND>(f, f.ring, i, at, words);
        const float of_b = load_scale<KIND>(f, next, i, at, words);

        if constexpr (KIND == KIND_INT4) {
            const float *sums = sums_of_step(f, i, at, words);
            const float zero_a = load_zero<ZEROS>(f, f.ring, i, words);
            const float zero_b = load_zero<ZEROS>(f, next, i, words);

#pragma unroll
            for (int j = 0; j < 2; j++) {
                const float x = sums[min(quarter * 2 + j, f.m - 1)];

                d[i][j] = __fmaf_rn(-zero_a, x, d[i][j]);
                d[i][2 + j] = __fmaf_rn(-zero_b, x, d[i][2 + j]);
            }
        }
#pragma unroll
        for (int j = 0; j < 2; j++) {
            sum[0][j] = __fmaf_rn(d[i][j], of_a, sum[0][j]);
            sum[1][j] = __fmaf_rn(d[i][2 + j], of_b, sum[1][j]);
        }
    }
    ring_release(f.ring);
    if (two)
        ring_release(f.ring);
}

#endif
#endif
