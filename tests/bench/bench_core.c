/* bench_core.c - what the core costs a step when a device is full: next, commit, events.
 *
 * usage: bench_core [SEQUENCES] [PROMPT]
 *
 * No backend: every row samples the same id, so what is measured is the core alone. */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "engine/core/core.h"
#include "engine/step_cost.h"

enum { BENCH_TOKENS = 500, BENCH_BLOCK_LEN = 16 };

static double now_us(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec / 1e3;
}

int main(int argc, char **argv)
{
    int32_t n_seqs = argc > 1 ? atoi(argv[1]) : 256, n_prompt = argc > 2 ? atoi(argv[2]) : 600;
    int32_t *prompt = calloc((size_t)n_prompt + 1, sizeof(*prompt));
    int32_t *ids = calloc((size_t)n_seqs + 1, sizeof(*ids));
    struct sampling sampling = {.repetition_penalty = 1, .n_logprobs = -1};
    double took[2][3] = {{0}}; /* prefill or decode steps: next, commit, how many */
    struct core *c;
    struct core_options o = {
        .n_blocks = n_seqs * ((n_prompt + BENCH_TOKENS) / BENCH_BLOCK_LEN + 1),
        .block_len = BENCH_BLOCK_LEN,
        .max_batch_tokens = 8192,
        .max_seqs = n_seqs,
        .max_seq_len = n_prompt + BENCH_TOKENS,
        .max_preemptions = 3,
        .prefix_cache = true,
    };
    /* All may run, which the core has to find out. */
    struct step_cost cost = {.decodes = {{1, 1e6}, {1e6, 1.1e6}}, .row_us = 0.1};

    if (!prompt || !ids || n_seqs < 1 || n_prompt < 1 || core_new(&c, &o) != 0) {
        fprintf(stderr, "usage: bench_core [SEQUENCES] [PROMPT]\n");
        return 2;
    }
    core_set_cost(c, &cost);
    for (int32_t i = 0; i < n_seqs; i++) {
        struct core_request r = {
            .id = (uint64_t)i + 1,
            .client = (uint64_t)i % 16,
            .priority = CORE_NORMAL,
            .n_prompt = n_prompt,
            .max_tokens = BENCH_TOKENS,
            .n = 1,
            .prompt = prompt,
            .sampling = &sampling,
        };

        for (int32_t k = 0; k < n_prompt; k++)
            prompt[k] = i * n_prompt + k;
        if (core_admit(c, &r, 1) != CORE_OK)
            return 2;
    }
    for (;;) {
        const struct batch *batch;
        struct step_result result = {.ids = ids};
        double start = now_us(), planned;
        double *kind;
        int32_t n;

        if (core_next(c, &batch, 1) != CORE_OK)
            break;
        planned = now_us();
        kind = took[batch->n_decodes == batch->n_seqs];
        kind[0] += planned - start;
        kind[2]++;
        result.step = batch->step;
        result.n_rows = batch->n_rows;
        start = now_us();
        core_commit(c, &result, 1);
        core_set_cost(c, &cost);
        core_events(c, &n);
        kind[1] += now_us() - start;
    }
    for (int k = 0; k < 2; k++)
        printf("%s: %.0f steps of %d sequences, next %.1f us, commit %.1f us a step\n",
               k ? "decode" : "prefill", took[k][2], n_seqs, took[k][0] / took[k][2],
               took[k][1] / took[k][2]);
    core_free(c);
    free(prompt);
    free(ids);
    return 0;
}
