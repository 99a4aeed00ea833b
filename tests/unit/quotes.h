/* quotes.h - JSON in the source of a test, where ' stands for ". */
#ifndef NVLLM_TESTS_UNIT_QUOTES_H
#define NVLLM_TESTS_UNIT_QUOTES_H

#include <check.h>
#include <string.h>

/* The JSON, valid until the next call. */
static inline const char *quotes(const char *text)
{
    static char json[4096];

    ck_assert_uint_lt(strlen(text), sizeof(json));
    strcpy(json, text);
    for (char *c = json; *c; c++)
        *c = *c == '\'' ? '"' : *c;
    return json;
}

#endif
