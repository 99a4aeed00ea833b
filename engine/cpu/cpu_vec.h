/* cpu_vec.h - vectors of sixteen floats, the type that the kernels compute with.
 *
 * A vector is made of parts as wide as the machine's registers; the compile flags select them. All
 * but the fused multiply-add is the compiler's vector arithmetic. Each operation rounds correctly,
 * vec_fma is always fused (emulated exactly if the machine has no such instruction) and sums have
 * one order, so a kernel gives the same bits for each instruction set. For kernel files only. */
#ifndef NVLLM_ENGINE_CPU_CPU_VEC_H
#define NVLLM_ENGINE_CPU_CPU_VEC_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#ifdef __SSE2__
#include <immintrin.h>
#endif

enum { VEC = 16 }; /* lanes */

#define VEC_FUNC static inline __attribute__((always_inline))

/* Before a loop of constant length over values that must stay in registers. */
#ifdef __clang__
#define VEC_UNROLL _Pragma("unroll")
#else
#define VEC_UNROLL _Pragma("GCC unroll 32")
#endif

/* Evaluates call with the constant ROWS equal to n, if 0 < n < below; below is at most 6. */
#define VEC_FOR_ROWS(n, below, call)                                                               \
    do {                                                                                           \
        switch (n) {                                                                               \
            VEC_CASE(1, below, call)                                                               \
            VEC_CASE(2, below, call)                                                               \
            VEC_CASE(3, below, call)                                                               \
            VEC_CASE(4, below, call)                                                               \
            VEC_CASE(5, below, call)                                                               \
        }                                                                                          \
    } while (0)
#define VEC_CASE(n, below, call)                                                                   \
    case n: {                                                                                      \
        enum { ROWS = n };                                                                         \
        if (n < (int)(below))                                                                      \
            call;                                                                                  \
        break;                                                                                     \
    }

/* What a register holds. PART(op): the instruction of that width. */
#if defined(__AVX512F__)
enum { PART_BYTES = 64 };
typedef __m512 part;
#define PART(op) _mm512_##op
#elif defined(__AVX2__) && defined(__FMA__)
enum { PART_BYTES = 32 };
typedef __m256 part;
#define PART(op) _mm256_##op
#elif defined(__SSE2__)
enum { PART_BYTES = 16 };
typedef __m128 part;
#define PART(op) _mm_##op
#else
enum { PART_BYTES = 16 };
typedef float part __attribute__((vector_size(16)));
#endif

enum { N_PARTS = VEC * 4 / PART_BYTES, PART_LANES = PART_BYTES / 4 };

typedef int32_t part_int __attribute__((vector_size(PART_BYTES)));
typedef uint32_t part_uint __attribute__((vector_size(PART_BYTES)));
typedef float quad __attribute__((vector_size(16)));

/* A part at any address. */
typedef float part_memory __attribute__((vector_size(PART_BYTES), aligned(4), may_alias));

struct vec {
    part p[N_PARTS];
};

/* a * b + c, rounded once. */
#if defined(__FMA__)
VEC_FUNC part part_fma(part a, part b, part c)
{
    return PART(fmadd_ps)(a, b, c);
}
#elif defined(__SSE2__)
typedef int64_t pair_int __attribute__((vector_size(16)));

/* By means of doubles: the product of two floats is exact in a double, the sum is not. Its error is
 * found (Knuth's two-sum) and, where there is one, an even last bit is made odd in its direction.
 * Rounding to float then cannot fall on a false tie. */
VEC_FUNC __m128d pair_fma_odd(__m128d a, __m128d b, __m128d c)
{
    const __m128d product = a * b, sum = product + c;
    const __m128d back = sum - product;
    const __m128d error = (product - (sum - back)) + (c - back);
    const pair_int inexact = (error > 0.0) | (error < 0.0); /* neither for NaN */
    const pair_int away = (error > 0.0) ^ (sum > 0.0);      /* -1: towards zero */
    pair_int bits = (pair_int)sum;
    const pair_int even = (bits & 1) - 1;

    bits += even & inexact & (away | 1);
    return (__m128d)bits;
}

/* Conversions are spelled as instructions: written as C, gcc 12 at -O3 gives wrong bits where two
 * such calls follow one another (a rounding to float between them gets lost). */
