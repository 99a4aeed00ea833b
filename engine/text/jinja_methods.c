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

/* ---- case, ends, width; what filters do as well takes any value as its text */

/* Into a text that is marked as safe what is not is put escaped. */
static const struct str *put_into(struct jinja_run *r, const struct str *s, const struct str *more)
{
    return s->markup ? str_escaped(r, more) : more;
}

BUILTIN(str_case)
{
    return value_str(text_case(r, value_text(r, a[0]), (enum text_case)b->how));
}

BUILTIN(str_strip)
{
    return value_str(text_strip(r, value_text(r, a[0]), a[1], b->how));
}

BUILTIN(str_pad)
{
    const struct str *s = value_text(r, a[0]);
    const struct str *fill = a[2].type == V_MISSING ? NULL : put_into(r, s, need_str(r, a[2]));

    if (fill && str_chars(fill) != 1)
        jinja_fail(r, "TypeError: The fill character must be exactly one character long");
    return value_str(
        str_marked(r, text_pad(r, s, given_int(r, a[1], 80), fill, b->how), s->markup));
}

static BUILTIN(str_format)
{
    return value_str(text_format(r, a->str, args));
}

static BUILTIN(str_replace)
{
    const struct str *new = put_into(r, a->str, need_str(r, a[2]));
    const struct str *s = text_replace(r, a->str, need_str(r, a[1]), new, given_int(r, a[3], -1));

    return value_str(str_marked(r, s, a->str->markup));
}

static BUILTIN(str_zfill)
{
    const bool sign = a->str->len && (a->str->data[0] == '-' || a->str->data[0] == '+');
    const struct str *rest = str_part(r, a->str, sign, a->str->len - sign);

    rest = text_pad(r, rest, value_index(r, a[1]) - sign, str_of(r, "0"), TEXT_LEFT);
    return value_str(str_concat(r, str_part(r, a->str, 0, sign), rest));
}

/* One string or a tuple of them. */
static bool has_end(struct jinja_run *r, const struct str *s, struct value v, int side)
{
    if (v.type == V_TUPLE) {
        for (uint32_t i = 0; i < v.list->n; i++)
            if (need_str(r, v.list->items[i]) && has_end(r, s, v.list->items[i], side))
                return true;
        return false;
    }
    const struct str *end = need_str(r, v);
    return end->len <= s->len &&
           !memcmp(s->data + (side == TEXT_RIGHT ? s->len - end->len : 0), end->data, end->len);
}

static BUILTIN(str_has_end)
{
    return value_bool(has_end(r, a->str, a[1], b->how));
}

