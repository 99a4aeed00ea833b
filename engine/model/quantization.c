/* quantization.c - see quantization.h. */
#include "engine/model/quantization.h"

bool quantization_has(const struct quantization *q, enum weight_role role, int32_t layer)
{
    return q && role >= N_MODEL_WEIGHTS && q->layers[layer] >> (role - N_MODEL_WEIGHTS) & 1;
}
