/* jinja_value.c - what values are: strings, lists, dictionaries, truth, order, printing. See
 * jinja_impl.h. */
#include <errno.h>
#include <fenv.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <xxhash.h>

#include "engine/text/jinja_impl.h"
#include "engine/text/utf8.h"

enum {
    INDEX_FROM = 16, /* entries of a dictionary that gets a hash table */
    DIGITS_MAX = 17, /* tell any two floats apart */
    REAL_BYTES = 40,
};

/* Room to go on behind a concatenation: so a text that grows piece by piece is not copied whole for
 * each. */
struct grown {
    char *data;
    uint8_t *own;
    size_t len, cap;
    bool all_own;
};

const struct str str_empty = STR_LITERAL("");

const struct str str_words[N_WORDS] = {
    [WORD_ARGUMENTS] = STR_LITERAL("arguments"),
    [WORD_ASSISTANT] = STR_LITERAL("assistant"),
    [WORD_CONTENT] = STR_LITERAL("content"),
    [WORD_DEVELOPER] = STR_LITERAL("developer"),
    [WORD_FUNCTION] = STR_LITERAL("function"),
    [WORD_NAME] = STR_LITERAL("name"),
    [WORD_REASONING_CONTENT] = STR_LITERAL("reasoning_content"),
    [WORD_ROLE] = STR_LITERAL("role"),
    [WORD_SYSTEM] = STR_LITERAL("system"),
    [WORD_TOOL] = STR_LITERAL("tool"),
    [WORD_TOOL_CALLS] = STR_LITERAL("tool_calls"),
    [WORD_TYPE] = STR_LITERAL("type"),
    [WORD_USER] = STR_LITERAL("user"),
};

const struct str *str_word_of(const char *data, size_t len)
{
    for (const struct str *w = str_words; w < str_words + N_WORDS; w++)
        if (w->len == len && w->data[0] == data[0] && memcmp(w->data, data, len) == 0)
            return w;
    return NULL;
}

/* ---- strings */

struct str *str_new(struct jinja_run *r, const char *data, size_t len, bool own)
{
    struct str *s = jinja_take(r, sizeof(*s));

    if (len >= UINT32_MAX)
        jinja_fail_as(r, -E2BIG, "a text is too long");
    *s = (struct str){.data = data, .len = (uint32_t)len, .all_own = own};
    return s;
}

struct str *str_of(struct jinja_run *r, const char *literal)
{
    return str_new(r, literal, strlen(literal), true);
}

struct str *str_copy(struct jinja_run *r, const char *data, size_t len, bool own)
{
    char *copy = jinja_take(r, len + 1);

    jinja_charge(r, len);
    if (len)
        memcpy(copy, data, len);
    return str_new(r, copy, len, own);
}

struct str *str_part(struct jinja_run *r, const struct str *s, size_t at, size_t len)
{
    struct str *part = str_new(r, s->data + at, len, s->all_own);

    part->own = s->own ? s->own + at : NULL;
    part->markup = s->markup;
    return part;
}

size_t str_chars(const struct str *s)
{
    size_t n = 0;

    for (uint32_t i = 0; i < s->len; i++)
        n += ((unsigned char)s->data[i] & 0xc0) != 0x80;
    return n;
}

size_t str_offset(const struct str *s, size_t n_chars)
{
    size_t at = 0;

    for (; at < s->len; at++)
        if (((unsigned char)s->data[at] & 0xc0) != 0x80 && n_chars-- == 0)
            break;
    return at;
}

/* Bytes of UTF-8 are in the order of their characters. */
int str_compare(const struct str *a, const struct str *b)
{
    int r = memcmp(a->data, b->data, a->len < b->len ? a->len : b->len);

    return r ? r : (a->len > b->len) - (a->len < b->len);
}

bool str_is(const struct str *s, const char *literal)
{
    size_t len = strlen(literal);

    return s->len == len && memcmp(s->data, literal, len) == 0;
}

bool str_is_space(uint32_t cp)
{
    return (cp >= 9 && cp <= 13) || (cp >= 0x1c && cp <= 0x20) || cp == 0x85 || cp == 0xa0 ||
           cp == 0x1680 || (cp >= 0x2000 && cp <= 0x200a) || cp == 0x2028 || cp == 0x2029 ||
           cp == 0x202f || cp == 0x205f || cp == 0x3000;
}

