/* skinny.cuh - the kernel of products of few rows with a weight matrix: y[m, n] = sum of x[m, k] *
 * w[n, k]; skinny_gemm.cu launches it.
 *
 * Bound by memory: the weights, each read once. A block takes 8 rows of w (times TILES) and all of
 * k, which its warps divide in steps; w is the 8-wide operand of mma, x the 16-wide one. The order
 * of k within a step is permuted, the same way in x and w, so that a thread loads 16 bytes of both
 * at once. The first weights are loaded before the kernel waits for the one before it.
 *
 * Weights of fewer bits become bf16 in registers (quant.cuh). The sum of each 32 of them, which are
 * of one group, is multiplied by its scale and added to the others. They are the wide operand, two
 * tiles at a time.
 *
 * x may be the residual stream in float: then its RMSNorm is part of the product. Each block turns
 * it into bf16 in shared memory, multiplied by the norm's weight; 1 / rms, the same for a whole
 * row, multiplies on the way out. Where the rows are too many for that, a kernel of its own does
 * the first part once for all blocks, with the same roundings.
 *
 * Of a mixture of experts a block has a group of rows and the weights of their expert: whose these
 * are is known only after the kernel before. */
#ifndef NVLLM_CUDA_KERNELS_SKINNY_CUH
#define NVLLM_CUDA_KERNELS_SKINNY_CUH

#include "cuda/kernels/quant.cuh"

static constexpr int WARPS = 8;
static constexpr int UNIT = 32; /* k of a unit of four lanes: two of the matrix unit's 16 */
static constexpr int COLS = 8;  /* rows of w of a tile */

struct skinny_args {
    struct skinny s;
    int n_steps;               /* of all of k, or of the half that a warp takes a part of */
    int second;                /* SKINNY_SILU_MUL: rows of w from gate to up */
    int group_shift, n_groups; /* of quantized weights: log2 of scale_cols, groups of a row */
    struct expert_picks picks; /* of experts; else n_experts is 0: */
    int picks_of_x;            /* of a row of x */
    int first_step;            /* where the product's k begins */
};

/* 8 floats and 8 weights to 8 bf16; adds the squares. */
static __device__ __forceinline__ uint4 scale_in(const float *x, const uint16_t *norm, float &sum)
{
    const float4 a = __ldcg((const float4 *)x), b = __ldcg((const float4 *)x + 1);
    const uint4 g = __ldg((const uint4 *)norm);

    sum = __fmaf_rn(a.x, a.x, sum), sum = __fmaf_rn(a.y, a.y, sum);
    sum = __fmaf_rn(a.z, a.z, sum), sum = __fmaf_rn(a.w, a.w, sum);
    sum = __fmaf_rn(b.x, b.x, sum), sum = __fmaf_rn(b.y, b.y, sum);
    sum = __fmaf_rn(b.z, b.z, sum), sum = __fmaf_rn(b.w, b.w, sum);
    return make_uint4(bf16_pair(a.x * bf16_low(g.x), a.y * bf16_high(g.x)),
                      bf16_pair(a.z * bf16_low(g.y), a.w * bf16_high(g.y)),
                      bf16_pair(b.x * bf16_low(g.z), b.y * bf16_high(g.z)),
                      bf16_pair(b.z * bf16_low(g.w), b.w * bf16_high(g.w)));
}

/* A slice of a row is every WARPS-th run of 32 vectors. Whether one warp takes all slices or each
 * warp one, the sum of a slice and so of the row has the same bits. */
static __device__ __forceinline__ float take_slice(uint4 *to, const float *x, const uint16_t *norm,
                                                   int n_vec, int slice, int lane)
{
    float sum = 0.0f;

    for (int j = slice * WARP + lane; j < n_vec; j += WARPS * WARP)
        to[j] = scale_in(x + j * 8, norm + j * 8, sum);
    return sum;
}

/* 1 / rms of a row from the sums of its slices. */
static __device__ __forceinline__ float inverse_rms(const float *squares, int stride, int k,
                                                    float eps)
{
    float sum = 0.0f;

#pragma unroll
    for (int i = 0; i < WARPS; i++)
        sum = __fadd_rn(sum, squares[i * stride]);
    return rsqrtf(__fadd_rn(sum / (float)k, eps));
}

