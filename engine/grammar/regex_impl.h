/* regex_impl.h - what regex.c and regex_steps.c share: how terms are kept. */
#ifndef NVLLM_ENGINE_GRAMMAR_REGEX_IMPL_H
#define NVLLM_ENGINE_GRAMMAR_REGEX_IMPL_H

#include "engine/grammar/regex.h"

enum { OP_NONE, OP_EMPTY, OP_CHARS, OP_CONCAT, OP_REPEAT, OP_OR, OP_AND, OP_NOT, OP_MULTIPLE };

/* a, b, c of a term:
 *
 *     CHARS   where its ranges begin, and their number
 *     CONCAT  two terms
 *     REPEAT  a term, how often at least, and at most
 *     OR, AND where the list of terms begins, and their number; sorted, no two alike
 *     NOT     a term
 *     MULTIPLE  the divisor, what the digits so far leave, and how many digits behind the point are
 *             to come, plus AFTER_POINT where it has been read */

enum {
    AFTER_POINT = 1 << 16,
    SURROGATES = 0xd800,
    SURROGATES_END = 0xdfff,
};

/* Notes why the pool has failed. REGEX_NONE. */
int32_t regex_fail(struct regex_pool *p, int code);

/* Room for n elements of one of the arrays, within the limit. */
bool regex_reserve(struct regex_pool *p, void *array, size_t *cap, size_t n, size_t size);

/* The term that is alike, or t, from now on. */
int32_t regex_intern(struct regex_pool *p, struct regex_term t);

/* The union or intersection: OP_OR or OP_AND. */
int32_t regex_combine(struct regex_pool *p, int op, const int32_t *terms, size_t n);

#endif
