/* regex.h - regular expressions over code points, as terms that are kept once each, and what is
 * left of one after a character: its derivative (Brzozowski, "Derivatives of regular expressions",
 * 1964; Owens, Reppy and Turon, "Regular-expression derivatives re-examined", 2009).
 *
 * So a term is a state of an automaton that is built as far as somebody looks, and the language has
 * intersection, complement and bounded repetition at no cost until then. Surrogates are no
 * characters.
 *
 * A pool belongs to one thread at a time. Where it runs out of memory or over its limit, `failed`
 * is set and what is built is of no use: whoever builds looks at it once, at the end. */
#ifndef NVLLM_ENGINE_GRAMMAR_REGEX_H
#define NVLLM_ENGINE_GRAMMAR_REGEX_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/util/err.h"
#include "engine/util/text.h"

enum {
    REGEX_NONE,  /* no text */
    REGEX_EMPTY, /* the empty text */
    REGEX_ANY,   /* every character */
    REGEX_ALL,   /* every text */
    REGEX_MAX_POINT = 0x10ffff,
    REGEX_ASCII_END = 128,
    REGEX_MAX_REPEAT = 100000,
    REGEX_MAX_MULTIPLE = 100000000,
    REGEX_INFINITE = INT32_MAX,
};

struct regex_range {
    uint32_t lo, hi; /* both included */
};

/* The characters up to hi, from those of the range before on, lead to `next`. */
struct regex_step {
    uint32_t hi;
    int32_t next;
};

struct regex_term {
    int32_t op, a, b, c; /* private: regex_impl.h */
    int32_t steps_at, n_steps;
    int32_t link; /* of the hash table */
    bool nullable;
    bool is_complex; /* an intersection or a complement is in it: it may have no text */
    int8_t alive;    /* 1: it has a text, 0: it has none, -1: not known */
};

struct regex_pool {
    struct regex_term *terms; /* [n_terms] */
    size_t n_terms, terms_cap;
    int32_t *lists; /* of terms that unions and intersections are of */
    size_t n_lists, lists_cap;
    struct regex_range *ranges; /* of sets of characters */
    size_t n_ranges, ranges_cap;
    struct regex_step *steps;
    size_t n_steps, steps_cap;
    int32_t *table; /* [table_size] 1 + the first term of each hash value; 0: none */
    size_t table_size;
    size_t max_bytes;               /* that all of these may take */
    int32_t ascii[REGEX_ASCII_END]; /* the terms of single characters; 0: not made yet */
    size_t work;                    /* derivatives, and what else has been spent: regex_spend() */
    size_t max_work;                /* that may be, at first without a limit */
    int depth;                      /* of the recursion under way */
    int failed;                     /* 0, -ENOMEM, or -E2BIG: over a limit */
};

int regex_pool_init(struct regex_pool *p, size_t max_bytes); /* -ENOMEM */
void regex_pool_deinit(struct regex_pool *p);                /* of a zeroed one, too */
size_t regex_pool_bytes(const struct regex_pool *p);

/* Counts n more units of work, as for derivatives. False: the pool has failed. */
bool regex_spend(struct regex_pool *p, size_t n);

/* ---- terms. All take and give terms of the pool. */

/* Characters of any of the ranges, in any order. */
int32_t regex_chars(struct regex_pool *p, const struct regex_range *ranges, size_t n);
int32_t regex_other_chars(struct regex_pool *p, const struct regex_range *ranges, size_t n);
int32_t regex_char(struct regex_pool *p, uint32_t point);
int32_t regex_text(struct regex_pool *p, struct text utf8); /* that text; it must be UTF-8 */
int32_t regex_concat(struct regex_pool *p, int32_t a, int32_t b);
int32_t regex_or(struct regex_pool *p, const int32_t *terms, size_t n);
int32_t regex_or2(struct regex_pool *p, int32_t a, int32_t b);
int32_t regex_and2(struct regex_pool *p, int32_t a, int32_t b);
int32_t regex_not(struct regex_pool *p, int32_t a);
int32_t regex_repeat(struct regex_pool *p, int32_t a, int32_t min, int32_t max);

/* Decimal numbers, without an exponent, that are multiples of divisor / 10^places. */
int32_t regex_multiples(struct regex_pool *p, int32_t divisor, int32_t places);

/* Parses an expression. search: the texts in which it matches somewhere, as ECMA-262's pattern()
 * has it; else those that it matches as a whole. -EINVAL, -ENOTSUP with the position. */
int regex_parse(int32_t *out, struct regex_pool *p, struct text source, bool search, struct err *e);

/* ---- the automaton */

static inline bool regex_accepts(const struct regex_pool *p, int32_t term)
{
    return p->terms[term].nullable;
}

/* Whether the language has a text. */
bool regex_is_alive(struct regex_pool *p, int32_t term);

/* What is left after a character: REGEX_NONE if no text begins with it. */
int32_t regex_next(struct regex_pool *p, int32_t term, uint32_t point);

/* The same where it is alike after each character of [lo, hi]; REGEX_NONE: it is not, or dead. */
int32_t regex_next_of_all(struct regex_pool *p, int32_t term, uint32_t lo, uint32_t hi);

/* Whether a text of the language begins with a character of [lo, hi]. */
bool regex_begins_with(struct regex_pool *p, int32_t term, uint32_t lo, uint32_t hi);

/* Whether, for certain, each text of n characters of any kind can be gone on with. */
bool regex_absorbs(const struct regex_pool *p, int32_t term, int32_t n);

#endif
