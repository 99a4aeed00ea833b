/* jinja_print.c - values as Python's str(), repr() and json.dumps() write them. See jinja_impl.h.
 */
#include <fenv.h>
#include <float.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>

#include "engine/text/jinja_impl.h"
#include "engine/text/utf8.h"

enum {
    DIGITS_SURE = 15,  /* of these a decimal has another float each, so fewer are its own */
    DIGITS_MAX = 17,   /* tell any two floats apart */
    FLOAT_COST = 1024, /* as so many bytes of text */
    REAL_BYTES = 40,
};

/* ---- numbers */

/* Drops zeros at the end of d.ddd00e+XX; the number of digits that are left. */
static int without_zeros(char *text)
{
    char *e = strchr(text, 'e'), *end = e;

    while (end > text + 2 && end[-1] == '0')
        end--;
    if (end == text + 2) /* "d." */
        end--;
    memmove(end, e, strlen(e) + 1);
    return end == text + 1 ? 1 : (int)(end - text) - 1;
}

/* Writes value, which is positive, as d.ddde+XX with the fewest digits that read back as value, and
 * returns their number. The nearest number of n digits usually does; just above a power of two,
 * where floats are denser below than above, it may be the next larger one. */
static int shortest(char out[REAL_BYTES], double value)
{
    for (int n = value < DBL_MIN ? 1 : DIGITS_SURE; n < DIGITS_MAX; n++) {
        snprintf(out, REAL_BYTES, "%.*e", n - 1, value);
        if (strtod(out, NULL) == value)
            return without_zeros(out);
        fesetround(FE_UPWARD);
        snprintf(out, REAL_BYTES, "%.*e", n - 1, value);
        fesetround(FE_TONEAREST);
        if (strtod(out, NULL) == value)
            return without_zeros(out);
    }
    snprintf(out, REAL_BYTES, "%.*e", DIGITS_MAX - 1, value);
    return DIGITS_MAX;
}

