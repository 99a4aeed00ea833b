/* jinja_methods.c - methods of strings, lists and dictionaries. Those that change their object are
 * refused when they are called, as in Jinja's immutable sandbox. See jinja_impl.h. */
#include "engine/text/jinja_text.h"
#include "engine/text/utf8.h"

static const struct str *need_str(struct jinja_run *r, struct value v)
{
    if (v.type != V_STR)
        jinja_fail(r, "TypeError: a string is needed, not %s", value_type_name(v.type));
    return v.str;
}

static int64_t given_int(struct jinja_run *r, struct value v, int64_t otherwise)
{
    return v.type == V_MISSING ? otherwise : value_index(r, v);
}

/* ---- case and ends */

TEXT_BUILTIN(str_capitalize, text_capitalize(r, a->str))
TEXT_BUILTIN(str_lower, text_lower(r, a->str))
TEXT_BUILTIN(str_upper, text_upper(r, a->str))
TEXT_BUILTIN(str_title, text_title(r, a->str))
TEXT_BUILTIN(str_swapcase, text_swapcase(r, a->str))
TEXT_BUILTIN(str_strip, text_strip(r, a->str, a[1], TEXT_LEFT | TEXT_RIGHT))
TEXT_BUILTIN(str_lstrip, text_strip(r, a->str, a[1], TEXT_LEFT))
TEXT_BUILTIN(str_rstrip, text_strip(r, a->str, a[1], TEXT_RIGHT))
TEXT_BUILTIN(str_format, text_format(r, a->str, args))
TEXT_BUILTIN(str_replace,
             text_replace(r, a->str, need_str(r, a[1]), need_str(r, a[2]), given_int(r, a[3], -1)))

static struct value pad(struct jinja_run *r, const struct value *a, int sides)
{
    const struct str *fill = a[2].type == V_MISSING ? NULL : need_str(r, a[2]);

    if (fill && str_chars(fill) != 1)
        jinja_fail(r, "TypeError: The fill character must be exactly one character long");
    return value_str(text_pad(r, a->str, value_index(r, a[1]), fill, sides));
}

BUILTIN(str_center)
{
    return pad(r, a, TEXT_LEFT | TEXT_RIGHT);
}

BUILTIN(str_ljust)
{
    return pad(r, a, TEXT_RIGHT);
}

BUILTIN(str_rjust)
{
    return pad(r, a, TEXT_LEFT);
}

BUILTIN(str_zfill)
{
    const bool sign = a->str->len && (a->str->data[0] == '-' || a->str->data[0] == '+');
    const struct str *rest = str_part(r, a->str, sign, a->str->len - sign);

    rest = text_pad(r, rest, value_index(r, a[1]) - sign, str_of(r, "0"), TEXT_LEFT);
    return value_str(str_concat(r, str_part(r, a->str, 0, sign), rest));
}

/* One string or a tuple of them. */
static bool has_end(struct jinja_run *r, const struct str *s, struct value v, bool at_end)
{
    if (v.type == V_TUPLE) {
        for (uint32_t i = 0; i < v.list->n; i++)
            if (need_str(r, v.list->items[i]) && has_end(r, s, v.list->items[i], at_end))
                return true;
        return false;
    }
    const struct str *end = need_str(r, v);
    return end->len <= s->len &&
           !memcmp(s->data + (at_end ? s->len - end->len : 0), end->data, end->len);
}

BUILTIN(str_startswith)
{
    return value_bool(has_end(r, a->str, a[1], false));
}

BUILTIN(str_endswith)
{
    return value_bool(has_end(r, a->str, a[1], true));
}

BUILTIN(str_removeprefix)
{
    const size_t len = need_str(r, a[1])->len;

    return has_end(r, a->str, a[1], false) ? value_str(str_part(r, a->str, len, a->str->len - len))
                                           : a[0];
}

BUILTIN(str_removesuffix)
{
    const size_t len = need_str(r, a[1])->len;

    return has_end(r, a->str, a[1], true) ? value_str(str_part(r, a->str, 0, a->str->len - len))
                                          : a[0];
}

/* ---- finding and splitting */

/* The byte at which what begins, from or up to `at`; SIZE_MAX: nowhere. */
static size_t find(struct jinja_run *r, const struct str *s, const struct str *what, size_t at)
{
    const char *found =
        what->len ? memmem(s->data + at, s->len - at, what->data, what->len) : s->data + at;

    jinja_charge(r, found ? (size_t)(found - s->data) - at : s->len - at);
    return found ? (size_t)(found - s->data) : SIZE_MAX;
}

