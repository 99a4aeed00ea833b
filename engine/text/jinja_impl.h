/* jinja_impl.h - shared by the parts of the interpreter and by who makes its variables.
 *
 * Everything here works inside jinja_compile() or jinja_render(): memory comes from the arena of
 * the run, and jinja_fail() leaves by longjmp, so that nothing has to be freed or handed up. */
#ifndef NVLLM_ENGINE_TEXT_JINJA_IMPL_H
#define NVLLM_ENGINE_TEXT_JINJA_IMPL_H

#include <jansson.h>
#include <setjmp.h>
#include <stdbool.h>
#include <string.h>

#include "engine/text/jinja.h"

enum {
    JINJA_DEPTH_MAX = 1000, /* nested calls of the interpreter, and of values in values */
    JINJA_ARGS_MAX = 8,     /* named parameters of a filter, test or method */
    JINJA_SOURCE_MAX = 4 << 20,
};

/* ---- values */

enum value_type {
    V_MISSING, /* of a slot: nothing is set; no expression has it */
    V_UNDEFINED,
    V_NONE,
    V_BOOL,
    V_INT,
    V_FLOAT,
    V_STR,
    V_LIST,
    V_TUPLE,
    V_ITER, /* what Python makes a generator or a view of: it has no elements by index */
    V_DICT,
    V_NAMESPACE, /* its attributes are a struct dict */
    V_MACRO,
    V_LOOP,
    V_FUNCTION,
};

struct value {
    uint8_t type;
    bool foreign;  /* came with a variable; of a number: what it prints did */
    uint8_t owner; /* V_UNDEFINED: the type of what has no such attribute; 0: of no object */
    bool by_index; /* V_UNDEFINED: i, not str, is what was asked for */
    union {
        bool b;
        int64_t i;
        double f;
        const struct str *str; /* V_UNDEFINED: the name; NULL: none */
        struct list *list;     /* V_LIST, V_TUPLE, V_ITER */
        struct dict *dict;
        struct macro *macro;
        struct loop *loop;
        const struct function *function;
    };
};

/* UTF-8, valid, never changed. own says of each byte whether the template wrote it (1) or not (0);
 * where it is NULL all are as all_own. */
struct str {
    const char *data;
    const uint8_t *own;
    uint32_t len;
    bool all_own;
    bool markup;      /* the safe filter's: what is added to it is escaped */
    struct out *from; /* concatenation made it, and may go on behind it; or NULL */
};

struct list {
    struct value *items;
    uint32_t n, cap;
    bool used_up;   /* V_ITER: it goes by once */
    bool generator; /* V_ITER: not a view: it has no length, and is always true */
};

struct entry {
    struct value key, value;
};

struct dict {
    struct entry *entries; /* in the order of insertion */
    uint32_t n, cap;
    uint32_t *index; /* [n_index], a power of two: hash table of entry + 1; NULL while small */
    uint32_t n_index;
};

struct macro {
    const struct node *node;
    struct frame *frame; /* in which it was defined */
};

struct function {
    const struct builtin *builtin;
    struct value self; /* of a method */
};

/* ---- what is called by name */

/* Of a call, at first zeros. A name is there once. */
struct args {
    struct list list;
    struct dict named;
};

/* A filter, test, function or method. Its first parameter is the subject, params the names of the
 * others, a[1] and on: "old new count?" may be called without a count, which is V_MISSING then.
 * "*": it looks at args itself. */
struct builtin {
    const char *name;
    const char *params;
    struct value (*run)(struct jinja_run *r, const struct builtin *b, const struct value *a,
                        const struct args *args);
    int how; /* which one it is of those that run() does */
};

/* Begins a run(), which need not look at all of its parameters. */
#define BUILTIN(name)                                                                              \
    struct value name(__attribute__((unused)) struct jinja_run *r,                                 \
                      __attribute__((unused)) const struct builtin *b,                             \
                      __attribute__((unused)) const struct value *a,                               \
                      __attribute__((unused)) const struct args *args)

/* NULL: unknown. The table is in the order of its names. */
const struct builtin *builtin_find(const struct builtin *all, size_t n, const struct str *name);
const struct builtin *jinja_filter(const struct str *name);
const struct builtin *jinja_test(const struct str *name);
const struct builtin *jinja_function(const struct str *name);
const struct builtin *jinja_method(enum value_type type, const struct str *name);

struct value jinja_call_builtin(struct jinja_run *r, const struct builtin *b, struct value self,
                                const struct args *args);
/* jinja_eval.c: calls a macro, function or loop. */
struct value jinja_call(struct jinja_run *r, struct value callee, const struct args *args);

/* ---- the run */

/* A text while it is written: in the arena, with own as a struct str has it; or the whole output,
 * from malloc, with the ranges that are the template's own. */
