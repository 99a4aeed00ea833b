/* weights.h - loads a rank's weights to its device, bf16, once at open: several threads read into
 * pinned buffers and copy. */
#ifndef NVLLM_CUDA_WEIGHTS_H
#define NVLLM_CUDA_WEIGHTS_H

#include "cuda/device.h"
#include "engine/backend.h"
#include "engine/model/weights.h"

/* What the kernels ask of matrices: rows without gaps, 256-byte alignment. */
extern const struct weights_layout cuda_weights_layout;

/* Takes the device's memory for weights and fills it; weights_deinit() afterwards leaves that
 * memory to the device. */
int cuda_weights_load(struct weights *w, struct device *d, const struct model *m, struct shard s,
                      const struct backend_options *o, struct err *e);

#endif
