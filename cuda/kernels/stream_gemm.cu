/* stream_gemm.cu - products of up to STREAM_MAX_ROWS rows with a weight matrix that streams through
 * shared memory, for compute capability 9.0.
 *
 * Bound by memory: the weights, each read once. A block stays on its multiprocessor and takes tiles
 * of 64 rows of w one after another, over all of k or a part of it. One thread keeps a ring of
 * stages full by bulk tensor copies, 128 of k at a time, of more than 64 rows 64: 6 to 9 stages are
 * under way whatever the tile, across the ends of tiles, and the first are requested before the
 * kernel waits for the one ahead of it. Weights are the 64-wide operand of wgmma, x the other, as
 * wide as there are rows; its stages come with those of the weights, from L2. Behind its last
 * weights a block prefetches keys and values of the attention to come into L2: else memory is idle
 * while rows are normed and small products end.
 *
 * Even when its data is there a stage takes 100 to 200 ns, so instructions count: addresses in
 * shared memory are computed once, the copying thread is chosen by elect.sync, and the stage's
 * address comes from one lane by a shuffle, from which the compiler knows that all of these are
 * uniform. (0.6B with 32 streams on an H200, 2026-11-28: 1.27 ms a decode step; without, and with
 * half as much k in a stage, 1.32.)
 *
 * More than 128 rows are sliced; more than 96 are sliced finer where tiles are few. Each slice of a
 * tile is an item of its own. Neighbouring blocks have those of a tile at the same time, and one of
 * them should find its weights in L2. That pays where other blocks would have no tile.
 *
 * Of a gated product, 8 rows of gate and 8 of up lie in turn in a tile, so that both sums of a
 * result are in one thread.
 *
 * Weights and x of e4m3 come in the same boxes of 128 bytes, two in each of 3 to 9 stages, 256 of k
 * at a time. A box is what has one scale, so its sums are complete before they are scaled and added
 * to those of the tile. Scales of x lie behind its boxes in the stage. With more than 64 rows two
 * warpgroups multiply, each half of the rows with the same weights: one can fold while the other
 * multiplies. (8B, blocks of 128 x 128, on an H200, 2026-11-29: with 8, 16, 32, 64, 96 and 128
 * streams 3.0, 3.1, 3.3, 4.2, 5.5 and 6.6 ms a step; by skinny products up to 16 and cuBLASLt 3.9,
 * 4.5, 4.7, 5.4, 6.0 and 6.8. Eight layers with 128 streams: 1.84; tiles of 128 rows of w for two
 * warpgroups: 1.94.)
 *
 * A row's result does not depend on how many rows there are. */
#include "cuda/kernels/common.cuh"
#include "cuda/kernels/hopper.cuh"
#include "cuda/kernels/tensor_map.cuh"

static constexpr int ROWS = 64;            /* of w of a tile */
static constexpr int BOX = 64;             /* k of a copy: 128 bytes of a row */
static constexpr int BOX_STEPS = BOX / 16; /* of wgmma */
static constexpr int SCALED = 2 * BOX;     /* e4m3 of a box, and rows of w, that have a scale */
static constexpr int ATOM = 8 * BOX * 2;
static constexpr int W_BOX = ROWS * BOX * 2; /* bytes of a copy of w */
static constexpr int GROUP_THREADS = 4 * WARP;
/* For a block as large as these a multiprocessor sets its shared memory to 196 or 228 KiB; they do
 * with 196. When seven stages of 48 rows took more, a step of 0.6B with 33 to 48 streams took 4 to
 * 11 % longer (H200, 2026-11-29). It is not that the setting changes between kernels: with all of
 * them at 228 KiB no step of now is faster or slower. */
static constexpr int RING_BYTES = 192 << 10;
/* With more rows k has 4 parts at most, not 8, for all parts are written and read again. A step of
 * 0.6B on an H100, 2026-11-27, with 8 and 4 parts: 64 rows 2.42 and 2.43 ms, 96 rows 3.24 and 3.28,
 * 128 rows 4.14 and 4.07. And x may have finer slices. */
static constexpr int MANY = 96;

