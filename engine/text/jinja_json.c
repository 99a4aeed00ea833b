/* jinja_json.c - values from JSON, and JSON from values as Python's json.dumps() writes it. See
 * jinja_impl.h. */
#include <errno.h>
#include <inttypes.h>
#include <math.h>

#include "engine/text/jinja_impl.h"
#include "engine/text/utf8.h"
#include "engine/util/json_util.h"

/* ---- from JSON */

static struct value dict_from(struct jinja_run *r, const json_t *object)
{
    struct dict *d = dict_new(r, json_object_size(object));
    const char *key;
    json_t *member;

    json_object_foreach((json_t *)(uintptr_t)object, key, member)
    {
        struct value name = value_str(str_copy(r, key, strlen(key), false));

        dict_set(r, d, name, value_from_json(r, member));
    }
    return value_dict(d);
}

static struct value list_from(struct jinja_run *r, const json_t *array)
{
    struct list *l = list_new(r, json_array_size(array));
    json_t *element;
    size_t i;

    json_array_foreach(array, i, element) list_push(r, l, value_from_json(r, element));
    return value_list(l, V_LIST);
}

struct value value_from_json(struct jinja_run *r, const json_t *json)
{
    struct value v = value_none();

    jinja_enter(r);
    switch (json_typeof(json)) {
    case JSON_OBJECT:
        v = dict_from(r, json);
        break;
    case JSON_ARRAY:
        v = list_from(r, json);
        break;
    case JSON_STRING:
        v = value_str(str_copy(r, json_string_value(json), json_string_length(json), false));
        break;
    case JSON_INTEGER:
        v = value_int(json_integer_value(json));
        break;
    case JSON_REAL:
        v = value_float(json_real_value(json));
        break;
    case JSON_TRUE:
    case JSON_FALSE:
        v = value_bool(json_is_true(json));
        break;
    case JSON_NULL:
        break;
    }
    v.foreign = true;
    jinja_leave(r);
    return v;
}

struct value value_parse_json(struct jinja_run *r, struct text text, const char *what)
{
    struct value v;
    struct err why;
    int code;

    jinja_charge(r, text.len);
    code = json_parse(&r->json, what, text.data, text.len, JSON_DECODE_ANY | JSON_ALLOW_NUL, &why);
    if (code) {
        r->json = NULL;
        jinja_fail_plain(r, code, &why);
    }
    v = value_from_json(r, r->json);
    json_decref(r->json);
    r->json = NULL;
    return v;
}

/* ---- to JSON */

struct writer {
    struct jinja_run *r;
    struct out *o;
    const struct json_style *style;
    int level;
};

static void put(struct writer *w, const char *s, bool own)
{
    out_write(w->r, w->o, s, strlen(s), own);
}

static void write_escape(struct writer *w, uint32_t cp, bool own)
{
    static const char *const named[0x20] = {
        ['\b'] = "\\b", ['\t'] = "\\t", ['\n'] = "\\n", ['\f'] = "\\f", ['\r'] = "\\r"};
    char escape[16];

    if (cp == '"' || cp == '\\')
        snprintf(escape, sizeof(escape), "\\%c", (char)cp);
    else if (cp < 0x20 && named[cp])
        snprintf(escape, sizeof(escape), "%s", named[cp]);
    else if (cp < 0x10000)
        snprintf(escape, sizeof(escape), "\\u%04x", cp);
    else
        snprintf(escape, sizeof(escape), "\\u%04x\\u%04x", 0xd7c0 + (cp >> 10),
                 0xdc00 + (cp & 0x3ff));
    put(w, escape, own);
}

