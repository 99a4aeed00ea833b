/* jinja_text.c - see jinja_text.h. */
#include <errno.h>
#include <inttypes.h>
#include <math.h>

#include "engine/text/jinja_text.h"
#include "engine/text/utf8.h"

/* ---- case */

static uint32_t lower_of(uint32_t cp)
{
    return (uint32_t)utf8proc_tolower((utf8proc_int32_t)cp);
}

static uint32_t upper_of(uint32_t cp)
{
    return (uint32_t)utf8proc_toupper((utf8proc_int32_t)cp);
}

static bool is_cased(uint32_t cp)
{
    return lower_of(cp) != cp || upper_of(cp) != cp;
}

static bool is_one_of(char c, const char *these)
{
    return c && strchr(these, c);
}

/* Whether a character becomes a capital. */
static bool is_raised(enum text_case how, uint32_t before, uint32_t cp, size_t at)
{
    switch (how) {
    case TEXT_UPPER:
        return true;
    case TEXT_SWAP:
        return lower_of(cp) == cp;
    case TEXT_CAPITALIZE:
        return at == 0;
    case TEXT_TITLE:
        return !is_cased(before);
    case TEXT_TITLE_WORDS:
        return at == 0 || str_is_space(before) ||
               (before < 0x80 && is_one_of((char)before, "-({[<"));
    default:
        return false;
    }
}

const struct str *text_case(struct jinja_run *r, const struct str *s, enum text_case how)
{
    struct out o;
    uint32_t cp, before = 0;
    struct str *out;

    out_init(&o);
    for (size_t at = 0, len; at < s->len; at += len, before = cp) {
        char text[8];
        uint32_t as;

        len = utf8_read(s->data + at, s->len - at, &cp);
        as = is_raised(how, before, cp, at) ? upper_of(cp) : lower_of(cp);
        if (cp == 0xdf && as != cp) /* ß; utf8proc has ẞ */
            out_write(r, &o, how >= TEXT_CAPITALIZE ? "Ss" : "SS", 2, str_own_at(s, at));
        else
            out_write(r, &o, text, utf8_write(text, as), str_own_at(s, at));
    }
    out = out_take(r, &o);
    out->markup = s->markup && how != TEXT_TITLE_WORDS;
    return out;
}

/* ---- ends, width, replacement, lines */

static bool strips(const struct str *chars, const char *at, size_t len, uint32_t cp)
{
    return chars ? memmem(chars->data, chars->len, at, len) != NULL : str_is_space(cp);
}

const struct str *text_strip(struct jinja_run *r, const struct str *s, struct value chars,
                             int sides)
{
    const struct str *set = NULL;
    size_t from = 0, to = s->len, len;
    uint32_t cp;

    if (chars.type == V_STR)
        set = chars.str;
    else if (value_is_given(chars))
        jinja_fail(r, "TypeError: strip arg must be None or str");
    while ((sides & TEXT_LEFT) && from < to) {
        len = utf8_read(s->data + from, to - from, &cp);
        if (!strips(set, s->data + from, len, cp))
            break;
        jinja_charge(r, set ? set->len : 0);
        from += len;
    }
    while ((sides & TEXT_RIGHT) && from < to) {
        len = utf8_last(s->data, to);
        utf8_read(s->data + to - len, len, &cp);
        if (!strips(set, s->data + to - len, len, cp))
            break;
        jinja_charge(r, set ? set->len : 0);
        to -= len;
    }
    return from == 0 && to == s->len ? s : str_part(r, s, from, to - from);
}

const struct str *text_pad(struct jinja_run *r, const struct str *s, int64_t width,
                           const struct str *fill, int sides)
{
    const int64_t n = (int64_t)str_chars(s), all = width > n ? width - n : 0;
    static const struct str space = STR_LITERAL(" ");
    int64_t left = sides == TEXT_LEFT ? all : sides == TEXT_RIGHT ? 0 : all / 2 + (all & width & 1);
    struct out o;

    jinja_charge(r, s->len);
    if (all > (int64_t)r->output_max)
        jinja_fail_as(r, -E2BIG, "makes a text of more than %zu bytes", r->output_max);
    out_init(&o);
    for (int64_t i = 0; i < all; i++) {
        if (i == left)
            out_str(r, &o, s);
        out_str(r, &o, fill ? fill : &space);
    }
    if (left >= all)
        out_str(r, &o, s);
    return out_take(r, &o);
}