static size_t find_last(struct jinja_run *r, const struct str *s, const struct str *what, size_t to)
{
    for (size_t at = to; at >= what->len; at--) {
        jinja_charge(r, 0);
        if (!memcmp(s->data + at - what->len, what->data, what->len))
            return at - what->len;
    }
    return SIZE_MAX;
}

static int64_t char_index(struct jinja_run *r, const struct str *s, size_t at)
{
    const struct str before = {.data = s->data, .len = (uint32_t)at};

    if (at == SIZE_MAX)
        return -1;
    jinja_charge(r, at);
    return (int64_t)str_chars(&before);
}

BUILTIN(str_find)
{
    return value_int(char_index(r, a->str, find(r, a->str, need_str(r, a[1]), 0)));
}

BUILTIN(str_rfind)
{
    return value_int(char_index(r, a->str, find_last(r, a->str, need_str(r, a[1]), a->str->len)));
}

BUILTIN(str_index)
{
    struct value v = str_find(r, a, args);

    if (v.i < 0)
        jinja_fail(r, "ValueError: substring not found");
    return v;
}

BUILTIN(str_rindex)
{
    struct value v = str_rfind(r, a, args);

    if (v.i < 0)
        jinja_fail(r, "ValueError: substring not found");
    return v;
}

BUILTIN(str_count)
{
    const struct str *what = need_str(r, a[1]);
    int64_t n = 0;

    if (!what->len)
        return value_int((int64_t)str_chars(a->str) + 1);
    for (size_t at = 0; (at = find(r, a->str, what, at)) != SIZE_MAX; at += what->len)
        n++;
    return value_int(n);
}

static void push_part(struct jinja_run *r, struct list *l, const struct str *s, size_t from,
                      size_t to)
{
    list_push(r, l, value_str(str_part(r, s, from, to - from)));
}

/* At whitespace; the limit leaves the rest whole. */
static struct list *split_words(struct jinja_run *r, const struct str *s, int64_t most)
{
    struct list *l = list_new(r, 8);
    size_t at = 0, from, len;
    uint32_t cp = 0;

    jinja_charge(r, s->len);
    for (;;) {
        for (; at < s->len; at += len) {
            len = utf8_read(s->data + at, s->len - at, &cp);
            if (!str_is_space(cp))
                break;
        }
        if (at == s->len)
            return l;
        if (most >= 0 && l->n == most) {
            const struct str *rest = str_part(r, s, at, s->len - at);

            list_push(r, l, value_str(text_strip(r, rest, value_none(), TEXT_RIGHT)));
            return l;
        }
        for (from = at; at < s->len; at += len) {
            len = utf8_read(s->data + at, s->len - at, &cp);
            if (str_is_space(cp))
                break;
        }
        push_part(r, l, s, from, at);
    }
}

static struct list *reversed(struct list *l)
{
    for (uint32_t i = 0; i < l->n / 2; i++) {
        struct value v = l->items[i];

        l->items[i] = l->items[l->n - 1 - i];
        l->items[l->n - 1 - i] = v;
    }
    return l;
}

/* The same from the end. */
static struct list *rsplit_words(struct jinja_run *r, const struct str *s, int64_t most)
{
    struct list *l = list_new(r, 8), *words = split_words(r, s, -1);
    const int64_t rest = most >= 0 && words->n > most ? words->n - most : 0;

    if (rest) {
        const struct str *last = words->items[rest - 1].str;
        const struct str *head = str_part(r, s, 0, (size_t)(last->data + last->len - s->data));

        list_push(r, l, value_str(text_strip(r, head, value_none(), TEXT_LEFT)));
    }
    for (uint32_t i = (uint32_t)rest; i < words->n; i++)
        list_push(r, l, words->items[i]);
    return l;
}

static const struct str *separator(struct jinja_run *r, struct value v)
{
    if (!value_is_given(v))
        return NULL;
    if (!need_str(r, v)->len)
        jinja_fail(r, "ValueError: empty separator");
    return v.str;
}

BUILTIN(str_split)
{
    const struct str *s = a->str, *by = separator(r, a[1]);
    int64_t most = given_int(r, a[2], -1);
    struct list *l;
    size_t at = 0, next;

    if (!by)
        return value_list(split_words(r, s, most), V_LIST);
    l = list_new(r, 4);
    while (most-- != 0 && (next = find(r, s, by, at)) != SIZE_MAX) {
        push_part(r, l, s, at, next);
        at = next + by->len;
    }
    push_part(r, l, s, at, s->len);
    return value_list(l, V_LIST);
}

