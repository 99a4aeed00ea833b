/* metrics.c - see metrics.h. */
#include "engine/metrics.h"

/* vLLM's bounds for the time between tokens and to the first one, joined, and with finer ones below
 * 10 ms, where a small model on a GPU has its tokens. */
static const struct histogram_bounds times_us = {
    26,
    {500,     1000,     2500,     5000,     10000,    25000,     50000,     75000,     100000,
     150000,  200000,   300000,   400000,   500000,   750000,    1000000,   2500000,   5000000,
     7500000, 10000000, 20000000, 40000000, 80000000, 160000000, 640000000, 2560000000},
};

/* vLLM's for the lengths of prompts and answers. */
static const struct histogram_bounds lengths = {19,
                                                {1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000,
                                                 5000, 10000, 20000, 50000, 100000, 200000, 500000,
                                                 1000000}};

/* As vLLM's for the tokens of a step, and 2 and 4 for few streams. */
static const struct histogram_bounds rows = {14,
                                             {1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048,
                                              4096, 8192}};

const struct histogram_bounds *engine_histogram_bounds(enum engine_histogram which)
{
    switch (which) {
    case HISTOGRAM_PROMPT_TOKENS:
    case HISTOGRAM_OUTPUT_TOKENS:
        return &lengths;
    case HISTOGRAM_STEP_TOKENS:
        return &rows;
    default:
        return &times_us;
    }
}

void histogram_add(struct histogram *h, const struct histogram_bounds *bounds, uint64_t value)
{
    int32_t i = 0;

    while (i < bounds->n && value > bounds->at[i])
        i++;
    h->counts[i]++;
    h->sum += value;
}
