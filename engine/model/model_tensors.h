/* model_tensors.h - the tensors that a configuration needs, by name, and where each lies in the
 * files.
 *
 * Owned by struct model; immutable after model_tensors_locate. */
#ifndef NVLLM_ENGINE_MODEL_MODEL_TENSORS_H
#define NVLLM_ENGINE_MODEL_MODEL_TENSORS_H

#include <stddef.h>
#include <stdint.h>

#include "engine/model/model.h"
#include "engine/model/model_files.h"
#include "engine/model/tensor_table.h"
#include "engine/util/err.h"

struct model_tensors {
    struct tensor *all; /* [n] by name, as strcmp orders */
    char (*names)[TENSOR_NAME_BYTES];
    size_t n;
    uint64_t n_elements; /* of all: the model's parameters */
    uint64_t bytes;      /* of all, as stored; 0 until they are located */
};

/* Names and shapes for a configuration that has passed its checks. *t is zero before; -ENOMEM. */
int model_tensors_list(struct model_tensors *t, const struct model_config *c, struct problems *p);
/* Fills in dtype, bytes, offset and file; notes tensors that are missing or of another shape or
 * type. */
void model_tensors_locate(struct model_tensors *t, const struct model_files *f, struct problems *p);
void model_tensors_deinit(struct model_tensors *t);

const struct tensor *model_tensors_find(const struct model_tensors *t, const char *name);
uint64_t tensor_elements(const struct tensor *t);

#endif
