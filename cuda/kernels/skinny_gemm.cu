/* skinny_gemm.cu - products of few rows with a weight matrix: y[m, n] = sum of x[m, k] * w[n, k].
 *
 * Bound by memory: 2 * n * k bytes of weights, each read once. A block takes 8 rows of w (times
 * TILES) and all of k, which its warps divide in steps of 32; w is the 8-wide operand of mma, x the
 * 16-wide one. The order of k within a step is permuted, the same way in x and w, so that a thread
 * loads 16 bytes of both at once. The first weights are loaded before the kernel waits for the one
 * before it.
 *
 * x may be the residual stream in float: then its RMSNorm is part of the product. Each block turns
 * it into bf16 in shared memory, multiplied by the norm's weight; 1 / rms, the same for a whole
 * row, multiplies on the way out. Where the rows are too many for that, a kernel of its own does
 * the first part once for all blocks, with the same roundings.
 *
 * Of a mixture of experts a block has a group of rows and the weights of their expert: whose these
 * are is known only after the kernel before. */
#include "cuda/kernels/common.cuh"

static constexpr int WARPS = 8;
static constexpr int STEP = 32; /* k of a step: two of the matrix unit's 16 */
static constexpr int COLS = 8;  /* rows of w of a tile */

struct skinny_args {
    struct skinny s;
    int n_steps;               /* of all of k, or of the half that a warp takes a part of */
    int second;                /* SKINNY_SILU_MUL: rows of w from gate to up */
    int64_t ld;                /* of x and w: k, but for halves of experts */
    struct expert_picks picks; /* of experts: */
    int picks_of_x;            /* of a row of x */
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

/* The same for a row a block, to memory. */
static __global__ void __launch_bounds__(WARPS *WARP)
    norm_kernel(uint4 *y,   /* [m, k / 8] */
                float *rms, /* [m] 1 / rms */
                const float *x, const uint16_t *norm, int k, float eps)
{
    __shared__ float squares[WARPS];

    const int warp = (int)threadIdx.x / WARP, lane = (int)threadIdx.x % WARP, n_vec = k / 8;
    const int64_t row = blockIdx.x;

    chain_wait();
    const float sum = warp_sum(take_slice(y + row * n_vec, x + row * k, norm, n_vec, warp, lane));
    if (lane == 0)
        squares[warp] = sum;
    __syncthreads();
    if (threadIdx.x == 0)
        rms[row] = inverse_rms(squares, 1, k, eps);
}

extern "C" cudaError_t skinny_norm(const struct launch *l, uint16_t *y, float *rms, const float *x,
                                   const uint16_t *norm, int m, int k, float eps)
{
    if (m < 1 || k % STEP)
        return cudaErrorInvalidValue;
    return launch_kernel(known<norm_kernel>(), dim3((unsigned)m), WARPS * WARP, 0, l, (uint4 *)y,
                         rms, x, norm, k, eps);
}

/* Blocks that a multiprocessor must have room for, which bounds a thread's registers. */
static constexpr int resident(int halves, int tiles, int ahead)
{
    if (halves > 2)
        return 2;
    return halves * tiles * ahead <= 4 ? 4 : halves * tiles <= 2 && ahead <= 4 ? 3 : 2;
}

/* The steps of a warp: every WARPS-th; of a half, every HALF_WARPS-th. */
static constexpr int HALF_WARPS = WARPS / 2;

/* HALVES: 1 for up to 8 rows of x, 2 for up to 16, 8 where a block takes 64 rows of more. AHEAD:
 * steps in flight per warp. None of them changes a result, the sum of the warps' sums, each of
 * which is in order of k. */
template <int HALVES, int TILES, int AHEAD, bool NORM, int OUT, bool HALVED, int EXPERTS = 0>
static __global__ void __launch_bounds__(WARPS *WARP,
                                         EXPERTS ? EXPERTS : resident(HALVES, TILES, AHEAD))
    skinny_kernel(const struct skinny_args args)
{
    static constexpr int GATED = OUT == SKINNY_SILU_MUL ? 2 : 1; /* tiles of one result: gate, up */
    static constexpr int AT_ONCE = HALVES > 2 && TILES > 2 ? 2 : TILES; /* that the sums fit */
    __shared__ float parts[WARPS][AT_ONCE][HALVES * 8][COLS];
    __shared__ float squares[WARPS][HALVES * 8];
    extern __shared__ uint4 staged[]; /* NORM: [m, k / 8 + 1] */

    const struct skinny &s = args.s;
    const int row0 = HALVES > 2 ? (int)blockIdx.y * HALVES * 8 : 0;
    const struct expert_group *own = args.picks.groups + blockIdx.y; /* of experts */
    const int32_t *members = nullptr;
    int n_rows = s.m - row0, rows[HALVES];
    int64_t expert = 0;
    const int64_t ld = EXPERTS ? args.ld : s.k;
    const uint4 *s_x = (const uint4 *)s.x + (int64_t)row0 * (s.k / 8);
    const int warp = (int)threadIdx.x / WARP, lane = (int)threadIdx.x % WARP;
    const int group = lane / 4, quarter = lane % 4;
    constexpr int STRIDE = HALVED ? HALF_WARPS : WARPS;
    /* Of a half alone the other warps sum nothing. */
    const int begin = !HALVED || warp < HALF_WARPS || s.sum == SKINNY_HALF
                          ? warp
                          : args.n_steps + warp - HALF_WARPS;
    const int end = HALVED && warp >= HALF_WARPS && s.sum == SKINNY_HALVES ? 2 * args.n_steps
                    : HALVED && warp >= HALF_WARPS                         ? 0
                                                                           : args.n_steps;
    const int first = (int)blockIdx.x * (COLS * TILES / GATED);
    const uint16_t *w[TILES];
    uint4 ahead[AHEAD][TILES];
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

        w[t] = s.w + (expert + n) * ld + quarter * 8;
    }
    auto fetch = [&](int from) {
#pragma unroll
        for (int i = 0; i < AHEAD; i++) {
            const int step = from + i * STRIDE;

#pragma unroll
            for (int t = 0; t < TILES; t++)
                ahead[i][t] =
                    step < end ? ld_stream(w[t] + (int64_t)step * STEP) : make_uint4(0, 0, 0, 0);
        }
    };
    fetch(begin);
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
    for (int base = begin; base < end; base += STRIDE * AHEAD) {
        uint4 x[AHEAD][HALVES];

        /* Past the end of x its last row and step are read: their weights are zero, or their
         * results not stored. So loads need no branch and do not wait for each other. */
#pragma unroll
        for (int i = 0; i < AHEAD; i++) {
            const int vec = min(base + i * STRIDE, end - 1) * (STEP / 8) + quarter;

#pragma unroll
            for (int h = 0; h < HALVES; h++)
                x[i][h] = NORM ? staged[rows[h] * (s.k / 8 + 1) + vec]
                               : __ldcg(s_x + rows[h] * (ld / 8) + vec);
        }
#pragma unroll
        for (int i = 0; i < AHEAD; i++) {
#pragma unroll
            for (int t = 0; t < TILES; t++) {
                const uint4 b = ahead[i][t], a = x[i][0];

                if (HALVES == 1) {
                    mma_8816(sum[t][0][0], sum[t][0][1], a.x, a.y, b.x, b.y);
                    mma_8816(sum[t][0][0], sum[t][0][1], a.z, a.w, b.z, b.w);
                }
#pragma unroll
                for (int h = 0; h + 1 < HALVES; h += 2) {
                    const uint4 e = x[i][h], c = x[i][h + 1];
                    float d[4] = {sum[t][h][0], sum[t][h][1], sum[t][h + 1][0], sum[t][h + 1][1]};

                    mma_16816(d, e.x, c.x, e.y, c.y, b.x, b.y);
                    mma_16816(d, e.z, c.z, e.w, c.w, b.z, b.w);
                    sum[t][h][0] = d[0], sum[t][h][1] = d[1];
                    sum[t][h + 1][0] = d[2], sum[t][h + 1][1] = d[3];
                }
            }
        }
        if (base + STRIDE * AHEAD < end)
            fetch(base + STRIDE * AHEAD);
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
                parts[warp][t][h * 8 + group][quarter * 2] = sum[from + t][h][0];
                parts[warp][t][h * 8 + group][quarter * 2 + 1] = sum[from + t][h][1];
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

template <int HALVES, int TILES, int AHEAD, int OUT>
static cudaError_t run(const struct launch *l, const struct skinny_args *a)
{
    const int cols = COLS * TILES / (OUT == SKINNY_SILU_MUL ? 2 : 1);
    const dim3 grid((unsigned)((a->s.n + cols - 1) / cols),
                    HALVES > 2 ? (unsigned)((a->s.m + HALVES * 8 - 1) / (HALVES * 8)) : 1u);

    if constexpr (OUT == SKINNY_F32 || OUT == SKINNY_ADD_F32)
        if (a->s.sum != SKINNY_WHOLE)
            return launch_kernel(known<skinny_kernel<HALVES, TILES, AHEAD, false, OUT, true>>(),
                                 grid, WARPS * WARP, 0, l, *a);
    if constexpr (HALVES <= 2)
        if (a->s.x_f32)
            return launch_kernel(known<skinny_kernel<HALVES, TILES, AHEAD, true, OUT, false>>(),
                                 grid, WARPS * WARP,
                                 (size_t)a->s.m * ((size_t)a->s.k / 8 + 1) * sizeof(uint4), l, *a);
    return launch_kernel(known<skinny_kernel<HALVES, TILES, AHEAD, false, OUT, false>>(), grid,
                         WARPS * WARP, 0, l, *a);
}

/* The widest matrices take four tiles a block, so that x is read a quarter as often; those of
 * middle width two, so that all blocks are resident at once. Others take one, so that every
 * multiprocessor has a block, with all weights of a warp in flight where registers hold them. */
template <int HALVES, int OUT>
static cudaError_t pick(const struct launch *l, const struct skinny_args *a)
{
    if constexpr (HALVES > 2) {
        const int64_t wide = (int64_t)(a->s.n / (COLS * 4)) * (a->s.m / (HALVES * 8));

        if (a->s.n <= l->n_sms * COLS * 2 && wide < l->n_sms)
            return run<HALVES, 1, 2, OUT>(l, a);
        return run<HALVES, 4, 1, OUT>(l, a);
    } else {
        if (a->s.n >= l->n_sms * COLS * 4 * 4)
            return run<HALVES, 4, 2, OUT>(l, a);
        if (a->s.n > l->n_sms * COLS * 2)
            return run<HALVES, 2, 4, OUT>(l, a);
        if constexpr (HALVES == 1)
            if (!a->s.x_f32 && a->n_steps > WARPS * 8)
                return run<HALVES, 1, 12, OUT>(l, a);
        return run<HALVES, 1, 8 / HALVES, OUT>(l, a);
    }
}

template <int HALVES>
static cudaError_t dispatch(const struct launch *l, const struct skinny_args *a)
{
    switch (a->s.out) {
    case SKINNY_BF16:
        return pick<HALVES, SKINNY_BF16>(l, a);
    case SKINNY_F32:
        return pick<HALVES, SKINNY_F32>(l, a);
    case SKINNY_ADD_F32:
        return pick<HALVES, SKINNY_ADD_F32>(l, a);
    case SKINNY_SILU_MUL:
        if constexpr (HALVES > 2)
            return run<HALVES, 4, 1, SKINNY_SILU_MUL>(l, a);
        else
            return run<HALVES, 2, 4, SKINNY_SILU_MUL>(l, a);
    }
    return cudaErrorInvalidValue;
}

extern "C" cudaError_t skinny_gemm(const struct launch *l, const struct skinny *s)
{
    const int n_halves = s->sum == SKINNY_HALVES ? 2 : 1;
    struct skinny_args a = {};

    a.s = *s;
    a.n_steps = s->k / STEP / n_halves;
    a.second = s->n;

    if (s->m < 1 || s->k % (STEP * n_halves) ||
        (s->sum != SKINNY_WHOLE &&
         (s->x_f32 || s->rms || (s->out != SKINNY_F32 && s->out != SKINNY_ADD_F32))) ||
        (s->sum == SKINNY_HALVES && s->out != SKINNY_ADD_F32) ||
        (s->x_f32 && (s->m > SKINNY_MAX_ROWS || 2 * s->m * s->k > SKINNY_NORM_BYTES)))
        return cudaErrorInvalidValue;
    return s->m <= 8 ? dispatch<1>(l, &a) : s->m <= 16 ? dispatch<2>(l, &a) : dispatch<8>(l, &a);
}

/* Four tiles a block, of gate and up two of each: blocks of fewer are over before enough of their
 * weights are under way. */
template <int HALVES, int OUT>
static cudaError_t run_experts(const struct launch *l, const struct skinny_args *a, int n_groups)
{
    static constexpr int TILES = 4, AHEAD = 3, BLOCKS_PER_SM = 2;
    const int cols = COLS * TILES / (OUT == SKINNY_SILU_MUL ? 2 : 1);

    return launch_kernel(
        known<skinny_kernel<HALVES, TILES, AHEAD, false, OUT, false, BLOCKS_PER_SM>>(),
        dim3((unsigned)((a->s.n + cols - 1) / cols), (unsigned)n_groups), WARPS * WARP, 0, l, *a);
}

extern "C" cudaError_t expert_skinny(const struct launch *l, const struct expert_picks *p,
                                     const struct expert_product *e)
{
    const int n_groups = expert_most_groups(p->n_experts, e->n_rows * p->n_picks, EXPERT_FEW);
    struct skinny_args a = {};

    a.s.y = e->y;
    a.s.y_stride = e->n;
    a.s.x = e->x;
    a.s.w = e->w;
    a.s.n = e->n;
    a.s.k = e->k;
    a.n_steps = e->k / STEP;
    a.second = e->n;
    a.ld = e->ld;
    a.picks = *p;
    a.picks_of_x = e->x_of_rows ? p->n_picks : 1;
    if (e->k % STEP || n_groups < 1)
        return cudaErrorInvalidValue;
    if (e->n_rows <= 8) /* no group has more */
        return e->gated ? run_experts<1, SKINNY_SILU_MUL>(l, &a, n_groups)
                        : run_experts<1, SKINNY_BF16>(l, &a, n_groups);
    return e->gated ? run_experts<2, SKINNY_SILU_MUL>(l, &a, n_groups)
                    : run_experts<2, SKINNY_BF16>(l, &a, n_groups);
}
