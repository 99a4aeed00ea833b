/* bf16.c - see bf16.h. Loops without branches, which the compiler vectorises (-O3). */
#include "engine/util/bf16.h"

void bf16_from_f32_array(uint16_t *restrict dst, const float *restrict src, size_t n)
{
    for (size_t i = 0; i < n; i++)
        dst[i] = bf16_from_f32(src[i]);
}

void bf16_from_f16_array(uint16_t *restrict dst, const uint16_t *restrict src, size_t n)
{
    for (size_t i = 0; i < n; i++)
        dst[i] = bf16_from_f32_bits(f32_bits_from_f16(src[i]));
}