struct out {
    char *data;
    uint8_t *own; /* NULL until a second kind of text comes */
    size_t len, cap;
    bool all_own;
    bool whole;
    struct text_range *ranges;
    size_t n_ranges, ranges_cap;
};

struct frame {
    struct frame *up;
    struct value slots[];
};

struct jinja_run {
    const struct jinja *t;
    struct err *e;
    int code; /* of the error */
    jmp_buf fail;
    uint32_t pos; /* of the node being evaluated: line << 12 | column */
    bool compiling;

    struct chunk *chunks; /* the arena; the first is being filled */
    size_t used, room;    /* of the first */
    size_t taken, memory_max, output_max;
    int64_t steps;
    int depth;

    struct out *out, whole;
    struct frame *frame;
    struct value *globals;
    const struct tm *now;
    json_t *json; /* being converted */
};

enum { JINJA_COLUMN_BITS = 12 };

/* "chat template: line 3: …", or while compiling "line 3, column 7: …". */
_Noreturn __attribute__((format(printf, 2, 3))) void jinja_fail(struct jinja_run *r,
                                                                const char *fmt, ...);
_Noreturn __attribute__((format(printf, 3, 4))) void jinja_fail_as(struct jinja_run *r, int code,
                                                                   const char *fmt, ...);
/* With a text that needs no place in the template. */
_Noreturn void jinja_fail_plain(struct jinja_run *r, int code, const struct err *why);
/* The template gave up with a message. */
_Noreturn void jinja_raise(struct jinja_run *r, struct text message);
void *jinja_take(struct jinja_run *r, size_t bytes); /* aligned for any type, not zeroed */
/* A larger piece that begins with the first `used` bytes of another. */
void *jinja_grow(struct jinja_run *r, const void *from, size_t used, size_t bytes);
_Noreturn void jinja_fail_steps(struct jinja_run *r);
_Noreturn void jinja_fail_depth(struct jinja_run *r);

/* Counts the work of so many bytes or elements. */
static inline void jinja_charge(struct jinja_run *r, size_t bytes)
{
    r->steps -= (int64_t)(bytes / 16) + 1;
    if (r->steps < 0)
        jinja_fail_steps(r);
}

static inline void jinja_enter(struct jinja_run *r)
{
    if (++r->depth > JINJA_DEPTH_MAX)
        jinja_fail_depth(r);
}

static inline void jinja_leave(struct jinja_run *r)
{
    r->depth--;
}

/* An operator: its one or two characters; a word's first two. */
#define OP(a, b) ((uint16_t)((unsigned char)(a) << 8 | (unsigned char)(b)))

enum {
    OP_OR = OP('o', 'r'),
    OP_AND = OP('a', 'n'),
    OP_IN = OP('i', 'n'),
    OP_NOT_IN = OP('n', 'i')
};

/* ---- making and reading values: jinja_value.c */

static inline struct value value_none(void)
{
    return (struct value){.type = V_NONE};
}

static inline struct value value_bool(bool b)
{
    return (struct value){.type = V_BOOL, .b = b};
}

static inline struct value value_int(int64_t i)
{
    return (struct value){.type = V_INT, .i = i};
}

static inline struct value value_float(double f)
{
    return (struct value){.type = V_FLOAT, .f = f};
}

static inline struct value value_undefined(const struct str *name)
{
    return (struct value){.type = V_UNDEFINED, .str = name};
}

static inline struct value value_str(const struct str *s)
{
    return (struct value){.type = V_STR, .str = s};
}

static inline struct value value_list(struct list *l, enum value_type type)
{
    return (struct value){.type = (uint8_t)type, .list = l};
}

static inline struct value value_dict(struct dict *d)
{
    return (struct value){.type = V_DICT, .dict = d};
}

static inline bool value_is_number(struct value v)
{
    return v.type == V_INT || v.type == V_FLOAT || v.type == V_BOOL;
}

/* The number, a bool counts as one: of V_INT and V_BOOL. */
static inline int64_t value_whole(struct value v)
{
    return v.type == V_BOOL ? v.b : v.i;
}

static inline double value_real(struct value v)
{
    return v.type == V_FLOAT ? v.f : (double)value_whole(v);
}

/* Of an argument: none is as good as nothing. */
static inline bool value_is_given(struct value v)
{
    return v.type != V_MISSING && v.type != V_NONE;
}

static inline bool value_is_sequence(struct value v)
{
    return v.type == V_LIST || v.type == V_TUPLE;
}

/* The data is referred to, not copied. */
struct str *str_new(struct jinja_run *r, const char *data, size_t len, bool own);
struct str *str_of(struct jinja_run *r, const char *literal); /* the template's own */
#define STR_LITERAL(s)                                                                             \
    {                                                                                              \
        .data = (s), .len = sizeof(s) - 1, .all_own = true                                         \
    }
