/* int4_gemm.cu - products of many rows with weights of 4 bits, by wgmma: y^T = w x^T.
 *
 * Up to 64 rows bound by what comes from L2, 7 TB/s on an H100; of more it reaches 330 to 440
 * TFLOP/s there. A tile is 128 rows of w and COLUMNS rows of x. Two warpgroups have 64 rows of w
 * each, which become bf16 in registers (quant.cuh) and are there the operand that wgmma takes from
 * them; x is the one in shared memory. The sum over a group is multiplied by its scale and added to
 * the others in float.
 *
 * Blocks stay: each has as many steps of k as any other, of one tile after the other, so all tiles
 * take the whole machine. Sums over a part of a tile's k go to memory, and who comes last adds
 * them, in order of k. */
#include "cuda/kernels/hopper.cuh"
#include "cuda/kernels/quant.cuh"

static constexpr int THREADS = 2 * 4 * WARP;
static constexpr int TILE = 128; /* rows of w */
static constexpr int STEP = 128; /* k of a stage */
static constexpr int UNITS = 4;  /* of a step: 32 k, 16 bytes of a row of w */
static constexpr int W_BYTES = TILE * STEP / 2;
static constexpr int LEAST_STEPS = 8; /* of a block: of fewer, sums cost more than weights */
static constexpr int MAX_COLUMNS = 128;

/* Each row of w has a word of memory that holds its scale, and one that holds its zero, of each
 * group of a step. */
template <int KIND> static constexpr int GROUPS = KIND == KIND_INT4_FINE ? UNITS : 1;

template <int COLUMNS, int KIND> struct stage {
    static constexpr int X_BYTES = COLUMNS * STEP * 2; /* two halves of 64 k */
    static constexpr int SCALES = X_BYTES + W_BYTES, ZEROS = SCALES + TILE * 4 * GROUPS<KIND>;
    static constexpr int BYTES = ZEROS + TILE * 4 * GROUPS<KIND>;
};

/* So that two blocks fit on a multiprocessor; of 128 columns one, for their registers. */
template <int COLUMNS> static constexpr int BLOCKS_PER_SM = COLUMNS == MAX_COLUMNS ? 1 : 2;
template <int COLUMNS> static constexpr int N_STAGES = COLUMNS == 64 ? 4 : 5;

struct int4_args {
    struct skinny s;
    struct int4_work work;
    int n_steps;         /* of a tile */
    int n_tiles;         /* all, those of the same rows of w one after the other: */
    int x_tiles;         /* so many */
    int group_shift;     /* log2 of scale_cols; 31: a row is one group */
    int n_groups;        /* of a row */
    uint32_t all_groups; /* of w */
};

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
/* Step `step` of a tile. */
struct place {
    int w_tile, x_tile, step;
};

/* To the next step; whether it is another tile's. */
static __device__ __forceinline__ bool advance(struct place &p, const struct int4_args &a)
{
    if (++p.step < a.n_steps)
        return false;
    p.step = 0;
    if (++p.x_tile == a.x_tiles) {
        p.x_tile = 0;
        p.w_tile++;
    }
    return true;
}

/* The column of y of row `row` of a tile in shared memory, and the row of w that lies there. A
 * thread has the sums of rows i and i + 8: these are neighbours, or gate and up. */
static __device__ __forceinline__ int column_of(const struct skinny &s, int w_tile, int row)
{
    const int pair = row / 16 * 8 + row % 8;

    return s.out == SKINNY_SILU_MUL ? w_tile * (TILE / 2) + pair
                                    : w_tile * TILE + pair * 2 + row / 8 % 2;
}

static __device__ __forceinline__ int w_row(const struct skinny &s, int w_tile, int row)
{
    return min(column_of(s, w_tile, row), s.n - 1) +
           (s.out == SKINNY_SILU_MUL ? row / 8 % 2 * s.n : 0);
}

static __device__ __forceinline__ int group_of(const struct int4_args &a, int k)
{
    return min(k >> a.group_shift, a.n_groups - 1);
}

/* What a thread loads of a tile: of its first row of w and of x one piece, and of others in the
 * same place; and scales or zeros of one row. */
struct sources {
    const char *w, *x;     /* at k 0 */
    int w_columns, x_rows; /* from these rows on */
    uint32_t groups;       /* where those of a row begin */
};

static constexpr int W_PIECES = STEP / 32, W_ROWS = THREADS / W_PIECES; /* rows at a time */
static constexpr int X_PIECES = STEP / 8, X_ROWS = THREADS / X_PIECES;

