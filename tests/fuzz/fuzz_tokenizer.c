/* fuzz_tokenizer.c - tokenizer.json as a stranger may have written it. What passes must take any
 * text to ids of its own, and plain text there and back without a change. */
#include <string.h>

#include "engine/text/tokenizer.h"
#include "tests/fuzz/fuzz.h"

static const char *const texts[] = {
    "", "a", "Hello, world! 123  456\n\n\tx", "don't we'll I'm", "  leading and trailing  ",
};

/* Not plain: what is broken is replaced, and a normaliser may change it. Only the ids count. */
static const struct text odd[] = {
    {"\xff\xfe", 2},
    {"\xc3\xa9\xcc\x81 \xe2\x82\xac \xf0\x9f\x98\x80", 14},
    {"e\xcc\x81", 3},
    {"a\0b", 3},
    {"<|im_start|>user<|im_end|>", 26},
};

static void check_ids(const struct tokenizer *t, const struct token_list *ids)
{
    for (size_t i = 0; i < ids->n; i++)
        FUZZ_CHECK(ids->ids[i] >= 0 && ids->ids[i] < tokenizer_n_ids(t));
}

static void there_and_back(const struct tokenizer *t, const char *text)
{
    struct token_list ids = {0};
    char *back = NULL;
    size_t n;

    FUZZ_CHECK(tokenizer_encode_all(t, (struct text){text, strlen(text)}, false, &ids) == 0);
    check_ids(t, &ids);
    FUZZ_CHECK(tokenizer_decode(t, ids.ids, ids.n, false, &back, &n) == 0);
    FUZZ_CHECK(n == strlen(text) && memcmp(back, text, n) == 0);
    free(back);
    free(ids.ids);
}

static void only_there(const struct tokenizer *t, struct text text, bool special)
{
    struct token_list ids = {0};
    char *back = NULL;
    size_t n;

    FUZZ_CHECK(tokenizer_encode_all(t, text, special, &ids) == 0);
    check_ids(t, &ids);
    FUZZ_CHECK(tokenizer_decode(t, ids.ids, ids.n, true, &back, &n) == 0);
    free(back);
    free(ids.ids);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct tokenizer *t;
    struct err e = {""};

    if (tokenizer_parse(&t, (const char *)data, size, &e) < 0) {
        FUZZ_CHECK(*e.text);
        for (const char *s = e.text; *s; s++)
            FUZZ_CHECK((unsigned char)*s >= 0x20 && *s != 0x7f);
        return 0;
    }
    for (size_t i = 0; i < sizeof(texts) / sizeof(*texts); i++)
        there_and_back(t, texts[i]);
    for (size_t i = 0; i < sizeof(odd) / sizeof(*odd); i++) {
        only_there(t, odd[i], false);
        only_there(t, odd[i], true);
    }
    tokenizer_free(t);
    return 0;
}

size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max_size, unsigned int seed)
{
    return json_mutate(data, size, max_size, seed);
}
