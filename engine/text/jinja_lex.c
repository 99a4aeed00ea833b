/* jinja_lex.c - cuts a template into tokens, with the whitespace control of trim_blocks and
 * lstrip_blocks. See jinja_impl.h. */
#include <errno.h>
#include <stdlib.h>

#include "engine/text/jinja_tree.h"
#include "engine/text/utf8.h"
#include "engine/util/hex.h"
#include "engine/util/checked.h"

enum { BRACKETS_MAX = 200 };

struct lexer {
    struct jinja_run *r;
    const char *s; /* NUL-terminated, with \n as the only end of a line */
    size_t n, at;
    size_t counted; /* up to which line and column are */
    uint32_t line, column;
    struct token *tokens;
    size_t n_tokens, cap;
    char brackets[BRACKETS_MAX];
    int n_brackets;
    bool line_starts; /* what was matched last ended with a newline */
};

/* Positions are asked for in ascending order. */
static uint32_t position(struct lexer *l, size_t at)
{
    for (; l->counted < at; l->counted++) {
        if (l->s[l->counted] == '\n') {
            l->line++;
            l->column = 1;
        } else if (((unsigned char)l->s[l->counted] & 0xc0) != 0x80) {
            l->column++;
        }
    }
    return l->line << JINJA_COLUMN_BITS |
           (l->column < 1u << JINJA_COLUMN_BITS ? l->column : (1u << JINJA_COLUMN_BITS) - 1);
}

static struct token *add(struct lexer *l, enum token_type type, size_t at)
{
    struct token *t;

    if (l->n_tokens == l->cap) {
        l->cap = l->cap * 2 + 64;
        l->tokens = jinja_grow(l->r, l->tokens, l->n_tokens * sizeof(*l->tokens),
                               l->cap * sizeof(*l->tokens));
    }
    t = &l->tokens[l->n_tokens++];
    *t = (struct token){.type = (uint8_t)type, .pos = position(l, at)};
    l->r->pos = t->pos;
    return t;
}

static size_t space_len(const struct lexer *l, size_t at)
{
    uint32_t cp;
    size_t len = at < l->n ? utf8_read(l->s + at, l->n - at, &cp) : 0;

    return len && str_is_space(cp) ? len : 0;
}

static size_t skip_space(const struct lexer *l, size_t at)
{
    for (size_t len; (len = space_len(l, at)) > 0;)
        at += len;
    return at;
}

/* The end of s[from..to) without the whitespace at its end. */
static size_t rstrip(const struct lexer *l, size_t from, size_t to)
{
    while (to > from) {
        const size_t at = to - utf8_last(l->s + from, to - from);
        uint32_t cp;

        utf8_read(l->s + at, to - at, &cp);
        if (!str_is_space(cp))
            break;
        to = at;
    }
    return to;
}

/* Text in front of a tag whose sign is '-', '+' or neither. */
static void add_data(struct lexer *l, size_t from, size_t to, char sign, bool is_variable)
{
    if (sign == '-') {
        to = rstrip(l, from, to);
    } else if (sign != '+' && !is_variable) {
        size_t line = to;

        while (line > from && l->s[line - 1] != '\n')
            line--;
        if ((line > from || l->line_starts) && line < to && skip_space(l, line) >= to)
            to = line;
    }
    if (to > from)
        add(l, T_DATA, from)->text = str_new(l->r, l->s + from, to - from, true);
}

static void matched(struct lexer *l, size_t end)
{
    l->at = end;
    l->line_starts = end > 0 && l->s[end - 1] == '\n';
}

/* Behind the end of a block or comment, whose closing characters are at `at`, with their sign in
 * front; *end is set if they are there. */
static bool tag_end(const struct lexer *l, size_t at, const char *close, size_t *end)
{
    char sign = l->s[at];

    if (sign == '-' || sign == '+')
        at++;
    else
        sign = 0;
    if (strncmp(l->s + at, close, 2) != 0)
        return false;
    at += 2;
    if (sign == '-')
        at = skip_space(l, at);
    else if (!sign && l->s[at] == '\n')
        at++;
    *end = at;
    return true;
}

