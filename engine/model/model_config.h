/* model_config.h - config.json and generation_config.json of a model folder, read strictly: what
 * the engine does not compute exactly as the file asks is refused by name, never ignored.
 *
 * Both the spellings of transformers 4 (torch_dtype, rope_theta, rope_scaling) and of 5 (dtype,
 * rope_parameters). No state; any thread. */
#ifndef NVLLM_ENGINE_MODEL_MODEL_CONFIG_H
#define NVLLM_ENGINE_MODEL_MODEL_CONFIG_H

#include <jansson.h>

#include "engine/model/model.h"
#include "engine/util/problems.h"

#define MODEL_CONFIG_FILE     "config.json"
#define MODEL_GENERATION_FILE "generation_config.json"

enum { MODEL_CONFIG_MAX_BYTES = 1 << 20 };

/* Each fills what it can and notes all that is wrong in p; *c is usable only when p is as it was.
 * *d becomes neutral, with the end ids of config.json. */
void model_config_parse(struct model_config *c, struct model_defaults *d, const json_t *root,
                        struct problems *p);

/* What generation_config.json adds to *d. vocab_size bounds its ids. */
void model_defaults_parse(struct model_defaults *d, int32_t vocab_size, const json_t *root,
                          struct problems *p);

/* Both from the files in the folder dir. Only generation_config.json may be absent. */
void model_config_read(struct model_config *c, struct model_defaults *d, int dir,
                       struct problems *p);
void model_defaults_read(struct model_defaults *d, int32_t vocab_size, int dir, struct problems *p);

#endif