VEC_FUNC part part_fma(part a, part b, part c)
{
    const __m128d lo = pair_fma_odd(_mm_cvtps_pd(a), _mm_cvtps_pd(b), _mm_cvtps_pd(c));
    const __m128d hi =
        pair_fma_odd(_mm_cvtps_pd(_mm_movehl_ps(a, a)), _mm_cvtps_pd(_mm_movehl_ps(b, b)),
                     _mm_cvtps_pd(_mm_movehl_ps(c, c)));

    return _mm_movelh_ps(_mm_cvtpd_ps(lo), _mm_cvtpd_ps(hi));
}
#else
VEC_FUNC part part_fma(part a, part b, part c)
{
    return (part){__builtin_fmaf(a[0], b[0], c[0]), __builtin_fmaf(a[1], b[1], c[1]),
                  __builtin_fmaf(a[2], b[2], c[2]), __builtin_fmaf(a[3], b[3], c[3])};
}
#endif

VEC_FUNC part part_load_bf16(const uint16_t *p)
{
#if defined(__AVX512F__)
    const __m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const void *)p));
#elif defined(__AVX2__)
    const __m256i wide = _mm256_cvtepu16_epi32(_mm_loadu_si128((const void *)p));
#else
    const part_uint wide = {p[0], p[1], p[2], p[3]};
#endif
    return (part)((part_uint)wide << 16);
}

/* E4M3 times 2^-120: its bits are those of a float but for the bias of the exponent. */
VEC_FUNC part part_load_e4m3(const uint8_t *p)
{
#if defined(__AVX512F__)
    const __m512i wide = _mm512_cvtepi8_epi32(_mm_loadu_si128((const void *)p));
#elif defined(__AVX2__)
    const __m256i wide = _mm256_cvtepi8_epi32(_mm_loadl_epi64((const void *)p));
#else
    const part_int wide = {(int8_t)p[0], (int8_t)p[1], (int8_t)p[2], (int8_t)p[3]};
#endif
    return (part)((part_uint)wide << 20 & 0x87f00000u);
}

#define VEC_EACH(expr)                                                                             \
    struct vec y;                                                                                  \
    VEC_UNROLL                                                                                     \
    for (int i = 0; i < N_PARTS; i++)                                                              \
        y.p[i] = (expr);                                                                           \
    return y

VEC_FUNC struct vec vec_load(const float *p)
{
    VEC_EACH(((const part_memory *)p)[i]);
}

VEC_FUNC void vec_store(float *p, struct vec a)
{
    VEC_UNROLL
    for (int i = 0; i < N_PARTS; i++)
        ((part_memory *)p)[i] = a.p[i];
}

VEC_FUNC struct vec vec_set1(float x)
{
    VEC_EACH(x - (part){0}); /* -0 stays -0 */
}

VEC_FUNC struct vec vec_load_bf16(const uint16_t *p)
{
    VEC_EACH(part_load_bf16(p + i * (PART_LANES)));
}

VEC_FUNC struct vec vec_load_e4m3(const uint8_t *p)
{
    VEC_EACH(part_load_e4m3(p + i * PART_LANES));
}

/* 0 .. 15 less a zero. Of AVX-512 that is a table, which is looked up, else the zero itself. */
VEC_FUNC struct vec vec_int4_zero(float zero)
{
#if defined(__AVX512F__)
    const part all = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};

    return (struct vec){{all - zero}};
#else
    return vec_set1(zero);
#endif
}

/* Sixteen elements in two words, in the order of struct matrix, less their zero, in the lanes of
 * vec_to_int4_lanes(). */
VEC_FUNC struct vec vec_load_int4(const uint32_t *p, struct vec zero)
{
#if defined(__AVX512F__)
    /* Both words are in every pair of lanes: only the shift is left. */
    const __m512i shift =
        _mm512_setr_epi32(0, 0, 16, 16, 4, 4, 20, 20, 8, 8, 24, 24, 12, 12, 28, 28);
    const __m512i words = _mm512_broadcastq_epi64(_mm_loadl_epi64((const void *)p));

    return (struct vec){{_mm512_permutexvar_ps(_mm512_srlv_epi32(words, shift), zero.p[0])}};
#elif defined(__AVX2__)
    const __m256i shift = _mm256_setr_epi32(0, 16, 4, 20, 8, 24, 12, 28);
    VEC_EACH(
        _mm256_cvtepi32_ps(_mm256_and_si256(_mm256_srlv_epi32(_mm256_set1_epi32((int)p[i]), shift),
                                            _mm256_set1_epi32(15))) -
        zero.p[i]);
#else
    struct vec y;

    for (int i = 0; i < VEC; i++) {
        const int shift = 4 * (i % 8 / 2) + 16 * (i % 2);

        y.p[i / PART_LANES][i % PART_LANES] = (float)(p[i / 8] >> shift & 15);
    }
    for (int i = 0; i < N_PARTS; i++)
        y.p[i] -= zero.p[i];
    return y;
#endif
}

