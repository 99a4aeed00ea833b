/* offline_schema.h - which texts a response format allows. */
#ifndef NVLLM_DAEMON_OFFLINE_SCHEMA_H
#define NVLLM_DAEMON_OFFLINE_SCHEMA_H

#include <jansson.h>

#include "engine/grammar/format.h"

/* {"schema": …, "texts": […]}, or regex or grammar in place of schema, to {"supported": true,
 * "accepted": […]} or {"supported": false, "reason": …}. -EINVAL: the input is wrong. */
int offline_schema(json_t **out, const json_t *input, const struct tokenizer *t,
                   const struct vocabulary *v, int32_t vocab_size, struct err *e);

#endif
