/* cpu_vec_plain.h - the lanes of cpu_vec.h as four vectors of four, for any machine; see
 * cpu_vec_avx512.h for what each function promises. */

typedef float quad __attribute__((vector_size(16)));
typedef int32_t quad_int __attribute__((vector_size(16)));
typedef uint32_t quad_uint __attribute__((vector_size(16)));

struct vec {
    quad q[4];
};

#define VEC_EACH(expr)                                                                             \
    struct vec y;                                                                                  \
    for (int i = 0; i < 4; i++)                                                                    \
        y.q[i] = (expr);                                                                           \
    return y

VEC_FUNC struct vec vec_load(const float *p)
{
    struct vec y;

    memcpy(&y, p, sizeof(y));
    return y;
}

VEC_FUNC void vec_store(float *p, struct vec a)
{
    memcpy(p, &a, sizeof(a));
}

VEC_FUNC struct vec vec_set1(float x)
{
    const quad v = {x, x, x, x};

    return (struct vec){{v, v, v, v}};
}

VEC_FUNC quad quad_load_bf16(const uint16_t *p)
{
    const quad_uint wide = {p[0], p[1], p[2], p[3]};

    return (quad)(wide << 16);
}

VEC_FUNC struct vec vec_load_bf16(const uint16_t *p)
{
    VEC_EACH(quad_load_bf16(p + 4 * i));
}

VEC_FUNC struct vec vec_add(struct vec a, struct vec b)
{
    VEC_EACH(a.q[i] + b.q[i]);
}

VEC_FUNC struct vec vec_sub(struct vec a, struct vec b)
{
    VEC_EACH(a.q[i] - b.q[i]);
}

VEC_FUNC struct vec vec_mul(struct vec a, struct vec b)
{
    VEC_EACH(a.q[i] * b.q[i]);
}

VEC_FUNC struct vec vec_div(struct vec a, struct vec b)
{
    VEC_EACH(a.q[i] / b.q[i]);
}

#if defined(__SSE2__) && !defined(__FP_FAST_FMAF)
#include <emmintrin.h>

typedef double pair __attribute__((vector_size(16)));
typedef int64_t pair_int __attribute__((vector_size(16)));

/* A fused multiply-add of floats by means of doubles. The product of two floats is exact in a
 * double, the sum is not: its error is found (Knuth's two-sum) and, where there is one, an even
 * last bit is made odd in its direction. Rounding to float then cannot fall on a false tie. */
VEC_FUNC pair pair_fma_odd(pair a, pair b, pair c)
{
    const pair product = a * b, sum = product + c;
    const pair back = sum - product;
    const pair error = (product - (sum - back)) + (c - back);
    const pair_int inexact = (error > 0.0) | (error < 0.0); /* neither for NaN */
    const pair_int away = (error > 0.0) ^ (sum > 0.0);      /* -1: towards zero */
    pair_int bits = (pair_int)sum;
    const pair_int even = (bits & 1) - 1;

    bits += even & inexact & (away | 1);
    return (pair)bits;
}

/* Conversions are spelled as instructions: written as C, gcc 12 at -O3 gives wrong bits where two
 * such calls follow one another (a rounding to float between them gets lost). */
VEC_FUNC quad quad_fma(quad a, quad b, quad c)
{
    const pair lo = pair_fma_odd((pair)_mm_cvtps_pd((__m128)a), (pair)_mm_cvtps_pd((__m128)b),
                                 (pair)_mm_cvtps_pd((__m128)c));
    const pair hi = pair_fma_odd((pair)_mm_cvtps_pd(_mm_movehl_ps((__m128)a, (__m128)a)),
                                 (pair)_mm_cvtps_pd(_mm_movehl_ps((__m128)b, (__m128)b)),
                                 (pair)_mm_cvtps_pd(_mm_movehl_ps((__m128)c, (__m128)c)));

    return (quad)_mm_movelh_ps(_mm_cvtpd_ps((__m128d)lo), _mm_cvtpd_ps((__m128d)hi));
}
#else
VEC_FUNC quad quad_fma(quad a, quad b, quad c)
{
    return (quad){__builtin_fmaf(a[0], b[0], c[0]), __builtin_fmaf(a[1], b[1], c[1]),
                  __builtin_fmaf(a[2], b[2], c[2]), __builtin_fmaf(a[3], b[3], c[3])};
}
#endif

VEC_FUNC struct vec vec_fma(struct vec a, struct vec b, struct vec c)
{
    VEC_EACH(quad_fma(a.q[i], b.q[i], c.q[i]));
}

VEC_FUNC quad quad_select(quad_int mask, quad a, quad b)
{
    return (quad)((mask & (quad_int)a) | (~mask & (quad_int)b));
}

VEC_FUNC struct vec vec_max(struct vec a, struct vec b)
{
    VEC_EACH(quad_select(a.q[i] > b.q[i], a.q[i], b.q[i]));
}

VEC_FUNC struct vec vec_min(struct vec a, struct vec b)
{
    VEC_EACH(quad_select(a.q[i] < b.q[i], a.q[i], b.q[i]));
}

VEC_FUNC struct vec vec_zero_below(struct vec a, struct vec x, struct vec lo)
{
    VEC_EACH((quad)(~(x.q[i] < lo.q[i]) & (quad_int)a.q[i]));
}

VEC_FUNC bool vec_any_ge(struct vec a, struct vec b)
{
    quad_int any = a.q[0] >= b.q[0];

    for (int i = 1; i < 4; i++)
        any |= a.q[i] >= b.q[i];
    return (any[0] | any[1] | any[2] | any[3]) != 0;
}

VEC_FUNC struct vec vec_pow2(struct vec t)
{
    VEC_EACH((quad)(((quad_uint)t.q[i] << 23) + 0x3f800000u));
}

VEC_FUNC void vec_sum4(float *out, struct vec a, struct vec b, struct vec c, struct vec d)
{
    const struct vec in[4] = {a, b, c, d};

    for (int i = 0; i < 4; i++) {
        const quad q = (in[i].q[0] + in[i].q[2]) + (in[i].q[1] + in[i].q[3]);

        out[i] = (q[0] + q[2]) + (q[1] + q[3]);
    }
}

VEC_FUNC struct vec vec_load_quads(const float *p0, const float *p1, const float *p2,
                                   const float *p3)
{
    struct vec y;

    memcpy(&y.q[0], p0, sizeof(quad));
    memcpy(&y.q[1], p1, sizeof(quad));
    memcpy(&y.q[2], p2, sizeof(quad));
    memcpy(&y.q[3], p3, sizeof(quad));
    return y;
}

VEC_FUNC void vec_transpose_quads(struct vec m[4])
{
    for (int i = 0; i < 4; i++) {
        const quad a = m[0].q[i], b = m[1].q[i], c = m[2].q[i], d = m[3].q[i];

        m[0].q[i] = (quad){a[0], b[0], c[0], d[0]};
        m[1].q[i] = (quad){a[1], b[1], c[1], d[1]};
        m[2].q[i] = (quad){a[2], b[2], c[2], d[2]};
        m[3].q[i] = (quad){a[3], b[3], c[3], d[3]};
    }
}

#undef VEC_EACH
