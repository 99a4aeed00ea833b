/* test_pretokenize.c - the hand-written scanner against the pattern, run by PCRE2, and NFC against
 * utf8proc's. */
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

#include "engine/text/tokenizer_impl.h"
#include "engine/text/utf8.h"
#include "tests/unit/run_suite.h"

/* The pattern with \s spelled out: PCRE2's contains U+180E, which is no longer white space. */
#define SPACE                                                                                      \
    "\\t-\\r \\x{85}\\x{A0}\\x{1680}\\x{2000}-\\x{200A}\\x{2028}\\x{2029}\\x{202F}\\x{205F}"       \
    "\\x{3000}"
#define CONTRACTIONS "'s|'t|'re|'ve|'m|'ll|'d"
#define FRONT        "[^\\r\\n\\p{L}\\p{N}]?"
#define BEFORE       "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]"
#define AFTER        "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]"
#define SPACES       "[" SPACE "]+(?![^" SPACE "])|[" SPACE "]+"
#define REST(ends)   " ?[^" SPACE "\\p{L}\\p{N}]+[" ends "]*|[" SPACE "]*[\\r\\n]+|" SPACES

static const char *const patterns[N_PRETOKENIZERS] = {
    [PRETOKENIZE_GPT2] = CONTRACTIONS "| ?\\p{L}+| ?\\p{N}+| ?[^" SPACE "\\p{L}\\p{N}]+|" SPACES,
    [PRETOKENIZE_QWEN2] = "(?i:" CONTRACTIONS ")|" FRONT "\\p{L}+|\\p{N}|" REST("\\r\\n"),
    [PRETOKENIZE_LLAMA3] = "(?i:" CONTRACTIONS ")|" FRONT "\\p{L}+|\\p{N}{1,3}|" REST("\\r\\n"),
    [PRETOKENIZE_TEKKEN] =
        FRONT BEFORE "*" AFTER "+|" FRONT BEFORE "+" AFTER "*|\\p{N}|" REST("\\r\\n/"),
};

static pcre2_code *codes[N_PRETOKENIZERS];
static pcre2_match_data *match;
static struct nfc nfc;
static struct nfc_text out; /* of the last normalization */

static void setup(void)
{
    int error;
    PCRE2_SIZE at;

    for (int k = PRETOKENIZE_GPT2; k < N_PRETOKENIZERS; k++) {
        codes[k] = pcre2_compile((PCRE2_SPTR)patterns[k], PCRE2_ZERO_TERMINATED,
                                 PCRE2_UTF | PCRE2_UCP, &error, &at, NULL);
        ck_assert_ptr_nonnull(codes[k]);
        (void)pcre2_jit_compile(codes[k], PCRE2_JIT_COMPLETE);
    }
    match = pcre2_match_data_create(4, NULL);
    nfc = (struct nfc){0};
    nfc_init(&nfc);
}

static void teardown(void)
{
    nfc_text_deinit(&out);
    pcre2_match_data_free(match);
    for (int k = PRETOKENIZE_GPT2; k < N_PRETOKENIZERS; k++)
        pcre2_code_free(codes[k]);
}

static void compare_by(enum pretokenizer kind, const char *text, size_t n)
{
    for (size_t at = 0; at < n;) {
        int r = pcre2_match(codes[kind], (PCRE2_SPTR)text, n, at, PCRE2_NO_UTF_CHECK, match, NULL);
        PCRE2_SIZE *span = pcre2_get_ovector_pointer(match);
        size_t len = pretokenize_next(kind, text + at, n - at);

        if (r <= 0 || span[0] != at || span[1] - at != len)
            ck_abort_msg("pattern %d, at byte %zu of \"%.*s\": %zu bytes, not %zu", (int)kind, at,
                         (int)n, text, len, r > 0 ? (size_t)(span[1] - at) : 0);
        at += len;
    }
}

/* Each scanner splits the text as its pattern. One assertion for all pieces, because each is a
 * system call. */