/* What a kernel multiplies, and its ring. */
template <int ROWS_OF_X, bool IS_E4M3> struct form {
    static constexpr int X_ROWS = ROWS_OF_X; /* of a stage */
    static constexpr bool E4M3 = IS_E4M3;
    static constexpr int WARPGROUPS = E4M3 && X_ROWS > 64 ? 2 : 1; /* that multiply */
    static constexpr int N = X_ROWS / WARPGROUPS;                  /* rows of x of each */
    static constexpr int MULTIPLIERS = WARPGROUPS * GROUP_THREADS; /* the copying warp is next */
    static constexpr int THREADS = MULTIPLIERS + WARP;
    /* Arrivals that empty a stage: one a warp, or of E4M3, whose threads load scales, one a thread,
     * as ring_release() of the resident kernel. */
    static constexpr int RELEASES = E4M3 ? MULTIPLIERS : MULTIPLIERS / WARP;
    static constexpr int BOXES = E4M3 || X_ROWS <= 64 ? 2 : 1; /* of a stage */
    static constexpr int STEP = BOXES * BOX;                   /* k of it */
    static constexpr int X_BOX = X_ROWS * BOX * 2;             /* bytes of a copy of x */
    static constexpr int W_BYTES = BOXES * W_BOX;
    static constexpr int SCALES = W_BYTES + BOXES * X_BOX; /* of x: where they begin */
    static constexpr int STAGE_BYTES = SCALES + (E4M3 ? 1024 : 0);
    static constexpr int STAGES = RING_BYTES / STAGE_BYTES;
};

struct stream_args {
    CUtensorMap w, x;
    struct skinny s;
    struct kv_prefetch prefetch;
    int n_parts, part_k; /* parts of k, and k of each */
    int n_steps;         /* of a part */
    int n_slices;        /* of the rows of x, of X_ROWS each */
    int n_items;         /* tiles times parts times slices */
};

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
/* The ring: a stage is full when its copies have arrived, empty when it has been multiplied. */
template <class F> struct barriers {
    uint64_t full[F::STAGES], empty[F::STAGES];
};

/* Where it is in shared memory. */
struct ring {
    uint32_t memory, full, empty;
};

static __device__ __forceinline__ uint32_t full_of(const struct ring &r, int stage)
{
    return r.full + (uint32_t)stage * 8;
}

static __device__ __forceinline__ uint32_t empty_of(const struct ring &r, int stage)
{
    return r.empty + (uint32_t)stage * 8;
}

/* Where a block is: an item, which is a part of k of a tile and a slice of x, and a step of it. */
struct place {
    int item, tile, part, slice, step;
};

static __device__ __forceinline__ struct place place_of(const struct stream_args &a, int item)
{
    const int i = item / a.n_slices;

    return {item, i / a.n_parts, i % a.n_parts, item % a.n_slices, 0};
}

static __device__ __forceinline__ void next_item(struct place &p, const struct stream_args &a)
{
    p = place_of(a, p.item + (int)gridDim.x);
}

/* Divides once an item, not in each step: all of a block's copies wait for the one thread. */
static __device__ __forceinline__ void next_step(struct place &p, const struct stream_args &a)
{
    if (++p.step == a.n_steps)
        next_item(p, a);
}

/* Where the k of box i of a stage begins. Past the part's end that is s.k, where all of the box is
 * out of bounds, so that zeros are copied. */
template <class F>
static __device__ __forceinline__ int k_of(const struct stream_args &a, const struct place &p,
                                           int i)
{
    const int k = p.step * F::STEP + i * BOX;

    return k < a.part_k ? p.part * a.part_k + k : a.s.k;
}

/* A block does not read weights again, all read x. */
template <class F, bool GATED>
static __device__ __forceinline__ void copy_w(uint32_t to, const struct stream_args &a,
                                              const struct place &p, uint32_t full, uint64_t policy)
{
#pragma unroll
    for (int i = 0; i < F::BOXES; i++, to += W_BOX)
        if (GATED)
            copy_box_4d(to, &a.w, k_of<F>(a, p, i), 0, 0, p.tile * (ROWS / 16), full, policy);
        else
            copy_box_2d(to, &a.w, k_of<F>(a, p, i), p.tile * ROWS, full, policy);
}