template <int COLUMNS>
static __device__ __forceinline__ struct sources sources_of(const struct int4_args &a,
                                                            const struct place &p)
{
    const struct skinny &s = a.s;
    const int me = (int)threadIdx.x, w_first = w_row(s, p.w_tile, me / W_PIECES);
    const int x_first = min(p.x_tile * COLUMNS + me / X_PIECES, s.m - 1);

    return {.w = (const char *)s.w + (int64_t)w_first * (s.k / 2) + me % W_PIECES * 16,
            .x = (const char *)s.x + ((int64_t)x_first * s.k + me % X_PIECES * 8) * 2,
            .w_columns = s.n - column_of(s, p.w_tile, me / W_PIECES),
            .x_rows = s.m - x_first,
            .groups = (uint32_t)w_row(s, p.w_tile, me % TILE) * (uint32_t)a.n_groups};
}

/* The aligned word of memory that holds element i of an array of n. */
template <int BYTES>
static __device__ __forceinline__ void copy_word(uint32_t to, const void *array, uint32_t i,
                                                 uint32_t n)
{
    static constexpr uint32_t EACH = 4 / BYTES;

    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(to),
                 "l"((const uint32_t *)array + i / EACH),
                 "r"(min(4u, (n - i / EACH * EACH) * BYTES))
                 : "memory");
}

template <int KIND>
static __device__ __forceinline__ void load_w(uint32_t to, const struct int4_args &a,
                                              const struct sources &from, int step)
{
    const int me = (int)threadIdx.x, row = me / W_PIECES, piece = me % W_PIECES;
    const int columns = a.s.out == SKINNY_SILU_MUL ? W_ROWS / 2 : W_ROWS;
    const bool valid = step * STEP + piece * 32 < a.s.k;
    const char *w = from.w + step * (STEP / 2);

    to += (uint32_t)(row * (STEP / 2) + (piece ^ (row / 2 & 3)) * 16);
#pragma unroll
    for (int i = 0; i < TILE / W_ROWS; i++)
        copy_async(to + (uint32_t)(i * W_ROWS * STEP / 2), w + (int64_t)(i * columns) * (a.s.k / 2),
                   valid && i * columns < from.w_columns);
    to = to - (uint32_t)(row * (STEP / 2) + (piece ^ (row / 2 & 3)) * 16) + W_BYTES +
         (uint32_t)(me % TILE) * 4;
#pragma unroll
    for (int i = 0; i < GROUPS<KIND>; i++) {
        const uint32_t group =
            from.groups + (uint32_t)group_of(a, step * STEP + i * (STEP / UNITS));

        if (me < TILE)
            copy_word<2>(to + (uint32_t)(i * TILE) * 4, a.s.quant.scales, group, a.all_groups);
        else if (a.s.quant.zeros)
            copy_word<1>(to + (uint32_t)((GROUPS<KIND> + i) * TILE) * 4, a.s.quant.zeros, group,
                         a.all_groups);
    }
}

template <int COLUMNS>
static __device__ __forceinline__ void load_x(uint32_t to, const struct int4_args &a,
                                              const struct sources &from, int step)
{
    const int row = (int)threadIdx.x / X_PIECES, piece = (int)threadIdx.x % X_PIECES;
    const bool valid = step * STEP + piece * 8 < a.s.k;
    const char *x = from.x + step * (STEP * 2);

    to += (uint32_t)(piece / 8 * COLUMNS * 128 + swizzle<64>(row, piece % 8));
#pragma unroll
    for (int i = 0; i < COLUMNS / X_ROWS; i++)
        copy_async(to + (uint32_t)(i * X_ROWS * 128), x + (int64_t)(i * X_ROWS) * (a.s.k * 2),
                   valid && i * X_ROWS < from.x_rows);
}

/* The thread's rows `row` and row + 8 of a unit, for two wgmma of 16 k: of each eight weights of a
 * row it has a pair. */
static __device__ __forceinline__ void convert(uint32_t (&a)[8], uint32_t w, int row, int unit,
                                               const uint32_t (&zero)[2])
{
    const int pair = (int)threadIdx.x % 4;

#pragma unroll
    for (int i = 0; i < 2; i++) {
        const uint4 v =
            ld_shared(w + (uint32_t)((row + i * 8) * (STEP / 2) + (unit ^ (row / 2 & 3)) * 16));

        a[i] = int4_pair(v.x, pair, zero[i]);
        a[2 + i] = int4_pair(v.y, pair, zero[i]);
        a[4 + i] = int4_pair(v.z, pair, zero[i]);
        a[6 + i] = int4_pair(v.w, pair, zero[i]);
    }
}