/* Rows of x to shared memory, padded by 16 bytes; squares[i][m] are the sums of slices. One or two
 * rows are divided between all warps; of more, each warp has its own. */
template <int ROWS>
static __device__ void stage(uint4 *to, float (*squares)[ROWS], const struct skinny &s)
{
    const int warp = (int)threadIdx.x / WARP, lane = (int)threadIdx.x % WARP, n_vec = s.k / 8;

    if (s.m <= 2) {
        for (int m = 0; m < s.m; m++) {
            const float sum = warp_sum(take_slice(to + m * (n_vec + 1), s.x_f32 + (int64_t)m * s.k,
                                                  s.norm, n_vec, warp, lane));

            if (lane == 0)
                squares[warp][m] = sum;
        }
    } else {
        for (int m = warp; m < s.m; m += WARPS) {
            float sums[WARPS];

#pragma unroll
            for (int i = 0; i < WARPS; i++)
                sums[i] = i * WARP < n_vec
                              ? take_slice(to + m * (n_vec + 1), s.x_f32 + (int64_t)m * s.k, s.norm,
                                           n_vec, i, lane)
                              : 0.0f;
#pragma unroll
            for (int i = 0; i < WARPS; i++) {
                sums[i] = warp_sum(sums[i]);
                if (lane == i)
                    squares[i][m] = sums[i];
            }
        }
    }
    __syncthreads();
}

/* Blocks that a multiprocessor must have room for, which bounds a thread's registers. */
static constexpr int resident(int halves, int tiles, int ahead, int kind)
{
    if (kind != KIND_BF16)
        return halves > 2 && tiles > 4 ? 1 : halves * tiles * ahead <= 4 ? 3 : 2;
    if (halves > 2)
        return 2;
    return halves * tiles * ahead <= 4 ? 4 : halves * tiles <= 2 && ahead <= 4 ? 3 : 2;
}

/* The steps of a warp: every WARPS-th; of a half, every HALF_WARPS-th. */
static constexpr int HALF_WARPS = WARPS / 2;

/* HALVES: 1 for up to 8 rows of x, 2 for up to 16; where a block takes some of more rows 8, or 4 of
 * quantized weights. AHEAD: steps in flight per warp. None of them changes a result, the sum of the
 * warps' sums, each of which is in order of k. */
template <int HALVES, int TILES, int AHEAD, bool NORM, int OUT, bool HALVED, int KIND,
          int EXPERTS = 0>