template <class F>
static __device__ __forceinline__ void copy_x(uint32_t stage, const struct stream_args &a,
                                              const struct place &p, uint32_t full)
{
#pragma unroll
    for (int i = 0; i < F::BOXES; i++) {
        const int k = k_of<F>(a, p, i);

        copy_box_2d(stage + F::W_BYTES + (uint32_t)(i * F::X_BOX), &a.x, k, p.slice * F::X_ROWS,
                    full);
        if (F::E4M3)
            copy_bytes(stage + F::SCALES + (uint32_t)(i * F::X_ROWS) * 4,
                       a.s.x_scales + k / BOX * a.s.m, (uint32_t)a.s.m * 4, full);
    }
}

/* The thread block's piece. Those of each product lie evenly over the keys of all sequences, so
 * that every thread block of attention gains alike. Two products may meet in a piece. */
static __device__ __forceinline__ void prefetch_kv(const struct kv_prefetch &p)
{
    const int n_seqs = p.layer ? __ldcg(&p.counts->n_decodes) : 0;

    if (n_seqs == 0)
        return;
    const int last = (__ldcg(p.kv_len + n_seqs - 1) - 1) >> p.block_shift;
    const int n_entries = __ldcg(p.table_start + n_seqs - 1) + last + 1; /* of block tables */
    const int64_t all = (int64_t)n_entries * p.n_pieces;
    const int64_t n = min(all, (int64_t)gridDim.x * p.n_turns);
    const int64_t i = (int64_t)blockIdx.x * p.n_turns + p.turn, piece = i * all / n;

    if (i >= n)
        return;
    const int64_t id = __ldcg(p.tables + piece / p.n_pieces);
    if (id < p.n_blocks) /* not in host memory */
        asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(
                         p.layer + id * p.block_stride + piece % p.n_pieces * p.piece_bytes),
                     "r"(p.piece_bytes)
                     : "memory");
}

/* One thread: all copies of the block. */
template <class F, bool GATED>
static __device__ __forceinline__ void copy_all(const struct stream_args &a, const struct ring &r)
{
    static constexpr uint32_t STAGE = F::STAGE_BYTES;
    const uint32_t bytes = F::SCALES + (F::E4M3 ? (uint32_t)(F::BOXES * a.s.m) * 4 : 0);
    const uint64_t policy = stream_policy();
    struct place p = place_of(a, (int)blockIdx.x), q = p;
    int n = 0;

    for (; n < F::STAGES && p.item < a.n_items; n++, next_step(p, a)) {
        barrier_expect(full_of(r, n), bytes);
        copy_w<F, GATED>(r.memory + (uint32_t)n * STAGE, a, p, full_of(r, n), policy);
    }
    chain_wait();
    for (int i = 0; i < n; i++, next_step(q, a))
        copy_x<F>(r.memory + (uint32_t)i * STAGE, a, q, full_of(r, i));
    for (int stage = 0, parity = 0; p.item < a.n_items; next_step(p, a)) {
        const uint32_t to = r.memory + (uint32_t)stage * STAGE;

        barrier_wait(empty_of(r, stage), (uint32_t)parity);
        if (F::E4M3) /* scales were loaded by the generic proxy */
            fence_async();
        barrier_expect(full_of(r, stage), bytes);
        copy_w<F, GATED>(to, a, p, full_of(r, stage), policy);
        copy_x<F>(to, a, p, full_of(r, stage));
        if (++stage == F::STAGES)
            stage = 0, parity ^= 1;
    }
    prefetch_kv(a.prefetch);
}

/* The row of a slice at which those of the thread's warpgroup begin; the compiler knows that it is
 * the same in all lanes. */
template <class F> static __device__ __forceinline__ int first_row()
{
    const int warpgroup = (int)threadIdx.x / GROUP_THREADS;

    return F::WARPGROUPS == 1 ? 0 : __shfl_sync(ALL_LANES, warpgroup, 0) * F::N;
}

/* Of a tile's sums a thread has rows r and r + 8 of w, of each two neighbouring rows of x in
 * eight. */
