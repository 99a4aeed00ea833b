/* jinja_tests.c - what `is` asks, and the functions of every template. See jinja_impl.h. */
#include "engine/text/jinja_text.h"
#include "engine/text/utf8.h"

enum { RANGE_MAX = 100000 }; /* as Jinja's sandbox has it */

#define IS(type) (1 << (type))

enum {
    SEQUENCES = IS(V_UNDEFINED) | IS(V_STR) | IS(V_LIST) | IS(V_TUPLE) | IS(V_DICT),
    ITERABLES = SEQUENCES | IS(V_ITER) | IS(V_LOOP),
    /* Python's Undefined can be called, and then says what it is. */
    CALLABLES = IS(V_MACRO) | IS(V_FUNCTION) | IS(V_LOOP) | IS(V_UNDEFINED),
};

static BUILTIN(is_of_type)
{
    return value_bool(b->how >> a->type & 1);
}

static BUILTIN(is_related)
{
    return value_bool(value_relates(r, (uint16_t)b->how, a[0], a[1]));
}

/* `by` divides v, or leaves so much. */
static struct value leaves(struct jinja_run *r, struct value v, int64_t by, int64_t rest)
{
    v = value_binary(r, OP(0, '%'), v, value_int(by));
    return value_bool(value_equal(r, v, value_int(rest)));
}

static BUILTIN(is_divisible)
{
    return leaves(r, a[0], value_index(r, a[1]), 0);
}

static BUILTIN(is_even_or_odd)
{
    return leaves(r, a[0], 2, b->how);
}

static BUILTIN(is_true_or_false)
{
    return value_bool(a->type == V_BOOL && a->b == b->how);
}

static BUILTIN(is_escaped)
{
    return value_bool(a->type == V_STR && a->str->markup);
}

static BUILTIN(is_filter)
{
    return value_bool(a->type == V_STR && jinja_filter(a->str));
}

static BUILTIN(is_test)
{
    return value_bool(a->type == V_STR && jinja_test(a->str));
}

/* Some letter has case, and none the other. */
BUILTIN(is_in_case)
{
    const struct str *s = value_text(r, a[0]);
    const struct str *lower = text_case(r, s, TEXT_LOWER), *upper = text_case(r, s, TEXT_UPPER);

    return value_bool(!str_equal(lower, upper) &&
                      str_equal(s, b->how == TEXT_LOWER ? lower : upper));
}

static BUILTIN(is_sameas)
{
    if (a[0].type != a[1].type)
        return value_bool(false);
    switch (a[0].type) {
    case V_NONE:
        return value_bool(true);
    case V_BOOL:
        return value_bool(a[0].b == a[1].b);
    case V_INT:
        return value_bool(a[0].i == a[1].i);
    default:
        return value_bool(a[0].list == a[1].list);
    }
}

static const struct builtin tests[] = {
    {"!=", "other", is_related, OP('!', '=')},
    {"<", "other", is_related, OP(0, '<')},
    {"<=", "other", is_related, OP('<', '=')},
    {"==", "other", is_related, OP('=', '=')},
    {">", "other", is_related, OP(0, '>')},
    {">=", "other", is_related, OP('>', '=')},
    {"boolean", "", is_of_type, IS(V_BOOL)},
    {"callable", "", is_of_type, CALLABLES},
    {"defined", "", is_of_type, ~IS(V_UNDEFINED)},
    {"divisibleby", "num", is_divisible, 0},
    {"eq", "other", is_related, OP('=', '=')},
    {"equalto", "other", is_related, OP('=', '=')},
    {"escaped", "", is_escaped, 0},
    {"even", "", is_even_or_odd, 0},
    {"false", "", is_true_or_false, false},
    {"filter", "", is_filter, 0},
    {"float", "", is_of_type, IS(V_FLOAT)},
    {"ge", "other", is_related, OP('>', '=')},
    {"greaterthan", "other", is_related, OP(0, '>')},
    {"gt", "other", is_related, OP(0, '>')},
    {"in", "seq", is_related, OP_IN},
    {"integer", "", is_of_type, IS(V_INT)},
    {"iterable", "", is_of_type, ITERABLES},
    {"le", "other", is_related, OP('<', '=')},
    {"lessthan", "other", is_related, OP(0, '<')},
    {"lower", "", is_in_case, TEXT_LOWER},
    {"lt", "other", is_related, OP(0, '<')},
    {"mapping", "", is_of_type, IS(V_DICT)},
    {"ne", "other", is_related, OP('!', '=')},
    {"none", "", is_of_type, IS(V_NONE)},
    {"number", "", is_of_type, IS(V_INT) | IS(V_FLOAT) | IS(V_BOOL)},
    {"odd", "", is_even_or_odd, 1},
    {"sameas", "other", is_sameas, 0},
    {"sequence", "", is_of_type, SEQUENCES},
    {"string", "", is_of_type, IS(V_STR)},
    {"test", "", is_test, 0},
    {"true", "", is_true_or_false, true},
    {"undefined", "", is_of_type, IS(V_UNDEFINED)},
    {"upper", "", is_in_case, TEXT_UPPER},
};

