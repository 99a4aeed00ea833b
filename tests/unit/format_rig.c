/* format_rig.c - see format_rig.h. */
#include "tests/unit/format_rig.h"

#include <check.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

struct format_rig rig;

void format_rig_start(void)
{
    struct err e;

    ck_assert_msg(tokenizer_load(&rig.tokenizer, TEST_MODEL_DIR, &e) == 0, "%s", e.text);
    rig.n_ids = tokenizer_n_ids(rig.tokenizer);
    rig.vocabulary = vocabulary_new(rig.tokenizer, rig.n_ids);
    ck_assert_ptr_nonnull(rig.vocabulary);
}

void format_rig_end(void)
{
    vocabulary_free(rig.vocabulary);
    tokenizer_free(rig.tokenizer);
}

struct format_source source_of(enum format_kind kind, const char *text)
{
    return (struct format_source){.kind = kind, .text = {text, strlen(text)}};
}

struct format *format_of(enum format_kind kind, const char *text)
{
    const struct format_source source = source_of(kind, text);
    struct format *f;
    struct err e = {""};

    ck_assert_msg(format_new(&f, &source, rig.vocabulary, &e) == 0, "%s: %s", text, e.text);
    return f;
}

int32_t place_behind(struct format *f, const char *text)
{
    uint32_t *mask = calloc((size_t)rig.n_ids / 32 + 1, sizeof(*mask));
    struct token_list ids = {0};
    int32_t place = format_start(f);

    ck_assert_ptr_nonnull(mask);
    ck_assert_int_eq(tokenizer_encode_all(rig.tokenizer, (struct text){text, strlen(text)}, false,
                                          &ids),
                     0);
    for (size_t i = 0; i < ids.n && place != GRAMMAR_DEAD; i++) {
        const int r = format_mask(f, mask, place, NULL, 0);
        const int32_t id = ids.ids[i];
        const bool is_in = r == 0 && mask[id / 32] >> id % 32 & 1;

        ck_assert_msg(r == 0 || r == -ENOENT, "%s: %d", text, r);
        place = format_step(f, place, id);
        ck_assert_msg(is_in == (place != GRAMMAR_DEAD), "“%s” at token %zu", text, i);
    }
    free(ids.ids);
    free(mask);
    return place;
}

bool allows(struct format *f, const char *text)
{
    const int32_t place = place_behind(f, text);

    return place != GRAMMAR_DEAD && format_accepts(f, place);
}

void check_texts(enum format_kind kind, const struct texts *t)
{
    struct format *f = format_of(kind, t->format);

    for (int i = 0; i < 8 && t->right[i]; i++)
        ck_assert_msg(allows(f, t->right[i]), "%s must allow “%s”", t->format, t->right[i]);
    for (int i = 0; i < 8 && t->wrong[i]; i++)
        ck_assert_msg(!allows(f, t->wrong[i]), "%s must not allow “%s”", t->format, t->wrong[i]);
    format_free(f);
}

void check_refusal(const struct refusal *r, const char *text)
{
    const struct format_source source = source_of(r->kind, text);
    struct format *f;
    struct err e = {""};

    ck_assert_int_eq(format_new(&f, &source, rig.vocabulary, &e), r->code);
    ck_assert_msg(strstr(e.text, r->message), "%s: %s", text, e.text);
}