static void append(struct jinja_run *r, struct grown *g, const struct str *s)
{
    if (!g->len)
        g->all_own = s->all_own;
    if (!g->own && (s->own || s->all_own != g->all_own)) {
        g->own = jinja_take(r, g->cap);
        memset(g->own, g->all_own, g->len);
    }
    if (s->own)
        memcpy(g->own + g->len, s->own, s->len);
    else if (g->own)
        memset(g->own + g->len, s->all_own, s->len);
    memcpy(g->data + g->len, s->data, s->len);
    g->len += s->len;
}

static const struct str *concat(struct jinja_run *r, const struct str *a, const struct str *b)
{
    struct grown *g = a->from;
    const size_t len = (size_t)a->len + b->len;
    struct str *s;

    if (len > r->output_max)
        jinja_fail_as(r, -E2BIG, "makes a text of more than %zu bytes", r->output_max);
    jinja_charge(r, b->len);
    if (!g || a->data + a->len != g->data + g->len || b->len > g->cap - g->len) {
        jinja_charge(r, a->len);
        g = jinja_take(r, sizeof(*g));
        *g = (struct grown){.cap = len + len / 2 + 32};
        g->data = jinja_take(r, g->cap);
        append(r, g, a);
    }
    append(r, g, b);
    s = str_new(r, g->data, len, g->all_own);
    s->own = g->own;
    s->from = g;
    return s;
}

const struct str *str_escaped(struct jinja_run *r, const struct str *s)
{
    struct out o;

    if (s->markup || !memchr(s->data, '&', s->len))
        if (s->markup || (!memchr(s->data, '<', s->len) && !memchr(s->data, '>', s->len) &&
                          !memchr(s->data, '"', s->len) && !memchr(s->data, '\'', s->len)))
            return s;
    out_init(&o);
    for (uint32_t i = 0; i < s->len; i++) {
        const bool own = s->own ? s->own[i] : s->all_own;
        const char c = s->data[i];
        const char *as = c == '&'    ? "&amp;"
                         : c == '<'  ? "&lt;"
                         : c == '>'  ? "&gt;"
                         : c == '"'  ? "&#34;"
                         : c == '\'' ? "&#39;"
                                     : NULL;

        out_write(r, &o, as ? as : &c, as ? strlen(as) : 1, own);
    }
    return out_take(r, &o);
}

/* Python's +: next to marked text the other is escaped, and the sum is marked. */
const struct str *str_concat(struct jinja_run *r, const struct str *a, const struct str *b)
{
    struct str *marked;

    if (a->markup || b->markup) {
        a = str_escaped(r, a);
        b = str_escaped(r, b);
        marked = jinja_take(r, sizeof(*marked));
        *marked = *concat(r, a, b);
        marked->markup = true;
        return marked;
    }
    if (!a->len)
        return b;
    return b->len ? concat(r, a, b) : a;
}

/* ---- lists and dictionaries */

struct list *list_new(struct jinja_run *r, size_t cap)
{
    struct list *l = jinja_take(r, sizeof(*l));

    jinja_charge(r, cap);
    *l = (struct list){.cap = (uint32_t)cap};
    l->items = jinja_take(r, cap * sizeof(*l->items) + 1);
    return l;
}

void list_push(struct jinja_run *r, struct list *l, struct value v)
{
    if (l->n == l->cap) {
        const uint32_t cap = l->cap * 2 + 8;
        struct value *grown = jinja_take(r, cap * sizeof(*grown));

        jinja_charge(r, l->n);
        if (l->n)
            memcpy(grown, l->items, l->n * sizeof(*grown));
        l->items = grown;
        l->cap = cap;
    }
    l->items[l->n++] = v;
}

struct dict *dict_new(struct jinja_run *r, size_t cap)
{
    struct dict *d = jinja_take(r, sizeof(*d));

    *d = (struct dict){.cap = (uint32_t)cap};
    d->entries = jinja_take(r, cap * sizeof(*d->entries) + 1);
    return d;
}