const struct str *text_replace(struct jinja_run *r, const struct str *s, const struct str *old,
                               const struct str *new, int64_t count)
{
    size_t at = 0;
    struct out o;

    out_init(&o);
    jinja_charge(r, s->len);
    while (count != 0 && at <= s->len) {
        const char *found =
            old->len ? memmem(s->data + at, s->len - at, old->data, old->len) : s->data + at;
        uint32_t cp;

        if (!found)
            break;
        count--;
        out_part(r, &o, s, at, (size_t)(found - s->data) - at);
        out_str(r, &o, new);
        at = (size_t)(found - s->data) + old->len;
        if (old->len)
            continue;
        if (at == s->len) /* behind the last character, too */
            return out_take(r, &o);
        size_t len = utf8_read(s->data + at, s->len - at, &cp);
        out_part(r, &o, s, at, len);
        at += len;
    }
    if (at == 0)
        return s;
    out_part(r, &o, s, at, s->len - at);
    return out_take(r, &o);
}

static bool ends_line(uint32_t cp)
{
    return (cp >= 0x0a && cp <= 0x0d) || (cp >= 0x1c && cp <= 0x1e) || cp == 0x85 || cp == 0x2028 ||
           cp == 0x2029;
}

struct list *text_lines(struct jinja_run *r, const struct str *s, bool keep_ends)
{
    struct list *lines = list_new(r, 8);
    size_t from = 0, at = 0;
    uint32_t cp;

    jinja_charge(r, s->len);
    while (at < s->len) {
        const size_t end = at;

        at += utf8_read(s->data + at, s->len - at, &cp);
        if (!ends_line(cp))
            continue;
        if (cp == '\r' && at < s->len && s->data[at] == '\n')
            at++;
        list_push(r, lines, value_str(str_part(r, s, from, (keep_ends ? at : end) - from)));
        from = at;
    }
    if (from < s->len)
        list_push(r, lines, value_str(str_part(r, s, from, s->len - from)));
    return lines;
}

bool text_ends_line(const struct str *s)
{
    size_t len;
    uint32_t cp;

    if (!s->len)
        return false;
    len = utf8_last(s->data, s->len);
    utf8_read(s->data + s->len - len, len, &cp);
    return ends_line(cp);
}

/* ---- formats */

struct spec {
    char fill, align, sign, type; /* 0: not given */
    bool zero, alternate, comma;
    int width, precision; /* precision -1: none */
    bool fill_own;        /* the fill is the template's */
};

static int small_number(struct jinja_run *r, const char **at, const char *end)
{
    int n = 0;

    for (; *at < end && **at >= '0' && **at <= '9'; ++*at)
        n = n * 10 + (**at - '0') > 100000 ? 100000 : n * 10 + (**at - '0');
    if (n == 100000)
        jinja_fail(r, "ValueError: a width is too large");
    return n;
}

static void write_padded(struct jinja_run *r, struct out *o, const struct str *s,
                         const struct spec *spec, char align)
{
    const int sides = align == '<' ? TEXT_RIGHT : align == '>' ? TEXT_LEFT : TEXT_BOTH;
    const struct str *fill = spec->fill ? str_new(r, &spec->fill, 1, spec->fill_own) : NULL;

    /* Python's centre is left of the middle here, and right of it in str.center(). */
    if (align == '^' && spec->width > (int64_t)str_chars(s))
        s = text_pad(r, s, (spec->width + (int64_t)str_chars(s)) / 2, fill, TEXT_LEFT),
        s = text_pad(r, s, spec->width, fill, TEXT_RIGHT);
    else
        s = text_pad(r, s, spec->width, fill, sides);
    out_str(r, o, s);
}

/* The digits of a number without its sign, as C's printf writes them, which agrees with Python. */
static int digits_of(char out[400], struct value v, char type, int precision)
{
    const double f = v.type == V_FLOAT ? fabs(v.f) : 0;
    const bool real_type = type && strchr("eEfFgG", type);
    const int64_t whole = v.type == V_FLOAT ? (real_type ? 0 : (int64_t)v.f) : v.i;
    const int64_t i = v.type == V_BOOL ? v.b : whole;
    const uint64_t n = i < 0 ? -(uint64_t)i : (uint64_t)i;
    const double real = v.type == V_FLOAT ? f : (double)n;

    precision = precision < 0 ? 6 : precision < 50 ? precision : 50;
    switch (type) {
    case 'x':
        return snprintf(out, 400, "%" PRIx64, n);
    case 'X':
        return snprintf(out, 400, "%" PRIX64, n);
    case 'o':
        return snprintf(out, 400, "%" PRIo64, n);
    case 'e':
        return snprintf(out, 400, "%.*e", precision, real);
    case 'E':
        return snprintf(out, 400, "%.*E", precision, real);
    case 'f':
    case 'F':
        return snprintf(out, 400, "%.*f", precision, real);
    case 'g':
        return snprintf(out, 400, "%.*g", precision, real);
    case 'G':
        return snprintf(out, 400, "%.*G", precision, real);
    default:
        return snprintf(out, 400, "%" PRIu64, n);
    }
}