/* Brings lanes into the order of vec_load_int4(), and back. */
VEC_FUNC struct vec vec_to_int4_lanes(struct vec a)
{
#if defined(__AVX512F__)
    const __m512i from = _mm512_setr_epi32(0, 8, 1, 9, 2, 10, 3, 11, 4, 12, 5, 13, 6, 14, 7, 15);

    a.p[0] = _mm512_permutexvar_ps(from, a.p[0]);
#endif
    return a;
}

VEC_FUNC struct vec vec_from_int4_lanes(struct vec a)
{
#if defined(__AVX512F__)
    const __m512i from = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 15);

    a.p[0] = _mm512_permutexvar_ps(from, a.p[0]);
#endif
    return a;
}

/* Defines a function of two vectors by what it does to part i of each. */
#define VEC_BINARY(name, expr)                                                                     \
    VEC_FUNC struct vec name(struct vec a, struct vec b)                                           \
    {                                                                                              \
        VEC_EACH(expr);                                                                            \
    }

VEC_BINARY(vec_add, a.p[i] + b.p[i])
VEC_BINARY(vec_sub, a.p[i] - b.p[i])
VEC_BINARY(vec_mul, a.p[i] * b.p[i])
VEC_BINARY(vec_div, a.p[i] / b.p[i])

VEC_FUNC struct vec vec_fma(struct vec a, struct vec b, struct vec c)
{
    VEC_EACH(part_fma(a.p[i], b.p[i], c.p[i]));
}

/* a > b ? a : b and a < b ? a : b, so b where either is NaN. */
#ifdef PART
#define part_max PART(max_ps)
#define part_min PART(min_ps)
#else
VEC_FUNC part part_max(part a, part b)
{
    const part_int first = a > b;

    return (part)((first & (part_int)a) | (~first & (part_int)b));
}

VEC_FUNC part part_min(part a, part b)
{
    return -part_max(-a, -b);
}
#endif

VEC_BINARY(vec_max, part_max(a.p[i], b.p[i]))
VEC_BINARY(vec_min, part_min(a.p[i], b.p[i]))

/* a, but 0 where x < lo. */
VEC_FUNC struct vec vec_zero_below(struct vec a, struct vec x, struct vec lo)
{
    VEC_EACH((part)(~(x.p[i] < lo.p[i]) & (part_int)a.p[i]));
}

/* 2^n for t = 1.5 * 2^23 + n, -126 <= n <= 127. */
VEC_FUNC struct vec vec_pow2(struct vec t)
{
    VEC_EACH((part)(((part_uint)t.p[i] << 23) + 0x3f800000u));
}

#ifdef PART
/* Four floats from each of four places, side by side. */
VEC_FUNC struct vec vec_load_quads(const float *p, int stride)
{
    const __m128 q0 = _mm_loadu_ps(p), q1 = _mm_loadu_ps(p + stride);
    const __m128 q2 = _mm_loadu_ps(p + 2 * stride), q3 = _mm_loadu_ps(p + 3 * stride);
#if defined(__AVX512F__)
    const __m512 lo = _mm512_insertf32x4(_mm512_castps128_ps512(q0), q1, 1);

    return (struct vec){{_mm512_insertf32x4(_mm512_insertf32x4(lo, q2, 2), q3, 3)}};
#elif defined(__AVX2__)
    return (struct vec){{_mm256_set_m128(q1, q0), _mm256_set_m128(q3, q2)}};
#else
    return (struct vec){{q0, q1, q2, q3}};
#endif
}
#endif

