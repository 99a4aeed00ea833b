/* jinja_eval.h - what jinja_eval.c and jinja_exec.c share. */
#ifndef NVLLM_ENGINE_TEXT_JINJA_EVAL_H
#define NVLLM_ENGINE_TEXT_JINJA_EVAL_H

#include "engine/text/jinja_tree.h"

/* A for loop that is running. */
struct loop {
    const struct node *node;
    struct frame *outer; /* what is around the body's frame */
    struct list *items;
    uint32_t at, depth;
    struct value last_changed; /* V_MISSING: loop.changed() has not been called */
};

struct value jinja_eval(struct jinja_run *r, const struct node *n);
/* caller: of a call block, the argument of that name; NULL: there is none. */
struct value jinja_eval_call(struct jinja_run *r, const struct node *n, const struct value *caller);
/* n is a filter or test, which is applied to the subject. */
struct value jinja_filtered(struct jinja_run *r, const struct node *n, struct value subject);

struct value jinja_call_macro(struct jinja_run *r, const struct macro *m, const struct args *args);
struct value jinja_call_loop(struct jinja_run *r, const struct loop *l, const struct args *args);

#endif
