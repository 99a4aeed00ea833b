/* quantization.h - which weights of a model are quantized, and how they are in memory.
 *
 * Only the projections of layers are: q, k, v, o, gate, up and down. Pure functions; any thread. */
#ifndef NVLLM_ENGINE_MODEL_QUANTIZATION_H
#define NVLLM_ENGINE_MODEL_QUANTIZATION_H

#include "engine/model/tensor_table.h"

enum { QUANT_BLOCK = 128 }; /* rows and columns of a block with one scale */

/* All quantized weights of a model are alike; see struct matrix. */
struct quantization {
    enum dtype dtype;
    enum dtype scale_dtype;
    bool zeros;         /* there are zeros beside the scales */
    int32_t scale_rows; /* QUANT_BLOCK or 1 */
    int32_t scale_cols; /* 32, 64 or 128; 0: a whole row has one scale */
    uint16_t *layers;   /* [n_layers] bit role - N_MODEL_WEIGHTS: such a weight is quantized */
};

/* q may be NULL: nothing is. */
bool quantization_has(const struct quantization *q, enum weight_role role, int32_t layer);

#endif