BUILTIN(str_rsplit)
{
    const struct str *s = a->str, *by = separator(r, a[1]);
    int64_t most = given_int(r, a[2], -1);
    struct list *l;
    size_t to = s->len, next;

    if (!by)
        return value_list(rsplit_words(r, s, most), V_LIST);
    l = list_new(r, 4);
    while (most-- != 0 && (next = find_last(r, s, by, to)) != SIZE_MAX) {
        push_part(r, l, s, next + by->len, to);
        to = next;
    }
    push_part(r, l, s, 0, to);
    return value_list(reversed(l), V_LIST);
}

BUILTIN(str_splitlines)
{
    return value_list(text_lines(r, a->str, value_true(r, a[1])), V_LIST);
}

static struct value in_three(struct jinja_run *r, const struct value *a, size_t at, bool last)
{
    const struct str *s = a->str, *by = separator(r, a[1]);
    struct list *l = list_new(r, 3);
    const struct value whole = a[0], none = value_str(str_part(r, s, 0, 0));

    if (at == SIZE_MAX) {
        list_push(r, l, last ? none : whole);
        list_push(r, l, none);
        list_push(r, l, last ? whole : none);
    } else {
        push_part(r, l, s, 0, at);
        push_part(r, l, s, at, at + by->len); /* the text's own bytes, not the separator's */
        push_part(r, l, s, at + by->len, s->len);
    }
    return value_list(l, V_TUPLE);
}

BUILTIN(str_partition)
{
    return separator(r, a[1]) ? in_three(r, a, find(r, a->str, a[1].str, 0), false) : value_none();
}

BUILTIN(str_rpartition)
{
    return separator(r, a[1]) ? in_three(r, a, find_last(r, a->str, a[1].str, a->str->len), true)
                              : value_none();
}

BUILTIN(str_join)
{
    const struct list *l = value_elements(r, a[1]);
    struct out o;

    out_init(&o);
    for (uint32_t i = 0; i < l->n; i++) {
        if (l->items[i].type != V_STR)
            jinja_fail(r, "TypeError: sequence item %u: expected str instance, %s found", i,
                       value_type_name(l->items[i].type));
        if (i)
            out_str(r, &o, a->str);
        out_str(r, &o, l->items[i].str);
    }
    return value_str(out_take(r, &o));
}

/* ---- what the characters are */

static bool is_letter(uint32_t cp)
{
    const utf8proc_category_t c = utf8proc_category((utf8proc_int32_t)cp);

    return c >= UTF8PROC_CATEGORY_LU && c <= UTF8PROC_CATEGORY_LO;
}

static bool is_decimal(uint32_t cp)
{
    return utf8proc_category((utf8proc_int32_t)cp) == UTF8PROC_CATEGORY_ND;
}

static bool is_alnum(uint32_t cp)
{
    return is_letter(cp) || is_decimal(cp);
}

static bool is_ascii(uint32_t cp)
{
    return cp < 0x80;
}

static struct value all_are(struct jinja_run *r, const struct str *s, bool (*is)(uint32_t cp))
{
    uint32_t cp;

    jinja_charge(r, s->len);
    for (size_t at = 0; at < s->len;) {
        at += utf8_read(s->data + at, s->len - at, &cp);
        if (!is(cp))
            return value_bool(false);
    }
    return value_bool(s->len > 0 || is == is_ascii);
}

#define ALL_ARE(name, is)                                                                          \
    BUILTIN(name)                                                                                  \
    {                                                                                              \
        return all_are(r, a->str, is);                                                             \
    }

ALL_ARE(str_isalnum, is_alnum)
ALL_ARE(str_isalpha, is_letter)
ALL_ARE(str_isascii, is_ascii)
ALL_ARE(str_isdigit, is_decimal)
ALL_ARE(str_isspace, str_is_space)

static struct value ask(struct jinja_run *r, const struct value *a, const char *test)
{
    const struct args none = {0};

    return jinja_call_builtin(r, jinja_test(test, strlen(test)), a[0], &none);
}

BUILTIN(str_islower)
{
    return ask(r, a, "lower");
}

BUILTIN(str_isupper)
{
    return ask(r, a, "upper");
}

/* ---- lists and dictionaries */

BUILTIN(list_count)
{
    int64_t n = 0;

    for (uint32_t i = 0; i < a->list->n; i++)
        n += value_equal(r, a->list->items[i], a[1]);
    return value_int(n);
}

BUILTIN(list_index)
{
    for (uint32_t i = 0; i < a->list->n; i++)
        if (value_equal(r, a->list->items[i], a[1]))
            return value_int(i);
    jinja_fail(r, "ValueError: the list has no such element");
}

/* Nothing changes a list or dictionary, so that it is its own copy. */
BUILTIN(copy)
{
    return a[0];
}

BUILTIN(dict_get_or)
{
    const struct value *v = dict_get(r, a->dict, a[1]);

    return v ? *v : a[2].type == V_MISSING ? value_none() : a[2];
}

