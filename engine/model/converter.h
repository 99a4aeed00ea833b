/* converter.h - writes a model folder again with its projections quantized, in a published format,
 * or as bf16. FP8 as Qwen3's: blocks of 128 x 128; INT4 as compressed-tensors packs it: symmetric
 * groups. A folder that is quantized while it is read has the same weights.
 *
 * Any thread. */
#ifndef NVLLM_ENGINE_MODEL_CONVERTER_H
#define NVLLM_ENGINE_MODEL_CONVERTER_H

#include "engine/model/model.h"

/* Makes the folder `to`, which must not exist (-EEXIST) nor lie inside `from` (-EINVAL). dtype is
 * DTYPE_E4M3 or DTYPE_INT4, or DTYPE_BF16, to which weights of other types, quantized or not, are
 * rounded. Tensor by tensor, one in memory at a time; all other files are copied. It appears under
 * its name when it is whole, and not at all after an error. progress may be NULL. */
int model_convert(const char *from, const char *to, enum dtype dtype,
                  void (*progress)(void *ctx, double done), void *progress_ctx, struct err *e);

#endif