/* Adds the sum over a group. */
template <int N>
static __device__ __forceinline__ void fold(float (&sums)[N], float (&d)[N],
                                            const float (&scale)[2])
{
    pin(d);
#pragma unroll
    for (int i = 0; i < N; i++)
        sums[i] = __fmaf_rn(d[i], scale[i / 2 % 2], sums[i]);
}

/* Of all steps, which all blocks share: where those of a block begin, and who has a step. */
static __device__ __forceinline__ uint32_t begin_of(uint32_t block, uint32_t n_steps)
{
    return block * n_steps / gridDim.x;
}

static __device__ __forceinline__ int block_of(uint32_t step, uint32_t n_steps)
{
    return (int)(((step + 1) * gridDim.x - 1) / n_steps);
}

/* Of a tile whose steps several blocks have: leaves the sums in memory, and makes them those of all
 * where this block comes last. A block has at most two such tiles, one that others begin and one
 * that others end. */
template <int N>
static __device__ __forceinline__ bool join(float (&sums)[N], const struct int4_args &a, int tile)
{
    __shared__ int is_last;
    const uint32_t all = (uint32_t)(a.n_tiles * a.n_steps), begin = (uint32_t)(tile * a.n_steps);
    const int first = block_of(begin, all), last = block_of(begin + (uint32_t)a.n_steps - 1, all);
    auto part_of = [&](int block) {
        return (float4 *)a.work.parts + (block * 2 + (block == first)) * (N / 4 * THREADS) +
               threadIdx.x;
    };

    if (first == last)
        return true;
    float4 *own = part_of((int)blockIdx.x);
#pragma unroll
    for (int i = 0; i < N / 4; i++)
        __stcg(own + i * THREADS,
               make_float4(sums[i * 4], sums[i * 4 + 1], sums[i * 4 + 2], sums[i * 4 + 3]));
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) {
        is_last = atomicAdd(a.work.counters + first, 1) == last - first;
        if (is_last)
            a.work.counters[first] = 0;
        __threadfence();
    }
    __syncthreads();
    if (!is_last)
        return false;
#pragma unroll
    for (int i = 0; i < N; i++)
        sums[i] = 0.0f;
#pragma unroll 1
    for (int block = first; block <= last; block++) {
        const float4 *part = part_of(block);

#pragma unroll
        for (int i = 0; i < N / 4; i++) {
            const float4 v = __ldcg(part + i * THREADS);

            sums[i * 4] += v.x;
            sums[i * 4 + 1] += v.y;
            sums[i * 4 + 2] += v.z;
            sums[i * 4 + 3] += v.w;
        }
    }
    return true;
}

/* A thread has two columns of a row of y side by side, or gate and up of one. */
template <int N>
static __device__ __forceinline__ void store(const float (&sums)[N], const struct skinny &s,
                                             const struct place &p, int row)
{
    const int n = column_of(s, p.w_tile, row), m = p.x_tile * N * 2 + (int)threadIdx.x % 4 * 2;
    float left = 0.0f, right = 0.0f;
    auto each = [&](auto put) {
#pragma unroll
        for (int i = 0; i < N / 2; i++) {
            const int at = m + i / 2 * 8 + i % 2;

            if (at < s.m)
                put(at * s.y_stride + n, sums[i / 2 * 4 + i % 2], sums[i / 2 * 4 + 2 + i % 2]);
        }
    };

    if (n >= s.n)
        return;
    if (s.out == SKINNY_BF16 && s.bias) {
        left = bf16_to_float(s.bias[n]);
        right = bf16_to_float(s.bias[n + 1]);
    }
    if (s.out == SKINNY_SILU_MUL)
        each([&](int64_t to, float gate, float up) {
            ((uint16_t *)s.y)[to] = bf16_bits(silu(gate) * up);
        });
    else if (s.out == SKINNY_BF16)
        each([&](int64_t to, float a, float b) {
            *(uint32_t *)((uint16_t *)s.y + to) = bf16_pair(a + left, b + right);
        });
    else
        each([&](int64_t to, float a, float b) {
            float2 *const y = (float2 *)((float *)s.y + to);
            const float2 before = s.out == SKINNY_ADD_F32 ? __ldcg(y) : make_float2(0.0f, 0.0f);

            *y = make_float2(before.x + a, before.y + b);
        });
}
#endif

