/* reference_forward.h - a plain forward pass in double precision over all models that are
 * supported, written for reading and not for speed: what a backend gives is compared with it. */
#ifndef NVLLM_TESTS_UNIT_REFERENCE_FORWARD_H
#define NVLLM_TESTS_UNIT_REFERENCE_FORWARD_H

#include "engine/model/model.h"

/* Log-probabilities [n, vocab_size] after each of n tokens, to be freed. One thread at a time. */
double *reference_forward(struct model *m, const int32_t *tokens, int n);

#endif