/* out[d * out_stride + i] = in[i * stride + d] for four d. */
VEC_FUNC void vec_transpose(float *out, int out_stride, const float *in, int stride)
{
#ifdef PART
    struct vec m[4];

    VEC_UNROLL
    for (int i = 0; i < 4; i++)
        m[i] = vec_load_quads(in + i * stride, 4 * stride);
    VEC_UNROLL
    for (int i = 0; i < N_PARTS; i++) {
        const part lo01 = PART(unpacklo_ps)(m[0].p[i], m[1].p[i]);
        const part hi01 = PART(unpackhi_ps)(m[0].p[i], m[1].p[i]);
        const part lo23 = PART(unpacklo_ps)(m[2].p[i], m[3].p[i]);
        const part hi23 = PART(unpackhi_ps)(m[2].p[i], m[3].p[i]);

        m[0].p[i] = PART(shuffle_ps)(lo01, lo23, 0x44);
        m[1].p[i] = PART(shuffle_ps)(lo01, lo23, 0xee);
        m[2].p[i] = PART(shuffle_ps)(hi01, hi23, 0x44);
        m[3].p[i] = PART(shuffle_ps)(hi01, hi23, 0xee);
    }
    for (int d = 0; d < 4; d++)
        vec_store(out + d * out_stride, m[d]);
#else
    for (int d = 0; d < 4; d++)
        for (int i = 0; i < VEC; i++)
            out[d * out_stride + i] = in[i * stride + d];
#endif
}

/* Lanes 4 i .. 4 i + 3. */
VEC_FUNC quad vec_quad(struct vec a, int i)
{
    const union {
        part p;
        quad q[PART_LANES / 4];
    } u = {a.p[i * 4 / PART_LANES]};

    return u.q[i % (PART_LANES / 4)];
}

/* Lane i with i + 8, then i + 4, i + 2, i + 1. */
VEC_FUNC float vec_sum(struct vec a)
{
    const quad q = (vec_quad(a, 0) + vec_quad(a, 2)) + (vec_quad(a, 1) + vec_quad(a, 3));
    const quad pair = q + __builtin_shufflevector(q, q, 2, 3, 2, 3);

    return pair[0] + pair[1];
}

VEC_FUNC struct vec vec_zero(void)
{
    return vec_set1(0.0f);
}

/* The first n lanes from memory, zeros in the others. */
VEC_FUNC struct vec vec_load_n(const float *p, int n)
{
    float lanes[VEC] = {0};

    if (n >= VEC)
        return vec_load(p);
    memcpy(lanes, p, (size_t)n * sizeof(float));
    return vec_load(lanes);
}

VEC_FUNC void vec_store_n(float *p, struct vec a, int n)
{
    float lanes[VEC];

    if (n >= VEC) {
        vec_store(p, a);
        return;
    }
    vec_store(lanes, a);
    memcpy(p, lanes, (size_t)n * sizeof(float));
}

VEC_FUNC float vec_max_lane(struct vec a)
{
    float lanes[VEC], max;

    vec_store(lanes, a);
    max = lanes[0];
    for (int i = 1; i < VEC; i++)
        max = lanes[i] > max ? lanes[i] : max;
    return max;
}

/* e^x to about 1e-7 of its value: 2^n times a Taylor polynomial on [-ln 2 / 2, ln 2 / 2].
 * exp(0) is 1, below -87 it is 0 (so is exp(-inf)), above 88 it stays exp(88), NaN stays NaN. */
VEC_FUNC struct vec vec_exp(struct vec x)
{
    const struct vec lo = vec_set1(-87.0f), hi = vec_set1(88.0f);
    const struct vec magic = vec_set1(0x1.8p23f); /* adding it rounds to an integer */
    struct vec y = vec_min(hi, vec_max(lo, x));   /* in this order NaN goes through */
    struct vec t = vec_fma(y, vec_set1(0x1.715476p0f), magic);
    struct vec n = vec_sub(t, magic);
    struct vec r = vec_fma(n, vec_set1(-0x1.62e4p-1f), y);
    struct vec p = vec_set1(1.0f / 5040);

    r = vec_fma(n, vec_set1(-0x1.7f7d1cp-20f), r);
    p = vec_fma(p, r, vec_set1(1.0f / 720));
    p = vec_fma(p, r, vec_set1(1.0f / 120));
    p = vec_fma(p, r, vec_set1(1.0f / 24));
    p = vec_fma(p, r, vec_set1(1.0f / 6));
    p = vec_fma(p, r, vec_set1(0.5f));
    p = vec_fma(p, r, vec_set1(1.0f));
    p = vec_fma(p, r, vec_set1(1.0f));
    return vec_zero_below(vec_mul(p, vec_pow2(t)), x, lo);
}

#endif