static void compare(const char *text, size_t n)
{
    for (enum pretokenizer kind = PRETOKENIZE_GPT2; kind < N_PRETOKENIZERS; kind++)
        compare_by(kind, text, n);
}

/* Whether the character is assigned in PCRE2's Unicode and in utf8proc's. */
static bool is_common(uint32_t cp)
{
    static pcre2_code *assigned;
    char text[4];
    size_t n;
    int error;
    PCRE2_SIZE at;

    if (!assigned)
        assigned = pcre2_compile((PCRE2_SPTR) "[^\\p{Cn}\\p{Cs}]", PCRE2_ZERO_TERMINATED,
                                 PCRE2_UTF | PCRE2_UCP, &error, &at, NULL);
    if (cp > 0x10ffff || (cp >= 0xd800 && cp <= 0xdfff))
        return false;
    n = utf8_write(text, cp);
    return utf8proc_category((int32_t)cp) != UTF8PROC_CATEGORY_CN &&
           pcre2_match(assigned, (PCRE2_SPTR)text, n, 0, PCRE2_NO_UTF_CHECK, match, NULL) > 0;
}

/* Each character of Unicode, between others of each class, is split as by the pattern. */
TEST(each_character)
{
    static const char *const around[][2] = {{"a", "b"},   {" ", " "}, {"1", "1"},
                                            {"\n", "\n"}, {"'", "!"}, {"  ", ""}};
    size_t n_seen = 0;

    for (uint32_t cp = 1; cp < 0x110000; cp += cp < 0x3400 ? 1 : 7) {
        char one[5] = {0}, text[16];

        if (!is_common(cp))
            continue;
        utf8_write(one, cp);
        n_seen++;
        for (size_t i = 0; i < N(around); i++) {
            int n = snprintf(text, sizeof(text), "%s%s%s", around[i][0], one, around[i][1]);

            compare(text, (size_t)n);
        }
    }
    ck_assert_uint_gt(n_seen, 20000);
}

static const char *const pieces[] = {" ",
                                     "  ",
                                     "\n",
                                     "\r",
                                     "\r\n",
                                     "\t",
                                     "a",
                                     "Z",
                                     "'s",
                                     "'S",
                                     "'re",
                                     "'LL",
                                     "'\xc5\xbf",
                                     "'l",
                                     "'v",
                                     "'",
                                     "\"",
                                     "!",
                                     "?!",
                                     "1",
                                     "42",
                                     "12345",
                                     "HTTPServer",
                                     "\xc7\x85", /* a title-case letter */
                                     "\xca\xb0", /* a modifier letter */
                                     "a/\n",
                                     "/",
                                     "\xc2\xb2",
                                     "\xe2\x85\xa7",
                                     "\xc3\xa9",
                                     "e\xcc\x81",
                                     "\xcc\x81",
                                     "\xe4\xbd\xa0",
                                     "\xf0\x9f\x98\x80",
                                     "\xc2\xa0",
                                     "\xe3\x80\x80",
                                     "\xc2\x85",
                                     "\xe2\x80\xa8",
                                     "\xe2\x80\x8b",
                                     "\xe1\xa0\x8e",
                                     "\xd7\x90",
                                     "\xe0\xa4\x95\xe0\xa4\xbf",
                                     "_",
                                     "\x01",
                                     "\x0b",
                                     "<|im_end|>",
                                     "\xf0\x9d\x9f\x98",
                                     "\xef\xbf\xbd"};

/* Random texts of what the pattern tells apart. */
TEST(random_pieces)
{
    srandom(5);
    for (int round = 0; round < 60000; round++) {
        char text[400];
        size_t n = 0;

        for (long k = random() % 14; k >= 0; k--) {
            const char *piece = pieces[(size_t)random() % N(pieces)];

            memcpy(text + n, piece, strlen(piece));
            n += strlen(piece);
        }
        compare(text, n);
    }
}

