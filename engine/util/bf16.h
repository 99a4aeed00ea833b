/* bf16.h - conversions between float formats, one value and whole arrays.
 *
 * Conversion to bf16 and E4M3 rounds to nearest, ties to even. In bf16 NaN becomes a quiet NaN,
 * infinities and signs are kept, and a value out of range becomes infinite; in E4M3 NaN, infinities
 * and values out of range become 448 with their sign. The processor's rounding and flush-to-zero
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

/* E4M3: four bits of exponent, three of mantissa, no infinities. Exact; 0x7f and 0xff, elsewhere
 * NaN, are 480 and -480. */
static inline float f32_from_e4m3(uint8_t x)
{
    const int exponent = x >> 3 & 15, mantissa = x & 7;
    const uint32_t bits = (x & 0x80u) << 24 | ((x & 0x7fu) + (120u << 3)) << 20;
    float f;

    if (exponent == 0)
        return (x & 0x80 ? -0x1p-9f : 0x1p-9f) * (float)mantissa;
    memcpy(&f, &bits, sizeof(f));
    return f;
}

#define E4M3_MAX 448.0f

/* What is beyond E4M3_MAX, and NaN, becomes that with its sign. */
static inline uint8_t e4m3_from_f32(float x)
{
    uint32_t bits, exponent, mantissa, lost, code;

    memcpy(&bits, &x, sizeof(bits));
    exponent = bits >> 23 & 0xff;
    mantissa = (bits & 0x7fffff) | 0x800000;
    lost = exponent >= 121 ? 20 : exponent >= 116 ? 141 - exponent : 25; /* below 2^-6: more bits */
    mantissa = (mantissa + (1u << (lost - 1)) - 1 + (mantissa >> lost & 1)) >> lost;
    code = (exponent >= 121 ? (exponent - 121) << 3 : 0) + mantissa;
    return (uint8_t)((code < 0x7e ? code : 0x7e) | (bits >> 24 & 0x80));
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
