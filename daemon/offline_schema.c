/* offline_schema.c - `nvllmd schema`: which texts a response format allows, decided as for an
 * answer: token by token, by the masks. */
#include "daemon/offline_schema.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "engine/util/json_util.h"
#include "proto/utf8.h"

/* One of the kinds, by its key; its text is to be freed. */
static int take_source(struct format_source *out, char **text, const json_t *input, struct err *e)
{
    static const struct {
        const char *key;
        enum format_kind kind;
    } kinds[] = {{"schema", FORMAT_JSON_SCHEMA},
                 {"regex", FORMAT_REGEX},
                 {"grammar", FORMAT_GRAMMAR}};
    const json_t *v = NULL;

    if (!json_is_object(input))
        return err_set(e, -EINVAL, "must be an object");
    for (size_t i = 0; i < 3 && !v; i++) {
        v = json_object_get(input, kinds[i].key);
        out->kind = kinds[i].kind;
        if (v && out->kind != FORMAT_JSON_SCHEMA && !json_is_string(v))
            return err_set(e, -EINVAL, "%s: must be a string", kinds[i].key);
    }
    if (!v)
        return err_set(e, -EINVAL, "one of schema, regex and grammar is required");
    *text = json_is_string(v) && out->kind != FORMAT_JSON_SCHEMA ? strdup(json_string_value(v))
                                                                 : json_text(v, JSON_ENCODE_ANY);
    if (!*text)
        return err_set(e, -ENOMEM, "out of memory");
    out->text = (struct text){*text, strlen(*text)};
    return 0;
}

/* 1: the format allows the text, 0: it does not. */
static int accepts(struct format *f, const struct tokenizer *t, int32_t vocab_size, uint32_t *mask,
                   struct text text, struct err *e)
{
    struct token_list ids = {0};
    int32_t place = format_start(f);
    int r = tokenizer_encode_all(t, text, false, &ids);

    for (size_t i = 0; i < ids.n && r == 0 && place != GRAMMAR_DEAD; i++) {
        const int32_t id = ids.ids[i];

        r = id < vocab_size ? format_mask(f, mask, place, NULL, 0) : -ENOENT;
        if (r == -ENOENT || (r == 0 && !(mask[id / 32] >> id % 32 & 1)))
            place = GRAMMAR_DEAD;
        else if (r == 0 && (place = format_step(f, place, id)) == GRAMMAR_DEAD)
            r = -E2BIG;
        r = r == -ENOENT ? 0 : r;
    }
    free(ids.ids);
    if (r < 0)
        return err_set(e, r, "%s", r == -ENOMEM ? "out of memory" : "too complex");
    return place != GRAMMAR_DEAD && format_accepts(f, place);
}

static int judge(json_t *accepted, struct format *f, const struct tokenizer *t, int32_t vocab_size,
                 const json_t *texts, struct err *e)
{
    uint32_t *mask = calloc(((size_t)vocab_size + 31) / 32, sizeof(*mask));
    const json_t *v;
    size_t i;
    int r = mask ? 0 : err_set(e, -ENOMEM, "out of memory");

    json_array_foreach(texts, i, v)
    {
        if (r >= 0 && !json_is_string(v))
            r = err_set(e, -EINVAL, "texts[%zu]: must be a string", i);
        if (r >= 0)
            r = accepts(f, t, vocab_size, mask,
                        (struct text){json_string_value(v), json_string_length(v)}, e);
        if (r >= 0 && json_array_append_new(accepted, json_boolean(r)) < 0)
            r = err_set(e, -ENOMEM, "out of memory");
    }
    free(mask);
    return r < 0 ? r : 0;
}

int offline_schema(json_t **out, const json_t *input, const struct tokenizer *t,
                   const struct vocabulary *v, int32_t vocab_size, struct err *e)
{
    struct format_source source = {.reasoning = FORMAT_DIRECT};
    struct format *f = NULL;
    json_t *accepted;
    char *text = NULL;
    int r = take_source(&source, &text, input, e);

    if (r < 0)
        return r;
    r = format_new(&f, &source, v, e);
    free(text);
    if (r < 0 && r != -ENOMEM) {
        utf8_clean(e->text); /* it may be cut inside a character */
        *out = json_pack("{s:b, s:s}", "supported", 0, "reason", e->text);
        return *out ? 0 : err_set(e, -ENOMEM, "out of memory");
    }
    if (r < 0)
        return r;
    accepted = json_array();
    r = judge(accepted, f, t, vocab_size, json_object_get(input, "texts"), e);
    format_free(f);
    *out = json_pack("{s:b, s:o}", "supported", 1, "accepted", accepted);
    if (r == 0 && *out)
        return 0;
    json_decref(*out);
    return r < 0 ? r : err_set(e, -ENOMEM, "out of memory");
}
