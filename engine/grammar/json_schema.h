/* json_schema.h - a JSON Schema as a grammar of the instances that it allows.
 *
 * Draft 2020-12, and what earlier drafts spell otherwise. What is accepted is enforced: each
 * keyword that can make an instance invalid is part of the grammar, or the schema is refused with
 * the path of the keyword. Properties come in the order in which the schema names them, then
 * others; between tokens of JSON there may be a space, or one or two line feeds and up to 32
 * spaces or tabs. Integers are written without fraction, numbers with bounds without exponent, and
 * all within the range of a double. Formats that are not known are annotations. */
#ifndef NVLLM_ENGINE_GRAMMAR_JSON_SCHEMA_H
#define NVLLM_ENGINE_GRAMMAR_JSON_SCHEMA_H

#include <jansson.h>

#include "engine/grammar/grammar.h"

/* *rule is then an instance. -EINVAL: the schema is wrong; -ENOTSUP: a keyword is not supported;
 * -E2BIG, -ENOMEM. The text begins with a path: "$.properties.size.multipleOf: …". */
int json_schema_compile(struct grammar *g, const json_t *schema, int32_t *rule, struct err *e);

int32_t json_space(struct regex_pool *p); /* white space, as it may be between tokens */

#endif
