/* jinja_parse.c - the statements of a template, and the slots of its names. Expressions are in
 * jinja_expr.c. See jinja_impl.h. */
#include <errno.h>

#include "engine/text/jinja_parse.h"

/* ---- scopes and names */

static struct scope *open_scope(struct parser *p)
{
    struct scope *s = jinja_take(p->r, sizeof(*s));

    *s = (struct scope){.up = p->scope};
    p->scope = s;
    return s;
}

static void close_scope(struct parser *p)
{
    p->scope = p->scope->up;
}

static int find_slot(const struct scope *s, const struct str *name)
{
    for (uint32_t i = 0; i < s->n; i++)
        if (str_equal(s->names[i], name))
            return (int)i;
    return -1;
}

/* Makes the name one of the innermost scope's. */
static uint16_t declare(struct parser *p, const struct str *name)
{
    struct scope *s = p->scope;
    int slot = find_slot(s, name);

    if (slot >= 0)
        return (uint16_t)slot;
    if (s->n == SCOPE_NAMES_MAX)
        jinja_fail_as(p->r, -ENOTSUP, "more than %d names in a scope", (int)SCOPE_NAMES_MAX);
    if (s->n == s->cap) {
        s->cap = (uint16_t)(s->cap * 2 + 8);
        s->names = jinja_grow(p->r, s->names, s->n * sizeof(*s->names), s->cap * sizeof(*s->names));
    }
    s->names[s->n] = name;
    return s->n++;
}

static int32_t global_of(struct parser *p, const struct str *name)
{
    struct jinja *t = p->t;

    for (uint32_t i = 0; i < t->n_globals; i++)
        if (str_equal(t->globals[i], name))
            return (int32_t)i;
    if (t->n_globals == GLOBALS_MAX)
        jinja_fail_as(p->r, -ENOTSUP, "more than %d variables", (int)GLOBALS_MAX);
    t->globals[t->n_globals] = name;
    return (int32_t)t->n_globals++;
}

/* A name means the innermost scope's slot that is set when it is read, then the variable: in
 * Jinja, too, a scope begins with the values of the scope around it. */
static void resolve(struct parser *p, struct unresolved *u)
{
    struct name_ref refs[SCOPES_MAX];
    uint32_t n = 0, up = 0;

    for (const struct scope *s = u->scope; s; s = s->up, up++) {
        int slot = find_slot(s, u->node->name);

        if (slot >= 0)
            refs[n++] = (struct name_ref){(uint16_t)up, (uint16_t)slot};
    }
    u->node->refs = jinja_grow(p->r, refs, n * sizeof(*refs), n * sizeof(*refs) + 1);
    u->node->n_refs = n;
    u->node->global = global_of(p, u->node->name);
    if (!u->called || n || jinja_function(u->node->name))
        return;
    p->r->pos = u->node->pos;
    jinja_fail_as(p->r, -ENOTSUP, "there is no function '%.*s'", (int)u->node->name->len,
                  u->node->name->data);
}

/* ---- the target of an assignment */

static void store_names(struct parser *p, struct node *target)
{
    if (target->kind == N_TUPLE || target->kind == N_LIST) {
        for (uint32_t i = 0; i < target->n; i++)
            store_names(p, target->list[i]);
    } else if (target->kind == N_NAME) {
        target->global = declare(p, target->name);
    } else {
        p->r->pos = target->pos;
        jinja_fail(p->r, "this cannot be assigned to");
    }
}

static struct node *parse_one_target(struct parser *p)
{
    struct node *n;

    if (parser_skip_op(p, '(')) {
        n = parser_target(p, true);
        parser_expect_op(p, ')');
        return n;
    }
    n = parser_node(p, N_NAME);
    n->name = parser_expect_name(p);
    return n;
}

/* name, ns.name, or names with commas. The node's names are not resolved: `global` is the slot. */
struct node *parser_target(struct parser *p, bool inner)
{
    struct node *one, *all;

    parser_enter(p);
    one = parse_one_target(p);
    if (!inner && one->kind == N_NAME && parser_is_op(p, '.')) {
        all = parser_node(p, N_ATTR);
        p->at++;
        all->a = one;
        all->name = parser_expect_name(p);
        parser_read_name(p, one, false);
        parser_leave(p);
        return all;
    }
    all = one;
    if (parser_is_op(p, ',')) {
        all = parser_node(p, N_TUPLE);
        parser_add(p, all, one);
        while (parser_skip_op(p, ',')) {
            if (p->at->type != T_NAME && !parser_is_op(p, '('))
                break;
            if (parser_is_word(p, "in"))
                break;
            parser_add(p, all, parse_one_target(p));
        }
    }
    parser_leave(p);
    return all;
}

/* ---- statements */

static struct node *parse_body(struct parser *p, const char *const *ends);

static void end_of_tag(struct parser *p)
{
    if (p->at->type != T_BLOCK_END)
        parser_unexpected(p, "%}");
    p->at++;
}

/* The body up to {% end %}, which is read as well. */
static struct node *parse_until(struct parser *p, const char *end)
{
    const char *const ends[] = {end, NULL};
    struct node *body;

