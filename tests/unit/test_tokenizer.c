/* test_tokenizer.c - encoding and decoding against the reference's vectors and plain rules. */
#include <errno.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <utf8proc.h>

#include "engine/text/tokenizer.h"
#include "engine/text/utf8.h"
#include "tests/unit/cpu_time.h"
#include "tests/unit/golden.h"
#include "tests/unit/run_suite.h"

static struct tokenizer *tiny;

static void load_tiny(void)
{
    struct err e = {0};

    ck_assert_msg(tokenizer_load(&tiny, TEST_MODEL_DIR, &e) == 0, "%s", e.text);
}

static void free_tiny(void)
{
    tokenizer_free(tiny);
    tiny = NULL;
}

static struct text str(const char *s)
{
    return (struct text){s, strlen(s)};
}

/* Fails the test unless list holds want[0..n); frees it. */
static void expect_ids(struct token_list *list, const int32_t *want, size_t n)
{
    ck_assert_uint_eq(list->n, n);
    for (size_t i = 0; i < n; i++)
        ck_assert_msg(list->ids[i] == want[i], "id %zu is %d, not %d", i, list->ids[i], want[i]);
    free(list->ids);
    *list = (struct token_list){0};
}

/* Each encodes anew; the ids belong to the caller. */
static struct token_list encode(struct text text, const struct text_range *ranges, size_t n_ranges)
{
    struct token_list list = {0};

    ck_assert_int_eq(tokenizer_encode(tiny, text, ranges, n_ranges, &list), 0);
    return list;
}

static struct token_list encode_all(const struct tokenizer *t, struct text text, bool special)
{
    struct token_list list = {0};

    ck_assert_int_eq(tokenizer_encode_all(t, text, special, &list), 0);
    return list;
}

static size_t count(struct token_list list, int32_t id)
{
    size_t n = 0;

    for (size_t i = 0; i < list.n; i++)
        n += list.ids[i] == id;
    return n;
}

/* Frees the list. */
static void expect_text(const struct tokenizer *t, struct token_list list, struct text want)
{
    char *text;
    size_t len;

    ck_assert_int_eq(tokenizer_decode(t, list.ids, list.n, false, &text, &len), 0);
    if (len != want.len || memcmp(text, want.data, len) != 0)
        ck_abort_msg("decoded: %.200s\nwanted: %.200s", text, want.data);
    free(text);
    free(list.ids);
}

static void check_vector(const json_t *entry, void *ctx)
{
    const struct tokenizer *t = ctx;
    const json_t *ids = json_object_get(entry, "ids");
    struct text text = golden_text(entry, "text");
    struct token_list list = encode_all(t, text, true);

    ck_assert_msg(list.n == json_array_size(ids), "%zu ids, not %zu: %.200s", list.n,
                  json_array_size(ids), text.data);
    for (size_t i = 0; i < list.n; i++)
        ck_assert_msg(list.ids[i] == json_integer_value(json_array_get(ids, i)),
                      "id %zu of: %.200s", i, text.data);
    expect_text(t, list, golden_text(entry, "decoded"));
}

/* All 203 vectors of the bundled model encode and decode as the reference does. */
TEST(tiny_vectors)
{
    ck_assert_int_eq(golden_each(TEST_DATA_DIR "/nvllm-tiny-vectors.jsonl", check_vector, tiny),
                     203);
}

static const struct {
    const char *name;
    int n;
} published[] = {{"qwen3", 503}, {"llama3", 304}, {"llama2", 304}, {"gpt2", 304}};

/* All vectors of published vocabularies encode and decode as the reference does. */
TEST(published_vectors, .n = N(published))
{
    const char *name = published[_i].name;
    char folder[512], file[512], vectors[512];
    struct tokenizer *t;
    struct err e = {0};

    snprintf(folder, sizeof(folder), PUBLISHED_DIR "/tokenizers/%s", name);
    snprintf(file, sizeof(file), PUBLISHED_DIR "/tokenizers/%s/tokenizer.json", name);
    snprintf(vectors, sizeof(vectors), PUBLISHED_DIR "/golden/%s-vectors.jsonl", name);
    if (access(file, R_OK) || access(vectors, R_OK)) {
        printf("published_vectors: %s skipped, no vocabulary in " PUBLISHED_DIR "\n", name);
        return;
    }
    ck_assert_msg(tokenizer_load(&t, folder, &e) == 0, "%s", e.text);
    ck_assert_int_eq(golden_each(vectors, check_vector, t), published[_i].n);
    tokenizer_free(t);
}

/* A special token is matched inside a range, and encoded as ordinary text elsewhere. */
TEST(ranges_decide_what_is_special)
{
    static const struct {
        struct text_range range;
        bool first, last; /* token is special */
    } cases[] = {{{0, 10}, true, false}, {{11, 21}, false, true}, {{0, 9}, false, false}};
    const int32_t end = 1993;

    for (int i = 0; i < N(cases); i++) {
        struct token_list list = encode(str("<|im_end|>a<|im_end|>"), &cases[i].range, 1);

        ck_assert_int_eq(list.ids[0] == end, cases[i].first);
        ck_assert_int_eq(list.ids[list.n - 1] == end, cases[i].last);
        for (size_t k = 1; k + 1 < list.n; k++)
            ck_assert_int_lt(list.ids[k], 1991);
        free(list.ids);
    }
}

