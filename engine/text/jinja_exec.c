/* jinja_exec.c - walks the tree of a template: statements, loops and macros. See jinja_impl.h. */

#include "engine/text/jinja_eval.h"
#include "engine/text/jinja_text.h"

/* Out of the way of the recursion, whose frames stay small. */
#define ASIDE __attribute__((noinline))

enum flow { FLOW_ON, FLOW_BREAK, FLOW_CONTINUE };

static enum flow execute(struct jinja_run *r, const struct node *n);

/* ---- frames, assignment, captured output */

static struct frame *frame_new(struct jinja_run *r, const struct scope *s, struct frame *up)
{
    struct frame *f = jinja_take(r, sizeof(*f) + s->n * sizeof(*f->slots));

    f->up = up;
    memset(f->slots, 0, s->n * sizeof(*f->slots)); /* V_MISSING */
    return f;
}

static void assign(struct jinja_run *r, const struct node *target, struct value v);

ASIDE static void assign_inside(struct jinja_run *r, const struct node *target, struct value v)
{
    const struct list *l;
    struct value object;

    r->pos = target->pos;
    if (target->kind == N_ATTR) {
        object = jinja_eval(r, target->a);
        if (object.type != V_NAMESPACE)
            jinja_fail(r, "TemplateRuntimeError: cannot assign attribute on non-namespace object");
        dict_set(r, object.dict, value_str(target->name), v);
        return;
    }
    l = value_elements(r, v);
    if (l->n != target->n)
        jinja_fail(r, "ValueError: %u values cannot be unpacked into %u names", l->n, target->n);
    for (uint32_t i = 0; i < l->n; i++)
        assign(r, target->list[i], l->items[i]);
}

static void assign(struct jinja_run *r, const struct node *target, struct value v)
{
    if (target->kind == N_NAME)
        r->frame->slots[target->global] = v;
    else
        assign_inside(r, target, v);
}

/* Executes n in a frame, and takes what it prints. */
static struct value captured(struct jinja_run *r, const struct node *n, struct frame *frame)
{
    struct out mine, *out = r->out;
    struct frame *outer = r->frame;

    out_init(&mine);
    r->out = &mine;
    r->frame = frame;
    execute(r, n);
    r->out = out;
    r->frame = outer;
    return value_str(out_take(r, &mine));
}

/* The filters of a block: the innermost has no subject of its own. */
static struct value filtered(struct jinja_run *r, const struct node *n, struct value v)
{
    return n ? jinja_filtered(r, n, filtered(r, n->a, v)) : v;
}

ASIDE static struct value block_value(struct jinja_run *r, const struct node *n)
{
    return filtered(r, n->c, captured(r, n->b, frame_new(r, n->scope, r->frame)));
}

/* ---- output */

/* a + b + c is written part by part, as long as all are texts. */
ASIDE static void print_sum(struct jinja_run *r, const struct node *n)
{
    struct value v = jinja_eval(r, n->list[0]);

    for (uint32_t i = 1; i < n->n; i++) {
        const struct value right = jinja_eval(r, n->list[i]);

        r->pos = n->list[i]->pos;
        if (n->list[i]->joined_by == OP(0, '+') && v.type == V_STR && right.type == V_STR) {
            out_str(r, r->out, v.str);
            v = right;
        } else {
            v = value_binary(r, n->list[i]->joined_by, v, right);
        }
    }
    out_value(r, r->out, v);
}

ASIDE static void print(struct jinja_run *r, const struct node *n)
{
    if (n->kind == N_CONCAT) {
        for (uint32_t i = 0; i < n->n; i++)
            out_value(r, r->out, jinja_eval(r, n->list[i]));
    } else if (n->kind == N_BINARY && !r->t->marks) {
        print_sum(r, n);
    } else {
        out_value(r, r->out, jinja_eval(r, n));
    }
}

/* ---- loops */

static struct list *passing(struct jinja_run *r, const struct node *n, const struct list *items)
{
    struct list *l = list_new(r, items->n);

    for (uint32_t i = 0; i < items->n; i++) {
        assign(r, n->a, items->items[i]);
        if (value_true(r, jinja_eval(r, n->c)))
            list_push(r, l, items->items[i]);
    }
    return l;
}

static void turn(struct jinja_run *r, struct loop *l, enum flow *flow)
{
    const struct node *n = l->node;

    /* A macro may keep the frame of a turn; otherwise all turns share one. */
    if (n->scope->captured)
        r->frame = frame_new(r, n->scope, l->outer);
    else
        memset(r->frame->slots, 0, n->scope->n * sizeof(struct value));
    r->frame->slots[0] = (struct value){.type = V_LOOP, .loop = l};
    assign(r, n->a, l->items->items[l->at]);
    *flow = execute(r, n->list[0]);
}

