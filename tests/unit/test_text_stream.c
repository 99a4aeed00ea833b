/* test_text_stream.c - streamed text: whole characters, stop strings, and the same text as decoding
 * at once. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "engine/text/text_stream.h"
#include "proto/utf8.h"
#include "tests/unit/run_suite.h"

static struct tokenizer *tiny;
static char *all; /* what the stream of a test has returned */
static size_t all_len;
static struct text_stream *s; /* the last one of new_stream() */

static void setup(void)
{
    struct err e = {0};

    ck_assert_msg(tokenizer_load(&tiny, TEST_MODEL_DIR, &e) == 0, "%s", e.text);
    all = calloc(1, 1 << 20);
    all_len = 0;
}

static void teardown(void)
{
    text_stream_free(s);
    tokenizer_free(tiny);
    free(all);
}

static struct text str(const char *text)
{
    return (struct text){text, strlen(text)};
}

static void new_stream(const char *const *stops, int n, bool skip_special)
{
    struct text texts[TEXT_STREAM_MAX_STOPS] = {0};

    for (int i = 0; i < n; i++)
        texts[i] = str(stops[i]);
    text_stream_free(s);
    all_len = 0;
    ck_assert_int_eq(text_stream_new(&s, tiny, texts, n, skip_special), 0);
}

static void gather(struct text piece)
{
    ck_assert(utf8_valid(piece.data, piece.len));
    ck_assert_uint_lt(all_len + piece.len, 1 << 20);
    if (piece.len)
        memcpy(all + all_len, piece.data, piece.len);
    all_len += piece.len;
    all[all_len] = '\0';
}

/* The id of one byte's token. */
static int32_t byte_id(unsigned char byte)
{
    static int32_t ids[256];

    if (!ids[byte] && !ids['a'])
        for (int32_t id = 1991; id-- > 0;) {
            struct text t = tokenizer_token_bytes(tiny, id);

            if (t.len == 1)
                ids[(unsigned char)t.data[0]] = id;
        }
    return ids[byte];
}

/* Pushes a token for each byte until a stop; returns the result of the last push or of the end. */
static int push_bytes(const char *bytes)
{
    struct text piece;
    int r = TEXT_STREAM_OK;

    for (; *bytes && r == TEXT_STREAM_OK; bytes++) {
        r = text_stream_push(s, byte_id((unsigned char)*bytes), &piece);
        gather(piece);
    }
    return r;
}

static int finish(void)
{
    struct text piece;
    int r = text_stream_finish(s, &piece);

    gather(piece);
    return r;
}

/* A stop inside a token: the text before it comes out, the rest is dropped. */
TEST(stop_inside_a_token)
{
    const char *stops[] = {"im"};
    struct text piece;

    new_stream(stops, 1, false);
    ck_assert_int_eq(text_stream_push(s, 1993, &piece), TEXT_STREAM_STOP); /* <|im_end|> */
    gather(piece);
    ck_assert_str_eq(all, "<|");
}

/* Each piece, of a token for each byte, or NULL for the end, and all that is shown after it. A
 * stop ends the case. */
static const struct {
    const char *stops[2];
    struct {
        const char *piece, *shown;
    } steps[4];
    bool stopped;
} streams[] = {
    /* a character in four tokens comes out whole with its last byte */
    {{NULL},
     {{"a\xf0\x9f\x98", "a"}, {"\x80", "a\xf0\x9f\x98\x80"}, {NULL, "a\xf0\x9f\x98\x80"}},
     false},
    /* an incomplete character is one U+FFFD, before another one and at the end */
    {{NULL},
     {{"\xf0\x9f\x98z\xff\xe2\x82", "\xef\xbf\xbdz\xef\xbf\xbd"},
      {NULL, "\xef\xbf\xbdz\xef\xbf\xbd\xef\xbf\xbd"}},
     false},
    /* text is held back while it may become a stop, until the stop or the end */
    {{"STOP"}, {{"xST", "x"}, {"S", "xST"}, {"TO", "xST"}, {"P", "xST"}}, true},
    {{"STOP"}, {{"aSTO", "a"}, {NULL, "aSTO"}}, false},
    /* the stop that is complete first counts, of two that end together the longer */
    {{"bcd", "abcde"}, {{"abcde", "a"}}, true},
    {{"c", "bc"}, {{"abcd", "a"}}, true},
    {{"aab", "b"}, {{"xaaab", "xa"}}, true},
    /* a stop may have characters of several bytes, and end with U+FFFD */
    {{"\xe4\xbd\xa0\xe5\xa5\xbd"}, {{"1\xe4\xbd\xa0", "1"}, {"\xe5\xa5\xbd", "1"}}, true},
    {{"\xe4\xbd\xa0", "x\xef\xbf\xbd"}, {{"yx\xf0\x9f", "y"}, {NULL, "y"}}, true},
};

/* What is shown when, and where a stop is found. */
TEST(text_comes_when_it_is_certain, .n = N(streams))
{
    const char *const *stops = streams[_i].stops;
    int r = TEXT_STREAM_OK;

    new_stream(stops, !!stops[0] + !!stops[1], true);
    for (int i = 0; i < N(streams[_i].steps) && streams[_i].steps[i].shown; i++) {
        const char *piece = streams[_i].steps[i].piece;

        ck_assert_int_eq(r, TEXT_STREAM_OK);
        r = piece ? push_bytes(piece) : finish();
        ck_assert_str_eq(all, streams[_i].steps[i].shown);
    }
    ck_assert_int_eq(r == TEXT_STREAM_STOP, streams[_i].stopped);
}