static void write_string(struct writer *w, const struct str *s)
{
    const bool ascii = w->style->ascii;
    size_t done = 0, len;

    put(w, "\"", s->all_own);
    for (size_t at = 0; at < s->len; at += len) {
        const unsigned char c = (unsigned char)s->data[at];
        uint32_t cp = c;

        len = 1;
        if (c >= 0x20 && c != '"' && c != '\\' && !(ascii && c >= 0x7f))
            continue;
        if (c >= 0x80)
            len = utf8_read(s->data + at, s->len - at, &cp);
        out_part(w->r, w->o, s, done, at - done);
        write_escape(w, cp, str_own_at(s, at));
        done = at + len;
    }
    out_part(w->r, w->o, s, done, s->len - done);
    put(w, "\"", s->all_own);
}

static void write_scalar(struct writer *w, struct value v)
{
    char text[48];

    switch (v.type) {
    case V_NONE:
        put(w, "null", !v.foreign);
        break;
    case V_BOOL:
        put(w, v.b ? "true" : "false", !v.foreign);
        break;
    case V_INT:
        snprintf(text, sizeof(text), "%" PRId64, v.i);
        put(w, text, !v.foreign);
        break;
    case V_FLOAT:
        jinja_format_float(w->r, text, v.f);
        put(w,
            isnan(v.f)      ? "NaN"
            : isfinite(v.f) ? text
            : v.f > 0       ? "Infinity"
                            : "-Infinity",
            !v.foreign);
        break;
    default:
        jinja_fail(w->r, "TypeError: Object of type %s is not JSON serializable",
                   value_type_name(v.type));
    }
}

static void write_key(struct writer *w, struct value key)
{
    if (key.type == V_STR) {
        write_string(w, key.str);
        return;
    }
    put(w, "\"", !key.foreign);
    write_scalar(w, key);
    put(w, "\"", !key.foreign);
}

/* What stands between the parts of a value is its own or not as the value is. */
static void put_between(struct writer *w, const struct str *s, bool own)
{
    out_write(w->r, w->o, s->data, s->len, own);
}

/* A new line and its indentation, where there are lines. */
static void break_line(struct writer *w, bool own)
{
    if (!w->style->indent)
        return;
    put(w, "\n", own);
    for (int i = 0; i < w->level; i++)
        put_between(w, w->style->indent, own);
}

static void write_value(struct writer *w, struct value v);

static void write_object(struct writer *w, struct value v)
{
    const struct dict *d = v.dict;
    const bool own = !v.foreign;
    uint32_t *order = NULL;

    put(w, "{", own);
    w->level++;
    if (w->style->sorted && d->n) {
        struct value *keys = jinja_take(w->r, d->n * sizeof(*keys));

        for (uint32_t i = 0; i < d->n; i++)
            keys[i] = d->entries[i].key;
        order = jinja_sorted(w->r, keys, d->n, false);
    }
    for (uint32_t i = 0; i < d->n; i++) {
        const struct entry *e = &d->entries[order ? order[i] : i];

        if (i)
            put_between(w, w->style->item, own);
        break_line(w, own);
        write_key(w, e->key);
        put_between(w, w->style->key, own);
        write_value(w, e->value);
    }
    w->level--;
    if (d->n)
        break_line(w, own);
    put(w, "}", own);
}

static void write_array(struct writer *w, struct value v)
{
    const bool own = !v.foreign;

    put(w, "[", own);
    w->level++;
    for (uint32_t i = 0; i < v.list->n; i++) {
        if (i)
            put_between(w, w->style->item, own);
        break_line(w, own);
        write_value(w, v.list->items[i]);
    }
    w->level--;
    if (v.list->n)
        break_line(w, own);
    put(w, "]", own);
}

static void write_value(struct writer *w, struct value v)
{
    jinja_enter(w->r);
    if (v.type == V_DICT)
        write_object(w, v);
    else if (value_is_sequence(v))
        write_array(w, v);
    else if (v.type == V_STR)
        write_string(w, v.str);
    else
        write_scalar(w, v);
    jinja_leave(w->r);
}

void out_json(struct jinja_run *r, struct out *o, struct value v, const struct json_style *style)
{
    struct writer w = {.r = r, .o = o, .style = style};

    write_value(&w, v);
}