/* In Jinja, else follows unless a turn has run to its end: one left by break or continue has not.
 */
ASIDE static enum flow loop_over(struct jinja_run *r, const struct node *n, struct value over,
                                 uint32_t depth)
{
    struct frame *outer = r->frame;
    struct loop *l = jinja_take(r, sizeof(*l));
    enum flow flow = FLOW_ON;
    bool finished = false;

    *l = (struct loop){.node = n, .outer = outer, .depth = depth};
    r->pos = n->pos;
    l->items = value_elements(r, over);
    r->frame = frame_new(r, n->scope, outer);
    if (n->c)
        l->items = passing(r, n, l->items);
    for (; l->at < l->items->n && flow != FLOW_BREAK; l->at++) {
        jinja_charge(r, n->scope->n * sizeof(struct value));
        turn(r, l, &flow);
        finished |= flow == FLOW_ON;
    }
    r->frame = outer;
    return !finished && n->n > 1 ? execute(r, n->list[1]) : FLOW_ON;
}

struct value jinja_call_loop(struct jinja_run *r, const struct loop *l, const struct args *args)
{
    struct out mine, *out = r->out;
    struct frame *frame = r->frame;

    if (!l->node->flag || args->list.n != 1)
        jinja_fail(r, "TypeError: only a loop that is recursive can be called, with what it goes "
                      "over");
    out_init(&mine);
    r->out = &mine;
    r->frame = l->outer;
    loop_over(r, l->node, args->list.items[0], l->depth + 1);
    r->out = out;
    r->frame = frame;
    return value_str(out_take(r, &mine));
}

static BUILTIN(loop_cycle)
{
    if (!args->list.n)
        jinja_fail(r, "TypeError: no items for cycling given");
    return args->list.items[a->loop->at % args->list.n];
}

static BUILTIN(loop_changed)
{
    struct list *l = list_new(r, 0);
    const struct value now = value_list(l, V_TUPLE);

    *l = args->list;
    if (a->loop->last_changed.type != V_MISSING && value_equal(r, a->loop->last_changed, now))
        return value_bool(false);
    a->loop->last_changed = now;
    return value_bool(true);
}

static const struct builtin loop_methods[] = {
    {"changed", "*", loop_changed, 0},
    {"cycle", "*", loop_cycle, 0},
};

struct value jinja_loop_attr(struct jinja_run *r, struct value v, const struct str *name)
{
    const struct loop *l = v.loop;
    const struct value *items = l->items->items, none = value_lacks(v, name);
    const int64_t at = l->at, n = l->items->n, depth = l->depth;
    const struct {
        const char *name;
        struct value value;
    } attrs[] = {
        {"first", value_bool(at == 0)},
        {"last", value_bool(at + 1 == n)},
        {"index", value_int(at + 1)},
        {"index0", value_int(at)},
        {"revindex", value_int(n - at)},
        {"revindex0", value_int(n - at - 1)},
        {"length", value_int(n)},
        {"previtem", at ? items[at - 1] : none},
        {"nextitem", at + 1 < n ? items[at + 1] : none},
        {"depth", value_int(depth + 1)},
        {"depth0", value_int(depth)},
    };
    const struct builtin *method;

    for (size_t i = 0; i < sizeof(attrs) / sizeof(*attrs); i++)
        if (str_is(name, attrs[i].name))
            return attrs[i].value;
    method = builtin_find(loop_methods, sizeof(loop_methods) / sizeof(*loop_methods), name);
    return method ? value_function(r, method, v) : none;
}

/* ---- macros */

static struct value macro_value(struct jinja_run *r, const struct node *n)
{
    struct macro *m = jinja_take(r, sizeof(*m));

    *m = (struct macro){n, r->frame};
    return (struct value){.type = V_MACRO, .macro = m};
}

static void take_named(struct jinja_run *r, const struct node *n, struct frame *f,
                       const struct entry *one, struct dict *rest)
{
    const struct str *name = one->key.str;

    jinja_charge(r, n->n * sizeof(*n->list));
    for (uint32_t i = 0; i < n->n; i++) {
        if (!str_equal(n->list[i]->name, name))
            continue;
        if (f->slots[i].type != V_MISSING)
            jinja_fail(r, "TypeError: macro '%.*s' got multiple values for argument '%.*s'",
                       (int)n->name->len, n->name->data, (int)name->len, name->data);
        f->slots[i] = one->value;
        return;
    }
    if (n->scope->caller && str_is(name, "caller"))
        f->slots[n->n] = one->value;
    else if (rest)
        dict_set(r, rest, one->key, one->value);
    else
        jinja_fail(r, "TypeError: macro '%.*s' takes no keyword argument '%.*s'", (int)n->name->len,
                   n->name->data, (int)name->len, name->data);
}

