/* jinja_expr.c - parses expressions by recursive descent, with a bound on the depth. See
 * jinja_impl.h. */
#include <errno.h>

#include "engine/text/jinja_parse.h"

/* ---- nodes and tokens */

struct node *parser_node(struct parser *p, enum node_kind kind)
{
    struct node *n = jinja_take(p->r, sizeof(*n));

    p->r->pos = p->at->pos;
    *n = (struct node){.kind = (uint8_t)kind, .pos = p->at->pos};
    return n;
}

/* A list has room for 4, and for twice as many whenever it is full. */
void parser_add(struct parser *p, struct node *to, struct node *n)
{
    const uint32_t room = to->n ? to->n : 2;

    if (to->n == 0 || (to->n >= 4 && (to->n & (to->n - 1)) == 0))
        to->list = jinja_grow(p->r, to->list, to->n * sizeof(struct node *),
                              2 * room * sizeof(struct node *));
    to->list[to->n++] = n;
}

/* a.b.c is parsed by a loop, but evaluated by recursion. */
static struct node *over(struct parser *p, enum node_kind kind, struct node *a)
{
    struct node *n = parser_node(p, kind);

    n->a = a;
    n->height = (uint16_t)(a ? a->height + 1 : 1);
    if (n->height > NODE_HEIGHT_MAX)
        jinja_fail_as(p->r, -ENOTSUP, "more than %d operators in a row", (int)NODE_HEIGHT_MAX);
    return n;
}

void parser_enter(struct parser *p)
{
    if (++p->depth <= PARSE_DEPTH_MAX)
        return;
    p->r->pos = p->at->pos;
    jinja_fail_as(p->r, -ENOTSUP, "nested more than %d deep", (int)PARSE_DEPTH_MAX);
}

void parser_leave(struct parser *p)
{
    p->depth--;
}

/* Of two characters; the first may be 0. */
static bool is_op2(const struct parser *p, char a, char b)
{
    return p->at->type == T_OPERATOR && p->at->op == OP(a, b);
}

bool parser_is_op(const struct parser *p, char op)
{
    return is_op2(p, 0, op);
}

bool parser_is_word(const struct parser *p, const char *word)
{
    return p->at->type == T_NAME && str_is(p->at->text, word);
}

bool parser_skip_word(struct parser *p, const char *word)
{
    bool is = parser_is_word(p, word);

    p->at += is;
    return is;
}

bool parser_skip_op(struct parser *p, char op)
{
    bool is = parser_is_op(p, op);

    p->at += is;
    return is;
}

_Noreturn void parser_unexpected(struct parser *p, const char *wanted)
{
    const struct token *t = p->at;
    const char op[] = {(char)(t->op >> 8), (char)t->op, '\0'};
    char found[48];

    p->r->pos = t->pos;
    if (t->type == T_OPERATOR)
        snprintf(found, sizeof(found), "'%s'", op[0] ? op : op + 1);
    else if (t->type == T_NAME)
        snprintf(found, sizeof(found), "'%.*s'", t->text->len < 40 ? (int)t->text->len : 40,
                 t->text->data);
    else
        snprintf(found, sizeof(found), "%s",
                 t->type == T_STRING         ? "a string"
                 : t->type == T_NUMBER       ? "a number"
                 : t->type == T_BLOCK_END    ? "%}"
                 : t->type == T_VARIABLE_END ? "}}"
                                             : "the end");
    jinja_fail(p->r, "there is %s where %s is expected", found, wanted);
}

void parser_expect_op(struct parser *p, char op)
{
    const char wanted[] = {'\'', op, '\'', '\0'};

    if (!parser_skip_op(p, op))
        parser_unexpected(p, wanted);
}

void parser_expect_word(struct parser *p, const char *word)
{
    if (!parser_skip_word(p, word))
        parser_unexpected(p, word);
}

const struct str *parser_expect_name(struct parser *p)
{
    if (p->at->type != T_NAME)
        parser_unexpected(p, "a name");
    return p->at++->text;
}

void parser_read_name(struct parser *p, struct node *name, bool called)
{
    struct unresolved *u = jinja_take(p->r, sizeof(*u));
    struct scope *s = p->scope;

    *u = (struct unresolved){p->unresolved, name, s, called};
    p->unresolved = u;
    for (; s; s = s->up) { /* of macros around it, too */
        s->caller |= str_is(name->name, "caller");
        s->varargs |= str_is(name->name, "varargs");
        s->kwargs |= str_is(name->name, "kwargs");
    }
}

/* ---- primary expressions */

static struct node *constant(struct parser *p, struct value v)
{
    struct node *n = parser_node(p, N_CONST);

