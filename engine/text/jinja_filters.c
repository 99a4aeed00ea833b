/* jinja_filters.c - the filters. See jinja_impl.h. */
#include <errno.h>
#include <math.h>
#include <stdlib.h>

#include "engine/text/jinja_text.h"

static int64_t given_int(struct jinja_run *r, struct value v, int64_t otherwise)
{
    return value_is_given(v) ? value_index(r, v) : otherwise;
}

/* ---- attributes of elements, case */

/* "a.b.0" of v, or v[i]. */
static struct value path_of(struct jinja_run *r, struct value v, struct value path)
{
    const struct str *s = path.str;

    if (path.type != V_STR)
        return value_item(r, v, path);
    for (size_t at = 0; at <= s->len;) {
        const char *dot = memchr(s->data + at, '.', s->len - at);
        const size_t end = dot ? (size_t)(dot - s->data) : s->len;
        const struct str *part = str_part(r, s, at, end - at);
        int64_t i = 0;
        bool number = part->len > 0 && part->len < 18;

        for (uint32_t k = 0; k < part->len && number; k++) {
            number = part->data[k] >= '0' && part->data[k] <= '9';
            i = i * 10 + (part->data[k] - '0');
        }
        v = value_item(r, v, number ? value_int(i) : value_str(part));
        at = end + 1;
    }
    return v;
}

/* What an element is sorted by. */
static struct value sort_key(struct jinja_run *r, struct value v, struct value path,
                             bool case_sensitive)
{
    if (value_is_given(path))
        v = path_of(r, v, path);
    if (v.type == V_STR && !case_sensitive)
        v = value_str(text_case(r, v.str, TEXT_LOWER));
    return v;
}

static struct list *sorted_list(struct jinja_run *r, const struct list *l, const struct value *keys,
                                bool reversed)
{
    const uint32_t *order = jinja_sorted(r, keys, l->n, reversed);
    struct list *out = list_new(r, l->n);

    for (uint32_t i = 0; i < l->n; i++)
        list_push(r, out, l->items[order[i]]);
    return out;
}

/* The elements of what is true; what is not, none included, has none. */
static const struct list *elements_if_true(struct jinja_run *r, struct value v)
{
    return value_true(r, v) ? value_elements(r, v) : list_new(r, 0);
}

static struct value generator(struct list *l)
{
    l->generator = true;
    return value_list(l, V_ITER);
}

/* ---- filters of texts */

static BUILTIN(filter_string)
{
    return value_str(value_text(r, a[0]));
}

static BUILTIN(filter_format)
{
    return value_str(
        text_percent(r, value_text(r, a[0]), &args->list, args->named.n ? &args->named : NULL));
}

static BUILTIN(filter_replace)
{
    const struct str *s = str_marked(r, value_text(r, a[0]), false);

    return value_str(
        text_replace(r, s, value_text(r, a[1]), value_text(r, a[2]), given_int(r, a[3], -1)));
}

static BUILTIN(filter_safe)
{
    return value_str(str_marked(r, value_text(r, a[0]), true));
}

static BUILTIN(filter_escape)
{
    return value_str(str_marked(r, str_escaped(r, value_text(r, a[0])), true));
}

static BUILTIN(filter_indent)
{
    const struct str *s = a[0].str, *by;
    const bool first = value_true(r, a[2]), blank = value_true(r, a[3]);
    struct list *lines;
    struct out o;

    if (a[0].type == V_UNDEFINED)
        value_fail_undefined(r, a[0]);
    if (a[0].type != V_STR)
        jinja_fail(r, "TypeError: indent needs a string, not %s", value_type_name(a[0].type));
    lines = text_lines(r, s, false);
    by = a[1].type == V_STR ? a[1].str
                            : text_pad(r, str_of(r, ""), given_int(r, a[1], 4), NULL, TEXT_LEFT);
    /* A newline at the end makes one line more, an empty one. */
    if (!s->len || text_ends_line(s))
        list_push(r, lines, value_str(str_of(r, "")));
    out_init(&o);
    if (first)
        out_str(r, &o, by);
    for (uint32_t i = 0; i < lines->n; i++) {
        if (i)
            out_write(r, &o, "\n", 1, s->all_own);
        if (i && (blank || lines->items[i].str->len))
            out_str(r, &o, by);
        out_str(r, &o, lines->items[i].str);
    }
    return value_str(str_marked(r, out_take(r, &o), s->markup));
}