/* Python's repr: an exponent below 1e-4 and from 1e16 on, else a point and a digit at least. */
static void format_float(struct jinja_run *r, char out[REAL_BYTES], double f)
{
    const size_t sign = signbit(f) && !isnan(f);
    char *at = out + sign, digits[REAL_BYTES];
    int n_digits, exponent, n_decimals;

    jinja_charge(r, FLOAT_COST);
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

/* ---- values */

struct writer {
    struct jinja_run *r;
    struct out *o;
    const struct value_style *style;
    int level; /* of indentation */
};

static void put(struct writer *w, const char *s, bool own)
{
    out_write(w->r, w->o, s, strlen(s), own);
}

/* What stands between the parts of a value is its own as far as that text and the value are. */
static void put_between(struct writer *w, const struct str *s, bool own)
{
    if (own)
        out_str(w->r, w->o, s);
    else
        out_write(w->r, w->o, s->data, s->len, false);
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

/* Whether a character stands for itself. */
static bool is_plain(const struct value_style *style, uint32_t cp)
{
    if (cp < 0x20)
        return false;
    if (style->json)
        return cp < 0x7f || !style->ascii;
    return cp < 0x7f || is_printable(cp);
}

/* The escape of a character; false: it needs none. */
static bool escape(const struct value_style *style, char quote, uint32_t cp, char out[16])
{
    const bool json = style->json;
    const char *controls = json ? "\t\n\r\b\f" : "\t\n\r", *control;

    if (cp == (unsigned char)quote || cp == '\\')
        snprintf(out, 16, "\\%c", (char)cp);
    else if (is_plain(style, cp))
        return false;
    else if (cp && cp < 0x20 && (control = strchr(controls, (int)cp)))
        snprintf(out, 16, "\\%c", "tnrbf"[control - controls]);
    else if (json && cp >= 0x10000)
        snprintf(out, 16, "\\u%04x\\u%04x", 0xd7c0 + (cp >> 10), 0xdc00 + (cp & 0x3ff));
    else
        snprintf(out, 16,
                 cp >= 0x10000         ? "\\U%08x"
                 : json || cp >= 0x100 ? "\\u%04x"
                                       : "\\x%02x",
                 cp);
    return true;
}

static void write_string(struct writer *w, const struct str *s)
{
    const struct value_style *style = w->style;
    const char quote =
        style->json || (memchr(s->data, '\'', s->len) && !memchr(s->data, '"', s->len)) ? '"'
                                                                                        : '\'';
    const bool marked = s->markup && !style->json;
    size_t done = 0, len;
    char text[16];
    uint32_t cp;

    put(w, marked ? "Markup(" : "", s->all_own);
    out_write(w->r, w->o, &quote, 1, s->all_own);
    for (size_t at = 0; at < s->len; at += len) {
        len = utf8_read(s->data + at, s->len - at, &cp);
        if (!escape(style, quote, cp, text))
            continue;
        out_part(w->r, w->o, s, done, at - done);
        put(w, text, str_own_at(s, at));
        done = at + len;
    }
    out_part(w->r, w->o, s, done, s->len - done);
    out_write(w->r, w->o, &quote, 1, s->all_own);
    put(w, marked ? ")" : "", s->all_own);
}

static const char *float_text(struct writer *w, double f, char room[REAL_BYTES])
{
    format_float(w->r, room, f);
    if (!w->style->json || isfinite(f))
        return room;
    return isnan(f) ? "NaN" : f > 0 ? "Infinity" : "-Infinity";
}

static void write_scalar(struct writer *w, struct value v)
{
    const bool json = w->style->json;
    char text[REAL_BYTES + 8];

    switch (v.type) {
    case V_NONE:
        put(w, json ? "null" : "None", !v.foreign);
        return;
    case V_BOOL:
        put(w, json ? (v.b ? "true" : "false") : v.b ? "True" : "False", !v.foreign);
        return;
    case V_INT:
        snprintf(text, sizeof(text), "%" PRId64, v.i);
        put(w, text, !v.foreign);
        return;
    case V_FLOAT:
        put(w, float_text(w, v.f, text), !v.foreign);
        return;
    default:
        break;
    }
    if (json)
        jinja_fail(w->r, "TypeError: Object of type %s is not JSON serializable",
                   value_type_name(v.type));
    snprintf(text, sizeof(text), v.type == V_UNDEFINED ? "%s" : "<%s object>",
             value_type_name(v.type));
    put(w, text, true);
}

static void write_value(struct writer *w, struct value v);

static void write_key(struct writer *w, struct value key)
{
    if (!w->style->json || key.type == V_STR) {
        write_value(w, key);
        return;
    }
    put(w, "\"", !key.foreign);
    write_scalar(w, key);
    put(w, "\"", !key.foreign);
}

static void write_dict(struct writer *w, struct value v)
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

static void write_list(struct writer *w, struct value v)
{
    const bool own = !v.foreign, tuple = v.type == V_TUPLE && !w->style->json;

    put(w, tuple ? "(" : "[", own);
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
    put(w, !tuple ? "]" : v.list->n == 1 ? ",)" : ")", own);
}

static void write_value(struct writer *w, struct value v)
{
    jinja_enter(w->r);
    if (v.type == V_STR) {
        write_string(w, v.str);
    } else if (value_is_sequence(v)) {
        write_list(w, v);
    } else if (v.type == V_DICT) {
        write_dict(w, v);
    } else if (v.type == V_NAMESPACE && !w->style->json) {
        put(w, "<Namespace ", true);
        write_dict(w, v);
        put(w, ">", true);
    } else {
        write_scalar(w, v);
    }
    jinja_leave(w->r);
}

void out_styled(struct jinja_run *r, struct out *o, struct value v, const struct value_style *style)
{
    struct writer w = {.r = r, .o = o, .style = style};

    write_value(&w, v);
}

void out_repr(struct jinja_run *r, struct out *o, struct value v)
{
    static const struct str item = STR_LITERAL(", "), key = STR_LITERAL(": ");
    static const struct value_style repr = {.item = &item, .key = &key};

    out_styled(r, o, v, &repr);
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