template <int COLUMNS, int KIND>
static __global__ void __launch_bounds__(THREADS, BLOCKS_PER_SM<COLUMNS>)
    int4_gemm_kernel(const __grid_constant__ struct int4_args a)
{
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    using stage = stage<COLUMNS, KIND>;
    static constexpr int STAGES = N_STAGES<COLUMNS>, AHEAD = STAGES - 2;
    static constexpr int N = COLUMNS / 2; /* sums of a thread */
    static constexpr bool FINE = KIND == KIND_INT4_FINE;
    extern __shared__ __align__(1024) char stages[];
    const uint32_t base = (uint32_t)__cvta_generic_to_shared(stages);
    const uint32_t all = (uint32_t)(a.n_tiles * a.n_steps), begin = begin_of(blockIdx.x, all);
    const int n_steps = (int)(begin_of(blockIdx.x + 1, all) - begin);
    const int lane = (int)threadIdx.x % WARP, row = (int)threadIdx.x / WARP * 16 + lane / 4;
    const int tile = (int)begin / a.n_steps;
    struct place here = {tile / a.x_tiles, tile % a.x_tiles, (int)begin % a.n_steps}, next = here;
    struct sources from = sources_of<COLUMNS>(a, next);
    auto go_on = [&]() {
        if (advance(next, a))
            from = sources_of<COLUMNS>(a, next);
    };

    /* The first weights do not wait for the kernel before. */
    for (int i = 0; i < AHEAD && i < n_steps; i++, go_on())
        load_w<KIND>(base + (uint32_t)(i * stage::BYTES) + stage::X_BYTES, a, from, next.step);
    chain_wait();
    next = here;
    from = sources_of<COLUMNS>(a, next);
    for (int i = 0; i < AHEAD; i++) {
        if (i < n_steps) {
            load_x<COLUMNS>(base + (uint32_t)(i * stage::BYTES), a, from, next.step);
            go_on();
        }
        asm volatile("cp.async.commit_group;" ::: "memory");
    }
    for (int i = 0; i < n_steps;) {
        const int end = min(n_steps, i + a.n_steps - here.step);
        float sums[N] = {}, d[N] = {}, scale[2] = {};
        uint32_t w[2][8], zero[2], groups[2];

        for (int j = 0; j < 2; j++)
            groups[j] = (uint32_t)w_row(a.s, here.w_tile, row + j * 8) * (uint32_t)a.n_groups;
        for (; i < end; i++, here.step++) {
            const uint32_t at = base + (uint32_t)(i % STAGES * stage::BYTES);
            const uint32_t to = base + (uint32_t)((i + AHEAD) % STAGES * stage::BYTES);
            const uint64_t x = matrix_at(at, 0, 8 * 128);

            asm volatile("cp.async.wait_group %0;" ::"n"(AHEAD - 1) : "memory");
            fence_async();
            __syncthreads(); /* this stage is there, and the one two before it is free */
            if (i + AHEAD < n_steps) {
                load_w<KIND>(to + stage::X_BYTES, a, from, next.step);
                load_x<COLUMNS>(to, a, from, next.step);
                go_on();
            }
            asm volatile("cp.async.commit_group;" ::: "memory");
#pragma unroll
            for (int unit = 0; unit < UNITS; unit++) {
                const bool first = FINE || unit == 0; /* of a group */
                float scale_of[2] = {scale[0], scale[1]};

                if (first) {
                    const int group = group_of(a, here.step * STEP + unit * (STEP / UNITS));

#pragma unroll
                    for (int j = 0; j < 2; j++) {
                        const uint32_t index = groups[j] + (uint32_t)group;
                        const uint32_t word =
                            at + (uint32_t)((FINE ? unit * TILE : 0) + row + j * 8) * 4;

                        scale_of[j] = quant_scale<KIND>(a.s.quant.scales_f16,
                                                        ld_shared_u32(word + stage::SCALES) >>
                                                                (index % 2 * 16) &
                                                            0xffff);
                        zero[j] = int4_zero(
                            a.s.quant.zeros
                                ? ld_shared_u32(word + stage::ZEROS) >> (index % 4 * 8) & 0xff
                                : 8);
                    }
                }
                wgmma_wait<1>(); /* the unit two before this one */
                convert(w[unit % 2], at + stage::X_BYTES, row, unit, zero);
                if (first) {
                    wgmma_wait<0>();
                    fold(sums, d, scale);
                }
                wgmma_fence();
#pragma unroll
                for (int j = 0; j < 2; j++)
                    wgmma_rs<0>(d, w[unit % 2] + j * 4,
                                matrix_step(x, (uint32_t)(unit / 2 * COLUMNS * 128 + unit % 2 * 64 +
                                                          j * 32)),
                                !first || j > 0);
                wgmma_commit();
                scale[0] = scale_of[0];
                scale[1] = scale_of[1];
            }
        }
        wgmma_wait<0>();
        fold(sums, d, scale);
        if (join(sums, a, here.w_tile * a.x_tiles + here.x_tile))
            store(sums, a.s, here, row);
        here.step = a.n_steps - 1;
        (void)advance(here, a);
    }
#endif
}

