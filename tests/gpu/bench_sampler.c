/* bench_sampler.c - see bench.h. Runs are behind one another in a graph, as steps are. */
#include <stdio.h>

#include "tests/gpu/bench.h"
#include "tests/gpu/sampler_rig.h"

enum { VOCAB = 151936, REPEATS = 20, ROUNDS = 3 };

/* The shortest of a few rounds, microseconds a run. */
static double measure(struct rig *g)
{
    rig_run(g);
    capture_begin();
    for (int i = 0; i < REPEATS; i++)
        rig_sample(g);
    return shortest_run(capture_end(), ROUNDS) * 1e6 / REPEATS;
}

void bench_sampler(void)
{
    static const struct {
        const char *name;
        float spread; /* of the logits: 1 is as flat as a model that knows nothing, 4 is sharp */
        int n_logprobs;
        struct sampling s;
    } settings[] = {
        {"greedy", 1.0f, -1, {.top_p = 1.0f}},
        {"logprobs", 1.0f, 5, {.top_p = 1.0f}},
        {"temperature", 1.0f, -1, {.temperature = 0.6f, .top_p = 1.0f}},
        {"temperature", 4.0f, -1, {.temperature = 0.6f, .top_p = 1.0f}},
        {"top_k", 1.0f, -1, {.temperature = 0.6f, .top_k = 20, .top_p = 0.95f}},
        {"top_k_500", 1.0f, -1, {.temperature = 0.6f, .top_k = 500, .top_p = 0.95f}},
        {"top_p", 1.0f, -1, {.temperature = 0.6f, .top_p = 0.95f}},
        {"top_p", 2.0f, -1, {.temperature = 0.6f, .top_p = 0.95f}},
        {"top_p", 4.0f, -1, {.temperature = 0.6f, .top_p = 0.95f}},
        {"min_p", 4.0f, -1, {.temperature = 0.6f, .top_p = 1.0f, .min_p = 0.05f}},
    };
    static const int rows[] = {1, 16, 64, 128, 256};

    device_set_up();
    for (size_t i = 0; i < sizeof(settings) / sizeof(*settings); i++) {
        struct rig g;

        rig_init(&g, VOCAB, 256, settings[i].spread);
        for (size_t j = 0; j < sizeof(rows) / sizeof(*rows); j++) {
            const double floor_us = 4.0 * VOCAB * rows[j] / H200_BYTES_PER_SECOND * 1e6;
            double us;

            g.n_rows = rows[j];
            for (int k = 0; k < g.n_rows; k++) {
                g.sampling[k] = settings[i].s;
                g.sampling[k].repetition_penalty = 1.0f;
                g.sampling[k].n_logprobs = settings[i].n_logprobs;
                g.sampling[k].seed = (uint64_t)k;
                g.updates[k].state = g.rows[k].state = k;
            }
            us = measure(&g);
            printf("bench=sampler setting=%s spread=%.0f rows=%d us=%.1f floor_us=%.1f "
                   "share=%.2f\n",
                   settings[i].name, (double)settings[i].spread, rows[j], us, floor_us,
                   floor_us / us);
            fflush(stdout);
        }
        memory_free();
    }
    device_tear_down();
}
