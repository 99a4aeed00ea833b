/* cpu_vec_avx512.h - the lanes of cpu_vec.h in one register. */
#include <immintrin.h>

struct vec {
    __m512 v;
};

VEC_FUNC struct vec vec_load(const float *p)
{
    return (struct vec){_mm512_loadu_ps(p)};
}

VEC_FUNC void vec_store(float *p, struct vec a)
{
    _mm512_storeu_ps(p, a.v);
}

VEC_FUNC struct vec vec_set1(float x)
{
    return (struct vec){_mm512_set1_ps(x)};
}

VEC_FUNC struct vec vec_load_bf16(const uint16_t *p)
{
    const __m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)p));

    return (struct vec){_mm512_castsi512_ps(_mm512_slli_epi32(wide, 16))};
}

VEC_FUNC struct vec vec_add(struct vec a, struct vec b)
{
    return (struct vec){_mm512_add_ps(a.v, b.v)};
}

VEC_FUNC struct vec vec_sub(struct vec a, struct vec b)
{
    return (struct vec){_mm512_sub_ps(a.v, b.v)};
}

VEC_FUNC struct vec vec_mul(struct vec a, struct vec b)
{
    return (struct vec){_mm512_mul_ps(a.v, b.v)};
}

VEC_FUNC struct vec vec_div(struct vec a, struct vec b)
{
    return (struct vec){_mm512_div_ps(a.v, b.v)};
}

/* a * b + c, rounded once. */
VEC_FUNC struct vec vec_fma(struct vec a, struct vec b, struct vec c)
{
    return (struct vec){_mm512_fmadd_ps(a.v, b.v, c.v)};
}

/* a > b ? a : b, so b where either is NaN. */
VEC_FUNC struct vec vec_max(struct vec a, struct vec b)
{
    return (struct vec){_mm512_max_ps(a.v, b.v)};
}

/* a < b ? a : b, so b where either is NaN. */
VEC_FUNC struct vec vec_min(struct vec a, struct vec b)
{
    return (struct vec){_mm512_min_ps(a.v, b.v)};
}

/* a, but 0 where x < lo. */
VEC_FUNC struct vec vec_zero_below(struct vec a, struct vec x, struct vec lo)
{
    return (struct vec){_mm512_maskz_mov_ps(_mm512_cmp_ps_mask(x.v, lo.v, _CMP_NLT_UQ), a.v)};
}

VEC_FUNC bool vec_any_ge(struct vec a, struct vec b)
{
    return _mm512_cmp_ps_mask(a.v, b.v, _CMP_GE_OQ) != 0;
}

/* 2^n for t = 1.5 * 2^23 + n, -126 <= n <= 127. */
VEC_FUNC struct vec vec_pow2(struct vec t)
{
    const __m512i n = _mm512_slli_epi32(_mm512_castps_si512(t.v), 23);

    return (struct vec){_mm512_castsi512_ps(_mm512_add_epi32(n, _mm512_set1_epi32(0x3f800000)))};
}

/* The sums of four: lane i with i + 8, then i + 4, i + 2, i + 1. */
VEC_FUNC void vec_sum4(float *out, struct vec a, struct vec b, struct vec c, struct vec d)
{
    const struct vec in[4] = {a, b, c, d};
    __m128 q[4], ab, cd;

    for (int i = 0; i < 4; i++) {
        const __m256 h =
            _mm256_add_ps(_mm512_castps512_ps256(in[i].v), _mm512_extractf32x8_ps(in[i].v, 1));

        q[i] = _mm_add_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
    }
    ab = _mm_add_ps(_mm_unpacklo_ps(q[0], q[1]), _mm_unpackhi_ps(q[0], q[1]));
    cd = _mm_add_ps(_mm_unpacklo_ps(q[2], q[3]), _mm_unpackhi_ps(q[2], q[3]));
    _mm_storeu_ps(out, _mm_add_ps(_mm_movelh_ps(ab, cd), _mm_movehl_ps(cd, ab)));
}

/* Four floats from each pointer, side by side. */
VEC_FUNC struct vec vec_load_quads(const float *p0, const float *p1, const float *p2,
                                   const float *p3)
{
    __m512 v = _mm512_castps128_ps512(_mm_loadu_ps(p0));

    v = _mm512_insertf32x4(v, _mm_loadu_ps(p1), 1);
    v = _mm512_insertf32x4(v, _mm_loadu_ps(p2), 2);
    return (struct vec){_mm512_insertf32x4(v, _mm_loadu_ps(p3), 3)};
}

/* Transposes the 4x4 floats that each quad of the four vectors makes. */
VEC_FUNC void vec_transpose_quads(struct vec m[4])
{
    const __m512 lo01 = _mm512_unpacklo_ps(m[0].v, m[1].v);
    const __m512 hi01 = _mm512_unpackhi_ps(m[0].v, m[1].v);
    const __m512 lo23 = _mm512_unpacklo_ps(m[2].v, m[3].v);
    const __m512 hi23 = _mm512_unpackhi_ps(m[2].v, m[3].v);

    m[0].v = _mm512_shuffle_ps(lo01, lo23, 0x44);
    m[1].v = _mm512_shuffle_ps(lo01, lo23, 0xee);
    m[2].v = _mm512_shuffle_ps(hi01, hi23, 0x44);
    m[3].v = _mm512_shuffle_ps(hi01, hi23, 0xee);
}