template <int COLUMNS, int KIND> static cudaError_t run(const struct launch *l, struct int4_args *a)
{
    const int w_tile = a->s.out == SKINNY_SILU_MUL ? TILE / 2 : TILE;
    const int64_t blocks = (int64_t)l->n_sms * BLOCKS_PER_SM<COLUMNS>;

    a->x_tiles = (a->s.m + COLUMNS - 1) / COLUMNS;
    a->n_tiles = (a->s.n + w_tile - 1) / w_tile * a->x_tiles;
    const int64_t steps = (int64_t)a->n_tiles * a->n_steps;
    const int64_t most = (steps + LEAST_STEPS - 1) / LEAST_STEPS;
    if (steps > UINT32_MAX / (blocks + 1))
        return cudaErrorInvalidValue;
    return launch_kernel(known<int4_gemm_kernel<COLUMNS, KIND>>(),
                         dim3((unsigned)(most < blocks ? most : blocks)), THREADS,
                         stage<COLUMNS, KIND>::BYTES * N_STAGES<COLUMNS>, l, *a);
}

template <int KIND> static cudaError_t pick(const struct launch *l, struct int4_args *a)
{
    return a->s.m <= 32   ? run<32, KIND>(l, a)
           : a->s.m <= 64 ? run<64, KIND>(l, a)
                          : run<MAX_COLUMNS, KIND>(l, a);
}

extern "C" cudaError_t int4_gemm(const struct launch *l, const struct skinny *s,
                                 const struct int4_work *work)
{
    const bool gated = s->out == SKINNY_SILU_MUL;
    struct int4_args a = {};

    if (s->m < 1 || s->quant.element != ELEMENT_INT4 || !quant_supports(&s->quant, s->k) ||
        s->quant.scale_rows != 1 || s->x_f32 || s->rms || s->sum != SKINNY_WHOLE || s->k % 32 ||
        s->n % 2 || s->y_stride % 2)
        return cudaErrorInvalidValue;
    a.s = *s;
    a.work = *work;
    a.n_steps = (s->k + STEP - 1) / STEP;
    a.group_shift = quant_group_shift(&s->quant, s->k);
    a.n_groups = (s->k + s->quant.scale_cols - 1) / s->quant.scale_cols;
    a.all_groups = (uint32_t)(gated ? 2 * s->n : s->n) * (uint32_t)a.n_groups;
    return quant_is_fine(&s->quant, s->k) ? pick<KIND_INT4_FINE>(l, &a) : pick<KIND_INT4>(l, &a);
}

extern "C" void int4_work_size(const struct launch *l, size_t *part_bytes, size_t *n_counters)
{
    const size_t blocks = (size_t)l->n_sms * 2;

    *part_bytes = blocks * TILE * MAX_COLUMNS * sizeof(float);
    *n_counters = blocks;
}

template <int COLUMNS, int KIND> static cudaError_t allow(bool *usable)
{
    const auto kernel = known<int4_gemm_kernel<COLUMNS, KIND>>().f;
    const cudaError_t r = find_compiled(kernel, usable);

    return *usable ? cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                          stage<COLUMNS, KIND>::BYTES * N_STAGES<COLUMNS>)
                   : r;
}

template <int KIND> static cudaError_t allow_all(bool *usable)
{
    cudaError_t r;

    (r = allow<32, KIND>(usable)) || (r = allow<64, KIND>(usable)) ||
        (r = allow<MAX_COLUMNS, KIND>(usable));
    return r;
}

extern "C" cudaError_t int4_gemm_init(bool *usable)
{
    const cudaError_t r = allow_all<KIND_INT4>(usable);

    return r != cudaSuccess ? r : allow_all<KIND_INT4_FINE>(usable);
}
