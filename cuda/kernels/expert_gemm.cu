/* expert_gemm.cu - products of many rows with the weights of their experts.
 *
 * Bound by the matrix units. A tile is up to EXPERT_MANY picks of one expert and COLUMNS rows of
 * its weights; blocks stay and take tile after tile, as many as the groups on the device have, so a
 * launch does not depend on what the router chose. Rows of x come from wherever the list says. Of a
 * gated product, 16 rows of gate and 16 of up lie in turn, so that both sums of a result are in one
 * thread. On compute capability 9.0 two warpgroups have 64 rows each, by wgmma; elsewhere eight
 * warps have 64 rows and columns each.
 *
 * Weights of fewer bits become bf16, rounded, on their way to shared memory: those of the next step
 * wait in registers while a step is multiplied.
 *
 * A row's result does not depend on which other rows are in its group. */
#include "cuda/kernels/hopper.cuh"
#include "cuda/kernels/quant.cuh"

static constexpr int THREADS = 8 * WARP;
static constexpr int COLUMNS = 256;              /* rows of w of a tile */
static constexpr int STEP = 64;                  /* k of a stage: 128 bytes of a row */
static constexpr int MAX_STAGES = 4;             /* fewer where they do not fit */
static constexpr int PIECES = STEP / 8;          /* 16-byte vectors of a row in a stage */
static constexpr int AT_ONCE = THREADS / PIECES; /* rows that the block loads at a time */
template <int KIND> static constexpr int W_PIECES = PIECES / UNITS_OF<KIND>;
template <int KIND> static constexpr int W_AT_ONCE = THREADS / W_PIECES<KIND>;
template <int KIND> static constexpr int W_LOADS = COLUMNS / W_AT_ONCE<KIND>; /* of a thread */
static constexpr int X_BYTES = EXPERT_MANY * STEP * 2;                        /* of a stage */
static constexpr int STAGE_BYTES = X_BYTES + COLUMNS * STEP * 2;

static_assert(AT_ONCE == 32, "a load is of 16 rows of gate and 16 of up");

struct gemm_args {
    struct expert_product e;
    const int32_t *members;
    const struct expert_group *groups;
    const int32_t *n_groups;
    int picks_of_x; /* of a row of x */
    int n_tiles;    /* of a group */
    int n_stages;
    int group_shift;     /* of quantized weights: log2 of scale_cols */
    int n_groups_of_row; /* of these, too */
};

/* What a thread loads of a tile: one piece of rows of x and of w. */
template <int KIND> struct sources {
    const uint16_t *x;               /* the piece of row 0 at the first k */
    int rows[EXPERT_MANY / AT_ONCE]; /* of x */
    const char *w;                   /* the piece of row 0, of gate or up, at the first k */
    int64_t w_row_bytes;
    int first, last;                /* row of w of the first load, and the last that there is */
    uint32_t scales[W_LOADS<KIND>]; /* of quantized rows of w, where those of each begin */
};

/* The row of w of load i. */
template <bool GATED, int KIND>
static __device__ __forceinline__ int row_of(const struct sources<KIND> &s, int i)
{
    return min(s.first + i * W_AT_ONCE<KIND> / (GATED ? 2 : 1), s.last);
}

/* Copies of a stage that nobody waits for: x, and w that is bf16. */
template <bool GATED, int KIND>
static __device__ __forceinline__ void load_stage(uint32_t to, const struct sources<KIND> &s,
                                                  const struct gemm_args &a, int step)
{
    const int row = (int)threadIdx.x / PIECES, piece = (int)threadIdx.x % PIECES;
    const int k0 = step * STEP;
    const bool valid = k0 + piece * 8 < a.e.k;

#pragma unroll
    for (int i = 0; i < EXPERT_MANY / AT_ONCE; i++)
        copy_async(to + (uint32_t)swizzle<STEP>(row + i * AT_ONCE, piece),
                   s.x + (int64_t)s.rows[i] * a.e.ld + k0, valid);
#pragma unroll
    for (int i = 0; i < W_LOADS<KIND> && KIND == KIND_BF16; i++)
        copy_async(to + X_BYTES + (uint32_t)swizzle<STEP>(row + i * AT_ONCE, piece),
                   s.w + row_of<GATED>(s, i) * s.w_row_bytes + k0 * 2, valid);
    asm volatile("cp.async.commit_group;" ::: "memory");
}

