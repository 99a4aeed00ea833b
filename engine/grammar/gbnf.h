/* gbnf.h - grammars in GBNF, the notation of llama.cpp: rules "name ::= …" of strings, classes of
 * characters, dots, other rules and groups, which may be repeated (*, +, ?, {2}, {2,}, {2,5}) and
 * stand beside each other or between bars. The text is the rule "root". */
#ifndef NVLLM_ENGINE_GRAMMAR_GBNF_H
#define NVLLM_ENGINE_GRAMMAR_GBNF_H

#include "engine/grammar/grammar.h"

/* *rule is then the root. -EINVAL, with the line; -ENOTSUP; -E2BIG, -ENOMEM. */
int gbnf_compile(struct grammar *g, struct text source, int32_t *rule, struct err *e);

#endif