static BUILTIN(filter_tojson)
{
    struct value_style style = {.json = true,
                                .ascii = value_true(r, a[1]),
                                .sorted = value_true(r, a[4])};
    struct out o;

    if (a[2].type == V_STR)
        style.indent = a[2].str;
    else if (value_is_given(a[2]))
        style.indent = text_pad(r, str_of(r, ""), value_index(r, a[2]), NULL, TEXT_LEFT);
    style.item = str_of(r, style.indent ? "," : ", ");
    style.key = str_of(r, ": ");
    if (value_is_given(a[3])) {
        const struct list *l = value_elements(r, a[3]);

        if (l->n != 2 || l->items[0].type != V_STR || l->items[1].type != V_STR)
            jinja_fail(r, "ValueError: separators are two strings");
        style.item = l->items[0].str;
        style.key = l->items[1].str;
    }
    out_init(&o);
    out_styled(r, &o, a[0], &style);
    return value_str(out_take(r, &o));
}

static BUILTIN(filter_from_json)
{
    if (a[0].type != V_STR)
        jinja_fail(r, "TypeError: from_json needs a string, not %s", value_type_name(a[0].type));
    return value_parse_json(r, (struct text){a[0].str->data, a[0].str->len}, "from_json");
}

/* ---- filters of numbers */

static BUILTIN(filter_abs)
{
    if (a[0].type == V_FLOAT)
        return value_float(fabs(a[0].f));
    if (a[0].type == V_INT && a[0].i == INT64_MIN)
        jinja_fail(r, "OverflowError: a number does not fit in 64 bits");
    return value_int(llabs(value_index(r, a[0])));
}

/* Python's int(text) and float(text), without _. False: it is none. */
static bool parse_int(const struct str *s, int base, int64_t *out)
{
    char text[80], *end;
    size_t n = s->len < sizeof(text) - 1 ? s->len : sizeof(text) - 1, at = 0;

    memcpy(text, s->data, n);
    while (n && str_is_space((unsigned char)text[n - 1]))
        n--;
    text[n] = '\0';
    errno = 0;
    *out = strtoll(text, &end, base);
    at = strspn(text, "+- \t\n\r\f\v");
    return n && end == text + n && !errno && s->len < sizeof(text) && text[at];
}

static bool parse_float(const struct str *s, double *out)
{
    char text[400], *end;
    size_t n = s->len < sizeof(text) - 1 ? s->len : sizeof(text) - 1;

    memcpy(text, s->data, n);
    while (n && str_is_space((unsigned char)text[n - 1]))
        n--;
    text[n] = '\0';
    *out = strtod(text, &end);
    return n && end == text + n && s->len < sizeof(text) && !strpbrk(text, "xX(");
}

/* A number, or a text that is not all the template's own. */
static bool says_foreign(struct value v)
{
    return v.foreign || (v.type == V_STR && (v.str->own || !v.str->all_own));
}

static BUILTIN(filter_int)
{
    const struct value otherwise = a[1].type == V_MISSING ? value_int(0) : a[1];
    struct value v = value_int(0);
    double f = 0;

    v.foreign = says_foreign(a[0]);
    if (a[0].type == V_UNDEFINED)
        value_fail_undefined(r, a[0]);
    if (a[0].type == V_INT || a[0].type == V_BOOL) {
        v.i = value_whole(a[0]);
        return v;
    }
    if (a[0].type == V_STR && parse_int(a[0].str, (int)given_int(r, a[2], 10), &v.i))
        return v;
    if (a[0].type == V_FLOAT)
        f = a[0].f;
    else if (a[0].type != V_STR || !parse_float(a[0].str, &f))
        return otherwise;
    if (isnan(f) || (isinf(f) && a[0].type == V_STR))
        return otherwise;
    if (isinf(f))
        jinja_fail(r, "OverflowError: cannot convert float infinity to integer");
    if (!(fabs(f) < 9.2e18))
        jinja_fail(r, "OverflowError: a number does not fit in 64 bits");
    v.i = (int64_t)f;
    return v;
}