    end_of_tag(p);
    body = parse_body(p, ends);
    p->at++;
    end_of_tag(p);
    return body;
}

static struct node *parse_for(struct parser *p)
{
    static const char *const ends[] = {"else", "endfor", NULL};
    struct node *n = parser_node(p, N_FOR);

    n->a = parser_target(p, false);
    if (n->a->kind == N_ATTR)
        parser_unexpected(p, "in");
    parser_expect_word(p, "in");
    n->b = parser_tuple(p, false, "recursive");
    n->scope = open_scope(p);
    declare(p, str_of(p->r, "loop")); /* slot 0 */
    store_names(p, n->a);
    if (parser_skip_word(p, "if"))
        n->c = parser_expression(p);
    n->flag = parser_skip_word(p, "recursive");
    p->n_loops++;
    end_of_tag(p);
    parser_add(p, n, parse_body(p, ends));
    p->n_loops--;
    close_scope(p);
    if (parser_skip_word(p, "else")) {
        struct node *other = parser_node(p, N_SCOPE);

        other->scope = open_scope(p);
        other->a = parse_until(p, "endfor");
        parser_add(p, n, other);
        close_scope(p);
    } else {
        p->at++;
        end_of_tag(p);
    }
    return n;
}

/* list: conditions and bodies in turn, and the body of else at the end. */
static struct node *parse_if(struct parser *p)
{
    static const char *const ends[] = {"elif", "else", "endif", NULL};
    struct node *n = parser_node(p, N_IF);

    do {
        parser_add(p, n, parser_tuple(p, false, NULL));
        end_of_tag(p);
        parser_add(p, n, parse_body(p, ends));
    } while (parser_skip_word(p, "elif"));
    if (parser_skip_word(p, "else")) {
        parser_add(p, n, parse_until(p, "endif"));
    } else {
        p->at++;
        end_of_tag(p);
    }
    return n;
}

static struct node *parse_set(struct parser *p)
{
    struct node *n = parser_node(p, N_SET), *target = parser_target(p, false);

    if (parser_skip_op(p, '=')) {
        n->b = parser_tuple(p, true, NULL);
        end_of_tag(p);
    } else {
        n->kind = N_SET_BLOCK;
        if (parser_is_op(p, '|'))
            n->c = parser_filters(p, NULL);
        n->scope = open_scope(p);
        n->b = parse_until(p, "endset");
        close_scope(p);
    }
    n->a = target;
    if (target->kind != N_ATTR)
        store_names(p, target);
    return n;
}

/* (a, b=1) of a macro or call block: list, each a name whose `a` is its default. */
static void parse_parameters(struct parser *p, struct node *n)
{
    parser_expect_op(p, '(');
    while (!parser_skip_op(p, ')')) {
        struct node *one;

        if (n->n)
            parser_expect_op(p, ',');
        if (parser_skip_op(p, ')'))
            break;
        one = parser_node(p, N_NAME);
        one->name = parser_expect_name(p);
        one->global = declare(p, one->name);
        if (parser_skip_op(p, '=')) {
            one->a = parser_expression(p);
        } else if (n->n && n->list[n->n - 1]->a) {
            jinja_fail(p->r, "a parameter without a default follows one that has one");
        }
        parser_add(p, n, one);
    }
}

/* Opens the scope of a macro or call block. Its slots: parameters, caller, varargs and kwargs. */
static void parse_macro_head(struct parser *p, struct node *n, bool parameters)
{
    for (struct scope *s = p->scope; s; s = s->up)
        s->captured = true;
    n->scope = open_scope(p);
    if (parameters)
        parse_parameters(p, n);
    declare(p, str_of(p->r, "caller"));
    declare(p, str_of(p->r, "varargs"));
    declare(p, str_of(p->r, "kwargs"));
    if (n->scope->n != n->n + 3)
        jinja_fail(p->r, "a parameter is named twice, or caller, varargs or kwargs");
}

/* The body, in which break and continue do not reach a loop outside; closes the scope. */
static void parse_macro_body(struct parser *p, struct node *n, const char *end)
{
    const int n_loops = p->n_loops;

    p->n_loops = 0;
    n->b = parse_until(p, end);
    p->n_loops = n_loops;
    close_scope(p);
}

static struct node *parse_macro(struct parser *p)
{
    struct node *n = parser_node(p, N_MACRO);

    n->name = parser_expect_name(p);
    n->global = declare(p, n->name);
    parse_macro_head(p, n, true);
    parse_macro_body(p, n, "endmacro");
    return n;
}

/* {% call(x) f() %}: a is the call, b the body. The call's names are of the scope around. */
static struct node *parse_call_block(struct parser *p)
{
    struct node *n = parser_node(p, N_CALL_BLOCK);
    struct scope *outer = p->scope;

    n->name = str_of(p->r, "caller");
    parse_macro_head(p, n, parser_is_op(p, '('));
    p->scope = outer;
    n->a = parser_expression(p);
    if (n->a->kind != N_CALL)
        jinja_fail(p->r, "call needs a call of a macro");
    p->scope = n->scope;
    parse_macro_body(p, n, "endcall");
    return n;
}