template <class F, int OUT>
static __device__ __forceinline__ void store_f32(const struct skinny &s, const float (&d)[F::N / 2],
                                                 const struct place &p)
{
    const int warp = (int)threadIdx.x % GROUP_THREADS / WARP, lane = (int)threadIdx.x % WARP;
    const int x_row = p.slice * F::X_ROWS + first_row<F>() + lane % 4 * 2, m_left = s.m - x_row;
    const int row = p.tile * ROWS + warp * 16 + lane / 4;
    float *y = (float *)s.y + ((int64_t)p.part * s.m + x_row) * s.y_stride + row;

#pragma unroll
    for (int i = 0; i < F::N / 2; i += 4, y += 8 * s.y_stride) {
#pragma unroll
        for (int j = 0; j < 4; j++) {
            float *at = y + j % 2 * s.y_stride + j / 2 * 8;

            if (i * 2 + j % 2 < m_left && row + j / 2 * 8 < s.n)
                *at = OUT == SKINNY_ADD_F32 ? __ldcg(at) + d[i + j] : d[i + j];
        }
    }
}

/* Transposes what is bf16 first: a thread then stores two neighbours of a row of y at once. */
template <class F, int OUT>
static __device__ __forceinline__ void store_bf16(const struct skinny &s,
                                                  const float (&d)[F::N / 2], const struct place &p)
{
    static constexpr int RUNS = OUT == SKINNY_SILU_MUL ? 1 : 2; /* of 8 of a row of y, of a warp */
    const int warp = (int)threadIdx.x % GROUP_THREADS / WARP, lane = (int)threadIdx.x % WARP;
    const int row = (p.tile * (ROWS / 16) + warp) * 8 * RUNS;
    const int x_row = p.slice * F::X_ROWS + first_row<F>() + lane / 4, m_left = s.m - x_row;
    uint16_t *y = (uint16_t *)s.y + x_row * s.y_stride + row + lane % 4 * 2;
    float bias[2] = {};

#pragma unroll
    for (int j = 0; j < RUNS; j++)
        if (OUT == SKINNY_BF16 && s.bias && row + j * 8 + lane / 4 < s.n)
            bias[j] = bf16_to_float(s.bias[row + j * 8 + lane / 4]);
#pragma unroll
    for (int i = 0; i < F::N / 2; i += 4, y += 8 * s.y_stride) {
#pragma unroll
        for (int j = 0; j < RUNS; j++) {
            const float *at = &d[i + j * 2];
            const uint32_t pair = OUT == SKINNY_SILU_MUL
                                      ? bf16_pair(silu(at[0]) * at[2], silu(at[1]) * at[3])
                                      : bf16_pair(at[0] + bias[j], at[1] + bias[j]);
            const uint32_t neighbours = transposed(pair);

            if (i * 2 < m_left && row + j * 8 + lane % 4 * 2 < s.n)
                *(uint32_t *)(y + j * 8) = neighbours;
        }
    }
}

template <class F, int OUT>
static __device__ __forceinline__ void store(const struct skinny &s, const float (&d)[F::N / 2],
                                             const struct place &p)
{
    if (OUT == SKINNY_BF16 || OUT == SKINNY_SILU_MUL)
        store_bf16<F, OUT>(s, d, p);
    else
        store_f32<F, OUT>(s, d, p);
}

/* While a stage is multiplied the one before may be under way still. */
template <class F, int OUT>
static __device__ __forceinline__ void multiply_all(const struct stream_args &a,
                                                    const struct ring &r)
{
    static_assert(F::WARPGROUPS == 1);
    int stage = 0, before = 0;
    uint32_t parity = 0;

    chain_wait(); /* what the results replace has been read */
    for (struct place p = place_of(a, (int)blockIdx.x); p.item < a.n_items; next_item(p, a)) {
        float d[F::N / 2];

        for (int j = 0; j < a.n_steps; j++) {
            /* from one lane, so that descriptors of matrices are in uniform registers */
            const uint32_t at =
                __shfl_sync(ALL_LANES, r.memory + (uint32_t)(stage * F::STAGE_BYTES), 0);
            const uint64_t w = matrix_at(at, 0, ATOM), x = matrix_at(at + F::W_BYTES, 0, ATOM);

            barrier_wait(full_of(r, stage), parity);
            wgmma_fence();
#pragma unroll
            for (int k = 0; k < F::BOXES * BOX_STEPS; k++)
                wgmma_ss(d, matrix_step(w, k / BOX_STEPS * W_BOX + k % BOX_STEPS * 32),
                         matrix_step(x, k / BOX_STEPS * F::X_BOX + k % BOX_STEPS * 32), j + k > 0);
            wgmma_commit();
            wgmma_wait<1>();
            if (j > 0 && threadIdx.x % WARP == 0)
                barrier_arrive(empty_of(r, before));
            before = stage;
            if (++stage == F::STAGES)
                stage = 0, parity ^= 1;
        }
        wgmma_wait<0>();
        pin(d);
        if (threadIdx.x % WARP == 0)
            barrier_arrive(empty_of(r, before));
        store<F, OUT>(a.s, d, p);
    }
}