/* At the beginning of a tag: the end of "{%- raw", if that is what it is. */
static bool starts_word(const struct lexer *l, size_t at, const char *word, size_t *end)
{
    at += 2;
    if (l->s[at] == '-' || l->s[at] == '+')
        at++;
    at = skip_space(l, at);
    if (strncmp(l->s + at, word, strlen(word)) != 0)
        return false;
    *end = skip_space(l, at + strlen(word));
    return true;
}

static bool raw_begins(const struct lexer *l, size_t at, size_t *end)
{
    if (!starts_word(l, at, "raw", &at))
        return false;
    if (strncmp(l->s + at, "-%}", 3) == 0) {
        *end = skip_space(l, at + 3);
        return true;
    }
    *end = at + 2;
    return strncmp(l->s + at, "%}", 2) == 0;
}

static void lex_raw(struct lexer *l, size_t begin)
{
    size_t from = l->at, at = from, end;

    for (;; at++) {
        const char *tag = strstr(l->s + at, "{%");

        if (!tag) {
            l->r->pos = position(l, begin);
            jinja_fail(l->r, "{%% raw %%} has no {%% endraw %%}");
        }
        at = (size_t)(tag - l->s);
        if (starts_word(l, at, "endraw", &end) && tag_end(l, end, "%}", &end))
            break;
    }
    add_data(l, from, at, l->s[at + 2], false);
    matched(l, end);
}

static void lex_comment(struct lexer *l, size_t begin)
{
    const char *close = strstr(l->s + l->at, "#}");
    size_t at, end = 0;

    if (!close) {
        l->r->pos = position(l, begin);
        jinja_fail(l->r, "a comment has no #}");
    }
    at = (size_t)(close - l->s);
    if (at > l->at && (close[-1] == '-' || close[-1] == '+'))
        at--;
    tag_end(l, at, "#}", &end);
    matched(l, end);
}

/* ---- inside tags */

static bool is_name(char c)
{
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' ||
           (unsigned char)c >= 0x80;
}

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

static size_t digits(const char *s)
{
    size_t n = 0;

    while (is_digit(s[n]) || (n && s[n] == '_' && is_digit(s[n + 1])))
        n++;
    return n;
}

static size_t exponent(const char *s)
{
    size_t sign = s[0] && (s[1] == '+' || s[1] == '-');

    return (s[0] == 'e' || s[0] == 'E') && is_digit(s[1 + sign]) ? 1 + sign + digits(s + 1 + sign)
                                                                 : 0;
}

static void lex_number(struct lexer *l)
{
    const char *s = l->s + l->at;
    size_t n = digits(s), len = 0, more;
    struct token *t = add(l, T_NUMBER, l->at);
    char text[64], *end;
    int base = 10;
    bool real = false;

    if (s[0] == '0' && s[1] && strchr("xXoObB", s[1])) {
        base = strchr("xX", s[1]) ? 16 : strchr("oO", s[1]) ? 8 : 2;
        s += 2;
        l->at += 2;
        for (n = 0; is_name(s[n]);)
            n++;
    } else {
        if (s[n] == '.' && (more = digits(s + n + 1)) > 0) {
            n += 1 + more;
            real = true;
        }
        if ((more = exponent(s + n)) > 0) {
            n += more;
            real = true;
        }
    }
    for (size_t i = 0; i < n && len + 1 < sizeof(text); i++)
        if (s[i] != '_')
            text[len++] = s[i];
    text[len] = '\0';
    errno = 0;
    t->value = real ? value_float(strtod(text, &end)) : value_int(strtoll(text, &end, base));
    if (*end || !len || (!real && errno) || len + 1 == sizeof(text))
        jinja_fail(l->r, "%s is not a number that fits in 64 bits", text);
    l->at += n;
}