struct list *dict_items(struct jinja_run *r, const struct dict *d)
{
    struct list *l = list_new(r, d->n);

    for (uint32_t i = 0; i < d->n; i++) {
        struct list *pair = list_new(r, 2);

        list_push(r, pair, d->entries[i].key);
        list_push(r, pair, d->entries[i].value);
        list_push(r, l, value_list(pair, V_TUPLE));
    }
    return l;
}

BUILTIN(dict_items_view)
{
    return value_list(dict_items(r, a->dict), V_ITER);
}

BUILTIN(dict_keys)
{
    return value_list(value_elements(r, a[0]), V_ITER);
}

BUILTIN(dict_values)
{
    struct list *l = list_new(r, a->dict->n);

    for (uint32_t i = 0; i < a->dict->n; i++)
        list_push(r, l, a->dict->entries[i].value);
    return value_list(l, V_ITER);
}

/* The name is in the error. */
#define UNSAFE(name)                                                                               \
    BUILTIN(unsafe_##name)                                                                         \
    {                                                                                              \
        jinja_fail(r, "SecurityError: access to attribute '" #name "' of '%s' object is unsafe.",  \
                   value_type_name(a->type));                                                      \
    }

UNSAFE(append)
UNSAFE(clear)
UNSAFE(extend)
UNSAFE(insert)
UNSAFE(pop)
UNSAFE(popitem)
UNSAFE(remove)
UNSAFE(reverse)
UNSAFE(setdefault)
UNSAFE(sort)
UNSAFE(update)

static const struct builtin str_methods[] = {
    {"capitalize", "", str_capitalize},
    {"casefold", "", str_lower},
    {"center", "width fillchar?", str_center},
    {"count", "sub", str_count},
    {"endswith", "suffix", str_endswith},
    {"find", "sub", str_find},
    {"format", "*", str_format},
    {"index", "sub", str_index},
    {"isalnum", "", str_isalnum},
    {"isalpha", "", str_isalpha},
    {"isascii", "", str_isascii},
    {"isdecimal", "", str_isdigit},
    {"isdigit", "", str_isdigit},
    {"islower", "", str_islower},
    {"isnumeric", "", str_isdigit},
    {"isspace", "", str_isspace},
    {"isupper", "", str_isupper},
    {"join", "iterable", str_join},
    {"ljust", "width fillchar?", str_ljust},
    {"lower", "", str_lower},
    {"lstrip", "chars?", str_lstrip},
    {"partition", "sep", str_partition},
    {"removeprefix", "prefix", str_removeprefix},
    {"removesuffix", "suffix", str_removesuffix},
    {"replace", "old new count?", str_replace},
    {"rfind", "sub", str_rfind},
    {"rindex", "sub", str_rindex},
    {"rjust", "width fillchar?", str_rjust},
    {"rpartition", "sep", str_rpartition},
    {"rsplit", "sep? maxsplit?", str_rsplit},
    {"rstrip", "chars?", str_rstrip},
    {"split", "sep? maxsplit?", str_split},
    {"splitlines", "keepends?", str_splitlines},
    {"startswith", "prefix", str_startswith},
    {"strip", "chars?", str_strip},
    {"swapcase", "", str_swapcase},
    {"title", "", str_title},
    {"upper", "", str_upper},
    {"zfill", "width", str_zfill},
};

static const struct builtin list_methods[] = {
    {"append", "*", unsafe_append},
    {"clear", "*", unsafe_clear},
    {"copy", "", copy},
    {"count", "value", list_count},
    {"extend", "*", unsafe_extend},
    {"index", "value", list_index},
    {"insert", "*", unsafe_insert},
    {"pop", "*", unsafe_pop},
    {"remove", "*", unsafe_remove},
    {"reverse", "*", unsafe_reverse},
    {"sort", "*", unsafe_sort},
};

static const struct builtin dict_methods[] = {
    {"clear", "*", unsafe_clear},
    {"copy", "", copy},
    {"get", "key default?", dict_get_or},
    {"items", "", dict_items_view},
    {"keys", "", dict_keys},
    {"pop", "*", unsafe_pop},
    {"popitem", "*", unsafe_popitem},
    {"setdefault", "*", unsafe_setdefault},
    {"update", "*", unsafe_update},
    {"values", "", dict_values},
};

#define FIND(methods, s) builtin_find(methods, sizeof(methods) / sizeof(*methods), s->data, s->len)

struct methods jinja_methods(const struct str *name)
{
    return (struct methods){FIND(str_methods, name), FIND(list_methods, name),
                            FIND(dict_methods, name)};
}
