/* jinja_tree.h - a compiled template: its tokens, and the tree that is made of them. */
#ifndef NVLLM_ENGINE_TEXT_JINJA_TREE_H
#define NVLLM_ENGINE_TEXT_JINJA_TREE_H

#include "engine/text/jinja_impl.h"

enum node_kind {
    /* expressions */
    N_CONST,
    N_NAME,
    N_TUPLE,
    N_LIST,
    N_DICT,
    N_ATTR,
    N_ITEM,
    N_SLICE,
    N_CALL,
    N_FILTER,
    N_TEST,
    N_NOT,
    N_NEGATE,
    N_PLUS,
    N_BINARY,
    N_AND,
    N_OR,
    N_CONCAT,
    N_COMPARE,
    N_COND,
    /* statements */
    N_DATA,
    N_OUTPUT,
    N_BODY,
    N_FOR,
    N_IF,
    N_SET,
    N_SET_BLOCK,
    N_MACRO,
    N_CALL_BLOCK,
    N_FILTER_BLOCK,
    N_WITH,
    N_SCOPE,
    N_BREAK,
    N_CONTINUE,
};

struct name_ref {
    uint16_t up, slot;
};

struct call {
    struct node *args, *named;     /* their lists; of one with a name, a is the value */
    struct node *star, *star_star; /* *args, **kwargs */
};

/* One kind uses some of the members: small, for a template should fit the nearest cache. */
struct node {
    uint8_t kind;
    bool flag;          /* N_ATTR: the name may be a method's; N_TEST: negated; N_FOR: recursive */
    uint16_t joined_by; /* the operator before it in N_BINARY and N_COMPARE */
    uint16_t height;    /* of attributes, calls and filters in a row */
    uint32_t pos;       /* line << 12 | column */
    uint32_t n;         /* of list */
    struct node **list;
    struct node *a, *b, *c;
    struct scope *scope;
    const struct str *name; /* of N_NAME, N_ATTR, N_MACRO; the text of N_DATA */
    union {
        struct value value; /* N_CONST */
        struct {            /* N_FILTER, N_TEST; N_CALL has the call alone */
            const struct builtin *builtin;
            struct call *call;
        };
        struct { /* N_NAME, innermost first; then the global variable */
            const struct name_ref *refs;
            uint32_t n_refs;
            int32_t global; /* where it is assigned to, and of N_MACRO: its slot */
        };
    };
};

/* Names that are set somewhere in a stretch of the template, and its frames' slots. */
struct scope {
    struct scope *up;
    const struct str **names;
    uint16_t n, cap;
    bool captured;                /* a macro in it may outlive its frame */
    bool varargs, kwargs, caller; /* of a macro: its body uses them */
};

struct jinja {
    struct chunk *chunks;
    struct node *body;
    struct scope *scope;
    const struct str **globals;
    uint32_t n_globals;
    bool marks; /* it has the safe or escape filter: sums may have to be escaped */
};

enum token_type {
    T_END,
    T_DATA,
    T_VARIABLE_BEGIN,
    T_VARIABLE_END,
    T_BLOCK_BEGIN,
    T_BLOCK_END,
    T_NAME,
    T_NUMBER,
    T_STRING,
    T_OPERATOR,
};

struct token {
    uint8_t type;
    uint16_t op; /* its characters, the first one higher */
    uint32_t pos;
    const struct str *text;
    struct value value; /* T_NUMBER */
};

/* jinja_lex.c: the tokens of a whole template, with T_END behind. */
struct token *jinja_lex(struct jinja_run *r, struct text source);
/* jinja_parse.c */
void jinja_parse(struct jinja_run *r, struct jinja *t, const struct token *tokens);

/* jinja_exec.c */
void jinja_execute(struct jinja_run *r);

#endif