/* The value of n hexadecimal digits; UTF8_BROKEN if they are no character. */
static uint32_t hex(const char *s, int n)
{
    uint32_t cp = 0;

    for (int i = 0; i < n; i++) {
        const int digit = hex_digit((unsigned char)s[i]);

        if (digit < 0)
            return UTF8_BROKEN;
        cp = cp << 4 | (uint32_t)digit;
        cp = cp > UTF8_BROKEN ? UTF8_BROKEN : cp;
    }
    return cp >= 0xd800 && cp < 0xe000 ? UTF8_BROKEN : cp;
}

/* One escape of Python's behind its backslash; *at goes behind it. Unknown ones stay as they are.
 */
static size_t unescape(struct lexer *l, const char **at, char *out)
{
    static const char from[] = "abfnrtv\\'\"", to[] = "\a\b\f\n\r\t\v\\'\"";
    const char c = *(*at)++;
    const char *known = strchr(from, c);
    uint32_t cp = 0;
    int n = c == 'x' ? 2 : c == 'u' ? 4 : 8;

    if (c == '\n')
        return 0;
    if (known && c) {
        *out = to[known - from];
        return 1;
    }
    if (c >= '0' && c <= '7') {
        cp = (uint32_t)(c - '0');
        for (int i = 0; i < 2 && **at >= '0' && **at <= '7'; i++)
            cp = cp << 3 | (uint32_t)(*(*at)++ - '0');
        return utf8_write(out, cp);
    }
    if (c == 'x' || c == 'u' || c == 'U') {
        cp = hex(*at, n);
        if (cp >= UTF8_BROKEN)
            jinja_fail(l->r, "\\%c needs %d hexadecimal digits of a character", c, n);
        *at += n;
        return utf8_write(out, cp);
    }
    out[0] = '\\';
    out[1] = c;
    return 2;
}

static void lex_string(struct lexer *l)
{
    struct token *t = add(l, T_STRING, l->at);
    const char quote = l->s[l->at], *at = l->s + l->at + 1, *end = at;
    char *text;
    size_t n = 0;

    while (*end && *end != quote)
        end += end[0] == '\\' && end[1] ? 2 : 1;
    if (!*end)
        jinja_fail(l->r, "a string has no end");
    text = jinja_take(l->r, (size_t)(end - at) + 1); /* no escape grows */
    while (at < end) {
        if (*at != '\\') {
            text[n++] = *at++;
            continue;
        }
        at++;
        n += unescape(l, &at, text + n);
    }
    t->text = str_new(l->r, text, n, true);
    l->at = (size_t)(end + 1 - l->s);
}

static void lex_operator(struct lexer *l)
{
    static const char *const two[] = {"//", "**", "==", "!=", ">=", "<="};
    static const char opening[] = "([{", closing[] = ")]}";
    const char *s = l->s + l->at;
    struct token *t = add(l, T_OPERATOR, l->at);

    for (size_t i = 0; i < sizeof(two) / sizeof(*two); i++) {
        if (strncmp(s, two[i], 2) == 0) {
            t->op = OP(s[0], s[1]);
            l->at += 2;
            return;
        }
    }
    if (!strchr("+-/*%~[](){}><=.:|,;", *s))
        jinja_fail(l->r, "'%.*s' is not expected here", 1, (unsigned char)*s < 0x80 ? s : "?");
    if (strchr(opening, *s)) {
        if (l->n_brackets == BRACKETS_MAX)
            jinja_fail(l->r, "more than %d brackets in each other", (int)BRACKETS_MAX);
        l->brackets[l->n_brackets++] = closing[strchr(opening, *s) - opening];
    } else if (strchr(closing, *s)) {
        if (!l->n_brackets || l->brackets[l->n_brackets - 1] != *s)
            jinja_fail(l->r, "'%c' closes nothing", *s);
        l->n_brackets--;
    }
    t->op = OP(0, *s);
    l->at++;
}