    n->value = v;
    p->at++;
    return n;
}

static struct node *parse_name(struct parser *p)
{
    static const struct {
        const char *name;
        struct value value;
    } constants[] = {
        {"true", {.type = V_BOOL, .b = true}},
        {"True", {.type = V_BOOL, .b = true}},
        {"false", {.type = V_BOOL, .b = false}},
        {"False", {.type = V_BOOL, .b = false}},
        {"none", {.type = V_NONE}},
        {"None", {.type = V_NONE}},
    };
    struct node *n;

    for (size_t i = 0; i < sizeof(constants) / sizeof(*constants); i++)
        if (parser_is_word(p, constants[i].name))
            return constant(p, constants[i].value);
    n = parser_node(p, N_NAME);
    n->name = p->at++->text;
    parser_read_name(p, n, parser_is_op(p, '('));
    return n;
}

static struct node *parse_string(struct parser *p)
{
    struct node *n = constant(p, value_str(p->at->text));

    while (p->at->type == T_STRING) {
        struct str *joined = (struct str *)(uintptr_t)str_concat(p->r, n->value.str, p->at++->text);

        if (joined->from)
            joined->from = NULL; /* no run may go on behind it: the template is shared */
        n->value.str = joined;
    }
    return n;
}

/* [a, b] or {a: b}, of which list has keys and values in turn. */
static struct node *parse_display(struct parser *p, enum node_kind kind, char close)
{
    struct node *n = parser_node(p, kind);

    p->at++;
    while (!parser_skip_op(p, close)) {
        if (n->n)
            parser_expect_op(p, ',');
        if (parser_skip_op(p, close))
            break;
        parser_add(p, n, parser_expression(p));
        if (kind == N_LIST)
            continue;
        parser_expect_op(p, ':');
        parser_add(p, n, parser_expression(p));
    }
    return n;
}

static struct node *parse_condition(struct parser *p);
static struct node *parse_or(struct parser *p);

/* What is in the parentheses of `explicit` may be empty. */
static struct node *parse_tuple_of(struct parser *p, struct node *(*parse)(struct parser *p),
                                   const char *not_word, bool explicit)
{
    struct node *n = parser_node(p, N_TUPLE);
    bool is_tuple = false;

    while (p->at->type != T_VARIABLE_END && p->at->type != T_BLOCK_END && !parser_is_op(p, ')') &&
           !(not_word && parser_is_word(p, not_word))) {
        parser_add(p, n, parse(p));
        if (!parser_skip_op(p, ','))
            break;
        is_tuple = true;
    }
    if (n->n == 1 && !is_tuple)
        return n->list[0];
    if (!n->n && !explicit)
        parser_unexpected(p, "an expression");
    return n;
}

struct node *parser_tuple(struct parser *p, bool with_condition, const char *not_word)
{
    return parse_tuple_of(p, with_condition ? parser_expression : parse_or, not_word, false);
}

static struct node *parse_primary(struct parser *p)
{
    struct node *n;

    switch (p->at->type) {
    case T_NAME:
        return parse_name(p);
    case T_STRING:
        return parse_string(p);
    case T_NUMBER:
        return constant(p, p->at->value);
    default:
        break;
    }
    if (parser_is_op(p, '['))
        return parse_display(p, N_LIST, ']');
    if (parser_is_op(p, '{'))
        return parse_display(p, N_DICT, '}');
    if (!parser_skip_op(p, '('))
        parser_unexpected(p, "an expression");
    n = parse_tuple_of(p, parser_expression, NULL, true);
    parser_expect_op(p, ')');
    return n;
}

/* ---- attributes, calls, filters, tests */

/* An index, or a slice, whose parts are a, b and c. */
static struct node *parse_index(struct parser *p)
{
    struct node *slice = parser_node(p, N_SLICE), *first = NULL;

    if (!parser_is_op(p, ':'))
        first = parser_expression(p);
    if (!parser_skip_op(p, ':'))
        return first;
    slice->a = first;
    if (!parser_is_op(p, ':') && !parser_is_op(p, ']') && !parser_is_op(p, ','))
        slice->b = parser_expression(p);
    if (parser_skip_op(p, ':') && !parser_is_op(p, ']') && !parser_is_op(p, ','))
        slice->c = parser_expression(p);
    return slice;
}

static struct node *parse_subscript(struct parser *p, struct node *subject)
{
    struct node *n = over(p, N_ITEM, subject), *index;