static __global__ void __launch_bounds__(WARPS *WARP,
                                         EXPERTS ? EXPERTS : resident(HALVES, TILES, AHEAD, KIND))
    skinny_kernel(const struct skinny_args args)
{
    static constexpr int GATED = OUT == SKINNY_SILU_MUL ? 2 : 1; /* tiles of one result: gate, up */
    static constexpr int AT_ONCE = HALVES > 2 && TILES > 2 ? 2 : TILES; /* that the sums fit */
    __shared__ float parts[WARPS][AT_ONCE][HALVES * 8][COLS];
    __shared__ float squares[WARPS][HALVES * 8];
    extern __shared__ uint4 staged[]; /* NORM: [m, k / 8 + 1] */

    static constexpr int UNITS = UNITS_OF<KIND>, STEP = UNIT * UNITS;
    /* What is loaded of x at a time: of few rows all that goes with the loaded weights. */
    static constexpr int X_STEPS = KIND == KIND_BF16 ? AHEAD : 1;
    static constexpr int X_UNITS = HALVES > 1 && KIND != KIND_BF16 ? 1 : UNITS;

    const struct skinny &s = args.s;
    const int row0 = HALVES > 2 ? (int)blockIdx.y * HALVES * 8 : 0;
    const struct expert_group *own = args.picks.groups + blockIdx.y; /* of experts */
    const int32_t *members = nullptr;
    int n_rows = s.m - row0, rows[HALVES];
    int64_t expert = 0;
    const uint4 *s_x = (const uint4 *)s.x + (int64_t)row0 * (s.k / 8);
    const int warp = (int)threadIdx.x / WARP, lane = (int)threadIdx.x % WARP;
    const int group = lane / 4, quarter = lane % 4;
    constexpr int STRIDE = HALVED ? HALF_WARPS : WARPS;
    const int first_step = EXPERTS ? args.first_step : 0;
    /* Of a half alone the other warps sum nothing. */
    const int begin = !HALVED || warp < HALF_WARPS || s.sum == SKINNY_HALF
                          ? first_step + warp
                          : args.n_steps + warp - HALF_WARPS;
    const int end = HALVED && warp >= HALF_WARPS && s.sum == SKINNY_HALVES ? 2 * args.n_steps
                    : HALVED && warp >= HALF_WARPS                         ? 0
                                                   : first_step + args.n_steps;
    const int first = (int)blockIdx.x * (COLS * TILES / GATED);
    const uint16_t *w[TILES]; /* pairs of bytes, whatever they hold: k / UNITS a row */
    uint32_t scales[TILES];   /* where those of its rows begin */
    uint4 ahead[AHEAD][TILES];
    quant_raw raw[AHEAD][TILES];
    float sum[TILES][HALVES][2] = {};

    if (EXPERTS) {
        chain_wait();
        const int n_groups = __ldcg(args.picks.n_groups);
        n_rows = __ldcg(&own->n); /* there may be no such group, but there is memory for it */
        members = args.picks.members + __ldcg(&own->first);
        expert = (int64_t)__ldcg(&own->expert) * s.n * GATED;
        if ((int)blockIdx.y >= n_groups)
            return;
    }
    for (int t = 0; t < TILES; t++) {
        const int n = min(first + t / GATED * COLS + group, s.n - 1) + t % GATED * args.second;

        w[t] = (const uint16_t *)s.w + (expert + n) * (s.k / UNITS) + quarter * 8;
        if (KIND != KIND_BF16)
            scales[t] =
                (uint32_t)(((int)expert + n) / s.quant.scale_rows) * (uint32_t)args.n_groups;
    }
    /* Step number i of those under way. What lies past the end is zero in w, but for its zero
     * point, or in x. */
    auto fetch = [&](int i, int step) {
        const int k = step * STEP + quarter * (STEP / 4);

#pragma unroll
        for (int t = 0; t < TILES; t++) {
            ahead[i][t] = step < end && (KIND == KIND_BF16 || k < s.k)
                              ? ld_stream(w[t] + (int64_t)step * UNIT)
                              : make_uint4(0, 0, 0, 0);
            if (KIND != KIND_BF16)
                raw[i][t] =
                    quant_load<KIND>(s.quant, scales[t] + (uint32_t)min(k >> args.group_shift,
                                                                        args.n_groups - 1));
        }
    };
#pragma unroll
    for (int i = 0; i < AHEAD; i++)
        fetch(i, begin + i * STRIDE);
    if (!EXPERTS)
        chain_wait();
#pragma unroll
    for (int h = 0; h < HALVES; h++) {
        rows[h] = min(h * 8 + group, n_rows - 1);
        if (EXPERTS)
            rows[h] = __ldcg(members + rows[h]) / args.picks_of_x;
    }
    if (NORM)
        stage<HALVES * 8>(staged, squares, s);
    else if (s.rms && threadIdx.x < HALVES * 8)
        squares[0][threadIdx.x] =
            (int)threadIdx.x < n_rows ? __ldcg(s.rms + row0 + threadIdx.x) : 0;
    auto multiply = [&](int i, int t, const uint4(&x)[HALVES]) {
        const uint4 b = ahead[i][t], a = x[0];

        if (HALVES == 1) {
            mma_8816(sum[t][0][0], sum[t][0][1], a.x, a.y, b.x, b.y);
            mma_8816(sum[t][0][0], sum[t][0][1], a.z, a.w, b.z, b.w);
        }
#pragma unroll
        for (int h = 0; h + 1 < HALVES; h += 2) {
            const uint4 e = x[h], c = x[h + 1];
            float d[4] = {sum[t][h][0], sum[t][h][1], sum[t][h + 1][0], sum[t][h + 1][1]};

            mma_16816(d, e.x, c.x, e.y, c.y, b.x, b.y);
            mma_16816(d, e.z, c.z, e.w, c.w, b.z, b.w);
            sum[t][h][0] = d[0], sum[t][h][1] = d[1];
            sum[t][h + 1][0] = d[2], sum[t][h + 1][1] = d[3];
        }
    };
    /* Of unit u: here w is the 16-wide operand, two tiles of it, so that a lane has the scales of
     * the rows that it has loaded. */
    auto multiply_quantized = [&](int i, int t, int u, const uint4(&x)[HALVES]) {
        uint4 a[2];
        float scale[2];

#pragma unroll
        for (int j = 0; j < 2; j++) {
            uint32_t zero = int4_zero(raw[i][t + j].zero);

            scale[j] = quant_scale<KIND>(s.quant.scales_f16, raw[i][t + j].scale);
            if (KIND == KIND_INT4_FINE) { /* the lane of the four has them that has loaded it */
                zero = __shfl_sync(ALL_LANES, zero, u, 4);
                scale[j] = __shfl_sync(ALL_LANES, scale[j], u, 4);
            }
            a[j] = quant_unit<KIND>(ahead[i][t + j], u, zero);
        }
#pragma unroll
        for (int h = 0; h < HALVES; h++) {
            float d[4] = {};

            mma_16816(d, a[0].x, a[1].x, a[0].y, a[1].y, x[h].x, x[h].y);
            mma_16816(d, a[0].z, a[1].z, a[0].w, a[1].w, x[h].z, x[h].w);
#pragma unroll
            for (int j = 0; j < 4; j++)
                sum[t + j / 2][h][j % 2] = __fmaf_rn(d[j], scale[j / 2], sum[t + j / 2][h][j % 2]);
        }
    };
    for (int base = begin; base < end; base += STRIDE * AHEAD) {
#pragma unroll
        for (int from = 0; from < AHEAD * UNITS; from += X_STEPS * X_UNITS) {
            uint4 x[X_STEPS * X_UNITS][HALVES];

            /* Past the end of x its last row and step are read: their weights are zero, or their
             * results not stored. So loads need no branch and do not wait for each other. */
#pragma unroll
            for (int j = 0; j < X_STEPS * X_UNITS; j++) {
                const int i = (from + j) / UNITS, u = (from + j) % UNITS;
                const int step = min(base + i * STRIDE, end - 1);
                const int lane_vec = KIND == KIND_INT4_FINE ? u * 4 + quarter : quarter * UNITS + u;
                const int vec = step * (STEP / 8) + lane_vec;
                const bool valid = KIND == KIND_BF16 || (base + i * STRIDE < end && vec < s.k / 8);

#pragma unroll
                for (int h = 0; h < HALVES; h++)
                    x[j][h] = !valid ? make_uint4(0, 0, 0, 0)
                              : NORM ? staged[rows[h] * (s.k / 8 + 1) + vec]
                                     : __ldcg(s_x + (int64_t)rows[h] * (s.k / 8) + vec);
            }
#pragma unroll
            for (int j = 0; j < X_STEPS * X_UNITS; j++) {
                const int i = (from + j) / UNITS, u = (from + j) % UNITS;

#pragma unroll
                for (int t = 0; t < TILES; t++) {
                    if (KIND == KIND_INT4_FINE && u == 0)
                        exchange_words(ahead[i][t]);
                    if (KIND == KIND_BF16)
                        multiply(i, t, x[j]);
                    else if (t % 2)
                        multiply_quantized(i, t - 1, u, x[j]);
                }
                if (KIND != KIND_BF16 && u == UNITS - 1)
                    fetch(i, base + (AHEAD + i) * STRIDE);
            }
        }
        /* Of bf16 all at once: one by one 16 rows take 4 % longer (a layer of 8B, H100). */
        if (KIND == KIND_BF16 && base + STRIDE * AHEAD < end) {
#pragma unroll
            for (int i = 0; i < AHEAD; i++)
                fetch(i, base + (AHEAD + i) * STRIDE);
        }
    }
    static constexpr int EACH = HALVES * 8 * COLS; /* results of a tile */
#pragma unroll
    for (int from = 0; from < TILES; from += AT_ONCE) {
        if (from > 0)
            __syncthreads();
#pragma unroll
        for (int h = 0; h < HALVES; h++) {
#pragma unroll
            for (int t = 0; t < AT_ONCE; t++) {
                for (int j = 0; j < 2; j++)
                    if (KIND == KIND_BF16)
                        parts[warp][t][h * 8 + group][quarter * 2 + j] = sum[from + t][h][j];
                    else
                        parts[warp][t][h * 8 + quarter * 2 + j][group] = sum[from + t][h][j];
            }
        }
        __syncthreads();
        for (int i = (int)threadIdx.x; i < AT_ONCE / GATED * EACH; i += WARPS * WARP) {
            const int t = i / EACH * GATED, m = i % EACH / COLS, col = i % COLS;
            const int n = first + (from + t) / GATED * COLS + col;
            float y = 0.0f, up = 0.0f, scale = 1.0f;

            if (m >= n_rows || n >= s.n)
                continue;
            for (int j = 0; j < (HALVED ? HALF_WARPS : WARPS); j++) {
                y += parts[j][t][m][col];
                if (OUT == SKINNY_SILU_MUL)
                    up += parts[j][t + GATED - 1][m][col];
            }
            if (NORM)
                scale = inverse_rms(&squares[0][m], HALVES * 8, s.k, s.eps);
            else if (s.rms)
                scale = squares[0][m];
            y = __fmul_rn(y, scale); /* as it is for any number of rows: not one operation */
            if (OUT == SKINNY_BF16 && s.bias)
                y = __fadd_rn(y, bf16_to_float(s.bias[n]));
            const int64_t row = EXPERTS ? __ldcg(members + m) : row0 + m;
            const int64_t at = row * s.y_stride + n;
            if (OUT == SKINNY_BF16)
                ((uint16_t *)s.y)[at] = bf16_bits(y);
            else if (OUT == SKINNY_F32)
                ((float *)s.y)[at] = y;
            else if (OUT == SKINNY_ADD_F32)
                y += __ldcg((float *)s.y + at);
            else
                ((uint16_t *)s.y)[at] = bf16_bits(y / (1.0f + __expf(-y)) * (up * scale));
            if (OUT == SKINNY_ADD_F32) {
                float second = 0.0f;

                for (int j = HALF_WARPS; HALVED && j < WARPS; j++)
                    second += parts[j][t][m][col];
                ((float *)s.y)[at] = HALVED ? y + second : y;
            }
        }
    }
}

