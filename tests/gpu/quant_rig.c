/* quant_rig.c - see quant_rig.h. */
#include "tests/gpu/quant_rig.h"

#include <math.h>
#include <string.h>

#include "engine/util/bf16.h"

const struct weight_format weight_formats[N_WEIGHT_FORMATS] = {
    {ELEMENT_E4M3, 128, 128, false, false}, {ELEMENT_E4M3, 1, 128, false, false},
    {ELEMENT_E4M3, 1, 0, false, false},     {ELEMENT_INT4, 1, 128, false, false},
    {ELEMENT_INT4, 1, 128, true, true},     {ELEMENT_INT4, 1, 64, true, false},
    {ELEMENT_INT4, 1, 32, false, true},     {ELEMENT_INT4, 1, 32, true, true},
    {ELEMENT_INT4, 1, 0, true, false},
};

double e4m3_value(uint8_t bits)
{
    const int exponent = bits >> 3 & 15, mantissa = bits & 7;
    const double size = exponent ? ldexp(8 + mantissa, exponent - 10) : ldexp(mantissa, -9);

    return bits & 0x80 ? -size : size;
}

/* Nibble i of a word is weight 2 i for i < 4, then 2 (i - 4) + 1. */
static int nibble_of(int i)
{
    return i % 2 * 4 + i / 2;
}

static double scale_value(const struct weight_format *f, const struct device_array *scales,
                          int64_t at)
{
    const uint16_t *halves = scales->host;
    uint32_t bits;
    float value;

    if (f->element == ELEMENT_E4M3)
        return ((float *)scales->host)[at];
    if (!f->f16)
        return bf16_value(halves[at]);
    bits = f32_bits_from_f16(halves[at]);
    memcpy(&value, &bits, sizeof(value));
    return value;
}

/* The scale is near the one that is asked for, a normal number. */
static void set_scale(const struct weight_format *f, const struct device_array *scales, int64_t at,
                      float scale)
{
    uint16_t *halves = scales->host;
    int exponent;
    const float fraction = frexpf(scale, &exponent); /* 0.5 .. 1 */

    if (f->element == ELEMENT_E4M3)
        ((float *)scales->host)[at] = scale;
    else if (f->f16)
        halves[at] = (uint16_t)((exponent + 14) << 10 | (int)((fraction - 0.5f) * 2048.0f));
    else
        halves[at] = bf16_from_f32(scale);
}

void quant_fill_groups(const struct weight_format *f, const struct device_array *scales,
                       const struct device_array *zeros, size_t n_groups, int k)
{
    const double usual = f->element == ELEMENT_E4M3 ? 100.0 : 5.0; /* an element */

    for (size_t i = 0; i < n_groups; i++) {
        set_scale(f, scales, (int64_t)i,
                  (0.5f + (float)(random_bits() % 1024) / 1024.0f) / (float)(usual * sqrt(k)));
        if (f->zeros)
            ((uint8_t *)zeros->host)[i] = (uint8_t)(random_bits() % 17);
    }
    array_to_device(scales);
    if (f->zeros)
        array_to_device(zeros);
}

void quant_fill_elements(const struct weight_format *f, const struct device_array *w)
{
    uint8_t *bytes = w->host;

    for (size_t i = 0; i < w->bytes; i++)
        do
            bytes[i] = (uint8_t)(random_bits() >> 8);
        while (f->element == ELEMENT_E4M3 && (bytes[i] & 0x7f) == 0x7f);
    array_to_device(w);
}

struct quant_weights quant_weights_new(const struct weight_format *f, int n, int k)
{
    const int cols = f->scale_cols ? f->scale_cols : k, n_cols = (k + cols - 1) / cols;
    const int n_rows = (n + f->scale_rows - 1) / f->scale_rows;
    const size_t n_groups = (size_t)n_rows * (size_t)n_cols, size = (size_t)n * (size_t)k;
    struct quant_weights r = {.w = array_new(f->element == ELEMENT_E4M3 ? size : size / 2),
                              .scales = array_new(n_groups * (f->element == ELEMENT_E4M3 ? 4 : 2)),
                              .values = host_new(size, sizeof(double)),
                              .k = k};
    const uint8_t *bytes = r.w.host;

    if (f->zeros)
        r.zeros = array_new(n_groups);
    quant_fill_groups(f, &r.scales, &r.zeros, n_groups, k);
    quant_fill_elements(f, &r.w);
    for (int row = 0; row < n; row++)
        for (int i = 0; i < k; i++) {
            const size_t at = (size_t)row * (size_t)k + (size_t)i;
            const int64_t group = (int64_t)(row / f->scale_rows) * n_cols + i / cols;
            const int nibble = nibble_of(i % 8);
            const double element =
                f->element == ELEMENT_E4M3
                    ? e4m3_value(bytes[at])
                    : (bytes[at / 8 * 4 + (size_t)nibble / 2] >> nibble % 2 * 4 & 15) -
                          (f->zeros ? ((uint8_t *)r.zeros.host)[group] : 8);

            r.values[at] = element * scale_value(f, &r.scales, group);
        }
    r.quant = (struct quant){.element = f->element,
                             .scales = r.scales.device,
                             .scales_f16 = f->f16,
                             .zeros = f->zeros ? r.zeros.device : NULL,
                             .scale_rows = f->scale_rows,
                             .scale_cols = cols};
    return r;
}

double dot_of_doubles(const double *x, const double *w, int k)
{
    double sum = 0.0;

    for (int i = 0; i < k; i++)
        sum += x[i] * w[i];
    return sum;
}