static void take_arguments(struct jinja_run *r, const struct node *n, struct frame *f,
                           const struct args *args)
{
    struct list *more = n->scope->varargs ? list_new(r, 0) : NULL;
    struct dict *rest = n->scope->kwargs ? dict_new(r, 0) : NULL;

    for (uint32_t i = 0; i < args->list.n; i++) {
        if (i < n->n)
            f->slots[i] = args->list.items[i];
        else if (more)
            list_push(r, more, args->list.items[i]);
        else
            jinja_fail(r, "TypeError: macro '%.*s' takes not more than %u argument(s)",
                       (int)n->name->len, n->name->data, n->n);
    }
    if (n->scope->caller)
        f->slots[n->n] = value_undefined(n->scope->names[n->n]);
    for (uint32_t i = 0; i < args->named.n; i++)
        take_named(r, n, f, &args->named.entries[i], rest);
    if (more)
        f->slots[n->n + 1] = value_list(more, V_TUPLE);
    if (rest)
        f->slots[n->n + 2] = value_dict(rest);
}

struct value jinja_call_macro(struct jinja_run *r, const struct macro *m, const struct args *args)
{
    const struct node *n = m->node;
    struct frame *f = frame_new(r, n->scope, m->frame), *caller = r->frame;

    take_arguments(r, n, f, args);
    r->frame = f; /* defaults may name the parameters before */
    for (uint32_t i = 0; i < n->n; i++)
        if (f->slots[i].type == V_MISSING)
            f->slots[i] =
                n->list[i]->a ? jinja_eval(r, n->list[i]->a) : value_undefined(n->list[i]->name);
    r->frame = caller;
    return captured(r, n->b, f);
}

ASIDE static void call_block(struct jinja_run *r, const struct node *n)
{
    const struct value caller = macro_value(r, n);

    out_value(r, r->out, jinja_eval_call(r, n->a, &caller));
}

/* ---- statements */

static enum flow execute_if(struct jinja_run *r, const struct node *n)
{
    uint32_t i = 0;

    for (; i + 1 < n->n; i += 2)
        if (value_true(r, jinja_eval(r, n->list[i])))
            return execute(r, n->list[i + 1]);
    return i < n->n ? execute(r, n->list[i]) : FLOW_ON;
}

static enum flow execute_body(struct jinja_run *r, const struct node *n)
{
    enum flow flow = FLOW_ON;

    for (uint32_t i = 0; i < n->n && flow == FLOW_ON; i++)
        flow = execute(r, n->list[i]);
    return flow;
}

ASIDE static enum flow execute_scope(struct jinja_run *r, const struct node *n,
                                     const struct node *body)
{
    struct frame *outer = r->frame, *f = frame_new(r, n->scope, outer);
    enum flow flow;

    for (uint32_t i = 0; i + 1 < n->n; i += 2) { /* of with */
        struct value v = jinja_eval(r, n->list[i + 1]);

        r->frame = f;
        assign(r, n->list[i], v);
        r->frame = outer;
    }
    r->frame = f;
    flow = execute(r, body);
    r->frame = outer;
    return flow;
}

static enum flow execute_deep(struct jinja_run *r, const struct node *n)
{
    switch ((enum node_kind)n->kind) {
    case N_DATA:
        out_str(r, r->out, n->name);
        return FLOW_ON;
    case N_OUTPUT:
        print(r, n->a);
        return FLOW_ON;
    case N_BODY:
        return execute_body(r, n);
    case N_IF:
        return execute_if(r, n);
    case N_FOR:
        return loop_over(r, n, jinja_eval(r, n->b), 0);
    case N_SET:
        assign(r, n->a, jinja_eval(r, n->b));
        return FLOW_ON;
    case N_SET_BLOCK:
        assign(r, n->a, block_value(r, n));
        return FLOW_ON;
    case N_FILTER_BLOCK:
        out_value(r, r->out, block_value(r, n));
        return FLOW_ON;
    case N_MACRO:
        r->frame->slots[n->global] = macro_value(r, n);
        return FLOW_ON;
    case N_CALL_BLOCK:
        call_block(r, n);
        return FLOW_ON;
    case N_WITH:
        return execute_scope(r, n, n->b);
    case N_SCOPE:
        return execute_scope(r, n, n->a);
    default:
        return n->kind == N_BREAK ? FLOW_BREAK : FLOW_CONTINUE;
    }
}

/* Statements are not counted: what they evaluate, write and repeat is. */
static enum flow execute(struct jinja_run *r, const struct node *n)
{
    enum flow flow;

    r->pos = n->pos;
    jinja_enter(r);
    flow = execute_deep(r, n);
    jinja_leave(r);
    return flow;
}

void jinja_execute(struct jinja_run *r)
{
    r->frame = frame_new(r, r->t->scope, NULL);
    execute(r, r->t->body);
}
