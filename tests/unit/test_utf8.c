/* test_utf8.c - which bytes are UTF-8, by character and in whole texts. */
#include "proto/utf8.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "tests/unit/run_suite.h"

static uint64_t next_random(uint64_t *s)
{
    *s ^= *s << 13;
    *s ^= *s >> 7;
    *s ^= *s << 17;
    return *s;
}

/* UTF-8 is accepted at its limits; surrogates, overlong forms and incomplete characters are not. */
TEST(utf8_is_checked)
{
    static const char *const good[] = {
        "",
        "plain",
        "\xc2\x80",
        "\xdf\xbf",
        "\xe0\xa0\x80",
        "\xed\x9f\xbf",
        "\xee\x80\x80",
        "\xef\xbf\xbf",
        "\xf0\x90\x80\x80",
        "\xf4\x8f\xbf\xbf",
    };
    static const char *const bad[] = {
        "\x80",         "\xc0\x80",         "\xc1\xbf",         "\xe0\x9f\xbf",
        "\xed\xa0\x80", "\xf0\x8f\xbf\xbf", "\xf4\x90\x80\x80", "\xf5\x80\x80\x80",
        "a\xff",        "\xe2\x82",         "\xf0\x9f\x98",
    };

    for (size_t i = 0; i < N(good); i++)
        ck_assert_msg(utf8_valid(good[i], strlen(good[i])), "good %zu", i);
    for (size_t i = 0; i < N(bad); i++)
        ck_assert_msg(!utf8_valid(bad[i], strlen(bad[i])), "bad %zu", i);
    ck_assert(utf8_valid("a\0b", 3));
}

/* Reading several bytes at a time finds invalid bytes wherever reading one by one does. */
TEST(utf8_is_checked_in_long_texts)
{
    static const char text[] = "ASCII for a while \xe2\x82\xac\xe4\xbd\xa0\xed\x9f\xbf\xee\x80\x80 "
                               "\xf0\x9f\x98\x80 1234567 \xc3\xa9 and ASCII again, a few words";
    uint64_t seed = 3;

    for (int round = 0; round < 20000; round++) {
        char copy[sizeof(text)];
        size_t from = next_random(&seed) % 20, i = from;
        int step = 1;

        memcpy(copy, text, sizeof(text));
        if (round % 4)
            copy[next_random(&seed) % sizeof(text)] = (char)next_random(&seed);
        for (; i < sizeof(text) && step > 0; i += (size_t)step)
            step = utf8_step(copy + i, sizeof(text) - i);
        ck_assert_msg(utf8_valid(copy + from, sizeof(text) - from) == (step > 0), "%d", round);
    }
}

/* All pairs of bytes, and longer ones at the limits, are judged in a text as character by
 * character. */
TEST(utf8_is_checked_alike_at_all_borders)
{
    static const uint8_t borders[] = {0x00, 0x7f, 0x80, 0x8f, 0x90, 0x9f, 0xa0, 0xbf, 0xc0, 0xff};
    enum { N = sizeof(borders) };

    for (uint32_t i = 0; i < 65536 * N * N; i++) {
        uint8_t text[4] = {(uint8_t)(i / (256 * N * N)), (uint8_t)(i / (N * N)), borders[i / N % N],
                           borders[i % N]};
        size_t at = 0;
        int step = 1;

        for (; at < sizeof(text) && step > 0; at += (size_t)step)
            step = utf8_step(text + at, sizeof(text) - at);
        if (utf8_valid(text, sizeof(text)) != (step > 0))
            ck_abort_msg("%02x %02x %02x %02x", text[0], text[1], text[2], text[3]);
    }
}

/* Invalid bytes and control characters become question marks, the rest stays. */
TEST(utf8_is_cleaned)
{
    char s[] = "a\xc3\xa9\xff\xe2\x82"
               "b\n\x7f\xc2\x9b\xe2\x82";

    utf8_clean(s);
    ck_assert_str_eq(s, "a\xc3\xa9???b??????");
}

RUN_TESTS("utf8", NULL, NULL)