/* A token across the border of two adjacent ranges is not matched. */
TEST(token_across_two_ranges_is_text)
{
    struct text_range two[] = {{0, 5}, {5, 10}};
    struct token_list list = encode(str("<|im_end|>"), two, 2);

    ck_assert_uint_gt(list.n, 1);
    free(list.ids);
}

/* Text between two special tokens is split as a whole, whatever ranges end in it. */
TEST(range_borders_do_not_split_words)
{
    struct text text = str("<|im_start|>user hello e\xcc\x81t\xc3\xa9<|im_end|>");
    struct text_range all = {0, text.len};
    struct text_range some[] = {{0, 14}, {18, 20}, {24, 25}, {26, text.len}};
    struct token_list want = encode(text, &all, 1), got = encode(text, some, 4);

    expect_ids(&got, want.ids, want.n);
    free(want.ids);
}

/* Ranges apply to "normalized" tokens too, though normalization moves the text. */
TEST(normalized_token_obeys_ranges)
{
    static const struct {
        struct text_range range;
        size_t n; /* tokens matched */
        bool last;
    } cases[] = {{{15, 22}, 1, false}, {{23, 30}, 1, true}, {{16, 22}, 0, false}};
    /* five characters that shrink before the token */
    struct text text = str("e\xcc\x81"
                           "e\xcc\x81"
                           "e\xcc\x81"
                           "e\xcc\x81"
                           "e\xcc\x81<think>x<think>");
    const int32_t think = 1998;

    for (int i = 0; i < N(cases); i++) {
        struct token_list list = encode(text, &cases[i].range, 1);

        ck_assert_uint_eq(count(list, think), cases[i].n);
        ck_assert_int_eq(list.ids[list.n - 1] == think, cases[i].last);
        free(list.ids);
    }
}

/* A mark behind a token changes its last character: a token matched after normalization is not
 * found, one matched before is. */
TEST(mark_behind_token)
{
    struct token_list after = encode_all(tiny, str("<think>\xcc\xb8"), true);
    struct token_list before = encode_all(tiny, str("<|im_end|>\xcc\xb8"), true);

    ck_assert_uint_eq(count(after, 1998), 0);
    ck_assert_int_eq(before.ids[0], 1993);
    free(after.ids);
    free(before.ids);
}

/* Invalid UTF-8 gives the ids of U+FFFD, and ranges stay in place. */
TEST(broken_utf8_is_replaced)
{
    struct text broken = str("a\xff\xe2\x82z\xf0\x9f<|im_end|>\xc3");
    struct text whole = str("a\xef\xbf\xbd\xef\xbf\xbdz\xef\xbf\xbd<|im_end|>\xef\xbf\xbd");
    struct text_range ranges[] = {{0, 18}, {7, 17}, {6, 17}}, late = {8, 17};
    struct token_list want = encode_all(tiny, whole, true), got;

    for (int i = 0; i < N(ranges); i++) {
        got = encode(broken, &ranges[i], 1);
        expect_ids(&got, want.ids, want.n);
    }
    got = encode(broken, &late, 1);
    ck_assert_uint_gt(got.n, want.n);
    free(got.ids);
    free(want.ids);
}

/* Ids are appended to the list; an empty text appends none. */
TEST(encode_appends)
{
    struct token_list list = {0};
    int32_t want[] = {198, 198};

    ck_assert_int_eq(tokenizer_encode_all(tiny, str("\n"), false, &list), 0);
    ck_assert_int_eq(tokenizer_encode_all(tiny, str(""), true, &list), 0);
    ck_assert_int_eq(tokenizer_encode_all(tiny, str("\n"), false, &list), 0);
    expect_ids(&list, want, 2);
}

/* NUL is an ordinary character. */
TEST(nul_is_text)
{
    struct text text = {"a\0b\0", 4};

    expect_text(tiny, encode_all(tiny, text, true), text);
}

/* Padding and unknown ids have no text, negative ones are an error, special ones can be omitted. */
TEST(decode_of_odd_ids)
{
    int32_t ids[] = {1992, 39, 2047, 1993, 1999, INT32_MAX}, bad = -1;
    char *text;
    size_t len;

    ck_assert_int_eq(tokenizer_n_ids(tiny), 2000);
    ck_assert_int_eq(tokenizer_decode(tiny, ids, 6, true, &text, &len), 0);
    ck_assert_str_eq(text, "H</think>");
    free(text);
    ck_assert_int_eq(tokenizer_decode(tiny, ids, 6, false, &text, &len), 0);
    ck_assert_str_eq(text, "<|im_start|>H<|im_end|></think>");
    free(text);
    ck_assert_int_eq(tokenizer_decode(tiny, NULL, 0, false, &text, &len), 0);
    ck_assert_uint_eq(len, 0);
    free(text);
    ck_assert_int_eq(tokenizer_decode(tiny, &bad, 1, false, &text, &len), -EINVAL);
    ck_assert_ptr_null(tokenizer_token_bytes(tiny, 2000).data);
    ck_assert_ptr_null(tokenizer_token_bytes(tiny, -1).data);
    ck_assert(tokenizer_is_special(tiny, 1993) && !tokenizer_is_special(tiny, 1999));
    ck_assert(!tokenizer_is_special(tiny, -1) && !tokenizer_is_special(tiny, 5000));
}

