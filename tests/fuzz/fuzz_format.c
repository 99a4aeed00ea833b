/* fuzz_format.c - a response format as a stranger may write it: a letter that says its kind (s, r
 * or g), and its text; or t or c and a tool, which may or must be called. It is refused, or every
 * way into its texts can be gone on with: tokens that the mask has lead to places from which others
 * go on, or where the text may end. */
#include <errno.h>
#include <string.h>

#include "engine/grammar/format.h"
#include "tests/fuzz/fuzz.h"

enum { MAX_TOKENS = 40, MAX_VOCABULARY = 1 << 17 };

static struct tokenizer *tokenizer;
static struct vocabulary *vocabulary;
static int32_t n_ids;

static void load(void)
{
    struct err e;

    if (vocabulary)
        return;
    if (tokenizer_load(&tokenizer, TEST_MODEL_DIR, &e) < 0) {
        fprintf(stderr, "%s\n", e.text);
        exit(2);
    }
    n_ids = tokenizer_n_ids(tokenizer);
    vocabulary = vocabulary_new(tokenizer, n_ids);
    if (!vocabulary || n_ids > MAX_VOCABULARY)
        exit(2);
}

/* The nth token of the mask, counted round. */
static int32_t pick(const uint32_t *mask, uint32_t n)
{
    uint32_t count = 0;

    for (int32_t id = 0; id < n_ids; id++)
        count += mask[id / 32] >> id % 32 & 1;
    n %= count;
    for (int32_t id = 0;; id++)
        if (mask[id / 32] >> id % 32 & 1 && n-- == 0)
            return id;
}

/* A walk through the format; the input says where it turns. */
static void walk(struct format *f, const uint8_t *data, size_t size)
{
    static uint32_t mask[MAX_VOCABULARY / 32];
    int32_t place = format_start(f);
    uint32_t random = (uint32_t)size;

    for (int i = 0; i < MAX_TOKENS && !format_is_over(f, place); i++) {
        const int r = format_mask(f, mask, place, NULL, 0);
        int32_t token;

        if (r == -E2BIG) /* it costs too much */
            return;
        FUZZ_CHECK(r == 0 || (r == -ENOENT && format_accepts(f, place)));
        if (r < 0)
            return;
        random = random * 1664525 + 1013904223 + data[(size_t)i % size];
        token = pick(mask, random >> 8);
        place = format_step(f, place, FUZZ_PLANT ? n_ids : token);
        FUZZ_CHECK(place != GRAMMAR_DEAD);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct format_source source = {.kind = FORMAT_JSON_SCHEMA};
    struct text text;
    struct format *f;
    struct err e = {""};

    if (size < 2)
        return 0;
    load();
    text = (struct text){(const char *)data + 1, size - 1};
    if (data[0] == 'r')
        source.kind = FORMAT_REGEX;
    else if (data[0] == 'g')
        source.kind = FORMAT_GRAMMAR;
    source.text = text;
    if (data[0] == 't' || data[0] == 'c')
        source = (struct format_source){
            .calls = data[0] == 't' ? FORMAT_MAY_CALL : FORMAT_MUST_CALL,
            .reasoning = (enum format_reasoning)(size % 3),
            .tools = &text,
            .n_tools = 1,
        };
    if (format_new(&f, &source, vocabulary, &e) < 0) {
        FUZZ_CHECK(*e.text);
        return 0;
    }
    walk(f, data, size);
    format_free(f);
    return 0;
}

/* A schema or tool stays JSON. */
size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max_size, unsigned int seed)
{
    if (size > 1 && strchr("stc", data[0]) && data[0] && seed % 4)
        return 1 + json_mutate(data + 1, size - 1, max_size - 1, seed / 4);
    return LLVMFuzzerMutate(data, size, max_size);
}
