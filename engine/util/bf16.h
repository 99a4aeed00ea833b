/* bf16.h - conversions between float formats, one value and whole arrays.
 *
 * Conversion to bf16 rounds to nearest, ties to even. NaN becomes a quiet NaN, infinities and signs
 * are kept, and a value out of range becomes infinite. The processor's rounding and flush-to-zero
 * modes make no difference. No state; any thread. */
#ifndef NVLLM_ENGINE_UTIL_BF16_H
#define NVLLM_ENGINE_UTIL_BF16_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

static inline float f32_from_bf16(uint16_t x)
{
    uint32_t bits = (uint32_t)x << 16;
    float f;

    memcpy(&f, &bits, sizeof(f));
    return f;
}

static inline uint16_t bf16_from_f32_bits(uint32_t bits)
{
    uint32_t rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
    uint32_t quiet = bits >> 16 | 0x40;

    return (uint16_t)((bits & 0x7fffffff) > 0x7f800000 ? quiet : rounded);
}

static inline uint16_t bf16_from_f32(float x)
{
    uint32_t bits;

    memcpy(&bits, &x, sizeof(bits));
    return bf16_from_f32_bits(bits);
}

/* Exact. */
static inline uint32_t f32_bits_from_f16(uint16_t x)
{
    const uint32_t sign = (uint32_t)(x & 0x8000) << 16;
    const uint32_t magnitude = (uint32_t)(x & 0x7fff) << 13;
    const uint32_t rebias = 112u << 23;          /* 127 - 15 */
    const uint32_t smallest_normal = 113u << 23; /* 2^-14 */
    /* Masks, because gcc turns ?: into branches and then does not vectorise the loop. */
    const uint32_t is_special = -(uint32_t)(magnitude >= 0x1fu << 23);
    const uint32_t is_subnormal = -(uint32_t)(magnitude < 1u << 23);
    uint32_t normal = magnitude + rebias;
    uint32_t subnormal = normal + (1u << 23);
    float f, least;

    /* A subnormal m * 2^-24 is 2^-14 * (1 + m / 1024) - 2^-14, all of them normal in float32. */
    memcpy(&f, &subnormal, sizeof(f));
    memcpy(&least, &smallest_normal, sizeof(least));
    f -= least;
    memcpy(&subnormal, &f, sizeof(f));
    normal += rebias & is_special; /* infinity and NaN: the largest exponent again */
    return sign | (subnormal & is_subnormal) | (normal & ~is_subnormal);
}

/* Whole arrays, in loops without branches that the compiler vectorises with -O3. */
static inline void bf16_from_f32_array(uint16_t *restrict dst, const float *restrict src, size_t n)
{
    for (size_t i = 0; i < n; i++)
        dst[i] = bf16_from_f32(src[i]);
}

static inline void bf16_from_f16_array(uint16_t *restrict dst, const uint16_t *restrict src,
                                       size_t n)
{
    for (size_t i = 0; i < n; i++)
        dst[i] = bf16_from_f32_bits(f32_bits_from_f16(src[i]));
}

#endif