const struct builtin *jinja_test(const struct str *name)
{
    return builtin_find(tests, sizeof(tests) / sizeof(*tests), name);
}

/* ---- functions */

static BUILTIN(range)
{
    int64_t from = 0, to = value_index(r, a[1]), step = 1;
    __int128 n = 0;
    struct list *l;

    if (a[2].type != V_MISSING) {
        from = to;
        to = value_index(r, a[2]);
    }
    if (a[3].type != V_MISSING)
        step = value_index(r, a[3]);
    if (!step)
        jinja_fail(r, "ValueError: range() arg 3 must not be zero");
    if (step > 0 ? from < to : from > to)
        n = ((step > 0 ? (__int128)to - from : (__int128)from - to) - 1) /
                (step > 0 ? (__int128)step : -(__int128)step) +
            1;
    if (n > RANGE_MAX)
        jinja_fail(r, "OverflowError: range of more than %d numbers", (int)RANGE_MAX);
    l = list_new(r, (size_t)n);
    for (int64_t i = 0; i < n; i++)
        list_push(r, l, value_int((int64_t)(from + (__int128)i * step)));
    return value_list(l, V_LIST);
}

static void dict_add(struct jinja_run *r, struct dict *d, const struct dict *more)
{
    for (uint32_t i = 0; i < more->n; i++)
        dict_set(r, d, more->entries[i].key, more->entries[i].value);
}

/* A copy of a dictionary, if one is given, and the named arguments. */
static struct dict *named_dict(struct jinja_run *r, const struct args *args)
{
    struct dict *d = dict_new(r, args->named.n + 2);

    if (args->list.n > 1 || (args->list.n && args->list.items[0].type != V_DICT))
        jinja_fail(r, "TypeError: a dictionary is made of a dictionary and named arguments");
    if (args->list.n)
        dict_add(r, d, args->list.items[0].dict);
    dict_add(r, d, &args->named);
    return d;
}

static BUILTIN(make_namespace)
{
    return (struct value){.type = V_NAMESPACE, .dict = named_dict(r, args)};
}

static BUILTIN(make_dict)
{
    return value_dict(named_dict(r, args));
}

static BUILTIN(raise_exception)
{
    const struct str *s = value_text(r, a[1]);

    jinja_raise(r, (struct text){s->data, s->len});
}

static BUILTIN(strftime_now)
{
    const struct str *s = value_text(r, a[1]);
    struct tm now;
    time_t t = time(NULL);
    char format[128], text[512];
    size_t n;

    if (r->now)
        now = *r->now;
    else
        localtime_r(&t, &now);
    if (s->len >= sizeof(format))
        jinja_fail(r, "ValueError: the format of a time is too long");
    memcpy(format, s->data, s->len);
    format[s->len] = '\0';
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral" /* it is the template's */
    n = strftime(text, sizeof(text), format, &now);
#pragma GCC diagnostic pop
    return value_str(str_copy(r, text, n, s->all_own && !s->own));
}

static const struct builtin functions[] = {
    {"dict", "*", make_dict, 0},
    {"namespace", "*", make_namespace, 0},
    {"raise_exception", "message", raise_exception, 0},
    {"range", "stop start? step?", range, 0},
    {"strftime_now", "format", strftime_now, 0},
};

const struct builtin *jinja_function(const struct str *name)
{
    return builtin_find(functions, sizeof(functions) / sizeof(*functions), name);
}
