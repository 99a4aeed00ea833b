/* golden.h - the lines of a .jsonl file of the golden data, for check programs. */
#ifndef NVLLM_TESTS_UNIT_GOLDEN_H
#define NVLLM_TESTS_UNIT_GOLDEN_H

#include <check.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>

#include "engine/util/text.h"

/* Calls each line's object; fails the test on a line that is no JSON. Returns the lines. */
static inline int golden_each(const char *path, void (*each)(const json_t *entry, void *ctx),
                              void *ctx)
{
    FILE *f = fopen(path, "r");
    char *line = NULL;
    size_t cap = 0;
    ssize_t len;
    int n = 0;

    ck_assert_msg(f != NULL, "cannot open %s", path);
    while ((len = getline(&line, &cap, f)) > 0) {
        json_error_t bad;
        json_t *entry = json_loadb(line, (size_t)len, JSON_ALLOW_NUL | JSON_DECODE_ANY, &bad);

        n++;
        ck_assert_msg(entry != NULL, "%s:%d: %s", path, n, bad.text);
        each(entry, ctx);
        json_decref(entry);
    }
    free(line);
    fclose(f);
    return n;
}

static inline struct text golden_text(const json_t *entry, const char *key)
{
    const json_t *v = json_object_get(entry, key);

    ck_assert_msg(json_is_string(v), "no text \"%s\"", key);
    return (struct text){json_string_value(v), json_string_length(v)};
}

#endif
