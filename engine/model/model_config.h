/* model_config.h - config.json and generation_config.json of a model folder, read strictly: a
 * feature that the engine does not compute as the file asks is refused by name, never ignored.
 *
 * Takes the spellings of transformers 4 (torch_dtype, rope_theta, rope_scaling) and of transformers
 * 5 (dtype, rope_parameters). No state; any thread. */
#ifndef NVLLM_ENGINE_MODEL_MODEL_CONFIG_H
#define NVLLM_ENGINE_MODEL_MODEL_CONFIG_H

#include <jansson.h>

#include "engine/model/model.h"
#include "engine/util/err.h"

#define MODEL_CONFIG_FILE     "config.json"
#define MODEL_GENERATION_FILE "generation_config.json"

enum { MODEL_CONFIG_MAX_BYTES = 1 << 20 };

/* Each fills in what it can and notes every problem; *c is usable only if there was none. *d
 * becomes neutral, with the end ids of config.json. root is NULL where there is no such file. */
void model_config_parse(struct model_config *c, struct model_defaults *d, const json_t *root,
                        struct problems *p);

/* Changes *d to what generation_config.json says. vocab_size bounds its ids. */
void model_defaults_parse(struct model_defaults *d, int32_t vocab_size, const json_t *root,
                          struct problems *p);

#endif
