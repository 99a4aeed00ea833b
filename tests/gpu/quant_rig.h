/* quant_rig.h - random weights of 8 and 4 bits on the device, and what they are worth. */
#ifndef NVLLM_TESTS_GPU_QUANT_RIG_H
#define NVLLM_TESTS_GPU_QUANT_RIG_H

#include "tests/gpu/gpu_rig.h"

/* As folders have them; scale_cols 0: all of k. */
struct weight_format {
    enum element element;
    int scale_rows, scale_cols;
    bool zeros, f16;
};
enum { N_WEIGHT_FORMATS = 9 };
extern const struct weight_format weight_formats[N_WEIGHT_FORMATS];

/* Weights [n, k] in a format. */
struct quant_weights {
    struct device_array w, scales, zeros;
    struct quant quant;
    double *values; /* [n, k] */
    int k;
};

/* Random scales and zeros of rows of k weights, which then are about 1 / sqrt(k); elements, all bit
 * patterns but e4m3's NaN. */
void quant_fill_groups(const struct weight_format *f, const struct device_array *scales,
                       const struct device_array *zeros, size_t n_groups, int k);
void quant_fill_elements(const struct weight_format *f, const struct device_array *w);

struct quant_weights quant_weights_new(const struct weight_format *f, int n, int k);

double e4m3_value(uint8_t bits);

/* The sum over k of x[k] w[k]. */
double dot_of_doubles(const double *x, const double *w, int k);

#endif