/* Adds the sums over a group of k times its scales: that of the tile's rows of w, and of each row
 * of x its own. */
template <int N>
static __device__ __forceinline__ void fold(float (&sums)[N / 2], const float (&d)[N / 2],
                                            uint32_t x_scales, float w_scale)
{
    x_scales += threadIdx.x % 4 * 8;
#pragma unroll
    for (int i = 0; i < N / 2; i += 4, x_scales += 32) {
        const float2 x = ld_shared_f32x2(x_scales);

#pragma unroll
        for (int j = 0; j < 4; j++)
            sums[i + j] = __fmaf_rn(d[i + j], (j % 2 ? x.y : x.x) * w_scale, sums[i + j]);
    }
}

/* The same of e4m3, of which a box is a group of k. The first of a stage is folded while the second
 * is multiplied. */
template <class F, int OUT>
static __device__ __forceinline__ void multiply_e4m3(const struct stream_args &a,
                                                     const struct ring &r)
{
    static_assert(F::BOXES == 2);
    const int lane = (int)threadIdx.x % WARP, n_groups = a.part_k / BOX; /* of a part */
    const uint32_t x_row = (uint32_t)first_row<F>();
    const uint32_t x_at = F::W_BYTES + x_row * BOX * 2, x_scales = F::SCALES + x_row * 4;
    int stage = 0;
    uint32_t parity = 0;

    chain_wait();
    for (struct place p = place_of(a, (int)blockIdx.x); p.item < a.n_items; next_item(p, a)) {
        const float *w_scales = (const float *)a.s.quant.scales +
                                (p.tile * ROWS / SCALED * a.n_parts + p.part) * n_groups;
        float sums[F::N / 2] = {}, of_lane = 0.0f;

        for (int group = 0; group < n_groups; group += 2) {
            const uint32_t at =
                __shfl_sync(ALL_LANES, r.memory + (uint32_t)(stage * F::STAGE_BYTES), 0);
            const uint64_t w = matrix_at(at, 0, ATOM), x = matrix_at(at + x_at, 0, ATOM);
            float d[2][F::N / 2];

            if (group % WARP == 0) /* a scale for each lane, of the next so many groups */
                of_lane = __ldg(w_scales + min(group + lane, n_groups - 1));
            barrier_wait(full_of(r, stage), parity);
            wgmma_fence();
#pragma unroll
            for (int i = 0; i < 2; i++) {
#pragma unroll
                for (int k = 0; k < BOX_STEPS; k++)
                    wgmma_ss<true>(d[i], matrix_step(w, i * W_BOX + k * 32),
                                   matrix_step(x, i * F::X_BOX + k * 32), k > 0);
                wgmma_commit();
            }
            wgmma_wait<1>();
            pin(d[0]);
            fold<F::N>(sums, d[0], at + x_scales, __shfl_sync(ALL_LANES, of_lane, group % WARP));
            wgmma_wait<0>();
            pin(d[1]);
            fold<F::N>(sums, d[1], at + x_scales + F::X_ROWS * 4,
                       __shfl_sync(ALL_LANES, of_lane, group % WARP + 1));
            barrier_arrive(empty_of(r, stage));
            if (++stage == F::STAGES)
                stage = 0, parity ^= 1;
        }
        store<F, OUT>(a.s, sums, p);
    }
}
#endif