/* Random bytes of ASCII and invalid UTF-8 decode to a text with U+FFFD for each invalid byte. */
TEST(random_bytes_come_back)
{
    srandom(7);
    for (int round = 0; round < 2000; round++) {
        char bytes[200], repaired[600];
        size_t n = (size_t)(random() % 200), n_repaired = 0;

        for (size_t i = 0; i < n; i++) { /* bytes that no character has, never a mark */
            const uint32_t byte = (uint32_t)(random() % 3 ? random() % 128 : 0xf8 + random() % 8);

            bytes[i] = (char)byte;
            n_repaired += utf8_write(repaired + n_repaired, byte < 128 ? byte : UTF8_REPLACEMENT);
        }
        expect_text(tiny, encode_all(tiny, (struct text){bytes, n}, true),
                    (struct text){repaired, n_repaired});
    }
}

/* Any text decodes to its NFC, as made by utf8proc. */
TEST(random_texts_come_back_in_nfc)
{
    srandom(12);
    for (int round = 0; round < 3000; round++) {
        static const uint32_t limits[] = {0x80, 0x250, 0x370, 0x3100, 0xd7ff, 0x1ffff};
        utf8proc_uint8_t *want = NULL;
        utf8proc_ssize_t want_len;
        char text[400];
        size_t n = 0;

        for (long k = random() % 90; k > 0; k--) {
            uint32_t cp = (uint32_t)random() % limits[random() % 6];

            if (cp && (cp < 0xd800 || cp > 0xdfff))
                n += utf8_write(text + n, cp);
        }
        want_len = utf8proc_map((utf8proc_uint8_t *)text, (utf8proc_ssize_t)n, &want,
                                UTF8PROC_STABLE | UTF8PROC_COMPOSE);
        ck_assert_int_ge(want_len, 0);
        expect_text(tiny, encode_all(tiny, (struct text){text, n}, false),
                    (struct text){(char *)want, (size_t)want_len});
        free(want);
    }
}

/* The heap gives a long word the ids of the plain rule: merge the lowest rank, leftmost first.
 * Words of few letters have many equal pairs. */
TEST(long_words_merge_as_short_ones)
{
    srandom(11);
    for (int round = 0; round < 300; round++) {
        char word[400];
        size_t n = 41 + (size_t)(random() % 300), letters = 1 + (size_t)(random() % 4);
        struct token_list whole, again;

        for (size_t i = 0; i < n; i++)
            word[i] = "erint"[(size_t)random() % (letters + 1)];
        whole = encode_all(tiny, (struct text){word, n}, false);
        /* each token alone encodes to itself, and so does each pair of neighbours */
        for (size_t i = 0; i + 1 < whole.n; i++) {
            struct text a = tokenizer_token_bytes(tiny, whole.ids[i]);
            struct text b = tokenizer_token_bytes(tiny, whole.ids[i + 1]);
            char pair[64];

            memcpy(pair, a.data, a.len);
            memcpy(pair + a.len, b.data, b.len);
            again = encode_all(tiny, (struct text){pair, a.len + b.len}, false);
            expect_ids(&again, whole.ids + i, 2);
        }
        expect_text(tiny, whole, (struct text){word, n});
    }
}

static const char *const repeated[] = {"a",
                                       " ",
                                       "\n",
                                       "\xf0\x9f\x98\x80",
                                       "\xcc\x81",
                                       "\xcc\x81\xcc\xa3",
                                       "\xe4\xbd\xa0",
                                       "\xff",
                                       "<",
                                       "'s",
                                       "e\xcc\x81",
                                       " \n",
                                       "<|im_start|",
                                       "\xe1\x84\x80\xe1\x85\xa1"};

/* A megabyte of one pattern takes linear time. */
TEST(megabyte_of_one_thing, .n = N(repeated))
{
    size_t unit = strlen(repeated[_i]), n = (1 << 20) / unit * unit;
    char *text = malloc(n);
    struct token_list list = {0};
    double start, took;

    for (size_t i = 0; i < n; i += unit)
        memcpy(text + i, repeated[_i], unit);
    start = cpu_ms();
    ck_assert_int_eq(tokenizer_encode_all(tiny, (struct text){text, n}, true, &list), 0);
    took = cpu_ms() - start;
    ck_assert_msg(took < 5000, "a megabyte of unit %d took %.0f ms", _i, took);
    ck_assert_uint_gt(list.n, 0);
    free(list.ids);
    free(text);
}

RUN_TESTS("tokenizer", load_tiny, free_tiny)