/* A stop that is ignored is text; one that overlaps it counts once stops do, and is cut off. */
TEST(ignored_stops)
{
    const char *stops[] = {"abab"};
    const char *text = "xababab";
    struct text piece;
    int r = TEXT_STREAM_OK;

    new_stream(stops, 1, true);
    text_stream_ignore_stops(s, true);
    for (size_t i = 0; text[i]; i++) {
        if (i == 6)
            text_stream_ignore_stops(s, false);
        ck_assert_int_eq(r, TEXT_STREAM_OK);
        r = text_stream_push(s, byte_id((unsigned char)text[i]), &piece);
        gather(piece);
    }
    ck_assert_int_eq(r, TEXT_STREAM_STOP);
    ck_assert_str_eq(all, "xab");
}

/* Omitted special tokens have no text, not even for stops; nor has padding. */
TEST(special_tokens)
{
    const char *stops[] = {"<|im_end|>"};
    struct text piece;

    new_stream(stops, 1, true);
    push_bytes("a\xc3");
    ck_assert_int_eq(text_stream_push(s, 1993, &piece), TEXT_STREAM_OK);
    ck_assert_uint_eq(piece.len, 0);
    ck_assert_int_eq(text_stream_push(s, 2047, &piece), TEXT_STREAM_OK);
    ck_assert_int_eq(text_stream_push(s, -1, &piece), TEXT_STREAM_OK);
    ck_assert_uint_eq(piece.len, 0);
    push_bytes("\xa9");
    ck_assert_str_eq(all, "a\xc3\xa9");
}

/* Stops that are empty, too long, too many or not UTF-8 are refused. */
TEST(stops_are_checked)
{
    char letters[TEXT_STREAM_MAX_STOP_BYTES + 1];
    struct text stop = {letters, 0}, many[TEXT_STREAM_MAX_STOPS + 1], broken = {"\xff", 1};

    memset(letters, 'a', sizeof(letters));
    ck_assert_int_eq(text_stream_new(&s, tiny, &stop, 1, true), -EINVAL);
    stop.len = TEXT_STREAM_MAX_STOP_BYTES + 1;
    ck_assert_int_eq(text_stream_new(&s, tiny, &stop, 1, true), -EINVAL);
    ck_assert_int_eq(text_stream_new(&s, tiny, &broken, 1, true), -EINVAL);
    stop.len = TEXT_STREAM_MAX_STOP_BYTES;
    for (int i = 0; i <= TEXT_STREAM_MAX_STOPS; i++)
        many[i] = stop;
    ck_assert_int_eq(text_stream_new(&s, tiny, many, TEXT_STREAM_MAX_STOPS + 1, true), -EINVAL);
    ck_assert_int_eq(text_stream_new(&s, tiny, many, -1, true), -EINVAL);
    ck_assert_int_eq(text_stream_new(&s, tiny, many, TEXT_STREAM_MAX_STOPS, true), 0);
    for (int i = 0; i < TEXT_STREAM_MAX_STOP_BYTES; i++) {
        struct text piece;

        ck_assert_int_eq(text_stream_push(s, byte_id('a'), &piece),
                         i + 1 < TEXT_STREAM_MAX_STOP_BYTES ? TEXT_STREAM_OK : TEXT_STREAM_STOP);
        ck_assert_uint_eq(piece.len, 0);
    }
    text_stream_free(NULL);
}

/* The first byte of text at which a stop is complete, and where the longest such stop begins. */
static size_t plain_search(const char *text, size_t len, const char *const *stops, int n,
                           bool *found)
{
    for (size_t end = 1; end <= len; end++) {
        size_t longest = 0;

        for (int i = 0; i < n; i++) {
            size_t stop = strlen(stops[i]);

            if (stop <= end && stop > longest && !memcmp(text + end - stop, stops[i], stop))
                longest = stop;
        }
        if (longest) {
            *found = true;
            return end - longest;
        }
    }
    *found = false;
    return len;
}

/* Whatever the tokens, the pieces together are the text decoded at once, cut at the first stop that
 * a plain search finds. */
TEST(random_ids_stream_as_they_decode)
{
    const char *stops[] = {"e ", "th", "\xef\xbf\xbd", "aab", "aaba", " the"};
    int n_stopped = 0;

    srandom(3);
    for (int round = 0; round < 4000; round++) {
        int32_t ids[60];
        size_t n = (size_t)(random() % 60), len, cut;
        int n_stops = (int)(random() % 7);
        bool skip = random() % 2, stopped = false;
        char *text;

        new_stream(stops, n_stops, skip);
        for (size_t i = 0; i < n; i++) {
            long kind = random() % 6;

            ids[i] = kind == 0   ? (int32_t)(random() % 2048)
                     : kind == 1 ? byte_id((unsigned char)(0x80 + random() % 0x80))
                     : kind == 2 ? byte_id((unsigned char)("ab "[random() % 3]))
                                 : (int32_t)(256 + random() % 400);
        }
        ck_assert_int_eq(tokenizer_decode(tiny, ids, n, skip, &text, &len), 0);
        cut = plain_search(text, len, stops, n_stops, &stopped);
        all_len = 0;
        int r = TEXT_STREAM_OK;
        for (size_t i = 0; i < n && r == TEXT_STREAM_OK; i++) {
            struct text piece;

            r = text_stream_push(s, ids[i], &piece);
            gather(piece);
        }
        if (r == TEXT_STREAM_OK)
            r = finish();
        ck_assert_int_eq(r == TEXT_STREAM_STOP, stopped);
        ck_assert_uint_eq(all_len, cut);
        ck_assert_int_eq(memcmp(all, text, cut), 0);
        n_stopped += stopped;
        free(text);
    }
    ck_assert_int_gt(n_stopped, 200);
}

RUN_TESTS("text_stream", setup, teardown)
