/* jinja_eval.c - walks the tree of a template: expressions. Statements are in jinja_exec.c. See
 * jinja_impl.h.
 *
 * Recursion is bounded by jinja_enter(), steps are counted for each node. */
#include <math.h>

#include "engine/text/jinja_eval.h"
#include "engine/text/jinja_text.h"

/* Out of the way of the recursion, whose frames stay small. */
#define ASIDE __attribute__((noinline))

/* ---- operators */

_Noreturn static void overflow(struct jinja_run *r)
{
    jinja_fail(r, "OverflowError: a number does not fit in 64 bits");
}

static struct value power(struct jinja_run *r, int64_t a, int64_t b)
{
    int64_t p = 1;

    if (b < 0)
        return value_float(pow((double)a, (double)b));
    for (int64_t i = 0; i < b && a != 0 && a != 1; i++) {
        if (a == -1)
            return value_int(b % 2 ? -1 : 1);
        if (__builtin_mul_overflow(p, a, &p))
            overflow(r);
    }
    return value_int(b && a == 0 ? 0 : p);
}

static struct value int_op(struct jinja_run *r, uint16_t op, int64_t a, int64_t b)
{
    int64_t c = 0;
    bool lost = false;

    if (!b && (op == OP(0, '/') || op == OP(0, '%') || op == OP('/', '/')))
        jinja_fail(r, "ZeroDivisionError: division by zero");
    switch (op) {
    case OP(0, '+'):
        lost = __builtin_add_overflow(a, b, &c);
        break;
    case OP(0, '-'):
        lost = __builtin_sub_overflow(a, b, &c);
        break;
    case OP(0, '*'):
        lost = __builtin_mul_overflow(a, b, &c);
        break;
    case OP(0, '/'):
        return value_float((double)a / (double)b);
    case OP('/', '/'):
        lost = b == -1 && a == INT64_MIN;
        c = lost ? 0 : a / b - (a % b != 0 && (a % b < 0) != (b < 0));
        break;
    case OP(0, '%'):
        c = b == -1 ? 0 : a % b + (a % b != 0 && (a % b < 0) != (b < 0) ? b : 0);
        break;
    default:
        return power(r, a, b);
    }
    if (lost)
        overflow(r);
    return value_int(c);
}

static struct value float_op(struct jinja_run *r, uint16_t op, double a, double b)
{
    double c;

    if (b == 0 && (op == OP(0, '/') || op == OP(0, '%') || op == OP('/', '/')))
        jinja_fail(r, "ZeroDivisionError: float division by zero");
    switch (op) {
    case OP(0, '+'):
        return value_float(a + b);
    case OP(0, '-'):
        return value_float(a - b);
    case OP(0, '*'):
        return value_float(a * b);
    case OP(0, '/'):
        return value_float(a / b);
    case OP('/', '/'):
        c = fmod(a, b);
        c = (a - c) / b - (c != 0 && (c < 0) != (b < 0));
        return value_float(c != 0 ? nearbyint(c) : copysign(0, a / b));
    case OP(0, '%'):
        c = fmod(a, b);
        return value_float(c != 0 && (c < 0) != (b < 0) ? c + b : c != 0 ? c : copysign(0, b));
    default:
        return value_float(pow(a, b));
    }
}

_Noreturn static void bad_operands(struct jinja_run *r, uint16_t op, struct value a, struct value b)
{
    const char text[] = {(char)(op >> 8), (char)op, '\0'};

    if (a.type == V_UNDEFINED || b.type == V_UNDEFINED)
        value_fail_undefined(r, a.type == V_UNDEFINED ? a : b);
    jinja_fail(r, "TypeError: unsupported operand type(s) for %s: '%s' and '%s'",
               text[0] ? text : text + 1, value_type_name(a.type), value_type_name(b.type));
}

static struct value repeated(struct jinja_run *r, struct value v, int64_t n)
{
    struct list *l;
    struct out o;

    n = n < 0 ? 0 : n;
    if (v.type == V_STR) {
        out_init(&o);
        for (int64_t i = 0; i < n && v.str->len; i++)
            out_str(r, &o, v.str);
        return value_str(str_marked(r, out_take(r, &o), v.str->markup));
    }
    l = list_new(r, 8);
    for (int64_t i = 0; i < n && v.list->n; i++) {
        jinja_charge(r, v.list->n);
        for (uint32_t k = 0; k < v.list->n; k++)
            list_push(r, l, v.list->items[k]);
    }
    return value_list(l, v.type);
}

static struct value lists_joined(struct jinja_run *r, struct value a, struct value b)
{
    struct list *l = list_new(r, (size_t)a.list->n + b.list->n);