template <int HALVES, int TILES, int AHEAD, int OUT, int KIND>
static cudaError_t run(const struct launch *l, const struct skinny_args *a)
{
    const int cols = COLS * TILES / (OUT == SKINNY_SILU_MUL ? 2 : 1);
    const dim3 grid((unsigned)((a->s.n + cols - 1) / cols),
                    HALVES > 2 ? (unsigned)((a->s.m + HALVES * 8 - 1) / (HALVES * 8)) : 1u);

    if constexpr (OUT == SKINNY_F32 || OUT == SKINNY_ADD_F32)
        if (a->s.sum != SKINNY_WHOLE)
            return launch_kernel(
                known<skinny_kernel<HALVES, TILES, AHEAD, false, OUT, true, KIND>>(), grid,
                WARPS * WARP, 0, l, *a);
    if constexpr (HALVES <= 2 && (KIND == KIND_BF16 || OUT == SKINNY_BF16 ||
                                  OUT == SKINNY_SILU_MUL)) /* a layer's that read the residual */
        if (a->s.x_f32)
            return launch_kernel(
                known<skinny_kernel<HALVES, TILES, AHEAD, true, OUT, false, KIND>>(), grid,
                WARPS * WARP, (size_t)a->s.m * ((size_t)a->s.k / 8 + 1) * sizeof(uint4), l, *a);
    return launch_kernel(known<skinny_kernel<HALVES, TILES, AHEAD, false, OUT, false, KIND>>(),
                         grid, WARPS * WARP, 0, l, *a);
}