static BUILTIN(filter_float)
{
    struct value v = value_float(0);

    v.foreign = says_foreign(a[0]);
    if (a[0].type == V_UNDEFINED)
        value_fail_undefined(r, a[0]);
    if (value_is_number(a[0]))
        v.f = value_real(a[0]);
    else if (a[0].type != V_STR || !parse_float(a[0].str, &v.f))
        return a[1].type == V_MISSING ? value_float(0) : a[1];
    return v;
}

static BUILTIN(filter_round)
{
    const int64_t precision = given_int(r, a[1], 0);
    char text[400];
    double f, scale = pow(10, (double)precision);

    if (!value_is_number(a[0]))
        jinja_fail(r, "TypeError: round needs a number, not %s", value_type_name(a[0].type));
    f = value_real(a[0]);
    if (a[2].type == V_STR && str_is(a[2].str, "ceil"))
        return value_float(ceil(f * scale) / scale);
    if (a[2].type == V_STR && str_is(a[2].str, "floor"))
        return value_float(floor(f * scale) / scale);
    if (a[0].type != V_FLOAT && precision >= 0)
        return a[0];
    if (precision < 0)
        return value_float(nearbyint(f * scale) / scale);
    snprintf(text, sizeof(text), "%.*f", precision < 20 ? (int)precision : 20, f);
    return value_float(strtod(text, NULL));
}

/* ---- filters of sequences and dictionaries */

static BUILTIN(filter_default)
{
    if (a[0].type != V_UNDEFINED && !(value_true(r, a[2]) && !value_true(r, a[0])))
        return a[0];
    return a[1].type == V_MISSING ? value_str(str_of(r, "")) : a[1];
}

static BUILTIN(filter_attr)
{
    return value_attr(r, a[0], value_text(r, a[1]));
}

static BUILTIN(filter_length)
{
    int64_t n = value_length(r, a[0]);

    if (n < 0)
        jinja_fail(r, "TypeError: object of type '%s' has no len()", value_type_name(a[0].type));
    return value_int(n);
}

static BUILTIN(filter_list)
{
    const struct list *l = value_elements(r, a[0]);
    struct list *copy = list_new(r, l->n);
    struct value v = value_list(copy, V_LIST);

    if (l->n)
        memcpy(copy->items, l->items, l->n * sizeof(*l->items));
    copy->n = l->n;
    v.foreign = a[0].foreign;
    return v;
}

enum { FIRST, LAST };

static BUILTIN(filter_end)
{
    const struct list *l = value_elements(r, a[0]);

    return l->n ? l->items[b->how == LAST ? l->n - 1 : 0] : value_undefined(str_of(r, b->name));
}

static BUILTIN(filter_reverse)
{
    const struct list *l = value_elements(r, a[0]);
    struct list *back = list_new(r, l->n);

    for (uint32_t i = l->n; i-- > 0;)
        list_push(r, back, l->items[i]);
    return a[0].type == V_STR ? value_str(str_joined(r, back)) : generator(back);
}

static BUILTIN(filter_join)
{
    const struct list *l = value_elements(r, a[0]);
    struct out o;

    out_init(&o);
    for (uint32_t i = 0; i < l->n; i++) {
        struct value v = l->items[i];

        if (i && a[1].type != V_MISSING)
            out_value(r, &o, a[1]);
        if (value_is_given(a[2]))
            v = path_of(r, v, a[2]);
        out_value(r, &o, v);
    }
    return value_str(out_take(r, &o));
}

static BUILTIN(filter_items)
{
    if (a[0].type == V_UNDEFINED)
        return generator(list_new(r, 0));
    if (a[0].type != V_DICT)
        jinja_fail(r, "TypeError: Can only get item pairs from a mapping.");
    return generator(dict_items(r, a[0].dict));
}

static BUILTIN(filter_dictsort)
{
    struct list *l;
    struct value *keys;
    uint32_t by = 0;

    if (a[0].type != V_DICT)
        jinja_fail(r, "TypeError: dictsort needs a mapping, not %s", value_type_name(a[0].type));
    if (a[2].type == V_STR && str_is(a[2].str, "value"))
        by = 1;
    l = dict_items(r, a[0].dict);
    keys = jinja_take(r, l->n * sizeof(*keys) + 1);
    for (uint32_t i = 0; i < l->n; i++)
        keys[i] = sort_key(r, l->items[i].list->items[by], value_none(), value_true(r, a[1]));
    return value_list(sorted_list(r, l, keys, value_true(r, a[3])), V_LIST);
}