    if (parser_skip_op(p, '.')) {
        if (p->at->type == T_NUMBER && p->at->value.type == V_INT) {
            n->b = constant(p, p->at->value);
            return n;
        }
        n->kind = N_ATTR;
        n->name = parser_expect_name(p);
        n->flag = jinja_method(V_STR, n->name) || jinja_method(V_LIST, n->name) ||
                  jinja_method(V_DICT, n->name);
        return n;
    }
    index = parser_node(p, N_TUPLE);
    p->at++;
    while (!parser_skip_op(p, ']')) {
        if (index->n)
            parser_expect_op(p, ',');
        parser_add(p, index, parse_index(p));
    }
    for (uint32_t i = 0; index->n > 1 && i < index->n; i++)
        if (index->list[i]->kind == N_SLICE)
            jinja_fail(p->r, "several slices are no index");
    n->b = index->n == 1 ? index->list[0] : index;
    return n;
}

static void parse_argument(struct parser *p, struct call *call)
{
    struct node *n;

    if (parser_skip_op(p, '*')) {
        if (call->star || call->star_star)
            jinja_fail(p->r, "there is a second * or ** among the arguments");
        call->star = parser_expression(p);
    } else if (is_op2(p, '*', '*')) {
        p->at++;
        if (call->star_star)
            jinja_fail(p->r, "there is a second ** among the arguments");
        call->star_star = parser_expression(p);
    } else if (p->at->type == T_NAME && p->at[1].type == T_OPERATOR && p->at[1].op == OP(0, '=')) {
        if (call->star_star)
            jinja_fail(p->r, "an argument follows **");
        n = parser_node(p, N_NAME);
        n->name = p->at->text;
        p->at += 2;
        n->a = parser_expression(p);
        parser_add(p, call->named, n);
    } else {
        if (call->named->n || call->star || call->star_star)
            jinja_fail(p->r, "an argument without a name follows one with a name");
        parser_add(p, call->args, parser_expression(p));
    }
}

static struct call *new_call(struct parser *p)
{
    struct call *call = jinja_take(p->r, sizeof(*call));

    *call = (struct call){.args = parser_node(p, N_TUPLE), .named = parser_node(p, N_TUPLE)};
    return call;
}

static struct call *parse_arguments(struct parser *p)
{
    struct call *call = new_call(p);

    parser_expect_op(p, '(');
    for (bool more = true; !parser_skip_op(p, ')'); more = parser_skip_op(p, ',')) {
        if (!more)
            parser_unexpected(p, "',' or ')'");
        parse_argument(p, call);
    }
    return call;
}

static struct node *parse_call(struct parser *p, struct node *callee)
{
    struct node *n = over(p, N_CALL, callee);

    n->call = parse_arguments(p);
    return n;
}

_Noreturn static void unknown(struct parser *p, const struct token *name, const char *what)
{
    p->r->pos = name->pos;
    jinja_fail_as(p->r, -ENOTSUP, "there is no %s '%.*s'", what, (int)name->text->len,
                  name->text->data);
}

static struct node *parse_filter(struct parser *p, struct node *subject)
{
    struct node *n = over(p, N_FILTER, subject);
    const struct token *name = p->at;

    parser_expect_name(p);
    n->builtin = jinja_filter(name->text);
    if (!n->builtin)
        unknown(p, name, "filter");
    p->t->marks |=
        str_is(name->text, "safe") || str_is(name->text, "escape") || str_is(name->text, "e");
    if (parser_is_op(p, '('))
        n->call = parse_arguments(p);
    return n;
}

struct node *parser_filters(struct parser *p, struct node *subject)
{
    parser_skip_op(p, '|');
    do
        subject = parse_filter(p, subject);
    while (parser_skip_op(p, '|'));
    return subject;
}

static struct node *parse_postfix(struct parser *p, struct node *n)
{
    for (;;) {
        if (parser_is_op(p, '.') || parser_is_op(p, '['))
            n = parse_subscript(p, n);
        else if (parser_is_op(p, '('))
            n = parse_call(p, n);
        else
            return n;
    }
}

/* An argument without parentheses may follow the name. */
static bool test_has_argument(const struct parser *p)
{
    const enum token_type type = p->at->type;

    if (type == T_NAME)
        return !parser_is_word(p, "else") && !parser_is_word(p, "or") && !parser_is_word(p, "and");
    return type == T_STRING || type == T_NUMBER || parser_is_op(p, '[') || parser_is_op(p, '{');
}

static struct node *parse_test(struct parser *p, struct node *subject)
{
    struct node *n = over(p, N_TEST, subject);
    const struct token *name;