static struct node *parse_filter_block(struct parser *p)
{
    struct node *n = parser_node(p, N_FILTER_BLOCK);

    n->c = parser_filters(p, NULL);
    n->scope = open_scope(p);
    n->b = parse_until(p, "endfilter");
    close_scope(p);
    return n;
}

/* list: targets and values in turn. */
static struct node *parse_with(struct parser *p)
{
    struct node *n = parser_node(p, N_WITH);
    struct scope *outer = p->scope;

    n->scope = open_scope(p);
    while (p->at->type != T_BLOCK_END) {
        if (n->n)
            parser_expect_op(p, ',');
        parser_add(p, n, parser_target(p, true));
        parser_expect_op(p, '=');
        p->scope = outer;
        parser_add(p, n, parser_expression(p));
        p->scope = n->scope;
    }
    for (uint32_t i = 0; i < n->n; i += 2)
        store_names(p, n->list[i]);
    n->b = parse_until(p, "endwith");
    close_scope(p);
    return n;
}

/* transformers marks with it what a model is trained on: here it only prints. */
static struct node *parse_generation(struct parser *p)
{
    struct node *n = parser_node(p, N_SCOPE);
    int n_loops = p->n_loops;

    n->scope = open_scope(p);
    p->n_loops = 0;
    n->a = parse_until(p, "endgeneration");
    p->n_loops = n_loops;
    close_scope(p);
    return n;
}

static struct node *parse_print(struct parser *p)
{
    struct node *n = parser_node(p, N_OUTPUT);

    n->a = parser_tuple(p, true, NULL);
    end_of_tag(p);
    return n;
}

static struct node *parse_jump(struct parser *p, enum node_kind kind)
{
    struct node *n = parser_node(p, kind);

    if (!p->n_loops)
        jinja_fail(p->r, "break and continue need a loop around them");
    end_of_tag(p);
    return n;
}

static struct node *parse_break(struct parser *p)
{
    return parse_jump(p, N_BREAK);
}

static struct node *parse_continue(struct parser *p)
{
    return parse_jump(p, N_CONTINUE);
}

static const struct {
    const char *tag;
    struct node *(*parse)(struct parser *p);
} statements[] = {
    {"if", parse_if},
    {"for", parse_for},
    {"set", parse_set},
    {"macro", parse_macro},
    {"call", parse_call_block},
    {"filter", parse_filter_block},
    {"with", parse_with},
    {"generation", parse_generation},
    {"print", parse_print},
    {"break", parse_break},
    {"continue", parse_continue},
};

static struct node *parse_statement(struct parser *p)
{
    const struct token *tag = p->at;

    for (size_t i = 0; i < sizeof(statements) / sizeof(*statements); i++)
        if (parser_skip_word(p, statements[i].tag))
            return statements[i].parse(p);
    p->r->pos = tag->pos;
    if (tag->type != T_NAME)
        parser_unexpected(p, "the name of a tag");
    jinja_fail_as(p->r, -ENOTSUP, "the tag '%.*s' is not known here", (int)tag->text->len,
                  tag->text->data);
}

static bool at_end_of_body(const struct parser *p, const char *const *ends)
{
    for (; *ends; ends++)
        if (parser_is_word(p, *ends))
            return true;
    return false;
}

/* Up to one of the tags, which is current then; without `ends` up to the end. */
static struct node *parse_body(struct parser *p, const char *const *ends)
{
    struct node *body = parser_node(p, N_BODY), *n;
    const uint32_t pos = p->at > p->first ? p->at[-1].pos : 0;

    parser_enter(p);
    for (; p->at->type != T_END; parser_add(p, body, n)) {
        const enum token_type type = p->at++->type;

        if (type == T_DATA) {
            n = parser_node(p, N_DATA);
            n->name = p->at[-1].text;
        } else if (type == T_VARIABLE_BEGIN) {
            n = parser_node(p, N_OUTPUT);
            n->a = parser_tuple(p, true, NULL);
            if (p->at->type != T_VARIABLE_END)
                parser_unexpected(p, "}}");
            p->at++;
        } else if (ends && at_end_of_body(p, ends)) {
            parser_leave(p);
            return body->n == 1 ? body->list[0] : body;
        } else {
            n = parse_statement(p);
        }
    }
    if (ends) {
        p->r->pos = pos;
        jinja_fail(p->r, "the template ends before the tag '%s'",
                   ends[1] ? ends[ends[2] ? 2 : 1] : ends[0]);
    }
    parser_leave(p);
    return body;
}

void jinja_parse(struct jinja_run *r, struct jinja *t, const struct token *tokens)
{
    struct parser p = {.r = r, .t = t, .at = tokens, .first = tokens};

    t->globals = jinja_take(r, GLOBALS_MAX * sizeof(*t->globals));
    t->scope = open_scope(&p);
    t->body = parse_body(&p, NULL);
    for (struct unresolved *u = p.unresolved; u; u = u->next)
        resolve(&p, u);
}