/* A thread's part of the quantized weights of a step. Behind the end they are whatever zeros
 * stand for: there x is zero. */
template <int KIND> struct quantized {
    uint4 w[W_LOADS<KIND>];
    struct quant_raw raw[W_LOADS<KIND>];
};

template <bool GATED, int KIND>
static __device__ __forceinline__ void fetch_quantized(struct quantized<KIND> &to,
                                                       const struct sources<KIND> &s,
                                                       const struct gemm_args &a, int step)
{
    const int k = step * STEP + (int)threadIdx.x % W_PIECES<KIND> * 8 * UNITS_OF<KIND>;
    const bool valid = k < a.e.k;
    const uint32_t group = valid ? (uint32_t)(a.e.first + k) >> a.group_shift : 0;

#pragma unroll
    for (int i = 0; i < W_LOADS<KIND> && KIND != KIND_BF16; i++) {
        const char *from =
            s.w + row_of<GATED>(s, i) * s.w_row_bytes + step * STEP * 2 / UNITS_OF<KIND>;

        to.w[i] = valid ? __ldg((const uint4 *)from) : make_uint4(0, 0, 0, 0);
        to.raw[i] = quant_load<KIND>(a.e.quant, s.scales[i] + group);
    }
}

template <int KIND>
static __device__ __forceinline__ void
store_quantized(uint32_t stage, const struct quantized<KIND> &from, const struct gemm_args &a)
{
    const int row = (int)threadIdx.x / W_PIECES<KIND>, piece = (int)threadIdx.x % W_PIECES<KIND>;

#pragma unroll
    for (int i = 0; i < W_LOADS<KIND> && KIND != KIND_BF16; i++) {
        const float scale = quant_scale<KIND>(a.e.quant.scales_f16, from.raw[i].scale);
        const uint32_t zero = int4_zero(from.raw[i].zero);

#pragma unroll
        for (int u = 0; u < UNITS_OF<KIND>; u++)
            st_shared(stage + X_BYTES +
                          (uint32_t)swizzle<STEP>(row + i * W_AT_ONCE<KIND>,
                                                  piece * UNITS_OF<KIND> + u),
                      quant_scaled(quant_unit<KIND>(from.w[i], u, zero), scale));
    }
}

/* A warp's part of a tile: products of 16 rows and 8 columns, of which a thread has two rows, eight
 * apart, and two neighbouring columns. */
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
static constexpr int ROW_TILES = 1, COLUMN_TILES = COLUMNS / 8;
#else
static constexpr int ROW_TILES = 4, COLUMN_TILES = 8;
#endif
static constexpr int WARPS_ACROSS = COLUMNS / 8 / COLUMN_TILES; /* of the same rows */
static_assert(EXPERT_MANY / 16 / ROW_TILES * WARPS_ACROSS == THREADS / WARP, "warps divide a tile");

struct sums {
    float of[ROW_TILES * COLUMN_TILES * 4]; /* by tile of rows, tile of columns, row, column */
};

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
/* A tile's sums over k. While a stage is multiplied, the one after it is there or on its way, and
 * the one before may be under way still. */