static uint64_t hash_of(struct jinja_run *r, struct value key)
{
    switch (key.type) {
    case V_STR:
        return XXH3_64bits(key.str->data, key.str->len);
    case V_BOOL:
        return key.b * UINT64_C(0x9e3779b97f4a7c15);
    case V_INT:
        return (uint64_t)key.i * 0x9e3779b97f4a7c15u;
    case V_FLOAT:
        return key.f >= -9e18 && key.f <= 9e18 && key.f == (double)(int64_t)key.f
                   ? (uint64_t)(int64_t)key.f * 0x9e3779b97f4a7c15u
                   : 1;
    case V_LIST:
    case V_DICT:
        jinja_fail(r, "TypeError: unhashable type: '%s'", value_type_name(key.type));
    default:
        return 2;
    }
}

static void put_index(struct jinja_run *r, struct dict *d, uint32_t i)
{
    uint32_t at = (uint32_t)hash_of(r, d->entries[i].key) & (d->n_index - 1);

    while (d->index[at])
        at = (at + 1) & (d->n_index - 1);
    d->index[at] = i + 1;
}

static void make_index(struct jinja_run *r, struct dict *d)
{
    d->n_index = d->n_index ? d->n_index : 4 * INDEX_FROM;
    while (d->n_index < d->cap * 2)
        d->n_index *= 2;
    d->index = jinja_take(r, d->n_index * sizeof(*d->index));
    memset(d->index, 0, d->n_index * sizeof(*d->index));
    for (uint32_t i = 0; i < d->n; i++)
        put_index(r, d, i);
}

const struct value *dict_get(struct jinja_run *r, const struct dict *d, struct value key)
{
    if (!d->index && key.type == V_STR)
        return dict_get_str(d, key.str);
    if (d->index || key.type == V_LIST || key.type == V_DICT) {
        uint32_t at = (uint32_t)hash_of(r, key) & (d->n_index - 1);

        for (; d->index[at]; at = (at + 1) & (d->n_index - 1)) {
            const struct entry *e = &d->entries[d->index[at] - 1];

            jinja_charge(r, 0);
            if (value_equal(r, e->key, key))
                return &e->value;
        }
        return NULL;
    }
    for (uint32_t i = 0; i < d->n; i++)
        if (value_equal(r, d->entries[i].key, key))
            return &d->entries[i].value;
    return NULL;
}

const struct value *dict_get_indexed(const struct dict *d, const struct str *key)
{
    uint32_t at;

    at = (uint32_t)XXH3_64bits(key->data, key->len) & (d->n_index - 1);
    for (; d->index[at]; at = (at + 1) & (d->n_index - 1)) {
        const struct entry *e = &d->entries[d->index[at] - 1];

        if (e->key.type == V_STR && str_equal(e->key.str, key))
            return &e->value;
    }
    return NULL;
}

void dict_set(struct jinja_run *r, struct dict *d, struct value key, struct value v)
{
    struct value *there = (struct value *)(uintptr_t)dict_get(r, d, key);

    if (there) {
        *there = v;
        return;
    }
    if (d->n == d->cap) {
        const uint32_t cap = d->cap * 2 + 4;
        struct entry *grown = jinja_take(r, cap * sizeof(*grown));

        jinja_charge(r, d->n);
        if (d->n)
            memcpy(grown, d->entries, d->n * sizeof(*grown));
        d->entries = grown;
        d->cap = cap;
        if (cap > INDEX_FROM)
            make_index(r, d);
    }
    d->entries[d->n++] = (struct entry){key, v};
    if (d->index)
        put_index(r, d, d->n - 1);
}

/* ---- truth, equality, order */

const char *value_type_name(enum value_type type)
{
    static const char *const names[] = {
        [V_MISSING] = "Undefined", [V_UNDEFINED] = "Undefined",
        [V_NONE] = "NoneType",     [V_BOOL] = "bool",
        [V_INT] = "int",           [V_FLOAT] = "float",
        [V_STR] = "str",           [V_LIST] = "list",
        [V_TUPLE] = "tuple",       [V_ITER] = "generator",
        [V_DICT] = "dict",         [V_NAMESPACE] = "Namespace",
        [V_MACRO] = "Macro",       [V_LOOP] = "LoopContext",
        [V_FUNCTION] = "function",
    };

    return names[type];
}

