/* metrics_text.h - which metrics there are, and their values now. For metrics.c. */
#ifndef NVLLM_DAEMON_METRICS_TEXT_H
#define NVLLM_DAEMON_METRICS_TEXT_H

#include "daemon/exposition.h"
#include "daemon/metrics.h"
#include "daemon/nvml.h"

enum {
    METRICS_N_ENDS = NVLLM__V1__FINISH_REASON__FINISH_ERROR + 1,
    METRICS_N_ERRORS = NVLLM__V1__ERROR_CODE__ERROR_UNSUPPORTED + 1,
};

/* Written by the loop, read by the thread of metrics. */
struct metrics_counts {
    atomic_int state;                                                    /* Nvllm__V1__State */
    atomic_uint_fast64_t ends[METRICS_N_ENDS], errors[METRICS_N_ERRORS]; /* of generate requests */
};

/* Appends everything. nvml may be NULL. */
void metrics_write(struct exposition *x, const struct metrics_parts *parts,
                   const struct metrics_counts *counts, struct nvml *nvml, uint64_t uptime_us);

#endif