template <bool GATED, int KIND>
static __device__ __forceinline__ void multiply(struct sums &to, const struct gemm_args &a,
                                                const struct sources<KIND> &s, uint32_t stages,
                                                int n_steps)
{
    static constexpr uint32_t ATOM = 8 * STEP * 2;
    float(&left)[64] = *(float(*)[64])to.of, (&right)[64] = *(float(*)[64])(to.of + 64);
    const uint32_t first_row = threadIdx.x / (4 * WARP) * 64;
    auto stage_of = [stages](int step) { return stages + (uint32_t)(step % 4 * STAGE_BYTES); };
    struct quantized<KIND> next;

    fetch_quantized<GATED>(next, s, a, 0);
    for (int i = 0; i < 2; i++)
        load_stage<GATED>(stage_of(i), s, a, i);
    store_quantized(stage_of(0), next, a);
    fetch_quantized<GATED>(next, s, a, 1);
    for (int i = 0; i < n_steps; i++) {
        const uint32_t stage = stage_of(i);
        const uint64_t x = matrix_at(stage + first_row * STEP * 2, 0, ATOM);
        const uint64_t w = matrix_at(stage + X_BYTES, 0, ATOM);
        const uint64_t w_right = matrix_step(w, COLUMNS / 2 * STEP * 2);

        asm volatile("cp.async.wait_group 1;" ::: "memory");
        fence_async();
        wgmma_wait<1>();
        __syncthreads(); /* this stage is there, and the one two before it is free */
        wgmma_fence();
#pragma unroll
        for (int k = 0; k < STEP / 16; k++) {
            wgmma_ss(left, matrix_step(x, k * 32), matrix_step(w, k * 32), i + k > 0);
            wgmma_ss(right, matrix_step(x, k * 32), matrix_step(w_right, k * 32), i + k > 0);
        }
        wgmma_commit();
        load_stage<GATED>(stage_of(i + 2), s, a, i + 2);
        store_quantized(stage_of(i + 1), next, a);
        fetch_quantized<GATED>(next, s, a, i + 2);
    }
    wgmma_wait<0>();
    pin(to.of);
}
#else
/* Adds the products of a stage. */
static __device__ __forceinline__ void multiply_stage(struct sums &to, uint32_t stage)
{
    const int warp = (int)threadIdx.x / WARP, lane = (int)threadIdx.x % WARP;
    const int x_row = warp / WARPS_ACROSS * ROW_TILES * 16 + lane % 16;
    const int w_row = warp % WARPS_ACROSS * COLUMN_TILES * 8 + lane / 16 * 8 + lane % 8;

#pragma unroll
    for (int step = 0; step < STEP / 16; step++) {
        uint32_t x[ROW_TILES][4], w[COLUMN_TILES / 2][4];

#pragma unroll
        for (int i = 0; i < ROW_TILES; i++)
            ldmatrix(x[i], stage + (uint32_t)swizzle<STEP>(x_row + i * 16, step * 2 + lane / 16));
#pragma unroll
        for (int i = 0; i < COLUMN_TILES / 2; i++)
            ldmatrix(w[i], stage + X_BYTES +
                               (uint32_t)swizzle<STEP>(w_row + i * 16, step * 2 + lane / 8 % 2));
#pragma unroll
        for (int i = 0; i < ROW_TILES; i++)
#pragma unroll
            for (int j = 0; j < COLUMN_TILES; j++)
                mma_16816(*(float(*)[4])(to.of + (i * COLUMN_TILES + j) * 4), x[i][0], x[i][1],
                          x[i][2], x[i][3], w[j / 2][j % 2 * 2], w[j / 2][j % 2 * 2 + 1]);
    }
}

/* All but the last n_stages - 2 stages that are under way. */
static __device__ __forceinline__ void wait_for_stage(int n_stages)
{
    if (n_stages == 4)
        asm volatile("cp.async.wait_group 2;" ::: "memory");
    else if (n_stages == 3)
        asm volatile("cp.async.wait_group 1;" ::: "memory");
    else
        asm volatile("cp.async.wait_group 0;" ::: "memory");
}

