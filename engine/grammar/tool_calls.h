/* tool_calls.h - calls of tools as a grammar, as answer.h reads them behind their opening tag.
 *
 * A tool is a JSON object as OpenAI has it, {"type": "function", "function": {"name",
 * "parameters", "strict"}}, or the function alone. The arguments of one with "strict": true are an
 * instance of its parameters, those of others any object. */
#ifndef NVLLM_ENGINE_GRAMMAR_TOOL_CALLS_H
#define NVLLM_ENGINE_GRAMMAR_TOOL_CALLS_H

#include "engine/grammar/grammar.h"
#include "engine/util/text.h"

/* Whether one of the n tools is strict: 0 or 1, or -ENOMEM. */
int tool_calls_are_strict(const struct text *tools, size_t n);

/* *rule is then a call of one of the n tools, with its closing tag; only: the name of the one that
 * may be called; empty: any. -EINVAL: a tool is wrong, or there is none of this name; -ENOTSUP: its
 * parameters have a keyword that is not supported; -E2BIG, -ENOMEM. The text begins with a field:
 * "chat.tools[2].function.parameters: $.size: …". */
int tool_calls_compile(struct grammar *g, const struct text *tools, size_t n, struct text only,
                       int32_t *rule, struct err *e);

#endif
