/* fuzz_chat.c - a chat template and a conversation as strangers may have written them: the
 * template, a NUL, and the JSON. Whatever they are, there is an error with a text, or a prompt that
 * is the same the second time, and in which nothing of the conversation counts as the template's.
 */
#include <jansson.h>
#include <string.h>

#include "engine/text/chat.h"
#include "engine/text/utf8.h"
#include "tests/fuzz/fuzz.h"

/* A private character that the seeds' conversations have and their templates have not. */
static const char mark[] = "\xef\xa3\xbf";

static void check_error(const struct err *e)
{
    FUZZ_CHECK(*e->text);
    for (const char *s = e->text; *s; s++)
        FUZZ_CHECK((unsigned char)*s >= 0x20 && *s != 0x7f);
}

static bool has_mark(const char *text, size_t n)
{
    return n > 0 && memmem(text, n, mark, strlen(mark));
}

static void check_text(const struct jinja_text *t, bool marked)
{
    size_t last = 0;
    uint32_t cp;

    for (size_t at = 0, len; at < t->len; at += len) {
        len = utf8_read(t->data + at, t->len - at, &cp);
        FUZZ_CHECK(len > 0 && cp != UTF8_BROKEN);
    }
    for (size_t i = 0; i < t->n_ranges; i++) {
        const size_t start = t->ranges[i].start;
        const size_t end =
            t->ranges[i].end + (FUZZ_PLANT && t->ranges[i].end + 3 <= t->len ? 3 : 0);

        FUZZ_CHECK(start < end && end <= t->len && (!i || start > last));
        last = t->ranges[i].end;
        FUZZ_CHECK(!marked || !has_mark(t->data + start, end - start));
    }
    FUZZ_CHECK(t->data[t->len] == '\0');
}

static bool value_has_mark(const json_t *value)
{
    return has_mark(json_string_value(value), json_string_length(value));
}

/* Whether what counts as the template's can have the mark: a template may hold the character itself
 * or, escaped, its number; and the JSON may say which tokens begin and end a text. */
static bool may_be_marked(const char *template, size_t n, const char *json, size_t n_json)
{
    json_t *root = json_loadb(json, n_json, JSON_ALLOW_NUL, NULL);
    const bool tokens = value_has_mark(json_object_get(root, "bos_token")) ||
                        value_has_mark(json_object_get(root, "eos_token"));

    json_decref(root);
    return tokens || has_mark(template, n) || strcasestr(template, "f8ff");
}

static int render(const struct chat_template *t, const char *json, size_t n,
                  struct jinja_text *text)
{
    const struct tm now = {.tm_year = 126, .tm_mon = 10, .tm_mday = 22};
    struct err e = {""};
    int r = chat_render_json(t, json, n, &now, text, &e);

    if (r)
        check_error(&e);
    return r;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const uint8_t *end = size ? memchr(data, '\0', size) : NULL;
    const size_t n = end ? (size_t)(end - data) : size;
    const char *json = end ? (const char *)end + 1 : "";
    const size_t n_json = end ? size - n - 1 : 0;
    struct jinja_text one = {0}, two = {0};
    struct chat_template *t;
    struct err e = {""};
    int r;

    if (chat_template_parse(&t, (struct text){(const char *)data, n}, &e) < 0) {
        check_error(&e);
        return 0;
    }
    r = render(t, json, n_json, &one);
    FUZZ_CHECK(render(t, json, n_json, &two) == r);
    if (r == 0) {
        check_text(&one, !may_be_marked((const char *)data, n, json, n_json));
        FUZZ_CHECK(one.len == two.len && memcmp(one.data, two.data, one.len) == 0);
        FUZZ_CHECK(one.n_ranges == two.n_ranges);
    }
    jinja_text_deinit(&one);
    jinja_text_deinit(&two);
    chat_template_free(t);
    return 0;
}

/* Changes the template or the conversation. */
size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max_size, unsigned int seed)
{
    const uint8_t *end = size ? memchr(data, '\0', size) : NULL;
    const size_t n = end ? (size_t)(end - data) + 1 : 0;

    if (!n || n >= max_size || seed % 3)
        return LLVMFuzzerMutate(data, size, max_size);
    return n + json_mutate(data + n, size - n, max_size - n, seed / 3);
}