/* A tile's sums over k. */
template <bool GATED, int KIND>
static __device__ __forceinline__ void multiply(struct sums &to, const struct gemm_args &a,
                                                const struct sources<KIND> &s, uint32_t stages,
                                                int n_steps)
{
    auto stage_of = [stages, &a](int step) {
        return stages + (uint32_t)(step % a.n_stages * STAGE_BYTES);
    };
    struct quantized<KIND> next;

#pragma unroll
    for (int i = 0; i < ROW_TILES * COLUMN_TILES * 4; i++)
        to.of[i] = 0.0f;
    fetch_quantized<GATED>(next, s, a, 0);
    for (int i = 0; i < a.n_stages - 1; i++)
        load_stage<GATED>(stage_of(i), s, a, i);
    store_quantized(stage_of(0), next, a);
    fetch_quantized<GATED>(next, s, a, 1);
    for (int i = 0; i < n_steps; i++) {
        wait_for_stage(a.n_stages);
        __syncthreads(); /* this stage is there, and the one before it is free */
        load_stage<GATED>(stage_of(i + a.n_stages - 1), s, a, i + a.n_stages - 1);
        multiply_stage(to, stage_of(i));
        store_quantized(stage_of(i + 1), next, a);
        fetch_quantized<GATED>(next, s, a, i + 2);
    }
}
#endif

/* A warp's results: rows `picks` of y, where there are so many. */
template <bool GATED>
static __device__ __forceinline__ void store(const struct gemm_args &a, const struct sums &s,
                                             const int *picks, int n_rows, int first)
{
    const int warp = (int)threadIdx.x / WARP, lane = (int)threadIdx.x % WARP;
    const int column =
        first + warp % WARPS_ACROSS * COLUMN_TILES * 8 / (GATED ? 2 : 1) + lane % 4 * 2;

#pragma unroll
    for (int i = 0; i < ROW_TILES; i++) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int row = (warp / WARPS_ACROSS * ROW_TILES + i) * 16 + half * 8 + lane / 4;

            if (row >= n_rows)
                continue;
            uint16_t *y = a.e.y + (int64_t)picks[row] * a.e.n;
#pragma unroll
            for (int j = 0; j < COLUMN_TILES / (GATED ? 2 : 1); j++) {
                const int at = column + j * 8, tile = GATED ? j / 2 * 4 + j % 2 : j;
                const float *sum = s.of + (i * COLUMN_TILES + tile) * 4 + half * 2;

                if (at < a.e.n) /* up is two tiles after gate */
                    *(uint32_t *)(y + at) =
                        GATED ? bf16_pair(silu(sum[0]) * sum[8], silu(sum[1]) * sum[9])
                              : bf16_pair(sum[0], sum[1]);
            }
        }
    }
}

template <bool GATED, int KIND>
static __global__ void __launch_bounds__(THREADS, 1)
    expert_gemm_kernel(const __grid_constant__ struct gemm_args a)
{
    extern __shared__ __align__(1024) char stages[];
    __shared__ int picks[EXPERT_MANY];
    static constexpr int N = GATED ? COLUMNS / 2 : COLUMNS; /* results of a row of a tile */
    const uint32_t at = (uint32_t)__cvta_generic_to_shared(stages);
    const int x_row = (int)threadIdx.x / PIECES, x_piece = (int)threadIdx.x % PIECES;
    const int row = (int)threadIdx.x / W_PIECES<KIND>, piece = (int)threadIdx.x % W_PIECES<KIND>;
    const int n_steps = (a.e.k + STEP - 1) / STEP;

    chain_wait();
    const int n_tiles = __ldcg(a.n_groups) * a.n_tiles;
    for (int tile = (int)blockIdx.x; tile < n_tiles; tile += (int)gridDim.x) {
        const struct expert_group *g = a.groups + tile / a.n_tiles;
        const int n_rows = __ldcg(&g->n), first = tile % a.n_tiles * N;
        /* 16 rows of gate and of up by turns */
        const int64_t w_row = (int64_t)__ldcg(&g->expert) * (GATED ? 2 * a.e.n : a.e.n) +
                              (GATED ? row / 16 % 2 * a.e.n : 0);
        struct sources<KIND> s = {
            .x = a.e.x + a.e.first + x_piece * 8,
            .w_row_bytes = (int64_t)a.e.ld * 2 / UNITS_OF<KIND>,
            .first = first + (GATED ? row / 32 * 16 + row % 16 : row), .last = a.e.n - 1
        };
        struct sums sums;

        s.w = (const char *)a.e.w + w_row * s.w_row_bytes + a.e.first * 2 / UNITS_OF<KIND> +
              piece * 16;
#pragma unroll
        for (int i = 0; i < W_LOADS<KIND> && KIND != KIND_BF16; i++)
            s.scales[i] = (uint32_t)(((int)w_row + row_of<GATED>(s, i)) / a.e.quant.scale_rows) *
                          (uint32_t)a.n_groups_of_row;
        __syncthreads();               /* the tile before has been stored */
        if (threadIdx.x < EXPERT_MANY) /* behind the end the last one again */
            picks[threadIdx.x] =
                __ldcg(a.members + __ldcg(&g->first) + min((int)threadIdx.x, n_rows - 1));
        __syncthreads();
#pragma unroll
        for (int i = 0; i < EXPERT_MANY / AT_ONCE; i++)
            s.rows[i] = picks[x_row + i * AT_ONCE] / a.picks_of_x;
        multiply<GATED>(sums, a, s, at, n_steps);
        asm volatile("cp.async.wait_group 0;" ::: "memory"); /* zeros behind the last step */
        store<GATED>(a, sums, picks, n_rows, first);
    }
}

