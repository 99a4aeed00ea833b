/* cpu_vec.h - sixteen float lanes, the one word that the kernels are written in.
 *
 * Three spellings of the same arithmetic: AVX-512, AVX2 with FMA, and plain vectors of four that
 * any compiler lowers. Each lane operation is the correctly rounded one, vec_fma is fused in all
 * three (emulated exactly where the machine has no fused instruction) and sums are taken in one
 * order, so that a kernel gives the same bits whichever it is compiled with. To be included by
 * kernel files only: what it offers follows their compile flags. */
#ifndef NVLLM_ENGINE_CPU_CPU_VEC_H
#define NVLLM_ENGINE_CPU_CPU_VEC_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

enum { VEC = 16 }; /* lanes */

#define VEC_FUNC static inline __attribute__((always_inline))

/* Before a loop of constant length over accumulators, which are to live in registers. */
#ifdef __clang__
#define VEC_UNROLL _Pragma("unroll")
#else
#define VEC_UNROLL _Pragma("GCC unroll 32")
#endif

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512DQ__)
#include "engine/cpu/cpu_vec_avx512.h"
#elif defined(__AVX2__) && defined(__FMA__)
#include "engine/cpu/cpu_vec_avx2.h"
#else
#include "engine/cpu/cpu_vec_plain.h"
#endif

VEC_FUNC struct vec vec_zero(void)
{
    return vec_set1(0.0f);
}

/* The first n lanes from memory, zero in the others. */
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