struct str *str_copy(struct jinja_run *r, const char *data, size_t len, bool own);
struct str *str_part(struct jinja_run *r, const struct str *s, size_t at, size_t len);
/* All strings of the list, behind one another. */
const struct str *str_joined(struct jinja_run *r, const struct list *parts);
const struct str *str_concat(struct jinja_run *r, const struct str *a, const struct str *b);
/* s, marked as safe or not. */
const struct str *str_marked(struct jinja_run *r, const struct str *s, bool markup);
const struct str *str_escaped(struct jinja_run *r, const struct str *s); /* for HTML */
size_t str_chars(const struct str *s);                                   /* code points */
size_t str_offset(const struct str *s, size_t n_chars);                  /* of the nth */

static inline bool str_own_at(const struct str *s, size_t at)
{
    return s->own ? s->own[at] : s->all_own;
}

static inline bool str_equal(const struct str *a, const struct str *b)
{
    return a == b || (a->len == b->len && memcmp(a->data, b->data, a->len) == 0);
}

int str_compare(const struct str *a, const struct str *b);
bool str_is(const struct str *s, const char *literal);
bool str_is_space(uint32_t cp); /* as Python sees it */

struct list *list_new(struct jinja_run *r, size_t cap);
void list_push(struct jinja_run *r, struct list *l, struct value v);

struct dict *dict_new(struct jinja_run *r, size_t cap);
const struct value *dict_get(struct jinja_run *r, const struct dict *d, struct value key);

static inline const struct value *dict_get_str(struct jinja_run *r, const struct dict *d,
                                               const struct str *key)
{
    if (d->index)
        return dict_get(r, d, value_str(key));
    for (uint32_t i = 0; i < d->n; i++)
        if (d->entries[i].key.type == V_STR && str_equal(d->entries[i].key.str, key))
            return &d->entries[i].value;
    return NULL;
}

void dict_set(struct jinja_run *r, struct dict *d, struct value key, struct value v);

void out_init(struct out *o);
void out_write(struct jinja_run *r, struct out *o, const char *data, size_t len, bool own);
void out_str(struct jinja_run *r, struct out *o, const struct str *s);
void out_part(struct jinja_run *r, struct out *o, const struct str *s, size_t at, size_t len);
void out_value(struct jinja_run *r, struct out *o, struct value v); /* as Python's str() */
void out_repr(struct jinja_run *r, struct out *o, struct value v);
/* The text so far, to which nobody else refers. What is written later comes behind it. */
struct str *out_take(struct jinja_run *r, struct out *o);

bool value_is_true(struct jinja_run *r, struct value v);

static inline bool value_true(struct jinja_run *r, struct value v)
{
    return v.type == V_BOOL ? v.b : value_is_true(r, v);
}

bool value_equal(struct jinja_run *r, struct value a, struct value b);
int value_compare(struct jinja_run *r, struct value a, struct value b, const char *op);
bool value_contains(struct jinja_run *r, struct value all, struct value v);
/* What an operator that compares says of the two. */
bool value_relates(struct jinja_run *r, uint16_t op, struct value a, struct value b);
const struct str *value_text(struct jinja_run *r, struct value v); /* str(v) */
const char *value_type_name(enum value_type type);
int64_t value_length(struct jinja_run *r, struct value v); /* -1: it has none */
/* The elements, of a string its characters; fails for what cannot be iterated over. */
struct list *value_elements(struct jinja_run *r, struct value v);
_Noreturn void value_fail_undefined(struct jinja_run *r, struct value v);
int64_t value_index(struct jinja_run *r, struct value v); /* an integer, or fails */
struct value value_attr(struct jinja_run *r, struct value v, const struct str *name);
struct value value_lacks(struct value v, const struct str *name); /* such an attribute: undefined */
struct value value_function(struct jinja_run *r, const struct builtin *b, struct value self);
struct value value_item(struct jinja_run *r, struct value v, struct value key);

/* As Python's json.dumps() writes values, or its repr(). */
struct value_style {
    bool json;
    bool ascii, sorted;           /* of JSON */
    const struct str *indent;     /* NULL: one line */
    const struct str *item, *key; /* separators */
};
void out_styled(struct jinja_run *r, struct out *o, struct value v,
                const struct value_style *style);

/* jinja_json.c */
struct value value_from_json(struct jinja_run *r, const json_t *json); /* foreign */
/* Parses text; what names it in an error. */
struct value value_parse_json(struct jinja_run *r, struct text text, const char *what);

/* The order of keys[n], ascending, equal ones as they are (or, reversed, as they are as well). */
uint32_t *jinja_sorted(struct jinja_run *r, const struct value *keys, uint32_t n, bool reversed);

void jinja_set(struct jinja_run *r, const char *name, size_t len, struct value v);

/* jinja_exec.c */
struct value jinja_loop_attr(struct jinja_run *r, struct value v, const struct str *name);

#endif
