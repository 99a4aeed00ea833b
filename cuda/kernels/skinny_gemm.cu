/* skinny_gemm.cu - launches products of few rows, and of experts' few picks: see skinny.cuh. */
#include "cuda/kernels/skinny.cuh"

/* What stage() does, for a row a block and to memory. */
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
    if (m < 1 || k % UNIT)
        return cudaErrorInvalidValue;
    return launch_kernel(known<norm_kernel>(), dim3((unsigned)m), WARPS * WARP, 0, l, (uint4 *)y,
                         rms, x, norm, k, eps);
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
            return run<HALVES, 1, 2, OUT, KIND_BF16>(l, a);
        return run<HALVES, 4, 1, OUT, KIND_BF16>(l, a);
    } else {
        if (a->s.n >= l->n_sms * COLS * 4 * 4)
            return run<HALVES, 4, 2, OUT, KIND_BF16>(l, a);
        if (a->s.n > l->n_sms * COLS * 2)
            return run<HALVES, 2, 4, OUT, KIND_BF16>(l, a);
        if constexpr (HALVES == 1)
            if (!a->s.x_f32 && a->n_steps > WARPS * 8)
                return run<HALVES, 1, 12, OUT, KIND_BF16>(l, a);
        return run<HALVES, 1, 8 / HALVES, OUT, KIND_BF16>(l, a);
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
            return run<HALVES, 4, 1, SKINNY_SILU_MUL, KIND_BF16>(l, a);
        else
            return run<HALVES, 2, 4, SKINNY_SILU_MUL, KIND_BF16>(l, a);
    }
    return cudaErrorInvalidValue;
}

extern "C" bool skinny_halves(const struct quant *q, int k)
{
    return k % (2 * quant_step(q)) == 0;
}

static cudaError_t of_quantized(const struct launch *l, struct skinny_args *a)
{
    const struct quant *q = &a->s.quant;

    a->group_shift = quant_group_shift(q, a->s.k);
    a->n_groups = (a->s.k + q->scale_cols - 1) / q->scale_cols;
    return q->element == ELEMENT_E4M3 ? skinny_e4m3(l, a)
           : quant_is_fine(q, a->s.k) ? skinny_int4_fine(l, a)
                                      : skinny_int4(l, a);
}

extern "C" cudaError_t skinny_gemm(const struct launch *l, const struct skinny *s)
{
    const int n_halves = s->sum == SKINNY_HALVES ? 2 : 1, step = quant_step(&s->quant);
    struct skinny_args a = {};

    a.s = *s;
    a.n_steps = (s->k + step - 1) / step / n_halves;
    a.second = s->n;

    if (s->m < 1 || s->k % UNIT || !quant_supports(&s->quant, s->k) ||
        (n_halves == 2 && !skinny_halves(&s->quant, s->k)) ||
        (s->sum != SKINNY_WHOLE &&
         (s->x_f32 || s->rms || (s->out != SKINNY_F32 && s->out != SKINNY_ADD_F32))) ||
        (s->sum == SKINNY_HALVES && s->out != SKINNY_ADD_F32) ||
        (s->x_f32 && s->quant.element != ELEMENT_BF16 && s->out != SKINNY_BF16 &&
         s->out != SKINNY_SILU_MUL) ||
        (s->x_f32 && (s->m > SKINNY_MAX_ROWS || 2 * s->m * s->k > SKINNY_NORM_BYTES)))
        return cudaErrorInvalidValue;
    if (s->quant.element != ELEMENT_BF16)
        return of_quantized(l, &a);
    return s->m <= 8 ? dispatch<1>(l, &a) : s->m <= 16 ? dispatch<2>(l, &a) : dispatch<8>(l, &a);
}

extern "C" cudaError_t expert_skinny(const struct launch *l, const struct expert_picks *p,
                                     const struct expert_product *e)
{
    const int step = quant_step(&e->quant);
    struct skinny_args a = {};

    a.s.y = e->y;
    a.s.y_stride = e->n;
    a.s.x = e->x;
    a.s.w = e->w;
    a.s.quant = e->quant;
    a.s.m = e->n_rows;
    a.s.n = e->n;
    a.s.k = e->ld;
    a.s.out = e->gated ? SKINNY_SILU_MUL : SKINNY_BF16;
    a.first_step = e->first / step;
    a.n_steps = (e->k + step - 1) / step;
    a.second = e->n;
    a.picks = *p;
    a.picks_of_x = e->x_of_rows ? p->n_picks : 1;
    if (e->n_rows < 1 || e->ld % UNIT || e->first % step ||
        (e->k % step && e->first + e->k < e->ld) || !quant_supports(&e->quant, e->ld))
        return cudaErrorInvalidValue;
    return e->quant.element == ELEMENT_BF16 ? run_experts<KIND_BF16>(l, &a) : of_quantized(l, &a);
}
