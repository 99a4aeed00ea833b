/* bench.h - what a benchmark has measured, and how it is printed. */
#ifndef NVLLM_CLIENT_CTL_BENCH_H
#define NVLLM_CLIENT_CTL_BENCH_H

#include <stdbool.h>

#include "client/ctl/quantiles.h"

struct bench_result {
    uint64_t n_done, n_failed;
    uint64_t n_cut;  /* in flight when the time was over */
    uint64_t n_busy; /* refusals of a busy daemon; the requests are sent again */
    uint64_t prompt_tokens, cached_tokens; /* of finished requests */
    uint64_t output_tokens;                /* all that have come */
    double seconds;
    struct quantiles ttft;    /* from when a request was due to its first token */
    struct quantiles between; /* from one delivery of a request's tokens to the next */
    struct quantiles
        token; /* per token of a request: first token to last, divided by their number */
    struct quantiles request; /* from when it was due to its end */
};

void bench_print(const struct bench_result *r);
bool bench_print_json(const struct bench_result *r);

#endif
