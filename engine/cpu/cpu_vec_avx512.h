/* cpu_vec_avx512.h - what cpu_vec.h needs of AVX-512; a part is all sixteen lanes. */
#include <immintrin.h>

#define VEC_PART_BYTES 64

typedef __m512 part;

VEC_FUNC part part_load_bf16(const uint16_t *p)
{
    const __m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)p));

    return _mm512_castsi512_ps(_mm512_slli_epi32(wide, 16));
}

/* a * b + c, rounded once. */
VEC_FUNC part part_fma(part a, part b, part c)
{
    return _mm512_fmadd_ps(a, b, c);
}

/* a > b ? a : b, so b where either is NaN. */
VEC_FUNC part part_max(part a, part b)
{
    return _mm512_max_ps(a, b);
}

/* a < b ? a : b, so b where either is NaN. */
VEC_FUNC part part_min(part a, part b)
{
    return _mm512_min_ps(a, b);
}

/* a, but 0 where x < lo. */
VEC_FUNC part part_zero_below(part a, part x, part lo)
{
    return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(x, lo, _CMP_NLT_UQ), a);
}

VEC_FUNC bool part_any_ge(part a, part b)
{
    return _mm512_cmp_ps_mask(a, b, _CMP_GE_OQ) != 0;
}

/* Sixteen lanes to four: lane i with i + 8, then i + 4. */
VEC_FUNC __m128 parts_fold(const part *p)
{
    const __m256 h = _mm256_add_ps(_mm512_castps512_ps256(*p), _mm512_extractf32x8_ps(*p, 1));

    return _mm_add_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
}

VEC_FUNC void parts_load_quads(part *y, const float *p0, const float *p1, const float *p2,
                               const float *p3)
{
    *y = _mm512_castps128_ps512(_mm_loadu_ps(p0));
    *y = _mm512_insertf32x4(*y, _mm_loadu_ps(p1), 1);
    *y = _mm512_insertf32x4(*y, _mm_loadu_ps(p2), 2);
    *y = _mm512_insertf32x4(*y, _mm_loadu_ps(p3), 3);
}

/* Transposes the 4x4 floats that each four lanes of the four parts make. */
VEC_FUNC void part_transpose_quads(part *a, part *b, part *c, part *d)
{
    const part lo01 = _mm512_unpacklo_ps(*a, *b), hi01 = _mm512_unpackhi_ps(*a, *b);
    const part lo23 = _mm512_unpacklo_ps(*c, *d), hi23 = _mm512_unpackhi_ps(*c, *d);

    *a = _mm512_shuffle_ps(lo01, lo23, 0x44);
    *b = _mm512_shuffle_ps(lo01, lo23, 0xee);
    *c = _mm512_shuffle_ps(hi01, hi23, 0x44);
    *d = _mm512_shuffle_ps(hi01, hi23, 0xee);
}
