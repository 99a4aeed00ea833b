/* json_schema.h - a JSON Schema as a grammar of the instances that it allows.
 *
 * Draft 2020-12, and what earlier drafts spell otherwise. What is accepted is enforced: each
 * keyword that can make an instance invalid is part of the grammar, or the schema is refused with
 * the path of the keyword. Properties come in the order in which the schema names them, then
 * others; between tokens of JSON there may be up to 64 characters of white space. Integers are
 * written without fraction, and numbers with bounds without exponent. Formats that are not known
 * are annotations. */
#ifndef NVLLM_ENGINE_GRAMMAR_JSON_SCHEMA_H
#define NVLLM_ENGINE_GRAMMAR_JSON_SCHEMA_H

#include <jansson.h>

#include "engine/grammar/grammar.h"

/* *rule is then an instance. -EINVAL: the schema is wrong; -ENOTSUP: a keyword is not supported;
 * -E2BIG, -ENOMEM. The text begins with a path: "$.properties.size.multipleOf: …". */
int json_schema_compile(struct grammar *g, const json_t *schema, int32_t *rule, struct err *e);

#endif
