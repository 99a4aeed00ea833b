/* quantiles.h - a histogram of times in constant memory: buckets are 0.6 % of their value wide. */
#ifndef NVLLM_CLIENT_CTL_QUANTILES_H
#define NVLLM_CLIENT_CTL_QUANTILES_H

#include <stdint.h>
#include <stdio.h>

enum { BUCKETS_A_DOUBLING = 128, QUANTILES_BUCKETS = 64 * BUCKETS_A_DOUBLING + 1 };

struct quantiles {
    uint64_t counts[QUANTILES_BUCKETS];
    uint64_t n;
    uint64_t min_ns, max_ns;
    double sum_ns;
};

void quantiles_add(struct quantiles *q, uint64_t ns);

/* The quantile of a share, in ms, to within 1 %; 0 if there are no values. */
double quantiles_ms(const struct quantiles *q, double share);
double quantiles_mean_ms(const struct quantiles *q);

/* One line per range of times: count and bar. */
void quantiles_draw(const struct quantiles *q, FILE *to, int width);

#endif