static int stages_of(const struct launch *l)
{
    const int n = (l->max_shared - 2048) / STAGE_BYTES; /* and the picks, aligned */

    return n < MAX_STAGES ? n : MAX_STAGES;
}

template <int KIND> static cudaError_t allow(const struct launch *l)
{
    const void *const kernels[] = {(const void *)expert_gemm_kernel<false, KIND>,
                                   (const void *)expert_gemm_kernel<true, KIND>};
    cudaError_t r = cudaSuccess;

    for (int i = 0; i < 2 && r == cudaSuccess; i++)
        r = cudaFuncSetAttribute(kernels[i], cudaFuncAttributeMaxDynamicSharedMemorySize,
                                 stages_of(l) * STAGE_BYTES);
    return r;
}

extern "C" cudaError_t expert_gemm_init(const struct launch *l)
{
    cudaError_t r = allow<KIND_BF16>(l);

    if (r == cudaSuccess)
        r = allow<KIND_E4M3>(l);
    return r == cudaSuccess ? allow<KIND_INT4>(l) : r;
}

template <int KIND>
static cudaError_t run(const struct launch *l, const struct gemm_args *a, int most_groups)
{
    const auto kernel = a->e.gated ? known<expert_gemm_kernel<true, KIND>>()
                                   : known<expert_gemm_kernel<false, KIND>>();
    const int64_t tiles = (int64_t)most_groups * a->n_tiles;

    return launch_kernel(kernel, dim3((unsigned)(tiles < l->n_sms ? tiles : l->n_sms)), THREADS,
                         (size_t)(a->n_stages * STAGE_BYTES), l, *a);
}

extern "C" cudaError_t expert_gemm(const struct launch *l, const struct expert_picks *p,
                                   const struct expert_product *e)
{
    const int columns = e->gated ? COLUMNS / 2 : COLUMNS;
    const int most = expert_most_groups(p->n_experts, e->n_rows * p->n_picks, EXPERT_MANY);
    const struct quant *q = &e->quant;
    const bool quantized = q->element != ELEMENT_BF16;
    const struct gemm_args a = {
        .e = *e,
        .members = p->members,
        .groups = p->groups,
        .n_groups = p->n_groups,
        .picks_of_x = e->x_of_rows ? p->n_picks : 1,
        .n_tiles = (e->n + columns - 1) / columns,
        .n_stages = stages_of(l),
        .group_shift = quantized ? quant_group_shift(q, e->ld) : 0,
        .n_groups_of_row = quantized ? (e->ld + q->scale_cols - 1) / q->scale_cols : 0,
    };

    if (!quant_supports(q, e->ld))
        return cudaErrorInvalidValue;
    return q->element == ELEMENT_E4M3   ? run<KIND_E4M3>(l, &a, most)
           : q->element == ELEMENT_INT4 ? run<KIND_INT4>(l, &a, most)
                                        : run<KIND_BF16>(l, &a, most);
}