    n->flag = parser_skip_word(p, "not");
    name = p->at;
    parser_expect_name(p);
    n->builtin = jinja_test(name->text);
    if (!n->builtin)
        unknown(p, name, "test");
    if (parser_is_op(p, '(')) {
        n->call = parse_arguments(p);
    } else if (test_has_argument(p)) {
        if (parser_is_word(p, "is"))
            jinja_fail(p->r, "tests cannot be chained with is");
        n->call = new_call(p);
        parser_add(p, n->call->args, parse_postfix(p, parse_primary(p)));
    }
    return n;
}

static struct node *parse_filters_and_tests(struct parser *p, struct node *n)
{
    for (;;) {
        if (parser_skip_op(p, '|'))
            n = parse_filter(p, n);
        else if (parser_skip_word(p, "is"))
            n = parse_test(p, n);
        else if (parser_is_op(p, '('))
            n = parse_call(p, n);
        else
            return n;
    }
}

/* ---- operators */

static struct node *parse_unary(struct parser *p, bool with_filters)
{
    struct node *n;

    parser_enter(p);
    if (parser_is_op(p, '-') || parser_is_op(p, '+')) {
        n = parser_node(p, parser_is_op(p, '-') ? N_NEGATE : N_PLUS);
        p->at++;
        n->a = parse_unary(p, false);
    } else {
        n = parse_primary(p);
    }
    n = parse_postfix(p, n);
    if (with_filters)
        n = parse_filters_and_tests(p, n);
    parser_leave(p);
    return n;
}

/* From the loosest to the tightest. What the operators of a level join is one node: a < b < c or
 * a + b - c. */
static const struct level {
    enum node_kind kind;
    uint16_t ops[8]; /* at most, 0 behind the last */
} levels[] = {
    {N_OR, {OP_OR}},
    {N_AND, {OP_AND}},
    {N_COMPARE,
     {OP('=', '='), OP('!', '='), OP('<', '='), OP('>', '='), OP(0, '<'), OP(0, '>'), OP_IN,
      OP_NOT_IN}},
    {N_BINARY, {OP(0, '+'), OP(0, '-')}},
    {N_CONCAT, {OP(0, '~')}},
    {N_BINARY, {OP(0, '*'), OP(0, '/'), OP(0, '%'), OP('/', '/')}},
    {N_BINARY, {OP('*', '*')}},
};

static const struct level *const tightest = levels + sizeof(levels) / sizeof(*levels) - 1;

/* The operator at the current token, which is skipped; 0: there is none of the level. */
static uint16_t skip_operator(struct parser *p, const struct level *level)
{
    uint16_t op = p->at->type == T_OPERATOR ? p->at->op : 0;
    int n_tokens = 1;

    if (parser_is_word(p, "or")) {
        op = OP_OR;
    } else if (parser_is_word(p, "and")) {
        op = OP_AND;
    } else if (parser_is_word(p, "in")) {
        op = OP_IN;
    } else if (parser_is_word(p, "not") && p->at[1].type == T_NAME && str_is(p->at[1].text, "in")) {
        op = OP_NOT_IN;
        n_tokens = 2;
    }
    for (size_t i = 0; op && i < sizeof(level->ops) / sizeof(*level->ops); i++) {
        if (level->ops[i] == op) {
            p->at += n_tokens;
            return op;
        }
    }
    return 0;
}

static struct node *parse_operators(struct parser *p, const struct level *level)
{
    struct node *n, *all = NULL;
    uint32_t pos;
    uint16_t op;

    if (level > tightest)
        return parse_unary(p, true);
    if (level->kind == N_COMPARE && parser_is_word(p, "not")) {
        n = parser_node(p, N_NOT);
        p->at++;
        parser_enter(p);
        n->a = parse_operators(p, level);
        parser_leave(p);
        return n;
    }
    n = parse_operators(p, level + 1);
    for (pos = p->at->pos; (op = skip_operator(p, level)) != 0;) {
        if (!all) {
            all = parser_node(p, level->kind);
            all->pos = pos;
            parser_add(p, all, n);
        }
        n = parse_operators(p, level + 1);
        n->joined_by = op;
        parser_add(p, all, n);
    }
    return all ? all : n;
}

static struct node *parse_or(struct parser *p)
{
    return parse_operators(p, levels);
}

/* a if b else c: b, a, c. */
static struct node *parse_condition(struct parser *p)
{
    struct node *n = parse_or(p);

    while (parser_skip_word(p, "if")) {
        struct node *whole = over(p, N_COND, n);

        whole->b = n;
        whole->a = parse_or(p);
        if (parser_skip_word(p, "else")) {
            parser_enter(p);
            whole->c = parse_condition(p);
            parser_leave(p);
        }
        n = whole;
    }
    return n;
}

struct node *parser_expression(struct parser *p)
{
    struct node *n;

    parser_enter(p);
    n = parse_condition(p);
    parser_leave(p);
    return n;
}
