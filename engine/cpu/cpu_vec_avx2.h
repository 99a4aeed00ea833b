/* cpu_vec_avx2.h - what cpu_vec.h needs of AVX2; a part is eight lanes. See cpu_vec_avx512.h for
 * what each function promises. */
#include <immintrin.h>

#define VEC_PART_BYTES 32

typedef __m256 part;

VEC_FUNC part part_load_bf16(const uint16_t *p)
{
    const __m256i wide = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)p));

    return _mm256_castsi256_ps(_mm256_slli_epi32(wide, 16));
}

VEC_FUNC part part_fma(part a, part b, part c)
{
    return _mm256_fmadd_ps(a, b, c);
}

VEC_FUNC part part_max(part a, part b)
{
    return _mm256_max_ps(a, b);
}

VEC_FUNC part part_min(part a, part b)
{
    return _mm256_min_ps(a, b);
}

VEC_FUNC part part_zero_below(part a, part x, part lo)
{
    return _mm256_and_ps(a, _mm256_cmp_ps(x, lo, _CMP_NLT_UQ));
}

VEC_FUNC bool part_any_ge(part a, part b)
{
    return _mm256_movemask_ps(_mm256_cmp_ps(a, b, _CMP_GE_OQ)) != 0;
}

VEC_FUNC __m128 parts_fold(const part *p)
{
    const part h = _mm256_add_ps(p[0], p[1]);

    return _mm_add_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
}

VEC_FUNC void parts_load_quads(part *y, const float *p0, const float *p1, const float *p2,
                               const float *p3)
{
    y[0] = _mm256_set_m128(_mm_loadu_ps(p1), _mm_loadu_ps(p0));
    y[1] = _mm256_set_m128(_mm_loadu_ps(p3), _mm_loadu_ps(p2));
}

VEC_FUNC void part_transpose_quads(part *a, part *b, part *c, part *d)
{
    const part lo01 = _mm256_unpacklo_ps(*a, *b), hi01 = _mm256_unpackhi_ps(*a, *b);
    const part lo23 = _mm256_unpacklo_ps(*c, *d), hi23 = _mm256_unpackhi_ps(*c, *d);

    *a = _mm256_shuffle_ps(lo01, lo23, 0x44);
    *b = _mm256_shuffle_ps(lo01, lo23, 0xee);
    *c = _mm256_shuffle_ps(hi01, hi23, 0x44);
    *d = _mm256_shuffle_ps(hi01, hi23, 0xee);
}
