/* metrics.h - what the engine counts of requests and steps, beside core_stats: histograms, and how
 * its thread spends its time. Plain data: the engine thread counts, others read copies.
 *
 * Values are whole: tokens, or microseconds. */
#ifndef NVLLM_ENGINE_METRICS_H
#define NVLLM_ENGINE_METRICS_H

#include <stdint.h>

enum { HISTOGRAM_MAX_BOUNDS = 26 };

struct histogram_bounds {
    int32_t n;
    uint64_t at[HISTOGRAM_MAX_BOUNDS]; /* [n] ascending; a value at a bound is within it */
};

struct histogram {
    uint64_t counts[HISTOGRAM_MAX_BOUNDS + 1]; /* [n + 1] over the bound before, up to this one; the
                                                * last: over all bounds */
    uint64_t sum;                              /* of the values */
};

enum engine_histogram {
    HISTOGRAM_FIRST_TOKEN,    /* µs from a request's arrival to its first token */
    HISTOGRAM_BETWEEN_TOKENS, /* µs between tokens of a choice */
    HISTOGRAM_QUEUE,          /* µs from arrival to the first slot, or to the end without one */
    HISTOGRAM_REQUEST,        /* µs from arrival to the end */
    HISTOGRAM_STEP,           /* µs of a step's computation */
    HISTOGRAM_PROMPT_TOKENS,  /* of a request, cached ones too */
    HISTOGRAM_OUTPUT_TOKENS,  /* of all choices of a request */
    HISTOGRAM_STEP_TOKENS,    /* rows of a step */
    N_ENGINE_HISTOGRAMS,
};

/* What the engine thread does, other than waiting for work. */
enum engine_part {
    ENGINE_PART_SCHEDULE = 1, /* the protocol's numbers; takes requests in, plans the step */
    ENGINE_PART_SUBMIT,       /* hands the step to the backend */
    ENGINE_PART_WAIT,         /* for the backend, which computes */
    ENGINE_PART_COMMIT,       /* takes the results over, makes text of them */
    ENGINE_PART_PUBLISH,      /* hands events to the daemon's loop */
    ENGINE_PART_OTHER,        /* answers what is asked about its state; restores; sleeps, wakes */
    ENGINE_PART_DRAFT,        /* the draft model works */
    N_ENGINE_PARTS,
};

struct engine_metrics {
    struct histogram histograms[N_ENGINE_HISTOGRAMS];
    uint64_t part_us[N_ENGINE_PARTS];
};

const struct histogram_bounds *engine_histogram_bounds(enum engine_histogram which);

void histogram_add(struct histogram *h, const struct histogram_bounds *bounds, uint64_t value);

#endif