    if (a.list->n)
        memcpy(l->items, a.list->items, a.list->n * sizeof(*l->items));
    if (b.list->n)
        memcpy(l->items + a.list->n, b.list->items, b.list->n * sizeof(*l->items));
    l->n = a.list->n + b.list->n;
    return value_list(l, a.type);
}

static bool repeats(struct value v)
{
    return v.type == V_STR || value_is_sequence(v);
}

struct value value_binary(struct jinja_run *r, uint16_t op, struct value a, struct value b)
{
    struct value v;

    if (value_is_number(a) && value_is_number(b)) {
        v = a.type == V_FLOAT || b.type == V_FLOAT ? float_op(r, op, value_real(a), value_real(b))
                                                   : int_op(r, op, value_whole(a), value_whole(b));
        v.foreign = a.foreign || b.foreign;
        return v;
    }
    if (op == OP(0, '+') && a.type == V_STR && b.type == V_STR)
        return value_str(str_concat(r, a.str, b.str));
    if (op == OP(0, '+') && a.type == b.type && value_is_sequence(a))
        return lists_joined(r, a, b);
    if (op == OP(0, '*') && repeats(a) && (b.type == V_INT || b.type == V_BOOL))
        return repeated(r, a, value_whole(b));
    if (op == OP(0, '*') && repeats(b) && (a.type == V_INT || a.type == V_BOOL))
        return repeated(r, b, value_whole(a));
    if (op == OP(0, '%') && a.type == V_STR && b.type != V_UNDEFINED) {
        const struct list one = {.items = &b, .n = 1};

        return value_str(text_percent(r, a.str, b.type == V_TUPLE ? b.list : &one,
                                      b.type == V_DICT ? b.dict : NULL));
    }
    bad_operands(r, op, a, b);
}

ASIDE static struct value eval_compare(struct jinja_run *r, const struct node *n)
{
    struct value left = jinja_eval(r, n->list[0]);

    for (uint32_t i = 1; i < n->n; i++) {
        const struct value right = jinja_eval(r, n->list[i]);

        if (!value_relates(r, n->list[i]->joined_by, left, right))
            return value_bool(false);
        left = right;
    }
    return value_bool(true);
}

/* ---- literals, names, slices */

ASIDE static struct value eval_list(struct jinja_run *r, const struct node *n, enum value_type type)
{
    struct list *l = list_new(r, n->n);

    for (uint32_t i = 0; i < n->n; i++)
        list_push(r, l, jinja_eval(r, n->list[i]));
    return value_list(l, type);
}

ASIDE static struct value eval_dict(struct jinja_run *r, const struct node *n)
{
    struct dict *d = dict_new(r, n->n / 2);

    for (uint32_t i = 0; i + 1 < n->n; i += 2) {
        struct value key = jinja_eval(r, n->list[i]);

        dict_set(r, d, key, jinja_eval(r, n->list[i + 1]));
    }
    return value_dict(d);
}

static struct value eval_name(struct jinja_run *r, const struct node *n)
{
    for (uint32_t i = 0; i < n->n_refs; i++) {
        const struct frame *f = r->frame;

        for (uint32_t up = n->refs[i].up; up; up--)
            f = f->up;
        if (f->slots[n->refs[i].slot].type != V_MISSING)
            return f->slots[n->refs[i].slot];
    }
    if (r->globals[n->global].type != V_MISSING)
        return r->globals[n->global];
    return value_undefined(n->name);
}

/* Where Python's slice(a, b, c).indices(n) begins and ends, and its step. */
static void slice_bounds(struct jinja_run *r, const struct node *n, int64_t length, int64_t *from,
                         int64_t *to, int64_t *step)
{
    struct value v[3];
    const struct node *parts[] = {n->a, n->b, n->c};
    int64_t *bound[] = {from, to};

    for (int i = 0; i < 3; i++)
        v[i] = parts[i] ? jinja_eval(r, parts[i]) : value_none();
    *step = v[2].type == V_NONE ? 1 : value_index(r, v[2]);
    if (!*step)
        jinja_fail(r, "ValueError: slice step cannot be zero");
    for (int i = 0; i < 2; i++) {
        const int64_t low = *step < 0 ? -1 : 0, high = *step < 0 ? length - 1 : length;
        int64_t at = (i == 0) == (*step > 0) ? low : high;

        if (v[i].type != V_NONE) {
            at = value_index(r, v[i]);
            at = at < 0 ? (at < -length ? low : at + length) : at;
            at = at < low ? low : at > high ? high : at;
        }
        *bound[i] = at;
    }
}

