/* fuzz_answer.c - the answer of a chat, as a model may write it: a byte that says which tags count,
 * a byte where the text is cut, and the text. However it comes, the parts are the same, they are
 * made of the text, and the arguments of a call are an object that lies in it. */
#include <jansson.h>
#include <string.h>

#include "engine/text/answer.h"
#include "tests/fuzz/fuzz.h"

struct parts {
    uint8_t *data; /* [len] each part's kind, its text, and a byte that no text has */
    size_t len;
    int kind;
};

static void add(struct parts *p, enum answer_part_kind kind, struct text text)
{
    if (p->kind != (int)kind || kind == ANSWER_TOOL_CALL) {
        p->data[p->len++] = 0xff;
        p->data[p->len++] = (uint8_t)kind;
    }
    p->kind = (int)kind;
    memcpy(p->data + p->len, text.data, text.len);
    p->len += text.len;
}

/* False: it is none. */
static bool check_call(struct text json)
{
    struct text arguments;
    size_t name_len;
    char *name;
    json_t *object;

    if (answer_read_call(json, &name, &name_len, &arguments) < 0)
        return false;
    FUZZ_CHECK(name_len > 0);
    object = json_loadb(arguments.data, arguments.len - FUZZ_PLANT,
                        JSON_DECODE_INT_AS_REAL | JSON_ALLOW_NUL, NULL);
    FUZZ_CHECK(json_is_object(object));
    json_decref(object);
    free(name);
    return true;
}

static size_t take(struct parts *out, struct answer_parser *p, struct text held, bool end)
{
    struct answer_part part;
    size_t used = 0;

    while ((part = answer_parser_next(p, held, end)).used) {
        FUZZ_CHECK(part.used <= held.len);
        FUZZ_CHECK(part.text.data >= held.data);
        FUZZ_CHECK(part.text.data + part.text.len <= held.data + part.used);
        if (part.kind == ANSWER_TOOL_CALL && !check_call(part.text)) {
            part.kind = ANSWER_CONTENT;
            part.text = (struct text){held.data, part.used};
            answer_parser_reject(p);
        }
        if (part.kind != ANSWER_DROPPED)
            add(out, part.kind, part.text);
        held.data += part.used;
        held.len -= part.used;
        used += part.used;
    }
    return used;
}

/* The parts of a text that comes in pieces of n bytes. */
static struct parts parse(uint8_t kind, struct text text, size_t n)
{
    const struct answer_format format = {kind & 1, kind & 2};
    struct parts out = {.data = malloc(3 * text.len + 2)};
    struct answer_parser p;
    size_t from = 0;

    FUZZ_CHECK(out.data);
    answer_parser_init(&p, format, kind & 4);
    for (size_t at = 0; at < text.len; at += n) {
        const size_t until = text.len - at < n ? text.len : at + n;

        from += take(&out, &p, (struct text){text.data + from, until - from}, false);
    }
    from += take(&out, &p, (struct text){text.data + from, text.len - from}, true);
    FUZZ_CHECK(from == text.len);
    return out;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct parts whole, cut;
    struct text text;

    if (size < 3)
        return 0;
    text = (struct text){(const char *)data + 2, size - 2};
    whole = parse(data[0], text, text.len);
    cut = parse(data[0], text, 1 + data[1] % 16);
    FUZZ_CHECK(whole.len == cut.len && memcmp(whole.data, cut.data, whole.len) == 0);
    free(whole.data);
    free(cut.data);
    return 0;
}
