/* cpu_vec.h - vectors of sixteen floats, the type that the kernels compute with.
 *
 * A vector is made of parts as wide as the machine's registers: AVX-512, AVX2 with FMA, or plain
 * vectors of four that any compiler lowers. Each operation rounds correctly, vec_fma is always
 * fused (emulated exactly if the machine has no such instruction) and sums have one order, so a
 * kernel gives the same bits for each. For kernel files only: the compile flags select the parts.
 */
#ifndef NVLLM_ENGINE_CPU_CPU_VEC_H
#define NVLLM_ENGINE_CPU_CPU_VEC_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

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

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512DQ__)
#include "engine/cpu/cpu_vec_avx512.h"
#elif defined(__AVX2__) && defined(__FMA__)
#include "engine/cpu/cpu_vec_avx2.h"
#else
#include "engine/cpu/cpu_vec_plain.h"
#endif

enum { N_PARTS = VEC * 4 / VEC_PART_BYTES };

typedef uint32_t part_uint __attribute__((vector_size(VEC_PART_BYTES)));
typedef float quad __attribute__((vector_size(16)));

struct vec {
    part p[N_PARTS];
};

#define VEC_EACH(expr)                                                                             \
    struct vec y;                                                                                  \
    VEC_UNROLL                                                                                     \
    for (int i = 0; i < N_PARTS; i++)                                                              \
        y.p[i] = (expr);                                                                           \
    return y

/* A part at any address. */
typedef float part_memory __attribute__((vector_size(VEC_PART_BYTES), aligned(4), may_alias));

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
    VEC_EACH(part_load_bf16(p + i * (VEC / N_PARTS)));
}

VEC_FUNC struct vec vec_add(struct vec a, struct vec b)
{
    VEC_EACH(a.p[i] + b.p[i]);
}

VEC_FUNC struct vec vec_sub(struct vec a, struct vec b)
{
    VEC_EACH(a.p[i] - b.p[i]);
}

VEC_FUNC struct vec vec_mul(struct vec a, struct vec b)
{
    VEC_EACH(a.p[i] * b.p[i]);
}

VEC_FUNC struct vec vec_div(struct vec a, struct vec b)
{
    VEC_EACH(a.p[i] / b.p[i]);
}

VEC_FUNC struct vec vec_fma(struct vec a, struct vec b, struct vec c)
{
    VEC_EACH(part_fma(a.p[i], b.p[i], c.p[i]));
}

VEC_FUNC struct vec vec_max(struct vec a, struct vec b)
{
    VEC_EACH(part_max(a.p[i], b.p[i]));
}

VEC_FUNC struct vec vec_min(struct vec a, struct vec b)
{
    VEC_EACH(part_min(a.p[i], b.p[i]));
}

VEC_FUNC struct vec vec_zero_below(struct vec a, struct vec x, struct vec lo)
{
    VEC_EACH(part_zero_below(a.p[i], x.p[i], lo.p[i]));
}

/* 2^n for t = 1.5 * 2^23 + n, -126 <= n <= 127. */
VEC_FUNC struct vec vec_pow2(struct vec t)
{
    VEC_EACH((part)(((part_uint)t.p[i] << 23) + 0x3f800000u));
}

VEC_FUNC bool vec_any_ge(struct vec a, struct vec b)
{
    bool any = false;

    VEC_UNROLL
    for (int i = 0; i < N_PARTS; i++)
        any |= part_any_ge(a.p[i], b.p[i]);
    return any;
}

/* The sums of four: lane i with i + 8, then i + 4, i + 2, i + 1. */
VEC_FUNC void vec_sum4(float *out, struct vec a, struct vec b, struct vec c, struct vec d)
{
    const struct vec in[4] = {a, b, c, d};

    VEC_UNROLL
    for (int i = 0; i < 4; i++) {
        const quad q = (quad)parts_fold(in[i].p);

        out[i] = (q[0] + q[2]) + (q[1] + q[3]);
    }
}

/* Four floats from each pointer, side by side. */
VEC_FUNC struct vec vec_load_quads(const float *p0, const float *p1, const float *p2,
                                   const float *p3)
{
    struct vec y;

    parts_load_quads(y.p, p0, p1, p2, p3);
    return y;
}

/* Transposes the 4x4 floats that each four lanes of the four vectors make. */
VEC_FUNC void vec_transpose_quads(struct vec m[4])
{
    VEC_UNROLL
    for (int i = 0; i < N_PARTS; i++)
        part_transpose_quads(&m[0].p[i], &m[1].p[i], &m[2].p[i], &m[3].p[i]);
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

VEC_FUNC float vec_sum(struct vec a)
{
    float sums[4];

    vec_sum4(sums, a, a, a, a);
    return sums[0];
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