static BUILTIN(filter_sort)
{
    const struct list *l = value_elements(r, a[0]);
    struct value *keys = jinja_take(r, l->n * sizeof(*keys) + 1);

    for (uint32_t i = 0; i < l->n; i++) { /* a list, as it is for several attributes */
        struct list *key = list_new(r, 1);

        list_push(r, key, sort_key(r, l->items[i], a[3], value_true(r, a[2])));
        keys[i] = value_list(key, V_LIST);
    }
    return value_list(sorted_list(r, l, keys, value_true(r, a[1])), V_LIST);
}

static BUILTIN(filter_unique)
{
    const struct list *l = value_elements(r, a[0]);
    struct list *out = list_new(r, 8);
    struct dict *seen = dict_new(r, 8);

    for (uint32_t i = 0; i < l->n; i++) {
        struct value key = sort_key(r, l->items[i], a[2], value_true(r, a[1]));

        if (dict_get(r, seen, key))
            continue;
        dict_set(r, seen, key, value_none());
        list_push(r, out, l->items[i]);
    }
    return generator(out);
}

static BUILTIN(filter_extreme)
{
    const struct list *l = value_elements(r, a[0]);
    struct value best = value_undefined(str_of(r, b->name)), key = value_none();

    for (uint32_t i = 0; i < l->n; i++) {
        struct value k = sort_key(r, l->items[i], a[2], value_true(r, a[1]));

        if (i && value_compare(r, k, key, "<") * b->how <= 0)
            continue;
        best = l->items[i];
        key = k;
    }
    return best;
}

static BUILTIN(filter_sum)
{
    const struct list *l = value_elements(r, a[0]);
    struct value sum = a[2].type == V_MISSING ? value_int(0) : a[2];

    for (uint32_t i = 0; i < l->n; i++) {
        struct value v = l->items[i];

        if (value_is_given(a[1]))
            v = path_of(r, v, a[1]);
        sum = value_binary(r, OP(0, '+'), sum, v);
    }
    return sum;
}

static BUILTIN(filter_batch)
{
    const struct list *l = value_elements(r, a[0]);
    const int64_t width = value_index(r, a[1]);
    struct list *out = list_new(r, 8), *row = NULL;

    if (width < 1 || width > JINJA_SOURCE_MAX)
        jinja_fail(r, "ValueError: batch needs a width");
    for (uint32_t i = 0; i < l->n; i++) {
        if (i % (uint64_t)width == 0) {
            row = list_new(r, 4);
            list_push(r, out, value_list(row, V_LIST));
        }
        list_push(r, row, l->items[i]);
    }
    while (row && value_is_given(a[2]) && row->n < width)
        list_push(r, row, a[2]);
    return generator(out);
}

/* ---- filters that call others */

/* Those behind the first n. */
static struct args without_first(const struct args *args, uint32_t n)
{
    struct args rest = *args;

    rest.list.items += n;
    rest.list.n -= n;
    rest.list.cap -= n;
    return rest;
}

/* A filter or test by its name. */
static const struct builtin *named(struct jinja_run *r, struct value name, const char *what,
                                   const struct builtin *(*find)(const struct str *name))
{
    const struct str *s = value_text(r, name);
    const struct builtin *found = find(s);

    if (!found)
        jinja_fail(r, "TemplateRuntimeError: No %s named '%.*s'.", what, (int)s->len, s->data);
    return found;
}

enum { OTHERS = 1, BY_ATTRIBUTE = 2 }; /* what does not pass; the first argument is an attribute */

