/* pretokenize.c - splits text before byte-pair merging, by the patterns of published tokenizers:
 * hand-written scanners in linear time; categories are utf8proc's. */
#include "engine/text/tokenizer_impl.h"

#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#include <strings.h>
#include <utf8proc.h>

#include "engine/text/utf8.h"

/* As files spell them. GPT-2's is that of ByteLevel with use_regex. */
const char *const pretokenize_patterns[N_PRETOKENIZERS] = {
    [PRETOKENIZE_GPT2] =
        "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+",
    [PRETOKENIZE_QWEN2] = "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}|"
                          " ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+",
    [PRETOKENIZE_LLAMA3] = "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}|"
                           " ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+",
    [PRETOKENIZE_TEKKEN] = "[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]*"
                           "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]+|"
                           "[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]+"
                           "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]*|\\p{N}|"
                           " ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+",
};

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

/* The same for at most so many characters. */
static size_t skip_some(const char *p, size_t n, size_t at, enum char_class kind, int most)
{
    size_t len;

    while (most-- > 0 && peek(p, n, at, &len) == kind)
        at += len;
    return at;
}

/* The length of 's 't 're 've 'm 'll 'd, or 0; where case does not matter, U+017F is an s. */
static size_t contraction(const char *p, size_t n, bool any_case)
{
    static const char *const ends[] = {"s", "t", "re", "ve", "m", "ll", "d", "\xc5\xbf"};

    for (size_t i = 0; i < sizeof(ends) / sizeof(*ends) - !any_case; i++) {
        size_t len = strlen(ends[i]);

        if (n > len && !(any_case ? strncasecmp : strncmp)(p + 1, ends[i], len))
            return 1 + len;
    }
    return 0;
}

/* The length of the white space at p that is one piece: where newlines count, up to the last of
 * them; else, if text follows, without its last character; else all of it. */
static size_t space_run(const char *p, size_t n, bool newlines)
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
    if (newlines && newline_end)
        return newline_end;
    return at < n && at > last_len ? at - last_len : at;
}

/* A space belongs to what follows, whatever it is; newlines are white space like any other. */
static size_t next_gpt2(const char *p, size_t n)
{
    size_t len, next_len, at = p[0] == '\'' ? contraction(p, n, false) : 0;
    enum char_class kind = peek(p, n, 0, &len);

    if (at)
        return at;
    if (p[0] == ' ') {
        kind = peek(p, n, 1, &next_len);
        len = 1 + next_len;
    }
    if (kind == CLASS_LETTER || kind == CLASS_NUMBER || kind == CLASS_OTHER)
        return skip(p, n, len, kind);
    return space_run(p, n, false);
}

/* ---- tekken, which splits words where small letters end and capitals begin */

enum { BEFORE = 1, AFTER = 2 }; /* may stand before the small letters, may be one of them */

static int case_of(const char *p, size_t n, size_t at, size_t *len)
{
    uint32_t cp;

    *len = 0;
    if (at >= n)
        return 0;
    *len = utf8_read_valid(p + at, &cp);
    switch (utf8proc_get_property((int32_t)cp)->category) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LT:
        return BEFORE;
    case UTF8PROC_CATEGORY_LL:
        return AFTER;
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
        return BEFORE | AFTER;
    default:
        return 0;
    }
}

/* Where the word at p[at] ends: any number of those before, and then as many of those after as
 * there are, at least one. at: there is no such word. */
static size_t word_end(const char *p, size_t n, size_t at)
{
    size_t len, last_after = at;
    int kind;

    while ((kind = case_of(p, n, at, &len)) & BEFORE) {
        at += len;
        if (kind & AFTER)
            last_after = at;
    }
    if (kind & AFTER) {
        while (case_of(p, n, at, &len) & AFTER)
            at += len;
        last_after = at;
    }
    return last_after;
}

/* The longest run of those before. */
static size_t capitals_end(const char *p, size_t n, size_t at)
{
    size_t len;

    while (case_of(p, n, at, &len) & BEFORE)
        at += len;
    return at;
}

/* The length of the word at p, with what is in front of it or without; 0: there is none. */
static size_t cased_word(const char *p, size_t n, size_t front)
{
    size_t end = word_end(p, n, front);

    if (end > front)
        return end;
    end = front ? word_end(p, n, 0) : 0;
    if (end > 0)
        return end;
    end = capitals_end(p, n, front);
    return end > front || front == 0 ? end : capitals_end(p, n, 0);
}

/* ---- Qwen2's pattern, Llama 3's, in which numbers come in groups of three, and tekken's */

static size_t next_piece(const char *p, size_t n, enum pretokenizer pattern)
{
    const bool tekken = pattern == PRETOKENIZE_TEKKEN;
    size_t len, next_len, at;
    const enum char_class kind = peek(p, n, 0, &len);
    /* Anything but newlines, letters and numbers may stand in front of a word. */
    const size_t front = kind == CLASS_OTHER || kind == CLASS_SPACE ? len : 0;

    if (kind == CLASS_NUMBER)
        return skip_some(p, n, len, CLASS_NUMBER, pattern == PRETOKENIZE_LLAMA3 ? 2 : 0);
    if (!tekken && p[0] == '\'' && (at = contraction(p, n, true)) > 0)
        return at;
    at = tekken ? cased_word(p, n, front) : skip(p, n, front, CLASS_LETTER);
    if (at > (tekken ? 0 : front))
        return at;
    if (kind == CLASS_OTHER || (p[0] == ' ' && peek(p, n, len, &next_len) == CLASS_OTHER)) {
        at = skip(p, n, len, CLASS_OTHER);
        while (at < n && (p[at] == '\r' || p[at] == '\n' || (tekken && p[at] == '/')))
            at++;
        return at;
    }
    return space_run(p, n, true);
}

bool pretokenize_is_space(uint32_t cp)
{
    const enum char_class kind = class_of(cp);

    return kind == CLASS_SPACE || kind == CLASS_NEWLINE;
}

/* Letters, marks, decimal digits and connectors, and what Unicode calls alphabetic beside letters
 * or has to join them: as the reference's regular expressions have it. */
bool pretokenize_is_word(uint32_t cp)
{
    static const uint32_t others[][2] = {{0x200c, 0x200d},
                                         {0x24b6, 0x24e9},
                                         {0x1f130, 0x1f149},
                                         {0x1f150, 0x1f169},
                                         {0x1f170, 0x1f189}};
    const int category = utf8proc_get_property((int32_t)cp)->category;

    for (size_t i = 0; i < sizeof(others) / sizeof(*others); i++)
        if (cp >= others[i][0] && cp <= others[i][1])
            return true;
    return (category >= UTF8PROC_CATEGORY_LU && category <= UTF8PROC_CATEGORY_NL) ||
           category == UTF8PROC_CATEGORY_PC;
}

size_t pretokenize_next(enum pretokenizer kind, const char *p, size_t n)
{
    switch (kind) {
    case PRETOKENIZE_NONE:
        return n; /* all of it is one word */
    case PRETOKENIZE_GPT2:
        return next_gpt2(p, n);
    default:
        return next_piece(p, n, kind);
    }
}
