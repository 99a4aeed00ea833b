/* quantized.h - reads a piece of a quantized weight from the tensors that it is stored as, whatever
 * the format, into the one form of struct matrix; or quantizes it on the way.
 *
 * Any thread. */
#ifndef NVLLM_ENGINE_MODEL_QUANTIZED_H
#define NVLLM_ENGINE_MODEL_QUANTIZED_H

#include "engine/model/weights.h"

/* As weight_piece_read(), of a matrix with scales. */
int quantized_piece_read(const struct model *m, const struct weight_piece *p,
                         const struct matrix *to, struct err *e);

#endif
