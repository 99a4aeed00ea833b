/* cpu_backend.h - the CPU reference backend: plain C, float32 sums over bf16 weights in a fixed
 * order. A row's result depends on its sequence alone, not on the batch, chunks, threads, block_len
 * or instruction set; another number of ranks adds in another order. It is the oracle for every
 * kernel and the default without a device. */
#ifndef NVLLM_ENGINE_CPU_CPU_BACKEND_H
#define NVLLM_ENGINE_CPU_CPU_BACKEND_H

#include "engine/backend.h"
#include "engine/cpu/cpu_ops.h"

extern const struct backend_ops cpu_backend;

/* cpu_backend.open with a given instruction set, for tests and benchmarks. */
int cpu_backend_open_with(struct backend **out, const struct model *model,
                          const struct backend_options *options, const struct cpu_ops *ops,
                          struct err *e);

/* The KV pool, so that tests can poison it between steps. */
void *cpu_backend_kv(struct backend *b);

#endif
