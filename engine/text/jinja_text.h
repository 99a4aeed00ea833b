/* jinja_text.h - what filters and methods do with texts; all keep who wrote each byte. */
#ifndef NVLLM_ENGINE_TEXT_JINJA_TEXT_H
#define NVLLM_ENGINE_TEXT_JINJA_TEXT_H

#include "engine/text/jinja_impl.h"

enum { TEXT_LEFT = 1, TEXT_RIGHT = 2, TEXT_BOTH = 3 };

enum text_case {
    TEXT_LOWER,
    TEXT_UPPER,
    TEXT_SWAP,
    TEXT_CAPITALIZE,  /* the first character a capital, all others small */
    TEXT_TITLE,       /* the same of each word: the method */
    TEXT_TITLE_WORDS, /* the filter, to which words are something else */
};
const struct str *text_case(struct jinja_run *r, const struct str *s, enum text_case how);

/* chars: a string; none: whitespace. */
const struct str *text_strip(struct jinja_run *r, const struct str *s, struct value chars,
                             int sides);
/* fill, one character: NULL is a space. On both sides: centred. */
const struct str *text_pad(struct jinja_run *r, const struct str *s, int64_t width,
                           const struct str *fill, int sides);
const struct str *text_replace(struct jinja_run *r, const struct str *s, const struct str *old,
                               const struct str *new, int64_t count);
struct list *text_lines(struct jinja_run *r, const struct str *s, bool keep_ends);
bool text_ends_line(const struct str *s);

/* "%s" % v: values in turn, or by their names. */
const struct str *text_percent(struct jinja_run *r, const struct str *s, const struct list *v,
                               const struct dict *named);
const struct str *text_format(struct jinja_run *r, const struct str *s, const struct args *args);

struct list *dict_items(struct jinja_run *r, const struct dict *d); /* tuples of two */

/* Filters, tests and methods that are the same. */
BUILTIN(str_case);   /* how: enum text_case */
BUILTIN(str_strip);  /* how: the sides */
BUILTIN(str_pad);    /* how: the sides */
BUILTIN(is_in_case); /* how: TEXT_LOWER or TEXT_UPPER */

/* jinja_eval.c: an operator of two operands. */
struct value value_binary(struct jinja_run *r, uint16_t op, struct value a, struct value b);

#endif