void value_fail_undefined(struct jinja_run *r, struct value v)
{
    const char *type = value_type_name(v.owner);
    char owner[64];

    if (!v.owner && !v.str)
        jinja_fail(r, "UndefinedError: a value is undefined");
    if (!v.owner)
        jinja_fail(r, "UndefinedError: '%.*s' is undefined", (int)v.str->len, v.str->data);
    snprintf(owner, sizeof(owner), v.owner == V_NONE ? "None" : "%s object",
             v.owner == V_NAMESPACE ? "jinja2.utils.Namespace" : type);
    if (v.by_index)
        jinja_fail(r, "UndefinedError: %s has no element %" PRId64, owner, v.i);
    jinja_fail(r, "UndefinedError: '%s' has no attribute '%.*s'", owner,
               v.str->len < 200 ? (int)v.str->len : 200, v.str->data);
}

bool value_is_true(struct jinja_run *r, struct value v)
{
    int64_t n;

    switch (v.type) {
    case V_MISSING:
    case V_UNDEFINED:
    case V_NONE:
        return false;
    case V_BOOL:
        return v.b;
    case V_INT:
        return v.i != 0;
    case V_FLOAT:
        return v.f != 0;
    case V_STR:
        return v.str->len > 0;
    default:
        n = value_length(r, v);
        return n != 0;
    }
}

int64_t value_length(struct jinja_run *r, struct value v)
{
    switch (v.type) {
    case V_UNDEFINED:
        return 0;
    case V_STR:
        jinja_charge(r, v.str->len);
        return (int64_t)str_chars(v.str);
    case V_LIST:
    case V_TUPLE:
        return v.list->n;
    case V_ITER:
        return v.list->generator ? -1 : (int64_t)v.list->n;
    case V_DICT:
        return v.dict->n;
    default:
        return -1;
    }
}

static double number_of(struct value v)
{
    return v.type == V_FLOAT ? v.f : v.type == V_INT ? (double)v.i : v.b;
}

static int64_t int_of(struct value v)
{
    return v.type == V_BOOL ? (int64_t)v.b : v.i;
}

static bool lists_equal(struct jinja_run *r, const struct list *a, const struct list *b)
{
    if (a->n != b->n)
        return false;
    for (uint32_t i = 0; i < a->n; i++)
        if (!value_equal(r, a->items[i], b->items[i]))
            return false;
    return true;
}

static bool dicts_equal(struct jinja_run *r, const struct dict *a, const struct dict *b)
{
    if (a->n != b->n)
        return false;
    for (uint32_t i = 0; i < a->n; i++) {
        const struct value *other = dict_get(r, b, a->entries[i].key);

        if (!other || !value_equal(r, a->entries[i].value, *other))
            return false;
    }
    return true;
}

bool value_equal(struct jinja_run *r, struct value a, struct value b)
{
    bool same;

    jinja_charge(r, 0);
    if (value_is_number(a) && value_is_number(b))
        return a.type == V_FLOAT || b.type == V_FLOAT ? number_of(a) == number_of(b)
                                                      : int_of(a) == int_of(b);
    if (a.type != b.type)
        return false;
    if (a.type == V_STR) {
        jinja_charge(r, a.str->len);
        return str_equal(a.str, b.str);
    }
    if (a.type == V_NONE || a.type == V_UNDEFINED)
        return true;
    if (a.type == V_FUNCTION || a.type == V_MACRO || a.type == V_LOOP || a.type == V_NAMESPACE ||
        a.type == V_ITER)
        return a.list == b.list;
    jinja_enter(r);
    same = a.type == V_DICT ? dicts_equal(r, a.dict, b.dict) : lists_equal(r, a.list, b.list);
    jinja_leave(r);
    return same;
}

