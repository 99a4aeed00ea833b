/* pretokenize.c - splits text before byte-pair merging by Qwen2's pattern: a hand-written scanner
 * in linear time; categories are utf8proc's. */
#include "engine/text/tokenizer_impl.h"

#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#include <strings.h>
#include <utf8proc.h>

#include "engine/text/utf8.h"

const char pretokenize_qwen2_pattern[] =
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}|"
    " ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";

enum char_class {
    CLASS_OTHER,
    CLASS_LETTER,  /* \p{L} */
    CLASS_NUMBER,  /* \p{N} */
    CLASS_SPACE,   /* \s except the two below */
    CLASS_NEWLINE, /* \r \n */
    CLASS_END,     /* past the last byte */
};

/* White_Space beyond the categories Zs, Zl and Zp. */
static bool is_control_space(uint32_t cp)
{
    return (cp >= '\t' && cp <= '\r') || cp == 0x85;
}

static enum char_class class_of(uint32_t cp)
{
    int category;

    if (cp < 0x80) {
        if ((cp | 0x20) >= 'a' && (cp | 0x20) <= 'z')
            return CLASS_LETTER;
        if (cp >= '0' && cp <= '9')
            return CLASS_NUMBER;
        if (cp == '\n' || cp == '\r')
            return CLASS_NEWLINE;
        return cp == ' ' || is_control_space(cp) ? CLASS_SPACE : CLASS_OTHER;
    }
    category = utf8proc_get_property((int32_t)cp)->category;
    if (category >= UTF8PROC_CATEGORY_LU && category <= UTF8PROC_CATEGORY_LO)
        return CLASS_LETTER;
    if (category >= UTF8PROC_CATEGORY_ND && category <= UTF8PROC_CATEGORY_NO)
        return CLASS_NUMBER;
    if (category >= UTF8PROC_CATEGORY_ZS && category <= UTF8PROC_CATEGORY_ZP)
        return CLASS_SPACE;
    return is_control_space(cp) ? CLASS_SPACE : CLASS_OTHER;
}

/* The class of the character at p[at], and its length. */
static enum char_class peek(const char *p, size_t n, size_t at, size_t *len)
{
    uint32_t cp;

    *len = 0;
    if (at >= n)
        return CLASS_END;
    *len = utf8_read_valid(p + at, &cp);
    return class_of(cp);
}

static size_t skip(const char *p, size_t n, size_t at, enum char_class kind)
{
    size_t len;

    while (peek(p, n, at, &len) == kind)
        at += len;
    return at;
}

/* The length of 's 't 're 've 'm 'll 'd in either case, or 0. U+017F folds to s. */
static size_t contraction(const char *p, size_t n)
{
    static const char *const ends[] = {"s", "t", "re", "ve", "m", "ll", "d", "\xc5\xbf"};

    for (size_t i = 0; i < sizeof(ends) / sizeof(*ends); i++) {
        size_t len = strlen(ends[i]);

        if (n > len && !strncasecmp(p + 1, ends[i], len))
            return 1 + len;
    }
    return 0;
}

/* The length of the white space at p that is one piece: up to its last newline; else, if text
 * follows, without its last character; else all of it. */
static size_t space_run(const char *p, size_t n)
{
    size_t at = 0, newline_end = 0, last_len = 0;

    for (;;) {
        size_t len;
        enum char_class kind = peek(p, n, at, &len);

        if (kind != CLASS_SPACE && kind != CLASS_NEWLINE)
            break;
        at += len;
        last_len = len;
        if (kind == CLASS_NEWLINE)
            newline_end = at;
    }
    if (newline_end)
        return newline_end;
    return at < n && at > last_len ? at - last_len : at;
}

size_t pretokenize_next(const char *p, size_t n)
{
    size_t len, next_len, at;
    enum char_class kind = peek(p, n, 0, &len);
    enum char_class next;

    if (kind == CLASS_LETTER)
        return skip(p, n, len, CLASS_LETTER);
    if (kind == CLASS_NUMBER)
        return len;
    if (p[0] == '\'') {
        at = contraction(p, n);
        if (at)
            return at;
    }
    next = peek(p, n, len, &next_len);
    if (kind != CLASS_NEWLINE && next == CLASS_LETTER)
        return skip(p, n, len + next_len, CLASS_LETTER);
    if (kind == CLASS_OTHER || (p[0] == ' ' && next == CLASS_OTHER)) {
        at = skip(p, n, len, CLASS_OTHER);
        return skip(p, n, at, CLASS_NEWLINE);
    }
    return space_run(p, n);
}
