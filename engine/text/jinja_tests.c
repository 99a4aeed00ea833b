/* jinja_tests.c - what `is` asks, and the functions of every template. See jinja_impl.h. */
#include "engine/text/jinja_text.h"
#include "engine/text/utf8.h"

enum { RANGE_MAX = 100000 }; /* as Jinja's sandbox has it */

#define TEST(name, condition)                                                                      \
    BUILTIN(name)                                                                                  \
    {                                                                                              \
        return value_bool(condition);                                                              \
    }

static bool leaves(struct jinja_run *r, struct value v, int64_t by, int64_t rest)
{
    return value_equal(r, value_binary(r, OP(0, '%'), v, value_int(by)), value_int(rest));
}

/* str(v).islower() and isupper(): some letter has case, and none the other. */
static bool has_case(struct jinja_run *r, struct value v, bool upper)
{
    const struct str *s = value_text(r, v);
    const struct str *as = upper ? text_upper(r, s) : text_lower(r, s);

    return str_equal(s, as) && !str_equal(s, upper ? text_lower(r, s) : text_upper(r, s));
}

static bool is_same(struct value a, struct value b)
{
    if (a.type != b.type)
        return false;
    switch (a.type) {
    case V_NONE:
        return true;
    case V_BOOL:
        return a.b == b.b;
    case V_INT:
        return a.i == b.i;
    default:
        return a.list == b.list;
    }
}

TEST(is_boolean, a->type == V_BOOL)
/* Python's Undefined can be called, and then says what it is. */
TEST(is_callable,
     a->type == V_MACRO || a->type == V_FUNCTION || a->type == V_LOOP || a->type == V_UNDEFINED)
TEST(is_defined, a->type != V_UNDEFINED)
TEST(is_undefined, a->type == V_UNDEFINED)
TEST(is_divisible, leaves(r, a[0], value_index(r, a[1]), 0))
TEST(is_even, leaves(r, a[0], 2, 0))
TEST(is_odd, leaves(r, a[0], 2, 1))
TEST(is_eq, value_equal(r, a[0], a[1]))
TEST(is_ne, !value_equal(r, a[0], a[1]))
TEST(is_lt, value_compare(r, a[0], a[1], "<") < 0)
TEST(is_le, value_compare(r, a[0], a[1], "<=") <= 0)
TEST(is_gt, value_compare(r, a[0], a[1], ">") > 0)
TEST(is_ge, value_compare(r, a[0], a[1], ">=") >= 0)
TEST(is_escaped, a->type == V_STR && a->str->markup)
TEST(is_true, a->type == V_BOOL && a->b)
TEST(is_false, a->type == V_BOOL && !a->b)
TEST(is_filter, a->type == V_STR && jinja_filter(a->str->data, a->str->len))
TEST(is_test, a->type == V_STR && jinja_test(a->str->data, a->str->len))
TEST(is_float, a->type == V_FLOAT)
TEST(is_integer, a->type == V_INT)
TEST(is_number, value_is_number(*a))
TEST(is_in, value_contains(r, a[1], a[0]))
TEST(is_iterable, a->type == V_UNDEFINED || a->type == V_STR || value_is_sequence(*a) ||
                      a->type == V_ITER || a->type == V_DICT || a->type == V_LOOP)
TEST(is_sequence,
     a->type == V_UNDEFINED || a->type == V_STR || value_is_sequence(*a) || a->type == V_DICT)
TEST(is_lower, has_case(r, *a, false))
TEST(is_upper, has_case(r, *a, true))
TEST(is_mapping, a->type == V_DICT)
TEST(is_none, a->type == V_NONE)
TEST(is_sameas, is_same(a[0], a[1]))
TEST(is_string, a->type == V_STR)

static const struct builtin tests[] = {
    {"!=", "other", is_ne},
    {"<", "other", is_lt},
    {"<=", "other", is_le},
    {"==", "other", is_eq},
    {">", "other", is_gt},
    {">=", "other", is_ge},
    {"boolean", "", is_boolean},
    {"callable", "", is_callable},
    {"defined", "", is_defined},
    {"divisibleby", "num", is_divisible},
    {"eq", "other", is_eq},
    {"equalto", "other", is_eq},
    {"escaped", "", is_escaped},
    {"even", "", is_even},
    {"false", "", is_false},
    {"filter", "", is_filter},
    {"float", "", is_float},
    {"ge", "other", is_ge},
    {"greaterthan", "other", is_gt},
    {"gt", "other", is_gt},
    {"in", "seq", is_in},
    {"integer", "", is_integer},
    {"iterable", "", is_iterable},
    {"le", "other", is_le},
    {"lessthan", "other", is_lt},
    {"lower", "", is_lower},
    {"lt", "other", is_lt},
    {"mapping", "", is_mapping},
    {"ne", "other", is_ne},
    {"none", "", is_none},
    {"number", "", is_number},
    {"odd", "", is_odd},
    {"sameas", "other", is_sameas},
    {"sequence", "", is_sequence},
    {"string", "", is_string},
    {"test", "", is_test},
    {"true", "", is_true},
    {"undefined", "", is_undefined},
    {"upper", "", is_upper},
};

/* ---- functions */

BUILTIN(range)
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

BUILTIN(make_namespace)
{
    return (struct value){.type = V_NAMESPACE, .dict = named_dict(r, args)};
}

BUILTIN(make_dict)
{
    return value_dict(named_dict(r, args));
}

BUILTIN(raise_exception)
{
    const struct str *s = value_text(r, a[1]);

    jinja_raise(r, (struct text){s->data, s->len});
}

BUILTIN(strftime_now)
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
    {"range", "stop start? step?", range},
    {"namespace", "*", make_namespace},
    {"dict", "*", make_dict},
    {"raise_exception", "message", raise_exception},
    {"strftime_now", "format", strftime_now},
};

const struct builtin *builtin_find(const struct builtin *all, size_t n, const char *name,
                                   size_t len)
{
    for (size_t i = 0; i < n; i++)
        if (strlen(all[i].name) == len && memcmp(all[i].name, name, len) == 0)
            return &all[i];
    return NULL;
}

const struct builtin *jinja_test(const char *name, size_t len)
{
    return builtin_find(tests, sizeof(tests) / sizeof(*tests), name, len);
}

const struct builtin *jinja_function(const char *name, size_t len)
{
    return builtin_find(functions, sizeof(functions) / sizeof(*functions), name, len);
}