int value_compare(struct jinja_run *r, struct value a, struct value b, const char *op)
{
    if (a.type == V_UNDEFINED || b.type == V_UNDEFINED)
        value_fail_undefined(r, a.type == V_UNDEFINED ? a : b);
    jinja_charge(r, 0);
    if (value_is_number(a) && value_is_number(b)) {
        if (a.type != V_FLOAT && b.type != V_FLOAT)
            return (int_of(a) > int_of(b)) - (int_of(a) < int_of(b));
        return (number_of(a) > number_of(b)) - (number_of(a) < number_of(b));
    }
    if (a.type == V_STR && b.type == V_STR) {
        jinja_charge(r, a.str->len);
        return str_compare(a.str, b.str);
    }
    if (a.type != b.type || !value_is_sequence(a))
        jinja_fail(r, "TypeError: '%s' not supported between instances of '%s' and '%s'", op,
                   value_type_name(a.type), value_type_name(b.type));
    for (uint32_t i = 0; i < a.list->n && i < b.list->n; i++) {
        if (value_equal(r, a.list->items[i], b.list->items[i]))
            continue;
        jinja_enter(r);
        int order = value_compare(r, a.list->items[i], b.list->items[i], op);
        jinja_leave(r);
        return order;
    }
    return (a.list->n > b.list->n) - (a.list->n < b.list->n);
}

bool value_contains(struct jinja_run *r, struct value all, struct value v)
{
    const struct list *l;

    switch (all.type) {
    case V_UNDEFINED:
        return false;
    case V_STR:
        if (v.type != V_STR)
            jinja_fail(r, "TypeError: 'in <string>' requires string as left operand, not %s",
                       value_type_name(v.type));
        jinja_charge(r, all.str->len);
        return !v.str->len || memmem(all.str->data, all.str->len, v.str->data, v.str->len);
    case V_DICT:
        return dict_get(r, all.dict, v) != NULL;
    case V_LIST:
    case V_TUPLE:
    case V_ITER:
        l = all.list;
        for (uint32_t i = 0; i < l->n; i++)
            if (value_equal(r, l->items[i], v))
                return true;
        return false;
    default:
        jinja_fail(r, "TypeError: argument of type '%s' is not iterable",
                   value_type_name(all.type));
    }
}

int64_t value_index(struct jinja_run *r, struct value v)
{
    if (v.type == V_UNDEFINED)
        value_fail_undefined(r, v);
    if (v.type != V_INT && v.type != V_BOOL)
        jinja_fail(r, "TypeError: '%s' object cannot be interpreted as an integer",
                   value_type_name(v.type));
    return int_of(v);
}

/* ---- elements */

static struct list *chars_of(struct jinja_run *r, const struct str *s)
{
    struct list *l = list_new(r, str_chars(s));
    uint32_t cp;

    for (size_t at = 0, len; at < s->len; at += len) {
        struct str *one;

        len = utf8_read(s->data + at, s->len - at, &cp);
        one = str_part(r, s, at, len);
        one->markup = false;
        list_push(r, l, value_str(one));
    }
    return l;
}

struct list *value_elements(struct jinja_run *r, struct value v)
{
    static struct list none;
    struct list *l;

    switch (v.type) {
    case V_UNDEFINED:
        return &none;
    case V_STR:
        return chars_of(r, v.str);
    case V_LIST:
    case V_TUPLE:
        return v.list;
    case V_ITER:
        if (v.list->used_up)
            return &none;
        v.list->used_up = v.list->generator;
        return v.list;
    case V_DICT:
        l = list_new(r, v.dict->n);
        for (uint32_t i = 0; i < v.dict->n; i++)
            list_push(r, l, v.dict->entries[i].key);
        return l;
    default:
        jinja_fail(r, "TypeError: '%s' object is not iterable", value_type_name(v.type));
    }
}

/* ---- printing */

/* Writes value, which is positive, as d.ddde+XX with the fewest digits that read back as value, and
 * returns their number. The nearest number of n digits usually does; just above a power of two,
 * where floats are denser below than above, it may be the next larger one. */
static int shortest(char out[REAL_BYTES], double value)
{
    for (int n = 1; n < DIGITS_MAX; n++) {
        snprintf(out, REAL_BYTES, "%.*e", n - 1, value);
        if (strtod(out, NULL) == value)
            return n;
        fesetround(FE_UPWARD);
        snprintf(out, REAL_BYTES, "%.*e", n - 1, value);
        fesetround(FE_TONEAREST);
        if (strtod(out, NULL) == value)
            return n;
    }
    snprintf(out, REAL_BYTES, "%.*e", DIGITS_MAX - 1, value);
    return DIGITS_MAX;
}