static BUILTIN(str_without_end)
{
    const size_t len = need_str(r, a[1])->len;

    if (!has_end(r, a->str, a[1], b->how))
        return a[0];
    return value_str(str_part(r, a->str, b->how == TEXT_LEFT ? len : 0, a->str->len - len));
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

enum { MUST_BE_FOUND = 4 }; /* of how, beside the side */

static BUILTIN(str_find)
{
    const struct str *what = need_str(r, a[1]);
    const size_t at =
        b->how & TEXT_RIGHT ? find_last(r, a->str, what, a->str->len) : find(r, a->str, what, 0);

    if (at == SIZE_MAX && b->how & MUST_BE_FOUND)
        jinja_fail(r, "ValueError: substring not found");
    return value_int(char_index(r, a->str, at));
}

static BUILTIN(str_count)
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

static BUILTIN(str_split)
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

static BUILTIN(str_rsplit)
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

static BUILTIN(str_splitlines)
{
    return value_list(text_lines(r, a->str, value_true(r, a[1])), V_LIST);
}

static BUILTIN(str_partition)
{
    const struct str *s = a->str, *by = separator(r, a[1]);
    struct list *l = list_new(r, 3);
    size_t at, end;

    if (!by)
        return value_none();
    at = b->how == TEXT_RIGHT ? find_last(r, s, by, s->len) : find(r, s, by, 0);
    end = at + by->len;
    if (at == SIZE_MAX)
        at = end = b->how == TEXT_RIGHT ? 0 : s->len;
    push_part(r, l, s, 0, at);
    push_part(r, l, s, at, end); /* the text's own bytes, not the separator's */
    push_part(r, l, s, end, s->len);
    return value_list(l, V_TUPLE);
}

static BUILTIN(str_join)
{
    const struct list *l = value_elements(r, a[1]);
    struct out o;

    out_init(&o);
    for (uint32_t i = 0; i < l->n; i++) {
        if (l->items[i].type != V_STR && !a->str->markup)
            jinja_fail(r, "TypeError: sequence item %u: expected str instance, %s found", i,
                       value_type_name(l->items[i].type));
        if (i)
            out_str(r, &o, a->str);
        out_str(r, &o, put_into(r, a->str, value_text(r, l->items[i])));
    }
    return value_str(str_marked(r, out_take(r, &o), a->str->markup));
}

/* ---- what the characters are */

enum char_kind { CHAR_ALNUM, CHAR_ALPHA, CHAR_ASCII, CHAR_DIGIT, CHAR_SPACE };

static bool is_of_kind(uint32_t cp, enum char_kind kind)
{
    const utf8proc_category_t c = utf8proc_category((utf8proc_int32_t)cp);
    const bool is_letter = c >= UTF8PROC_CATEGORY_LU && c <= UTF8PROC_CATEGORY_LO;

    switch (kind) {
    case CHAR_ALNUM:
        return is_letter || c == UTF8PROC_CATEGORY_ND;
    case CHAR_ALPHA:
        return is_letter;
    case CHAR_ASCII:
        return cp < 0x80;
    case CHAR_DIGIT:
        return c == UTF8PROC_CATEGORY_ND;
    default:
        return str_is_space(cp);
    }
}

static BUILTIN(str_all_are)
{
    const struct str *s = a->str;
    uint32_t cp;

    jinja_charge(r, s->len);
    for (size_t at = 0; at < s->len;) {
        at += utf8_read(s->data + at, s->len - at, &cp);
        if (!is_of_kind(cp, (enum char_kind)b->how))
            return value_bool(false);
    }
    return value_bool(s->len > 0 || b->how == CHAR_ASCII);
}

/* ---- lists and dictionaries */

static BUILTIN(list_count)
{
    int64_t n = 0;

    for (uint32_t i = 0; i < a->list->n; i++)
        n += value_equal(r, a->list->items[i], a[1]);
    return value_int(n);
}

static BUILTIN(list_index)
{
    for (uint32_t i = 0; i < a->list->n; i++)
        if (value_equal(r, a->list->items[i], a[1]))
            return value_int(i);
    jinja_fail(r, "ValueError: the list has no such element");
}

/* Nothing changes a list or dictionary, so that it is its own copy. */
static BUILTIN(copy)
{
    return a[0];
}

static BUILTIN(dict_get_or)
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

static BUILTIN(dict_items_view)
{
    return value_list(dict_items(r, a->dict), V_ITER);
}

static BUILTIN(dict_keys)
{
    return value_list(value_elements(r, a[0]), V_ITER);
}

static BUILTIN(dict_values)
{
    struct list *l = list_new(r, a->dict->n);

    for (uint32_t i = 0; i < a->dict->n; i++)
        list_push(r, l, a->dict->entries[i].value);
    return value_list(l, V_ITER);
}

static BUILTIN(unsafe)
{
    jinja_fail(r, "SecurityError: access to attribute '%s' of '%s' object is unsafe.", b->name,
               value_type_name(a->type));
}

static const struct builtin str_methods[] = {
    {"capitalize", "", str_case, TEXT_CAPITALIZE},
    {"casefold", "", str_case, TEXT_LOWER},
    {"center", "width fillchar?", str_pad, TEXT_BOTH},
    {"count", "sub", str_count, 0},
    {"endswith", "suffix", str_has_end, TEXT_RIGHT},
    {"find", "sub", str_find, TEXT_LEFT},
    {"format", "*", str_format, 0},
    {"index", "sub", str_find, TEXT_LEFT | MUST_BE_FOUND},
    {"isalnum", "", str_all_are, CHAR_ALNUM},
    {"isalpha", "", str_all_are, CHAR_ALPHA},
    {"isascii", "", str_all_are, CHAR_ASCII},
    {"isdecimal", "", str_all_are, CHAR_DIGIT},
    {"isdigit", "", str_all_are, CHAR_DIGIT},
    {"islower", "", is_in_case, TEXT_LOWER},
    {"isnumeric", "", str_all_are, CHAR_DIGIT},
    {"isspace", "", str_all_are, CHAR_SPACE},
    {"isupper", "", is_in_case, TEXT_UPPER},
    {"join", "iterable", str_join, 0},
    {"ljust", "width fillchar?", str_pad, TEXT_RIGHT},
    {"lower", "", str_case, TEXT_LOWER},
    {"lstrip", "chars?", str_strip, TEXT_LEFT},
    {"partition", "sep", str_partition, TEXT_LEFT},
    {"removeprefix", "prefix", str_without_end, TEXT_LEFT},
    {"removesuffix", "suffix", str_without_end, TEXT_RIGHT},
    {"replace", "old new count?", str_replace, 0},
    {"rfind", "sub", str_find, TEXT_RIGHT},
    {"rindex", "sub", str_find, TEXT_RIGHT | MUST_BE_FOUND},
    {"rjust", "width fillchar?", str_pad, TEXT_LEFT},
    {"rpartition", "sep", str_partition, TEXT_RIGHT},
    {"rsplit", "sep? maxsplit?", str_rsplit, 0},
    {"rstrip", "chars?", str_strip, TEXT_RIGHT},
    {"split", "sep? maxsplit?", str_split, 0},
    {"splitlines", "keepends?", str_splitlines, 0},
    {"startswith", "prefix", str_has_end, TEXT_LEFT},
    {"strip", "chars?", str_strip, TEXT_BOTH},
    {"swapcase", "", str_case, TEXT_SWAP},
    {"title", "", str_case, TEXT_TITLE},
    {"upper", "", str_case, TEXT_UPPER},
    {"zfill", "width", str_zfill, 0},
};

static const struct builtin list_methods[] = {
    {"append", "*", unsafe, 0}, {"clear", "*", unsafe, 0},
    {"copy", "", copy, 0},      {"count", "value", list_count, 0},
    {"extend", "*", unsafe, 0}, {"index", "value", list_index, 0},
    {"insert", "*", unsafe, 0}, {"pop", "*", unsafe, 0},
    {"remove", "*", unsafe, 0}, {"reverse", "*", unsafe, 0},
    {"sort", "*", unsafe, 0},
};

static const struct builtin dict_methods[] = {
    {"clear", "*", unsafe, 0},
    {"copy", "", copy, 0},
    {"get", "key default?", dict_get_or, 0},
    {"items", "", dict_items_view, 0},
    {"keys", "", dict_keys, 0},
    {"pop", "*", unsafe, 0},
    {"popitem", "*", unsafe, 0},
    {"setdefault", "*", unsafe, 0},
    {"update", "*", unsafe, 0},
    {"values", "", dict_values, 0},
};

#define FIND(methods, name) builtin_find(methods, sizeof(methods) / sizeof(*methods), name)

const struct builtin *jinja_method(enum value_type type, const struct str *name)
{
    return type == V_STR    ? FIND(str_methods, name)
           : type == V_LIST ? FIND(list_methods, name)
           : type == V_DICT ? FIND(dict_methods, name)
                            : NULL;
}