ASIDE static struct value slice(struct jinja_run *r, const struct node *n, struct value v)
{
    int64_t from, to, step;
    struct list *l, *all;
    struct value sliced;

    if (v.type == V_UNDEFINED)
        value_fail_undefined(r, v);
    if (v.type != V_STR && !value_is_sequence(v))
        jinja_fail(r, "TypeError: '%s' object is not subscriptable", value_type_name(v.type));
    slice_bounds(r, n, value_length(r, v), &from, &to, &step);
    if (v.type == V_STR && step == 1) {
        const size_t at = str_offset(v.str, (size_t)from);
        const size_t end = to > from ? str_offset(v.str, (size_t)to) : at;

        return value_str(str_part(r, v.str, at, end - at));
    }
    all = value_elements(r, v);
    l = list_new(r, step == 1 || step == -1 ? all->n : 8);
    for (int64_t i = from; step > 0 ? i < to : i > to;) {
        list_push(r, l, all->items[i]);
        if (__builtin_add_overflow(i, step, &i))
            break;
    }
    sliced = value_list(l, v.type);
    sliced.foreign = v.foreign;
    return v.type == V_STR ? value_str(str_marked(r, str_joined(r, l), v.str->markup)) : sliced;
}

/* ---- calls */

static void add_named(struct jinja_run *r, struct args *args, struct value name, struct value v)
{
    if (name.type != V_STR)
        jinja_fail(r, "TypeError: keywords must be strings");
    if (dict_get(r, &args->named, name))
        jinja_fail(r, "TypeError: the call has the argument '%.*s' twice", (int)name.str->len,
                   name.str->data);
    dict_set(r, &args->named, name, v);
}

/* Without a call there are none. */
static struct args eval_arguments(struct jinja_run *r, const struct call *call)
{
    struct args args = {0};
    const struct list *more;
    struct value stars;

    if (!call)
        return args;
    args.list = *list_new(r, call->args->n);
    for (uint32_t i = 0; i < call->args->n; i++)
        list_push(r, &args.list, jinja_eval(r, call->args->list[i]));
    for (uint32_t i = 0; i < call->named->n; i++) {
        const struct node *one = call->named->list[i];

        add_named(r, &args, value_str(one->name), jinja_eval(r, one->a));
    }
    if (call->star) {
        more = value_elements(r, jinja_eval(r, call->star));
        for (uint32_t i = 0; i < more->n; i++)
            list_push(r, &args.list, more->items[i]);
    }
    if (call->star_star) {
        stars = jinja_eval(r, call->star_star);
        if (stars.type != V_DICT)
            jinja_fail(r, "TypeError: argument after ** must be a mapping, not %s",
                       value_type_name(stars.type));
        for (uint32_t i = 0; i < stars.dict->n; i++)
            add_named(r, &args, stars.dict->entries[i].key, stars.dict->entries[i].value);
    }
    return args;
}

struct value jinja_call(struct jinja_run *r, struct value callee, const struct args *args)
{
    switch (callee.type) {
    case V_FUNCTION:
        return jinja_call_builtin(r, callee.function->builtin, callee.function->self, args);
    case V_MACRO:
        return jinja_call_macro(r, callee.macro, args);
    case V_LOOP:
        return jinja_call_loop(r, callee.loop, args);
    case V_UNDEFINED:
        value_fail_undefined(r, callee);
    default:
        jinja_fail(r, "TypeError: '%s' object is not callable", value_type_name(callee.type));
    }
}

/* What is called: a method is not made a value first. */
ASIDE struct value jinja_eval_call(struct jinja_run *r, const struct node *n,
                                   const struct value *caller)
{
    const struct node *callee = n->a;
    struct value self = value_none(), v;
    const struct builtin *method = NULL;
    struct args args;

    if (callee->kind == N_ATTR && callee->flag) {
        self = jinja_eval(r, callee->a);
        method = jinja_method(self.type, callee->name);
        v = method ? self : value_attr(r, self, callee->name);
    } else {
        v = jinja_eval(r, callee);
    }
    args = eval_arguments(r, n->call);
    r->pos = n->pos;
    if (caller)
        add_named(r, &args, value_str(str_of(r, "caller")), *caller);
    return method ? jinja_call_builtin(r, method, self, &args) : jinja_call(r, v, &args);
}

ASIDE struct value jinja_filtered(struct jinja_run *r, const struct node *n, struct value subject)
{
    const struct args args = eval_arguments(r, n->call);

    r->pos = n->pos;
    return jinja_call_builtin(r, n->builtin, subject, &args);
}

/* A text that grows in a loop, x = x ~ y, is not copied each time. */
ASIDE static struct value eval_concat(struct jinja_run *r, const struct node *n)
{
    struct value *v = jinja_take(r, n->n * sizeof(*v));
    bool plain = true;
    const struct str *s;
    struct out o;

    for (uint32_t i = 0; i < n->n; i++) {
        v[i] = jinja_eval(r, n->list[i]);
        plain &= v[i].type != V_STR || !v[i].str->markup;
    }
    if (plain && v[0].type == V_STR) {
        s = v[0].str;
        for (uint32_t i = 1; i < n->n; i++)
            if (v[i].type != V_UNDEFINED)
                s = str_concat(r, s, value_text(r, v[i]));
        return value_str(s);
    }
    out_init(&o);
    for (uint32_t i = 0; i < n->n; i++)
        out_value(r, &o, v[i]);
    return value_str(out_take(r, &o));
}