/* Python's repr: an exponent below 1e-4 and from 1e16 on, else a point and a digit at least. */
void jinja_format_float(char out[REAL_BYTES], double f)
{
    const size_t sign = signbit(f) && !isnan(f);
    char *at = out + sign, digits[REAL_BYTES];
    int n_digits, exponent, n_decimals;

    out[0] = '-';
    if (!isfinite(f)) {
        strcpy(at, isnan(f) ? "nan" : "inf");
        return;
    }
    f = fabs(f);
    n_digits = shortest(digits, f);
    exponent = atoi(strchr(digits, 'e') + 1);
    n_decimals = n_digits - 1 - exponent;
    if (exponent >= -4 && exponent < 16)
        snprintf(digits, sizeof(digits), "%.*f", n_decimals > 1 ? n_decimals : 1, f);
    memcpy(at, digits,
           strlen(digits) + 1 < REAL_BYTES - sign ? strlen(digits) + 1 : REAL_BYTES - sign);
}

static void put(struct jinja_run *r, struct out *o, const char *s, bool own)
{
    out_write(r, o, s, strlen(s), own);
}

static bool is_printable(uint32_t cp)
{
    switch (utf8proc_category((utf8proc_int32_t)cp)) {
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP:
        return false;
    case UTF8PROC_CATEGORY_ZS:
        return cp == ' ';
    default:
        return true;
    }
}

static void repr_str(struct jinja_run *r, struct out *o, const struct str *s)
{
    const char quote = memchr(s->data, '\'', s->len) && !memchr(s->data, '"', s->len) ? '"' : '\'';
    uint32_t cp;

    if (s->markup)
        put(r, o, "Markup(", s->all_own);
    out_write(r, o, &quote, 1, s->all_own);
    for (size_t at = 0, len; at < s->len; at += len) {
        const bool own = s->own ? s->own[at] : s->all_own;
        char escape[16] = "";

        len = utf8_read(s->data + at, s->len - at, &cp);
        if (cp == (unsigned char)quote || cp == '\\')
            snprintf(escape, sizeof(escape), "\\%c", (char)cp);
        else if (cp == '\n' || cp == '\r' || cp == '\t')
            snprintf(escape, sizeof(escape), "\\%c", cp == '\n' ? 'n' : cp == '\r' ? 'r' : 't');
        else if (cp < 0x20 || (cp >= 0x7f && !is_printable(cp)))
            snprintf(escape, sizeof(escape),
                     cp < 0x100     ? "\\x%02x"
                     : cp < 0x10000 ? "\\u%04x"
                                    : "\\U%08x",
                     cp);
        if (*escape)
            put(r, o, escape, own);
        else
            out_write(r, o, s->data + at, len, own);
    }
    out_write(r, o, &quote, 1, s->all_own);
    if (s->markup)
        put(r, o, ")", s->all_own);
}

static void repr_list(struct jinja_run *r, struct out *o, struct value v)
{
    const struct list *l = v.list;
    const bool own = !v.foreign;

    put(r, o, v.type == V_TUPLE ? "(" : "[", own);
    for (uint32_t i = 0; i < l->n; i++) {
        if (i)
            put(r, o, ", ", own);
        out_repr(r, o, l->items[i]);
    }
    put(r, o, v.type != V_TUPLE ? "]" : l->n == 1 ? ",)" : ")", own);
}

static void repr_dict(struct jinja_run *r, struct out *o, struct value v)
{
    const bool own = !v.foreign;

    put(r, o, "{", own);
    for (uint32_t i = 0; i < v.dict->n; i++) {
        if (i)
            put(r, o, ", ", own);
        out_repr(r, o, v.dict->entries[i].key);
        put(r, o, ": ", own);
        out_repr(r, o, v.dict->entries[i].value);
    }
    put(r, o, "}", own);
}

