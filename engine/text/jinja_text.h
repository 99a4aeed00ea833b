/* jinja_text.h - what filters and methods do with texts; all keep who wrote each byte. */
#ifndef NVLLM_ENGINE_TEXT_JINJA_TEXT_H
#define NVLLM_ENGINE_TEXT_JINJA_TEXT_H

#include "engine/text/jinja_impl.h"

enum { TEXT_LEFT = 1, TEXT_RIGHT = 2 };

const struct str *text_lower(struct jinja_run *r, const struct str *s);
const struct str *text_upper(struct jinja_run *r, const struct str *s);
const struct str *text_capitalize(struct jinja_run *r, const struct str *s);
const struct str *text_title(struct jinja_run *r, const struct str *s);       /* the method */
const struct str *text_title_words(struct jinja_run *r, const struct str *s); /* the filter */
const struct str *text_swapcase(struct jinja_run *r, const struct str *s);

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

const struct builtin *builtin_find(const struct builtin *all, size_t n, const char *name,
                                   size_t len);

/* jinja_eval.c: an operator of two operands. */
struct value value_binary(struct jinja_run *r, uint16_t op, struct value a, struct value b);

#endif