/* Random characters from all planes, many of them ASCII. */
TEST(random_characters)
{
    srandom(6);
    for (int round = 0; round < 30000; round++) {
        char text[200];
        size_t n = 0;

        for (long k = random() % 30; k >= 0; k--) {
            static const uint32_t limits[] = {0x80, 0x80, 0x250, 0x3100, 0x20000};
            uint32_t cp = (uint32_t)random() % limits[random() % 5];

            if (is_common(cp) && cp)
                n += utf8_write(text + n, cp);
        }
        compare(text, n);
    }
}

/* NFC by utf8proc alone. */
static void compare_nfc(const char *text, size_t n)
{
    utf8proc_uint8_t *want = NULL;
    utf8proc_ssize_t len = utf8proc_map((const utf8proc_uint8_t *)text, (utf8proc_ssize_t)n, &want,
                                        UTF8PROC_STABLE | UTF8PROC_COMPOSE);

    if (len < 0 || nfc_normalize(&nfc, (struct text){text, n}, NULL, 0, &out) ||
        out.text.len != (size_t)len || memcmp(out.text.data, want, (size_t)len) != 0)
        ck_abort_msg("\"%.*s\" becomes \"%.*s\", not \"%s\"", (int)n, text, (int)out.text.len,
                     out.text.data, want);
    free(want);
}

/* Each character alone, behind a letter and before a mark is normalized as utf8proc does it. */
TEST(nfc_of_each_character)
{
    for (uint32_t cp = 1; cp < 0x110000; cp++) {
        char text[16];
        size_t n;

        if ((cp >= 0xd800 && cp <= 0xdfff) || (cp > 0x30000 && cp < 0xe0000) || cp > 0xe1000)
            continue;
        n = utf8_write(text, cp);
        compare_nfc(text, n);
        memcpy(text + n, "\xcc\x81", 2);
        compare_nfc(text, n + 2);
        text[0] = 'a';
        n = 1 + utf8_write(text + 1, cp);
        compare_nfc(text, n);
    }
}

/* The result with each byte a range of its own: what a range is left with is as it was, and what
 * none has was changed. */
static void compare_ranges(const char *text, size_t n)
{
    struct text_range ranges[400];
    size_t last = 0, n_kept = 0;

    for (size_t i = 0; i < n; i++)
        ranges[i] = (struct text_range){i, i + 1};
    ck_assert_int_eq(nfc_normalize(&nfc, (struct text){text, n}, ranges, n, &out), 0);
    for (size_t i = 0; i < n; i++) {
        if (ranges[i].end <= ranges[i].start)
            continue;
        if (ranges[i].start < last || ranges[i].end != ranges[i].start + 1 ||
            ranges[i].end > out.text.len || out.text.data[ranges[i].start] != text[i])
            ck_abort_msg("byte %zu becomes %zu to %zu", i, ranges[i].start, ranges[i].end);
        last = ranges[i].end;
        n_kept++;
    }
    ck_assert(n_kept < n || (out.text.len == n && memcmp(out.text.data, text, n) == 0));
}

/* Random runs of letters, marks of several classes, Hangul and Indic halves; ranges follow their
 * text. */
TEST(nfc_of_random_texts)
{
    static const uint32_t cps[] = {'a',    'e',     ' ',    0x301,  0x323,   0x327,  0x345,
                                   0x308,  0x304,   0x1100, 0x1161, 0x11a8,  0xac00, 0xe9,
                                   0x1e69, 0x9c7,   0x9be,  0x9d7,  0x958,   0x212b, 0x340,
                                   0x344,  0x1d15e, 0x4f60, 0xf900, 0x1f600, 0xfb1d, 0x5d0,
                                   0x5b8,  0x11131, 0x11127};

    srandom(8);
    for (int round = 0; round < 60000; round++) {
        char text[400];
        size_t n = 0, max = round % 100 ? 12 : 90;

        for (size_t k = (size_t)random() % max; k; k--)
            n += utf8_write(text + n, cps[(size_t)random() % N(cps)]);
        compare_nfc(text, n);
        compare_ranges(text, n);
    }
}

RUN_TESTS("pretokenize", setup, teardown)