static void put_scalar(struct jinja_run *r, struct out *o, struct value v)
{
    char text[REAL_BYTES + 8];

    switch (v.type) {
    case V_NONE:
        put(r, o, "None", !v.foreign);
        break;
    case V_BOOL:
        put(r, o, v.b ? "True" : "False", !v.foreign);
        break;
    case V_INT:
        snprintf(text, sizeof(text), "%" PRId64, v.i);
        put(r, o, text, !v.foreign);
        break;
    case V_FLOAT:
        jinja_format_float(text, v.f);
        put(r, o, text, !v.foreign);
        break;
    default:
        snprintf(text, sizeof(text), "<%s object>", value_type_name(v.type));
        put(r, o, text, true);
    }
}

void out_repr(struct jinja_run *r, struct out *o, struct value v)
{
    jinja_enter(r);
    switch (v.type) {
    case V_UNDEFINED:
        put(r, o, "Undefined", true);
        break;
    case V_STR:
        repr_str(r, o, v.str);
        break;
    case V_LIST:
    case V_TUPLE:
        repr_list(r, o, v);
        break;
    case V_DICT:
        repr_dict(r, o, v);
        break;
    case V_NAMESPACE:
        put(r, o, "<Namespace ", true);
        repr_dict(r, o, v);
        put(r, o, ">", true);
        break;
    default:
        put_scalar(r, o, v);
    }
    jinja_leave(r);
}

void out_value(struct jinja_run *r, struct out *o, struct value v)
{
    if (v.type == V_STR)
        out_str(r, o, v.str);
    else if (v.type != V_UNDEFINED)
        out_repr(r, o, v);
}

const struct str *value_text(struct jinja_run *r, struct value v)
{
    struct out o;

    if (v.type == V_STR)
        return v.str;
    out_init(&o);
    out_value(r, &o, v);
    return out_take(r, &o);
}

/* ---- attributes and indices */

static struct value lacks(struct value v, const struct str *name)
{
    return (struct value){.type = V_UNDEFINED, .owner = v.type, .str = name};
}

struct value value_attr(struct jinja_run *r, struct value v, const struct str *name)
{
    const struct value *found;
    const struct builtin *b;
    struct methods m;
    struct function *f;

    if (v.type == V_UNDEFINED)
        value_fail_undefined(r, v);
    if (v.type == V_LOOP)
        return jinja_loop_attr(r, v, name, jinja_loop_attr_id(name));
    m = jinja_methods(name);
    b = jinja_method(&m, v.type);
    if (b) {
        f = jinja_take(r, sizeof(*f));
        *f = (struct function){b, v};
        return (struct value){.type = V_FUNCTION, .function = f};
    }
    if (v.type == V_DICT || v.type == V_NAMESPACE) {
        found = dict_get_str(v.dict, name);
        if (found)
            return *found;
    }
    return lacks(v, name);
}

static struct value item_at(struct jinja_run *r, struct value v, struct value key)
{
    const int64_t n = value_length(r, v), asked = value_index(r, key);
    const int64_t i = asked < 0 ? asked + n : asked;
    size_t at;

    if (i < 0 || i >= n)
        return (struct value){.type = V_UNDEFINED, .owner = v.type, .by_index = true, .i = asked};
    if (v.type != V_STR)
        return v.list->items[i];
    at = str_offset(v.str, (size_t)i);
    uint32_t cp;
    return value_str(str_part(r, v.str, at, utf8_read(v.str->data + at, v.str->len - at, &cp)));
}

struct value value_item(struct jinja_run *r, struct value v, struct value key)
{
    const struct value *found;

    if (v.type == V_UNDEFINED)
        value_fail_undefined(r, v);
    if (v.type == V_DICT) {
        found = key.type == V_LIST || key.type == V_DICT ? NULL : dict_get(r, v.dict, key);
        if (found)
            return *found;
    } else if ((value_is_sequence(v) || v.type == V_STR) &&
               (key.type == V_INT || key.type == V_BOOL)) {
        return item_at(r, v, key);
    }
    if (key.type == V_STR)
        return value_attr(r, v, key.str);
    if (key.type == V_INT)
        return (struct value){.type = V_UNDEFINED, .owner = v.type, .by_index = true, .i = key.i};
    return lacks(v, value_text(r, key));
}