static const struct str *number_text(struct jinja_run *r, struct value v, const struct spec *spec)
{
    const bool minus = v.type == V_FLOAT ? signbit(v.f) != 0 : v.type == V_INT && v.i < 0;
    const char sign = minus ? '-' : spec->sign == '+' || spec->sign == ' ' ? spec->sign : 0;
    char digits[400];
    int n;
    struct out o;

    if (v.type == V_FLOAT && strchr("diuxXo", spec->type ? spec->type : 'd') &&
        !(fabs(v.f) < 9.2e18))
        jinja_fail(r, "OverflowError: a number does not fit in 64 bits");
    n = digits_of(digits, v, spec->type, spec->precision);
    out_init(&o);
    if (sign)
        out_write(r, &o, &sign, 1, !v.foreign);
    if (spec->alternate && spec->type && strchr("xXo", spec->type)) {
        out_write(r, &o, "0", 1, !v.foreign);
        out_write(r, &o, &spec->type, 1, !v.foreign);
    }
    for (int64_t pad = spec->zero ? spec->width - n - (int64_t)o.len : 0; pad > 0; pad--)
        out_write(r, &o, "0", 1, !v.foreign);
    out_write(r, &o, digits, (size_t)n, !v.foreign);
    return out_take(r, &o);
}

static const struct str *cut(struct jinja_run *r, const struct str *s, int precision)
{
    return precision < 0 ? s : str_part(r, s, 0, str_offset(s, (size_t)precision));
}

static const struct str *repr_text(struct jinja_run *r, struct value v)
{
    struct out o;

    out_init(&o);
    out_repr(r, &o, v);
    return out_take(r, &o);
}

/* One %(name)-08.3f behind its '%'; returns where it ends. */
static const char *percent_spec(struct jinja_run *r, struct spec *spec, const char *at,
                                const char *end)
{
    *spec = (struct spec){.precision = -1};
    for (; at < end && *at && strchr("-+ 0#", *at); at++) {
        spec->align = *at == '-' ? '<' : spec->align;
        spec->sign = *at == '+' || (*at == ' ' && !spec->sign) ? *at : spec->sign;
        spec->zero |= *at == '0';
        spec->alternate |= *at == '#';
    }
    spec->width = small_number(r, &at, end);
    if (at < end && *at == '.') {
        at++;
        spec->precision = small_number(r, &at, end);
    }
    if (at == end)
        jinja_fail(r, "ValueError: incomplete format");
    spec->type = *at++;
    return at;
}

static void percent_one(struct jinja_run *r, struct out *o, struct value v,
                        const struct spec *spec_in)
{
    struct spec spec = *spec_in;
    const struct str *s;

    if (spec.align == '<')
        spec.zero = false;
    if (spec.type == 's') {
        s = cut(r, value_text(r, v), spec.precision);
    } else if (spec.type == 'r') {
        s = cut(r, repr_text(r, v), spec.precision);
    } else if (is_one_of(spec.type, "diuxXoeEfFgG")) {
        if (!value_is_number(v))
            jinja_fail(r, "TypeError: %%%c format: a real number is required, not %s", spec.type,
                       value_type_name(v.type));
        s = number_text(r, v, &spec);
    } else {
        jinja_fail(r, "ValueError: unsupported format character '%c'", spec.type);
    }
    write_padded(r, o, s, &spec, spec.align ? spec.align : '>');
}

const struct str *text_percent(struct jinja_run *r, const struct str *s, const struct list *v,
                               const struct dict *named)
{
    const char *at = s->data, *end = s->data + s->len;
    uint32_t used = 0;
    struct spec spec;
    struct out o;

    out_init(&o);
    while (at < end) {
        const char *next = memchr(at, '%', (size_t)(end - at));
        const struct value *one = NULL;

        next = next ? next : end;
        out_part(r, &o, s, (size_t)(at - s->data), (size_t)(next - at));
        if (next == end)
            break;
        at = next + 1;
        if (at < end && *at == '(') {
            const char *close = memchr(at, ')', (size_t)(end - at));

            if (!close || !named)
                jinja_fail(r, "TypeError: format requires a mapping");
            at++;
            one = dict_get_str(r, named, str_new(r, at, (size_t)(close - at), true));
            if (!one)
                jinja_fail(r, "KeyError: the format names what is not given");
            at = close + 1;
        }
        at = percent_spec(r, &spec, at, end);
        if (spec.type == '%') {
            out_write(r, &o, "%", 1, str_own_at(s, (size_t)(at - 1 - s->data)));
            continue;
        }
        if (!one && used == v->n)
            jinja_fail(r, "TypeError: not enough arguments for format string");
        percent_one(r, &o, one ? *one : v->items[used++], &spec);
    }
    if (used < v->n && !named)
        jinja_fail(r, "TypeError: not all arguments converted during string formatting");
    return out_take(r, &o);
}

