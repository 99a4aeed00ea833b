/* cpu_weights.h - the weights in this process's memory: bf16 matrices with rows padded to
 * CPU_K_ALIGN, and float vectors.
 *
 * Immutable after load. */
#ifndef NVLLM_ENGINE_CPU_CPU_WEIGHTS_H
#define NVLLM_ENGINE_CPU_CPU_WEIGHTS_H

#include "engine/cpu/cpu_machine.h"
#include "engine/cpu/cpu_pool.h"
#include "engine/model/weights.h"
#include "engine/util/err.h"

/* Takes memory and reads everything into it with all threads of the pool. Negative errno and a
 * text; both are to be deinitialized then, too. */
int cpu_weights_load(struct weights *w, struct region *memory, const struct model *model,
                     struct cpu_pool *pool, void (*progress)(void *ctx, double done),
                     void *progress_ctx, struct err *e);

#endif