template <class F, int OUT>
static __global__ void __launch_bounds__(F::THREADS, 1)
    stream_kernel(const __grid_constant__ struct stream_args a)
{
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    extern __shared__ unsigned char memory[];
    __shared__ struct barriers<F> b;
    const struct ring ring = {kept((shared_address(memory) + 1023) & ~1023u),
                              kept(shared_address(b.full)), kept(shared_address(b.empty))};

    if (threadIdx.x == 0) {
        for (int i = 0; i < F::STAGES; i++) {
            barrier_init(full_of(ring, i), 1);
            barrier_init(empty_of(ring, i), F::RELEASES);
        }
        fence_async();
    } else if (threadIdx.x == F::MULTIPLIERS) {
        prefetch_map(&a.w);
        prefetch_map(&a.x);
    }
    __syncthreads();
    if (threadIdx.x >= F::MULTIPLIERS) {
        if (elected())
            copy_all<F, OUT == SKINNY_SILU_MUL>(a, ring);
    } else if constexpr (F::E4M3) {
        multiply_e4m3<F, OUT>(a, ring);
    } else {
        multiply_all<F, OUT>(a, ring);
    }
#endif
}

template <class F> static auto kernel_of(enum skinny_out out)
{
    static constexpr enum skinny_out LAST =
        F::E4M3 ? SKINNY_ADD_F32 : SKINNY_SILU_MUL; /* has one */

    return out == SKINNY_BF16      ? known<stream_kernel<F, SKINNY_BF16>>()
           : out == SKINNY_F32     ? known<stream_kernel<F, SKINNY_F32>>()
           : out == SKINNY_ADD_F32 ? known<stream_kernel<F, SKINNY_ADD_F32>>()
                                   : known<stream_kernel<F, LAST>>();
}

/* To align the ring, too. */
template <class F> static constexpr int SHARED_BYTES = 1023 + F::STAGES *F::STAGE_BYTES;
static_assert(1023 + RING_BYTES + 2048 <= 196 << 10, "with barriers and what CUDA keeps");

template <class F> static cudaError_t allow()
{
    cudaError_t r = cudaSuccess;

    for (int out = SKINNY_BF16; out <= SKINNY_SILU_MUL && r == cudaSuccess; out++)
        r = cudaFuncSetAttribute((const void *)kernel_of<F>((enum skinny_out)out).f,
                                 cudaFuncAttributeMaxDynamicSharedMemorySize, SHARED_BYTES<F>);
    return r;
}

template <bool E4M3> static cudaError_t allow_all()
{
    cudaError_t r;

    (r = allow<form<16, E4M3>>()) || (r = allow<form<32, E4M3>>()) ||
        (r = allow<form<48, E4M3>>()) || (r = allow<form<64, E4M3>>()) ||
        (r = allow<form<96, E4M3>>()) || (r = allow<form<128, E4M3>>());
    return r;
}

extern "C" cudaError_t stream_gemm_init(bool *usable)
{
    cudaError_t r = find_compiled(kernel_of<form<16, false>>(SKINNY_F32).f, usable);

    if (*usable && (r = allow_all<false>()) == cudaSuccess)
        r = allow_all<true>();
    return r;
}

/* Of so many rows, as few as can be. */
static int fewest_slices(int m)
{
    return (m + STREAM_SLICE_ROWS - 1) / STREAM_SLICE_ROWS;
}

/* Twice as many where other blocks would have no item; n_tiles counts each part of k. (On H200s,
 * 2026-11-30: with 97 to 128 streams a step of 0.6B takes 0.6 to 1.5 % less and one of Qwen2.5-0.5B
 * 3 to 4 %. With 65 to 96 one of 0.6B would take 0 to 1 % more, with 33 to 64, in 4 parts, 3 to
 * 6 %.) */
static int slices_of(int m, int n_tiles, int n_sms)
{
    const int n = fewest_slices(m);

    return m > MANY && 2 * n * n_tiles <= n_sms ? 2 * n : n;
}

extern "C" int stream_parts(int m, int n, int k, bool e4m3)
{
    const int tiles = (n + ROWS - 1) / ROWS * fewest_slices(m), least = e4m3 ? 2 * SCALED : BOX;

    for (int parts = m > MANY ? 4 : 8; parts > 1; parts /= 2)
        if (tiles * parts <= STREAM_PART_TILES && k % (parts * least) == 0)
            return parts;
    return 1;
}

static int tiles_of(const struct skinny *s)
{
    const int each = s->out == SKINNY_SILU_MUL ? ROWS / 2 : ROWS;

    return (s->n + each - 1) / each;
}

