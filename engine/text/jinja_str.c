/* jinja_str.c - strings that know who wrote each byte: parts, sums, comparison. See jinja_impl.h.
 */
#include <errno.h>

#include "engine/text/jinja_impl.h"

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

const struct str *str_joined(struct jinja_run *r, const struct list *parts)
{
    struct out o;

    out_init(&o);
    for (uint32_t i = 0; i < parts->n; i++)
        out_str(r, &o, parts->items[i].str);
    return out_take(r, &o);
}

/* The sum may go on behind a: so a text that grows piece by piece is not copied whole for each. */
static struct str *concat(struct jinja_run *r, const struct str *a, const struct str *b)
{
    struct out *o = a->from;
    struct str *s;

    if (!o || o->len == 0 || a->data + a->len != o->data + o->len) {
        o = jinja_take(r, sizeof(*o));
        out_init(o);
        out_str(r, o, a);
    }
    out_str(r, o, b);
    s = out_take(r, o);
    s->from = o;
    return s;
}

/* What stands for a character in HTML; NULL: itself. */
static const char *entity(char c)
{
    return c == '&'    ? "&amp;"
           : c == '<'  ? "&lt;"
           : c == '>'  ? "&gt;"
           : c == '"'  ? "&#34;"
           : c == '\'' ? "&#39;"
                       : NULL;
}

const struct str *str_escaped(struct jinja_run *r, const struct str *s)
{
    uint32_t first = 0;
    struct out o;

    while (first < s->len && !entity(s->data[first]))
        first++;
    if (s->markup || first == s->len)
        return s;
    out_init(&o);
    for (uint32_t i = 0; i < s->len; i++) {
        const char *as = entity(s->data[i]);

        out_write(r, &o, as ? as : &s->data[i], as ? strlen(as) : 1, str_own_at(s, i));
    }
    return out_take(r, &o);
}

const struct str *str_marked(struct jinja_run *r, const struct str *s, bool markup)
{
    struct str *copy;

    if (s->markup == markup)
        return s;
    copy = jinja_take(r, sizeof(*copy));
    *copy = *s;
    copy->markup = markup;
    return copy;
}

/* Python's +: next to marked text the other is escaped, and the sum is marked. */
const struct str *str_concat(struct jinja_run *r, const struct str *a, const struct str *b)
{
    struct str *sum;

    if (a->markup || b->markup) {
        sum = concat(r, str_escaped(r, a), str_escaped(r, b));
        sum->markup = true;
        return sum;
    }
    if (!a->len)
        return b;
    return b->len ? concat(r, a, b) : a;
}