static BUILTIN(filter_select)
{
    const uint32_t n_path = b->how & BY_ATTRIBUTE ? 1 : 0;
    const struct list *l = elements_if_true(r, a[0]);
    const struct builtin *test = NULL;
    struct list *out = list_new(r, 8);
    struct args rest = {0};

    if (args->list.n < n_path)
        jinja_fail(r, "FilterArgumentError: Missing parameter for attribute name");
    if (args->list.n > n_path) {
        test = named(r, args->list.items[n_path], "test", jinja_test);
        rest = without_first(args, n_path + 1);
    }
    for (uint32_t i = 0; i < l->n; i++) {
        struct value v = n_path ? path_of(r, l->items[i], args->list.items[0]) : l->items[i];

        jinja_charge(r, 0);
        if (test)
            v = jinja_call_builtin(r, test, v, &rest);
        if (value_true(r, v) != (b->how & OTHERS))
            list_push(r, out, l->items[i]);
    }
    return generator(out);
}

static BUILTIN(filter_map)
{
    static const struct str attribute = STR_LITERAL("attribute");
    static const struct str default_value = STR_LITERAL("default");
    const struct value *path = dict_get_str(r, &args->named, &attribute);
    const struct value *otherwise = dict_get_str(r, &args->named, &default_value);
    const struct list *l = elements_if_true(r, a[0]);
    struct list *out = list_new(r, l->n);
    const struct builtin *filter = NULL;
    struct args rest = {0};

    if (args->list.n) {
        filter = named(r, args->list.items[0], "filter", jinja_filter);
        rest = without_first(args, 1);
    } else if (!path) {
        jinja_fail(r, "FilterArgumentError: map requires a filter argument");
    }
    for (uint32_t i = 0; i < l->n; i++) {
        struct value v = l->items[i];

        v = filter ? jinja_call_builtin(r, filter, v, &rest) : path_of(r, v, *path);
        list_push(r, out, v.type == V_UNDEFINED && otherwise ? *otherwise : v);
    }
    return generator(out);
}

static const struct builtin filters[] = {
    {"abs", "", filter_abs, 0},
    {"attr", "name", filter_attr, 0},
    {"batch", "linecount fill_with?", filter_batch, 0},
    {"capitalize", "", str_case, TEXT_CAPITALIZE},
    {"center", "width?", str_pad, TEXT_BOTH},
    {"count", "", filter_length, 0},
    {"d", "default_value? boolean?", filter_default, 0},
    {"default", "default_value? boolean?", filter_default, 0},
    {"dictsort", "case_sensitive? by? reverse?", filter_dictsort, 0},
    {"e", "", filter_escape, 0},
    {"escape", "", filter_escape, 0},
    {"first", "", filter_end, FIRST},
    {"float", "default?", filter_float, 0},
    {"format", "*", filter_format, 0},
    {"from_json", "", filter_from_json, 0},
    {"indent", "width? first? blank?", filter_indent, 0},
    {"int", "default? base?", filter_int, 0},
    {"items", "", filter_items, 0},
    {"join", "d? attribute?", filter_join, 0},
    {"last", "", filter_end, LAST},
    {"length", "", filter_length, 0},
    {"list", "", filter_list, 0},
    {"lower", "", str_case, TEXT_LOWER},
    {"map", "*", filter_map, 0},
    {"max", "case_sensitive? attribute?", filter_extreme, 1},
    {"min", "case_sensitive? attribute?", filter_extreme, -1},
    {"reject", "*", filter_select, OTHERS},
    {"rejectattr", "*", filter_select, OTHERS | BY_ATTRIBUTE},
    {"replace", "old new count?", filter_replace, 0},
    {"reverse", "", filter_reverse, 0},
    {"round", "precision? method?", filter_round, 0},
    {"safe", "", filter_safe, 0},
    {"select", "*", filter_select, 0},
    {"selectattr", "*", filter_select, BY_ATTRIBUTE},
    {"sort", "reverse? case_sensitive? attribute?", filter_sort, 0},
    {"string", "", filter_string, 0},
    {"sum", "attribute? start?", filter_sum, 0},
    {"title", "", str_case, TEXT_TITLE_WORDS},
    {"tojson", "ensure_ascii? indent? separators? sort_keys?", filter_tojson, 0},
    {"trim", "chars?", str_strip, TEXT_BOTH},
    {"unique", "case_sensitive? attribute?", filter_unique, 0},
    {"upper", "", str_case, TEXT_UPPER},
};

const struct builtin *jinja_filter(const struct str *name)
{
    return builtin_find(filters, sizeof(filters) / sizeof(*filters), name);
}