/* The end of a {{ }} or {% %}; inside brackets there is none. */
static bool lex_end(struct lexer *l, bool is_variable)
{
    size_t at = l->at, end;

    if (l->n_brackets)
        return false;
    if (is_variable) {
        bool strip = l->s[at] == '-';

        if (strncmp(l->s + at + strip, "}}", 2) != 0)
            return false;
        end = at + strip + 2;
        end = strip ? skip_space(l, end) : end;
    } else if (!tag_end(l, at, "%}", &end)) {
        return false;
    }
    add(l, is_variable ? T_VARIABLE_END : T_BLOCK_END, at);
    matched(l, end);
    return true;
}

static void lex_tag(struct lexer *l, size_t begin, bool is_variable)
{
    const uint32_t pos = add(l, is_variable ? T_VARIABLE_BEGIN : T_BLOCK_BEGIN, begin)->pos;

    while (!lex_end(l, is_variable)) {
        const char c = l->s[l->at];
        size_t from = l->at;

        if (space_len(l, l->at)) {
            l->at = skip_space(l, l->at);
        } else if (l->at >= l->n) {
            l->r->pos = pos;
            jinja_fail(l->r, is_variable ? "{{ has no }}" : "{%% has no %%}");
        } else if (is_digit(c)) {
            lex_number(l);
        } else if (is_name(c)) {
            while (is_name(l->s[l->at]))
                l->at++;
            add(l, T_NAME, from)->text = str_new(l->r, l->s + from, l->at - from, true);
        } else if (c == '"' || c == '\'') {
            lex_string(l);
        } else {
            lex_operator(l);
        }
    }
}

/* ---- the whole */

/* \r\n and \r become \n; a newline at the end is none of the text. */
static void normalise(struct lexer *l, struct text source)
{
    char *s = jinja_take(l->r, source.len + 4); /* a look-ahead ends at a NUL */
    size_t n = 0;

    for (size_t i = 0; i < source.len; i++) {
        if (!source.data[i])
            jinja_fail(l->r, "has a NUL");
        if (source.data[i] != '\r')
            s[n++] = source.data[i];
        else if (i + 1 == source.len || source.data[i + 1] != '\n')
            s[n++] = '\n';
    }
    if (n && s[n - 1] == '\n')
        n--;
    memset(s + n, 0, 4);
    l->s = s;
    l->n = n;
}

static size_t find_tag(const struct lexer *l)
{
    for (size_t at = l->at; at < l->n; at++) {
        const char *brace = memchr(l->s + at, '{', l->n - at);

        if (!brace)
            break;
        at = (size_t)(brace - l->s);
        if (brace[1] == '{' || brace[1] == '%' || brace[1] == '#')
            return at;
    }
    return l->n;
}

struct token *jinja_lex(struct jinja_run *r, struct text source)
{
    struct lexer l = {.r = r, .line = 1, .column = 1, .line_starts = true};
    uint32_t cp;

    r->pos = 1 << JINJA_COLUMN_BITS | 1;
    if (source.len > JINJA_SOURCE_MAX)
        jinja_fail_as(r, -ENOTSUP, "the template is larger than %d bytes", (int)JINJA_SOURCE_MAX);
    for (size_t i = 0, len; i < source.len; i += len) {
        len = utf8_read(source.data + i, source.len - i, &cp);
        if (!len || cp == UTF8_BROKEN)
            jinja_fail(r, "byte %zu is not UTF-8", i);
    }
    normalise(&l, source);
    while (l.at < l.n) {
        const size_t from = l.at, at = find_tag(&l);
        const char kind = l.s[at] ? l.s[at + 1] : 0;
        const char sign = kind ? l.s[at + 2] : '+';
        size_t end;

        add_data(&l, from, at, sign, kind == '{' || !kind);
        if (!kind)
            break;
        if (kind == '%' && raw_begins(&l, at, &end)) {
            matched(&l, end);
            lex_raw(&l, at);
            continue;
        }
        l.at = at + 2 + (sign == '-' || sign == '+');
        if (kind == '#')
            lex_comment(&l, at);
        else
            lex_tag(&l, at, kind == '{');
    }
    add(&l, T_END, l.n);
    return l.tokens;
}
