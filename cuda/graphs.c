/* graphs.c - see graphs.h. */
#include "cuda/graphs.h"

#include <errno.h>
#include <stdlib.h>
#include <time.h>

#include "engine/util/must.h"

enum {
    GRAPH_FINE = 16, /* sizes are powers of two up to here, then multiples of it */
};

struct graphs {
    const struct forward *forward;
    const struct step_limits *limits;
    const char *base;
    int n;
    int n_captures;
    double longest;         /* seconds of a capture */
    cudaGraphExec_t *execs; /* [n] by index of size; NULL: not captured */
};

int graphs_size(const struct graphs *g, int n)
{
    int size = 1;

    must(n >= 1 && n <= g->limits->max_seqs);
    if (n > GRAPH_FINE)
        return (n + GRAPH_FINE - 1) / GRAPH_FINE * GRAPH_FINE;
    while (size < n)
        size *= 2;
    return size;
}

static int index_of(int size)
{
    int i = 0;

    if (size > GRAPH_FINE)
        return size / GRAPH_FINE + 3;
    while (size > 1) {
        size /= 2;
        i++;
    }
    return i;
}

int graphs_new(struct graphs **out, const struct forward *f, const struct step_limits *limits,
               const char *base, struct err *e)
{
    struct graphs *g = calloc(1, sizeof(*g));

    if (!g)
        return err_set(e, -ENOMEM, "out of memory");
    *g = (struct graphs){.forward = f, .limits = limits, .base = base};
    g->n = index_of(graphs_size(g, limits->max_seqs)) + 1;
    g->execs = calloc((size_t)g->n, sizeof(*g->execs));
    if (!g->execs) {
        graphs_free(g);
        return err_set(e, -ENOMEM, "out of memory");
    }
    *out = g;
    return 0;
}

void graphs_clear(struct graphs *g)
{
    for (int i = 0; i < g->n; i++) {
        if (g->execs[i])
            (void)cudaGraphExecDestroy(g->execs[i]);
        g->execs[i] = NULL;
    }
}

void graphs_free(struct graphs *g)
{
    if (!g)
        return;
    if (g->execs)
        graphs_clear(g);
    free(g->execs);
    free(g);
}

static double now_seconds(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

int graphs_prepare(struct graphs *g, int size, struct err *e)
{
    const struct step_room room = step_room_of_graph(g->limits, size);
    const struct step_view view = step_view_at(&room, g->base);
    const struct forward_shape shape = {.n_tokens = size,
                                        .n_decodes = size,
                                        .n_rows = size,
                                        .n_items = room.n_items,
                                        .path = forward_path_of(g->forward, size, false)};
    cudaGraphExec_t *exec = &g->execs[index_of(size)];
    const double begin = now_seconds();
    double took;
    int r;

    if (*exec)
        return 0;
    r = forward_capture(exec, g->forward, &view, &shape, e);
    if (r == 0)
        r = cuda_check(cudaGraphUpload(*exec, g->forward->launch->stream), "uploading a graph", e);
    if (r < 0)
        return r;
    took = now_seconds() - begin;
    g->n_captures++;
    g->longest = took > g->longest ? took : g->longest;
    return 0;
}

void graphs_captures(const struct graphs *g, int *n, double *longest)
{
    *n = g->n_captures;
    *longest = g->longest;
}

bool graphs_ready(const struct graphs *g, int size)
{
    return g->execs[index_of(size)] != NULL;
}

int graphs_run(struct graphs *g, int size, struct err *e)
{
    must(graphs_ready(g, size));
    return cuda_check(cudaGraphLaunch(g->execs[index_of(size)], g->forward->launch->stream),
                      "launching a graph", e);
}
