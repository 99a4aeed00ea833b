/* cpu_vec_plain.h - what cpu_vec.h needs, for any machine; a part is four lanes. See
 * cpu_vec_avx512.h for what each function promises. */

#define VEC_PART_BYTES 16

typedef float part __attribute__((vector_size(16)));
typedef int32_t quad_int __attribute__((vector_size(16)));
typedef uint32_t quad_uint __attribute__((vector_size(16)));

VEC_FUNC part part_load_bf16(const uint16_t *p)
{
    const quad_uint wide = {p[0], p[1], p[2], p[3]};

    return (part)(wide << 16);
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
VEC_FUNC part part_fma(part a, part b, part c)
{
    const pair lo = pair_fma_odd((pair)_mm_cvtps_pd((__m128)a), (pair)_mm_cvtps_pd((__m128)b),
                                 (pair)_mm_cvtps_pd((__m128)c));
    const pair hi = pair_fma_odd((pair)_mm_cvtps_pd(_mm_movehl_ps((__m128)a, (__m128)a)),
                                 (pair)_mm_cvtps_pd(_mm_movehl_ps((__m128)b, (__m128)b)),
                                 (pair)_mm_cvtps_pd(_mm_movehl_ps((__m128)c, (__m128)c)));

    return (part)_mm_movelh_ps(_mm_cvtpd_ps((__m128d)lo), _mm_cvtpd_ps((__m128d)hi));
}
#else
VEC_FUNC part part_fma(part a, part b, part c)
{
    return (part){__builtin_fmaf(a[0], b[0], c[0]), __builtin_fmaf(a[1], b[1], c[1]),
                  __builtin_fmaf(a[2], b[2], c[2]), __builtin_fmaf(a[3], b[3], c[3])};
}
#endif

VEC_FUNC part part_select(quad_int mask, part a, part b)
{
    return (part)((mask & (quad_int)a) | (~mask & (quad_int)b));
}

VEC_FUNC part part_max(part a, part b)
{
    return part_select(a > b, a, b);
}

VEC_FUNC part part_min(part a, part b)
{
    return part_select(a < b, a, b);
}

VEC_FUNC part part_zero_below(part a, part x, part lo)
{
    return (part)(~(x < lo) & (quad_int)a);
}

VEC_FUNC bool part_any_ge(part a, part b)
{
    const quad_int ge = a >= b;

    return (ge[0] | ge[1] | ge[2] | ge[3]) != 0;
}

VEC_FUNC part parts_fold(const part *p)
{
    return (p[0] + p[2]) + (p[1] + p[3]);
}

VEC_FUNC void parts_load_quads(part *y, const float *p0, const float *p1, const float *p2,
                               const float *p3)
{
    memcpy(&y[0], p0, sizeof(part));
    memcpy(&y[1], p1, sizeof(part));
    memcpy(&y[2], p2, sizeof(part));
    memcpy(&y[3], p3, sizeof(part));
}

VEC_FUNC void part_transpose_quads(part *a, part *b, part *c, part *d)
{
    const part w = *a, x = *b, y = *c, z = *d;

    *a = (part){w[0], x[0], y[0], z[0]};
    *b = (part){w[1], x[1], y[1], z[1]};
    *c = (part){w[2], x[2], y[2], z[2]};
    *d = (part){w[3], x[3], y[3], z[3]};
}
