/* quantiles.h - how times are distributed, in memory that does not grow: counts in buckets
 * whose width is a 64th of their value. */
#ifndef NVLLM_CLIENT_CTL_QUANTILES_H
#define NVLLM_CLIENT_CTL_QUANTILES_H

#include <stdint.h>
#include <stdio.h>

enum { QUANTILES_BUCKETS = 64 * 59 };

struct quantiles {
    uint64_t counts[QUANTILES_BUCKETS];
    uint64_t n;
    uint64_t min_ns, max_ns;
    double sum_ns;
};

void quantiles_add(struct quantiles *q, uint64_t ns);

/* The time that a share of all does not exceed, in ms, to within 1 %; 0 where there is none. */
double quantiles_ms(const struct quantiles *q, double share);
double quantiles_mean_ms(const struct quantiles *q);

/* A line for each range of times: how many, and a bar. */
void quantiles_draw(const struct quantiles *q, FILE *to, int width);

#endif
