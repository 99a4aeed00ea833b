/* jinja_parse.h - what jinja_parse.c and jinja_expr.c share. */
#ifndef NVLLM_ENGINE_TEXT_JINJA_PARSE_H
#define NVLLM_ENGINE_TEXT_JINJA_PARSE_H

#include "engine/text/jinja_tree.h"

enum {
    PARSE_DEPTH_MAX = 100, /* brackets, operators and tags in each other */
    NODE_HEIGHT_MAX = 400, /* of chains, such as a + b + c + … */
    SCOPES_MAX = PARSE_DEPTH_MAX + 2,
    SCOPE_NAMES_MAX = 4000,
    GLOBALS_MAX = 1000,
};

/* A name that is read: its slots are known when all of the template is. */
struct unresolved {
    struct unresolved *next;
    struct node *node;
    const struct scope *scope;
    bool called;
};

struct parser {
    struct jinja_run *r;
    struct jinja *t;
    const struct token *at, *first;
    struct scope *scope;
    struct unresolved *unresolved;
    int depth;
    int n_loops; /* around, up to the macro */
};

struct node *parser_node(struct parser *p, enum node_kind kind);    /* at the current token */
void parser_add(struct parser *p, struct node *to, struct node *n); /* to its list */
void parser_enter(struct parser *p);
void parser_leave(struct parser *p);

bool parser_is_op(const struct parser *p, char op);
bool parser_is_word(const struct parser *p, const char *word);
bool parser_skip_op(struct parser *p, char op);
bool parser_skip_word(struct parser *p, const char *word);
void parser_expect_op(struct parser *p, char op);
void parser_expect_word(struct parser *p, const char *word);
const struct str *parser_expect_name(struct parser *p);
_Noreturn void parser_unexpected(struct parser *p, const char *wanted);

/* Has the name's slots resolved in the current scope. */
void parser_read_name(struct parser *p, struct node *name, bool called);

struct node *parser_target(struct parser *p, bool inner);
struct node *parser_expression(struct parser *p);
/* An expression, or several with commas; not_word ends it. */
struct node *parser_tuple(struct parser *p, bool with_condition, const char *not_word);
/* |a|b of a block: the first one's subject is NULL. Without the '|' in front of a filter tag's. */
struct node *parser_filters(struct parser *p, struct node *subject);

#endif