/* Maps know bf16 alone: two e4m3 are one for them. */
template <class F>
static cudaError_t run(const struct launch *l, const struct skinny *s, int n_parts,
                       const struct kv_prefetch *prefetch)
{
    const int pairs = s->k / (F::E4M3 ? 2 : 1);
    const cuuint64_t k = (cuuint64_t)pairs, n = (cuuint64_t)s->n, row = k * 2;
    const cuuint64_t x_sizes[2] = {k, (cuuint64_t)s->m}, w_sizes[2] = {k, n};
    const cuuint64_t gated_sizes[4] = {k, 8, 2, n / 8}, gated_strides[3] = {row, n * row, 8 * row};
    const cuuint32_t x_box[2] = {BOX, F::X_ROWS}, w_box[2] = {BOX, ROWS};
    const cuuint32_t gated_box[4] = {BOX, 8, 2, ROWS / 16};
    struct stream_args a;
    cudaError_t r = encode_map(&a.x, s->x, 2, x_sizes, &row, x_box);

    if (r == cudaSuccess)
        r = s->out == SKINNY_SILU_MUL
                ? encode_map(&a.w, s->w, 4, gated_sizes, gated_strides, gated_box)
                : encode_map(&a.w, s->w, 2, w_sizes, &row, w_box);
    if (r != cudaSuccess)
        return r;
    a.s = *s;
    a.s.k = pairs;
    a.prefetch = prefetch ? *prefetch : (struct kv_prefetch){};
    a.n_parts = n_parts;
    a.part_k = pairs / n_parts;
    a.n_steps = (a.part_k + F::STEP - 1) / F::STEP;
    a.n_slices = (s->m + F::X_ROWS - 1) / F::X_ROWS;
    a.n_items = tiles_of(s) * n_parts * a.n_slices;
    return launch_kernel(kernel_of<F>(s->out),
                         dim3((unsigned)(a.n_items < l->n_sms ? a.n_items : l->n_sms)), F::THREADS,
                         SHARED_BYTES<F>, l, a);
}

template <bool E4M3>
static cudaError_t pick(const struct launch *l, const struct skinny *s, int n_parts,
                        const struct kv_prefetch *prefetch)
{
    const int n_slices = E4M3 ? 1 : slices_of(s->m, tiles_of(s) * n_parts, l->n_sms);
    const int rows = (s->m + n_slices - 1) / n_slices;

    return rows <= 16   ? run<form<16, E4M3>>(l, s, n_parts, prefetch)
           : rows <= 32 ? run<form<32, E4M3>>(l, s, n_parts, prefetch)
           : rows <= 48 ? run<form<48, E4M3>>(l, s, n_parts, prefetch)
           : rows <= 64 ? run<form<64, E4M3>>(l, s, n_parts, prefetch)
           : rows <= 96 ? run<form<96, E4M3>>(l, s, n_parts, prefetch)
                        : run<form<128, E4M3>>(l, s, n_parts, prefetch);
}

static bool takes_e4m3(const struct skinny *s, int n_parts)
{
    return s->x_scales && s->quant.scale_rows == SCALED && s->quant.scale_cols == SCALED &&
           s->k % (n_parts * 2 * SCALED) == 0 && s->m % 4 == 0 && s->m <= STREAM_SLICE_ROWS &&
           s->out != SKINNY_SILU_MUL;
}

extern "C" cudaError_t stream_gemm(const struct launch *l, const struct skinny *s, int n_parts,
                                   const struct kv_prefetch *prefetch)
{
    const bool wide = s->out == SKINNY_F32 || s->out == SKINNY_ADD_F32;
    const bool e4m3 = s->quant.element == ELEMENT_E4M3;

    if (s->m < 1 || s->m > STREAM_MAX_ROWS || s->quant.element == ELEMENT_INT4 || s->x_f32 ||
        s->rms || s->sum != SKINNY_WHOLE || s->k % 8 || (e4m3 && !takes_e4m3(s, n_parts)) ||
        (n_parts > 1 && (s->out != SKINNY_F32 || s->k % (n_parts * BOX))) ||
        (s->out == SKINNY_SILU_MUL && s->n % 8) || (!wide && (s->n % 2 || s->y_stride % 2)))
        return cudaErrorInvalidValue;
    return e4m3 ? pick<true>(l, s, n_parts, prefetch) : pick<false>(l, s, n_parts, prefetch);
}
