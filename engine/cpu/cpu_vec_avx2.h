/* cpu_vec_avx2.h - the lanes of cpu_vec.h in two registers; see cpu_vec_avx512.h for what each
 * function promises. */
#include <immintrin.h>

struct vec {
    __m256 lo, hi;
};

VEC_FUNC struct vec vec_load(const float *p)
{
    return (struct vec){_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)};
}

VEC_FUNC void vec_store(float *p, struct vec a)
{
    _mm256_storeu_ps(p, a.lo);
    _mm256_storeu_ps(p + 8, a.hi);
}

VEC_FUNC struct vec vec_set1(float x)
{
    const __m256 v = _mm256_set1_ps(x);

    return (struct vec){v, v};
}

VEC_FUNC struct vec vec_load_bf16(const uint16_t *p)
{
    const __m256i lo = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)p));
    const __m256i hi = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)(p + 8)));

    return (struct vec){_mm256_castsi256_ps(_mm256_slli_epi32(lo, 16)),
                        _mm256_castsi256_ps(_mm256_slli_epi32(hi, 16))};
}

VEC_FUNC struct vec vec_add(struct vec a, struct vec b)
{
    return (struct vec){_mm256_add_ps(a.lo, b.lo), _mm256_add_ps(a.hi, b.hi)};
}

VEC_FUNC struct vec vec_sub(struct vec a, struct vec b)
{
    return (struct vec){_mm256_sub_ps(a.lo, b.lo), _mm256_sub_ps(a.hi, b.hi)};
}

VEC_FUNC struct vec vec_mul(struct vec a, struct vec b)
{
    return (struct vec){_mm256_mul_ps(a.lo, b.lo), _mm256_mul_ps(a.hi, b.hi)};
}

VEC_FUNC struct vec vec_div(struct vec a, struct vec b)
{
    return (struct vec){_mm256_div_ps(a.lo, b.lo), _mm256_div_ps(a.hi, b.hi)};
}

VEC_FUNC struct vec vec_fma(struct vec a, struct vec b, struct vec c)
{
    return (struct vec){_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi)};
}

VEC_FUNC struct vec vec_max(struct vec a, struct vec b)
{
    return (struct vec){_mm256_max_ps(a.lo, b.lo), _mm256_max_ps(a.hi, b.hi)};
}

VEC_FUNC struct vec vec_min(struct vec a, struct vec b)
{
    return (struct vec){_mm256_min_ps(a.lo, b.lo), _mm256_min_ps(a.hi, b.hi)};
}

VEC_FUNC struct vec vec_zero_below(struct vec a, struct vec x, struct vec lo)
{
    return (struct vec){_mm256_and_ps(a.lo, _mm256_cmp_ps(x.lo, lo.lo, _CMP_NLT_UQ)),
                        _mm256_and_ps(a.hi, _mm256_cmp_ps(x.hi, lo.hi, _CMP_NLT_UQ))};
}

VEC_FUNC bool vec_any_ge(struct vec a, struct vec b)
{
    return _mm256_movemask_ps(_mm256_or_ps(_mm256_cmp_ps(a.lo, b.lo, _CMP_GE_OQ),
                                           _mm256_cmp_ps(a.hi, b.hi, _CMP_GE_OQ))) != 0;
}

VEC_FUNC struct vec vec_pow2(struct vec t)
{
    const __m256i one = _mm256_set1_epi32(0x3f800000);
    const __m256i lo = _mm256_slli_epi32(_mm256_castps_si256(t.lo), 23);
    const __m256i hi = _mm256_slli_epi32(_mm256_castps_si256(t.hi), 23);

    return (struct vec){_mm256_castsi256_ps(_mm256_add_epi32(lo, one)),
                        _mm256_castsi256_ps(_mm256_add_epi32(hi, one))};
}

VEC_FUNC void vec_sum4(float *out, struct vec a, struct vec b, struct vec c, struct vec d)
{
    const struct vec in[4] = {a, b, c, d};
    __m128 q[4], ab, cd;

    for (int i = 0; i < 4; i++) {
        const __m256 h = _mm256_add_ps(in[i].lo, in[i].hi);

        q[i] = _mm_add_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
    }
    ab = _mm_add_ps(_mm_unpacklo_ps(q[0], q[1]), _mm_unpackhi_ps(q[0], q[1]));
    cd = _mm_add_ps(_mm_unpacklo_ps(q[2], q[3]), _mm_unpackhi_ps(q[2], q[3]));
    _mm_storeu_ps(out, _mm_add_ps(_mm_movelh_ps(ab, cd), _mm_movehl_ps(cd, ab)));
}

VEC_FUNC struct vec vec_load_quads(const float *p0, const float *p1, const float *p2,
                                   const float *p3)
{
    return (struct vec){_mm256_set_m128(_mm_loadu_ps(p1), _mm_loadu_ps(p0)),
                        _mm256_set_m128(_mm_loadu_ps(p3), _mm_loadu_ps(p2))};
}

VEC_FUNC void vec_transpose_half(__m256 *m0, __m256 *m1, __m256 *m2, __m256 *m3)
{
    const __m256 lo01 = _mm256_unpacklo_ps(*m0, *m1), hi01 = _mm256_unpackhi_ps(*m0, *m1);
    const __m256 lo23 = _mm256_unpacklo_ps(*m2, *m3), hi23 = _mm256_unpackhi_ps(*m2, *m3);

    *m0 = _mm256_shuffle_ps(lo01, lo23, 0x44);
    *m1 = _mm256_shuffle_ps(lo01, lo23, 0xee);
    *m2 = _mm256_shuffle_ps(hi01, hi23, 0x44);
    *m3 = _mm256_shuffle_ps(hi01, hi23, 0xee);
}

VEC_FUNC void vec_transpose_quads(struct vec m[4])
{
    vec_transpose_half(&m[0].lo, &m[1].lo, &m[2].lo, &m[3].lo);
    vec_transpose_half(&m[0].hi, &m[1].hi, &m[2].hi, &m[3].hi);
}
