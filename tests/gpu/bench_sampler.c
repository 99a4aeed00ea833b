/* bench_sampler.c - see bench_sampler.h. Runs are behind one another in a graph, as steps are. */
#include "tests/gpu/bench_sampler.h"

#include <stdio.h>
#include <stdlib.h>

#include "tests/gpu/sampler_rig.h"

enum { VOCAB = 151936, REPEATS = 20, ROUNDS = 3 };

static const double H200_BYTES_PER_SECOND = 4.54e12; /* what plain reads reach there */

static struct device device;

static cudaGraphExec_t capture(const struct rig *g)
{
    cudaStream_t stream = device.launch.stream;
    cudaGraph_t graph;
    cudaGraphExec_t exec;

    cuda_must(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    for (int i = 0; i < REPEATS; i++)
        cuda_must(sampler_run(&device.launch, &g->m, &g->view, g->n_rows));
    cuda_must(cudaStreamEndCapture(stream, &graph));
    cuda_must(cudaGraphInstantiate(&exec, graph, 0));
    cuda_must(cudaGraphDestroy(graph));
    return exec;
}

/* The shortest of a few rounds, microseconds a run. */
static double measure(struct rig *g)
{
    cudaStream_t stream = device.launch.stream;
    cudaEvent_t begin, end;
    cudaGraphExec_t exec;
    float shortest = 0.0f;

    rig_run(g, &device);
    exec = capture(g);
    cuda_must(cudaEventCreate(&begin));
    cuda_must(cudaEventCreate(&end));
    for (int i = 0; i <= ROUNDS; i++) {
        float ms;

        cuda_must(cudaEventRecord(begin, stream));
        cuda_must(cudaGraphLaunch(exec, stream));
        cuda_must(cudaEventRecord(end, stream));
        cuda_must(cudaEventSynchronize(end));
        cuda_must(cudaEventElapsedTime(&ms, begin, end));
        if (i == 1 || (i > 1 && ms < shortest)) /* the first one makes the device warm */
            shortest = ms;
    }
    cuda_must(cudaEventDestroy(begin));
    cuda_must(cudaEventDestroy(end));
    cuda_must(cudaGraphExecDestroy(exec));
    return (double)shortest * 1e3 / REPEATS;
}

void bench_sampler(void)
{
    static const struct {
        const char *name;
        float spread; /* of the logits: 1 is as flat as a model that knows nothing, 4 is sharp */
        struct sampling s;
    } settings[] = {
        {"greedy", 1.0f, {.top_p = 1.0f}},
        {"temperature", 1.0f, {.temperature = 0.6f, .top_p = 1.0f}},
        {"temperature", 4.0f, {.temperature = 0.6f, .top_p = 1.0f}},
        {"top_k", 1.0f, {.temperature = 0.6f, .top_k = 20, .top_p = 0.95f}},
        {"top_p", 4.0f, {.temperature = 0.6f, .top_p = 0.95f}},
    };
    static const int rows[] = {1, 16, 64, 128, 256};
    struct err e;

    if (device_open(&device, 0, &e) < 0) {
        fprintf(stderr, "%s\n", e.text);
        exit(1);
    }
    for (size_t i = 0; i < sizeof(settings) / sizeof(*settings); i++) {
        struct rig g;

        rig_init(&g, VOCAB, rows[sizeof(rows) / sizeof(*rows) - 1], settings[i].spread);
        for (size_t j = 0; j < sizeof(rows) / sizeof(*rows); j++) {
            const double floor_us = 4.0 * VOCAB * rows[j] / H200_BYTES_PER_SECOND * 1e6;
            double us;

            g.n_rows = rows[j];
            for (int k = 0; k < g.n_rows; k++) {
                g.sampling[k] = settings[i].s;
                g.sampling[k].repetition_penalty = 1.0f;
                g.sampling[k].n_logprobs = -1;
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
        rig_free(&g);
    }
    device_close(&device);
}
