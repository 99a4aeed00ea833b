/* jinja_print.c - values as Python's str() and repr() write them. See jinja_impl.h. */
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
void jinja_format_float(struct jinja_run *r, char out[REAL_BYTES], double f)
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
        const bool own = str_own_at(s, at);
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
        jinja_format_float(r, text, v.f);
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
