/* packing.c - see packing.h. */
#include "engine/model/packing.h"

#include <string.h>

#include "engine/util/bf16.h"

/* Half the distance from -8 to 7: of the ends one is rounded to, the other is half a step away. */
#define INT4_REACH 7.5f

/* ---- orders */

uint32_t int4_from_sequence(uint32_t word)
{
    uint32_t even = word & 0x0f0f0f0f, odd = word >> 4 & 0x0f0f0f0f;

    even = (even | even >> 4) & 0x00ff00ff;
    odd = (odd | odd >> 4) & 0x00ff00ff;
    return ((even | even >> 8) & 0xffff) | (odd | odd >> 8) << 16;
}

uint32_t int4_to_sequence(uint32_t word)
{
    uint32_t even = word & 0xffff, odd = word >> 16;

    even = (even | even << 8) & 0x00ff00ff;
    odd = (odd | odd << 8) & 0x00ff00ff;
    return ((even | even << 4) & 0x0f0f0f0f) | ((odd | odd << 4) & 0x0f0f0f0f) << 4;
}

void int4_reorder(uint32_t *words, size_t n)
{
    for (size_t i = 0; i < n; i++)
        words[i] = int4_from_sequence(words[i]);
}

/* Squares of 4, 2 and 1 elements that lie across the diagonal change places. */
void int4_transpose(uint32_t words[INT4_IN_WORD])
{
    static const uint32_t masks[] = {[1] = 0x0f0f0f0f, [2] = 0x00ff00ff, [4] = 0x0000ffff};

    for (unsigned side = 4; side > 0; side /= 2)
        for (unsigned i = 0; i < INT4_IN_WORD; i++) {
            uint32_t *a = &words[i], *b = &words[i | side], change;

            if (i & side)
                continue;
            change = (*a >> 4 * side ^ *b) & masks[side];
            *b ^= change;
            *a ^= change << 4 * side;
        }
}

void int4_from_gptq(uint32_t *out, size_t out_stride, const uint32_t *in, size_t in_stride,
                    size_t n_words, size_t n_rows)
{
    for (size_t i = 0; i < n_words; i++)
        for (size_t r = 0; r < n_rows; r++)
            out[r * out_stride + i] = int4_from_sequence(in[i * in_stride + r]);
}

void int4_from_awq(uint32_t *out, size_t out_stride, const uint32_t *in, size_t in_stride,
                   size_t n_words, size_t first, size_t n_rows)
{
    for (size_t j = first / INT4_IN_WORD; j * INT4_IN_WORD < first + n_rows; j++)
        for (size_t i = 0; i < n_words; i++) {
            uint32_t words[INT4_IN_WORD];

            for (size_t k = 0; k < INT4_IN_WORD; k++)
                words[k] = int4_to_sequence(in[(i * INT4_IN_WORD + k) * in_stride + j]);
            int4_transpose(words);
            for (size_t k = 0; k < INT4_IN_WORD; k++) {
                const size_t row = j * INT4_IN_WORD + k;

                if (row >= first && row < first + n_rows)
                    out[(row - first) * out_stride + i] = int4_from_sequence(words[k]);
            }
        }
}

void int4_unpack(uint8_t *out, size_t out_stride, const uint32_t *words, size_t stride,
                 size_t first, size_t n, int bias, bool awq)
{
    for (size_t i = first; i < first + n; i++) {
        const uint32_t word = words[i / INT4_IN_WORD * stride];
        const uint32_t row = awq ? int4_to_sequence(word) : word;

        out[(i - first) * out_stride] =
            (uint8_t)((row >> 4 * (i % INT4_IN_WORD) & 15) + (uint32_t)bias);
    }
}

/* The largest magnitude of rows of bf16, NaN where one is NaN: magnitudes are in the order of their
 * bits, NaN above all. */
static float largest_of(const uint16_t *x, size_t stride, size_t n_rows, size_t n_cols)
{
    uint16_t max = 0;

    for (size_t r = 0; r < n_rows; r++)
        for (size_t c = 0; c < n_cols; c++) {
            const uint16_t magnitude = x[r * stride + c] & 0x7fff;

            max = magnitude > max ? magnitude : max;
        }
    return f32_from_bf16(max);
}

/* ---- E4M3 */

float e4m3_scale(const uint16_t *x, size_t stride, size_t n_rows, size_t n_cols)
{
    const float max = largest_of(x, stride, n_rows, n_cols);

    return max == 0.0f ? 1.0f : max / E4M3_MAX;
}

void e4m3_from_bf16(uint8_t *out, const uint16_t *x, size_t n, float scale)
{
    for (size_t i = 0; i < n; i++)
        out[i] = e4m3_from_f32(f32_from_bf16(x[i]) / scale);
}

/* ---- INT4 */

/* Adding a number whose last bit is one rounds to a whole number, in the last bits of the sum. */
static uint32_t int4_from_f32(float x)
{
    const float kept = x > -8.0f ? x < 7.0f ? x : 7.0f : -8.0f; /* NaN: the smallest */
    const float shifted = kept + (0x1.8p23f + INT4_ZERO);
    uint32_t bits;

    memcpy(&bits, &shifted, sizeof(bits));
    return bits & 15;
}

void int4_from_bf16(uint32_t *out, uint16_t *scale, const uint16_t *x, size_t n)
{
    float by;

    *scale = bf16_from_f32(largest_of(x, n, 1, n) / INT4_REACH);
    if (*scale == 0)
        *scale = bf16_from_f32(1.0f);
    by = f32_from_bf16(*scale);
    for (size_t i = 0; i < n; i += INT4_IN_WORD) {
        uint32_t elements[INT4_IN_WORD], word = 0;

        for (size_t j = 0; j < INT4_IN_WORD; j++)
            elements[j] = int4_from_f32(f32_from_bf16(x[i + j]) / by);
        for (size_t j = 0; j < INT4_IN_WORD; j++)
            word |= elements[j] << 4 * j;
        out[i / INT4_IN_WORD] = int4_from_sequence(word);
    }
}

/* ---- to floats */

float matrix_scale(const struct matrix *m, int64_t i)
{
    const uint16_t *halves = m->scales;
    const float *floats = m->scales;
    uint32_t bits;
    float f;

    if (m->scale_dtype != DTYPE_F16)
        return m->scale_dtype == DTYPE_F32 ? floats[i] : f32_from_bf16(halves[i]);
    bits = f32_bits_from_f16(halves[i]);
    memcpy(&f, &bits, sizeof(f));
    return f;
}

void matrix_row_f32(float *out, const struct matrix *m, int32_t row)
{
    const int64_t groups = matrix_groups(m), first = row / m->scale_rows * groups;
    const uint8_t *bytes = matrix_row(m, row);
    const uint32_t *words = matrix_row(m, row);

    for (int32_t c = 0; c < m->k; c++) {
        const int64_t at = first + c / m->scale_cols;
        const float scale = matrix_scale(m, at);

        if (m->dtype == DTYPE_E4M3) {
            out[c] = f32_from_e4m3(bytes[c]) * scale;
        } else {
            const uint32_t word = int4_to_sequence(words[c / INT4_IN_WORD]);
            const int element = (int)(word >> 4 * (c % INT4_IN_WORD) & 15);

            out[c] = (float)(element - (m->zeros ? m->zeros[at] : INT4_ZERO)) * scale;
        }
    }
}
