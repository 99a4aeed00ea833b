/* rope.h - the frequencies of the rotary position embedding, as config.json has them.
 *
 * At position p, the pair i of a head is rotated by the angle p * inv_freq[i]; the cosine and the
 * sine are multiplied by rope_scale(). Pure functions. */
#ifndef NVLLM_ENGINE_MODEL_ROPE_H
#define NVLLM_ENGINE_MODEL_ROPE_H

#include "engine/model/model.h"

/* inv_freq [head_dim / 2]. */
void rope_frequencies(const struct model_config *c, float *inv_freq);

/* 1 but for YaRN, which sharpens attention over long contexts. */
float rope_scale(const struct model_config *c);

#endif
