/* exposition.h - metrics as text: OpenMetrics 1.0, or the older text format of Prometheus 0.0.4,
 * which its tools and node_exporter's text files take.
 *
 * They differ in how a counter's family is named, in the type of information, and in the end.
 * Memory grows as needed; without it the text is incomplete, and `failed` is set. */
#ifndef NVLLM_DAEMON_EXPOSITION_H
#define NVLLM_DAEMON_EXPOSITION_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/metrics.h"

enum exposition_type {
    EXPOSITION_COUNTER, /* its samples' names end in _total */
    EXPOSITION_GAUGE,
    EXPOSITION_HISTOGRAM,
    EXPOSITION_INFO, /* likewise in _info; the value is 1 */
};

/* A zeroed struct is empty. */
struct exposition {
    char *data;
    size_t len, cap;
    bool openmetrics;
    bool failed;
    const char *name; /* of the family */
    enum exposition_type type;
};

void exposition_deinit(struct exposition *x);

/* Begins a family: samples follow. help is one line. */
void exposition_family(struct exposition *x, const char *name, enum exposition_type type,
                       const char *help);

/* A sample; labels are `a="b",c="d"`, or "". */
void exposition_count(struct exposition *x, const char *labels, uint64_t value);
void exposition_real(struct exposition *x, const char *labels, double value);

/* The samples of a histogram without labels. Values are multiplied by unit. */
void exposition_histogram(struct exposition *x, const struct histogram *h,
                          const struct histogram_bounds *bounds, double unit);

/* Ends the text. */
void exposition_end(struct exposition *x);

/* Writes text into buf, so that it may stand between the quotes of a label; cut to n. */
const char *exposition_escape(char *buf, size_t n, const char *text);

#endif
