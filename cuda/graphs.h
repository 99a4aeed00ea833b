/* graphs.h - the whole decode step as captured CUDA graphs, one for each of a few batch sizes; a
 * batch runs in the smallest that holds it.
 *
 * Engine thread only. */
#ifndef NVLLM_CUDA_GRAPHS_H
#define NVLLM_CUDA_GRAPHS_H

#include "cuda/forward.h"
#include "cuda/step.h"

struct graphs;

/* base: where a step's metadata lies on the device. All must outlive the graphs. */
int graphs_new(struct graphs **out, const struct forward *f, const struct step_limits *limits,
               const char *base, struct err *e);
void graphs_free(struct graphs *g);
void graphs_clear(struct graphs *g); /* forgets all captured graphs */

/* The size of the graph that a step of n decodes runs in. */
int graphs_size(const struct graphs *g, int n);

/* Captures the graph of a size, if it is not there yet: a few milliseconds of the host's time. */
int graphs_prepare(struct graphs *g, int size, struct err *e);

/* Graphs captured so far, and the seconds of the slowest. */
void graphs_captures(const struct graphs *g, int *n, double *longest);

bool graphs_ready(const struct graphs *g, int size);

/* Enqueues it, once it is ready; the metadata must be packed for step_room_of_graph(size). */
int graphs_run(struct graphs *g, int size, struct err *e);

#endif