/* ---- expressions */

ASIDE static struct value eval_unary(struct jinja_run *r, const struct node *n)
{
    struct value v = jinja_eval(r, n->a);

    if (v.type == V_UNDEFINED)
        value_fail_undefined(r, v);
    if (!value_is_number(v))
        jinja_fail(r, "TypeError: bad operand type for unary %c: '%s'",
                   n->kind == N_NEGATE ? '-' : '+', value_type_name(v.type));
    if (v.type == V_FLOAT)
        v.f = n->kind == N_NEGATE ? -v.f : v.f;
    else
        v = value_binary(r, OP(0, n->kind == N_NEGATE ? '-' : '+'), value_int(0), v);
    return v;
}

static struct value eval_attr(struct jinja_run *r, const struct node *n)
{
    const struct value v = jinja_eval(r, n->a);
    const struct value *found;

    r->pos = n->pos;
    if (!n->flag && (v.type == V_DICT || v.type == V_NAMESPACE)) {
        found = dict_get_str(r, v.dict, n->name);
        return found ? *found : value_lacks(v, n->name);
    }
    return value_attr(r, v, n->name);
}

ASIDE static struct value eval_item(struct jinja_run *r, const struct node *n)
{
    const struct value v = jinja_eval(r, n->a);

    if (n->b->kind == N_SLICE)
        return slice(r, n->b, v);
    return value_item(r, v, jinja_eval(r, n->b));
}

static struct value eval_chain(struct jinja_run *r, const struct node *n, bool stops_at)
{
    struct value v = value_none();

    for (uint32_t i = 0; i < n->n; i++) {
        v = jinja_eval(r, n->list[i]);
        if (value_true(r, v) == stops_at)
            break;
    }
    return v;
}

static struct value eval_condition(struct jinja_run *r, const struct node *n)
{
    if (value_true(r, jinja_eval(r, n->a)))
        return jinja_eval(r, n->b);
    return n->c ? jinja_eval(r, n->c) : value_undefined(str_of(r, "the else of an if"));
}

static struct value eval_test(struct jinja_run *r, const struct node *n)
{
    struct value v = jinja_filtered(r, n, jinja_eval(r, n->a));

    return n->flag ? value_bool(!value_true(r, v)) : v;
}

ASIDE static struct value eval_binary(struct jinja_run *r, const struct node *n)
{
    struct value v = jinja_eval(r, n->list[0]);

    for (uint32_t i = 1; i < n->n; i++) {
        const struct value right = jinja_eval(r, n->list[i]);

        r->pos = n->list[i]->pos;
        v = value_binary(r, n->list[i]->joined_by, v, right);
    }
    return v;
}

ASIDE static struct value eval_deep(struct jinja_run *r, const struct node *n)
{
    switch ((enum node_kind)n->kind) {
    case N_TUPLE:
        return eval_list(r, n, V_TUPLE);
    case N_LIST:
        return eval_list(r, n, V_LIST);
    case N_DICT:
        return eval_dict(r, n);
    case N_ITEM:
        return eval_item(r, n);
    case N_CALL:
        return jinja_eval_call(r, n, NULL);
    case N_FILTER:
        return jinja_filtered(r, n, n->a ? jinja_eval(r, n->a) : value_none());
    case N_TEST:
        return eval_test(r, n);
    case N_NOT:
        return value_bool(!value_true(r, jinja_eval(r, n->a)));
    case N_NEGATE:
    case N_PLUS:
        return eval_unary(r, n);
    case N_BINARY:
        return eval_binary(r, n);
    case N_AND:
        return eval_chain(r, n, false);
    case N_OR:
        return eval_chain(r, n, true);
    case N_CONCAT:
        return eval_concat(r, n);
    case N_COMPARE:
        return eval_compare(r, n);
    default:
        return eval_condition(r, n);
    }
}

struct value jinja_eval(struct jinja_run *r, const struct node *n)
{
    struct value v;

    jinja_charge(r, 0);
    if (n->kind == N_CONST)
        return n->value;
    if (n->kind == N_NAME)
        return eval_name(r, n);
    jinja_enter(r);
    if (n->kind == N_ATTR) {
        v = eval_attr(r, n);
    } else {
        r->pos = n->pos;
        v = eval_deep(r, n);
    }
    jinja_leave(r);
    return v;
}