/* Of experts: four tiles a block, of gate and up two of each: blocks of fewer are over before
 * enough of their weights are under way. Of quantized weights eight: a step of 12 layers of
 * Qwen3-30B-A3B with 64 and 256 rows of INT4 takes 4.60 and 7.41 ms on an H100 (four tiles 5.05 and
 * 8.38), of FP8 4.68 and 7.03 (4.66 and 7.38). */
template <int HALVES, int OUT, int KIND>
static cudaError_t run_group(const struct launch *l, const struct skinny_args *a, int n_groups)
{
    static constexpr int TILES = KIND == KIND_BF16 ? 4 : 8, AHEAD = KIND == KIND_BF16 ? 3 : 1;
    static constexpr int BLOCKS_PER_SM = 2;
    const int cols = COLS * TILES / (OUT == SKINNY_SILU_MUL ? 2 : 1);

    return launch_kernel(
        known<skinny_kernel<HALVES, TILES, AHEAD, false, OUT, false, KIND, BLOCKS_PER_SM>>(),
        dim3((unsigned)((a->s.n + cols - 1) / cols), (unsigned)n_groups), WARPS * WARP, 0, l, *a);
}

/* A row picks an expert once, so no group has more than m rows. */
template <int KIND>
static cudaError_t run_experts(const struct launch *l, const struct skinny_args *a)
{
    const int n_groups =
        expert_most_groups(a->picks.n_experts, a->s.m * a->picks.n_picks, EXPERT_FEW);
    const bool gated = a->s.out == SKINNY_SILU_MUL;

    if (a->s.m <= 8)
        return gated ? run_group<1, SKINNY_SILU_MUL, KIND>(l, a, n_groups)
                     : run_group<1, SKINNY_BF16, KIND>(l, a, n_groups);
    return gated ? run_group<2, SKINNY_SILU_MUL, KIND>(l, a, n_groups)
                 : run_group<2, SKINNY_BF16, KIND>(l, a, n_groups);
}