/* [[fill]align][sign][#][0][width][,][.precision][type] */
static void format_one(struct jinja_run *r, struct out *o, struct value v, const char *at,
                       const char *end, bool own)
{
    struct spec spec = {.precision = -1, .fill_own = own};
    const struct str *s;

    if (end - at > 1 && is_one_of(at[1], "<>^")) {
        spec.fill = at[0];
        spec.align = at[1];
        at += 2;
    } else if (at < end && is_one_of(*at, "<>^")) {
        spec.align = *at++;
    }
    if (at < end && is_one_of(*at, "+- "))
        spec.sign = *at++;
    if (at < end && *at == '0') {
        spec.zero = !spec.align;
        at++;
    }
    spec.width = small_number(r, &at, end);
    if (at < end && *at == '.') {
        at++;
        spec.precision = small_number(r, &at, end);
    }
    if (at < end)
        spec.type = *at++;
    if (at < end || (unsigned char)spec.fill >= 0x80 ||
        (spec.type && !is_one_of(spec.type, "sdxXoeEfFgG")))
        jinja_fail(r, "ValueError: this format is not known here");
    if (v.type != V_STR && !value_is_number(v))
        jinja_fail(r, "TypeError: unsupported format string passed to %s.__format__",
                   value_type_name(v.type));
    if (value_is_number(v) && spec.type != 's' && (v.type != V_BOOL || spec.type || spec.width) &&
        (spec.type || v.type != V_FLOAT)) {
        s = number_text(r, v, &spec);
        spec.align = spec.align ? spec.align : '>';
    } else {
        if (spec.type && spec.type != 's')
            jinja_fail(r, "ValueError: Unknown format code '%c' for object of type '%s'", spec.type,
                       value_type_name(v.type));
        s = cut(r, value_text(r, v), spec.precision);
    }
    write_padded(r, o, s, &spec, spec.align ? spec.align : '<');
}

/* What a field names: {} the next, {2}, {name}, with .attributes. */
static struct value field_value(struct jinja_run *r, const struct args *args, const char *at,
                                const char *end, uint32_t *next)
{
    const char *dot = memchr(at, '.', (size_t)(end - at)), *stop = dot ? dot : end;
    const struct str name = {.data = at, .len = (uint32_t)(stop - at)};
    const struct value *found;
    const char *p = at;
    struct value v;
    int i;

    if (memchr(at, '[', (size_t)(end - at)))
        jinja_fail(r, "ValueError: an index in a format is not known here");
    i = at == stop ? (int)(*next)++ : small_number(r, &p, stop);
    if (p == stop && (uint32_t)i >= args->list.n)
        jinja_fail(r, "IndexError: Replacement index %d out of range for positional args tuple", i);
    found = p == stop ? &args->list.items[i] : dict_get_str(r, &args->named, &name);
    if (!found)
        jinja_fail(r, "KeyError: '%.*s'", (int)(stop - at), at);
    v = *found;
    while (dot) {
        at = dot + 1;
        dot = memchr(at, '.', (size_t)(end - at));
        stop = dot ? dot : end;
        v = value_attr(r, v, str_new(r, at, (size_t)(stop - at), true));
    }
    return v;
}

const struct str *text_format(struct jinja_run *r, const struct str *s, const struct args *args)
{
    const char *at = s->data, *end = s->data + s->len;
    uint32_t next = 0;
    struct out o;

    out_init(&o);
    while (at < end) {
        const char *from = at, *colon, *close;
        struct value v;

        while (at < end && *at != '{' && *at != '}')
            at++;
        out_part(r, &o, s, (size_t)(from - s->data), (size_t)(at - from));
        if (at == end)
            break;
        if (at + 1 < end && at[1] == at[0]) {
            out_part(r, &o, s, (size_t)(at - s->data), 1);
            at += 2;
            continue;
        }
        close = memchr(at, '}', (size_t)(end - at));
        if (*at == '}' || !close || memchr(at + 1, '{', (size_t)(close - at - 1)))
            jinja_fail(r, "ValueError: a brace of a format has no partner");
        at++;
        colon = memchr(at, ':', (size_t)(close - at));
        v = field_value(r, args, at, colon ? colon : close, &next);
        if (colon)
            format_one(r, &o, v, colon + 1, close, str_own_at(s, (size_t)(colon + 1 - s->data)));
        else
            out_value(r, &o, v);
        at = close + 1;
    }
    return out_take(r, &o);
}