/* Of quantized weights. A layer of 8B on an H100, one row: weights of 8 bits 82 us (four tiles a
 * block: 88), of 4 bits 58 (two tiles everywhere 64, four 62); 16 rows 100 and 102; 64 rows of 4
 * bits 201 (four tiles: 251). */
template <int HALVES, int OUT, int KIND>
static cudaError_t pick_quantized(const struct launch *l, const struct skinny_args *a)
{
    if constexpr (HALVES > 2)
        return run < HALVES, KIND == KIND_E4M3 ? 4 : 8, 1, OUT, KIND > (l, a);
    else if constexpr (HALVES == 2)
        return run<HALVES, 4, 2, OUT, KIND>(l, a);
    else if constexpr (KIND == KIND_E4M3)
        return run<HALVES, 2, 2, OUT, KIND>(l, a);
    else
        return a->s.n > l->n_sms * COLS * 4 ? run<HALVES, 4, 2, OUT, KIND>(l, a)
                                            : run<HALVES, 2, 4, OUT, KIND>(l, a);
}

template <int HALVES, int KIND>
static cudaError_t dispatch_quantized(const struct launch *l, const struct skinny_args *a)
{
    switch (a->s.out) {
    case SKINNY_BF16:
        return pick_quantized<HALVES, SKINNY_BF16, KIND>(l, a);
    case SKINNY_F32:
        return pick_quantized<HALVES, SKINNY_F32, KIND>(l, a);
    case SKINNY_ADD_F32:
        return pick_quantized<HALVES, SKINNY_ADD_F32, KIND>(l, a);
    case SKINNY_SILU_MUL:
        return pick_quantized<HALVES, SKINNY_SILU_MUL, KIND>(l, a);
    }
    return cudaErrorInvalidValue;
}

template <int KIND>
static cudaError_t run_quantized(const struct launch *l, const struct skinny_args *a)
{
    if (a->picks.n_experts)
        return run_experts<KIND>(l, a);
    return a->s.m <= 8    ? dispatch_quantized<1, KIND>(l, a)
           : a->s.m <= 16 ? dispatch_quantized<2, KIND>(l, a)
                          : dispatch_quantized<4, KIND>(l, a);
}

/* In files of their own, to be compiled at the same time. */
cudaError_t skinny_e4m3(const struct launch *l, const struct skinny_args *a);
cudaError_t skinny_int4(const struct launch *l, const struct skinny_args *a);
cudaError_t skinny_int4_fine(const struct launch *l, const struct skinny_args *a);

#endif
