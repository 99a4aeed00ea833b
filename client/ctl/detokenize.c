/* detokenize.c - nvllmctl detokenize: token ids to text. */
#include <string.h>

#include "client/ctl/json.h"
#include "client/ctl/request.h"
#include "client/ctl/text.h"
#include "proto/program.h"

static bool convert(struct text_work *w, const struct text_input *input, struct text_answer *answer,
                    struct nvllm_error *err)
{
    const json_t *value = input->value;
    const json_t *array = json_is_object(value) ? json_object_get(value, "ids") : value;
    struct ctl_request q;
    const int32_t *ids;
    size_t n;
    bool ok;

    ctl_request_init(&q);
    ok = ctl_json_read_ids(&q, "ids", array, &ids, &n, err) &&
         nvllm_detokenize(w->client, ids, n, w->special, ctl_left_ms(w->ctl), &answer->text, err) ==
             NVLLM_OK;
    ctl_request_deinit(&q);
    return ok;
}

/* Ids as JSON, or as plain numbers between blanks and commas. */
static json_t *parse_ids(struct nvllm_text text, struct nvllm_error *err)
{
    size_t start = 0;
    json_t *array;
    int64_t id;
    int got;

    while (start < text.len && strchr(" \t\r\n", text.data[start]) && text.data[start])
        start++;
    if (start < text.len && (text.data[start] == '[' || text.data[start] == '{'))
        return ctl_json_parse(text.data, text.len, err);
    array = json_array();
    while ((got = program_next_number(&id, text.data, text.len, &start)) == PROGRAM_NUMBER)
        json_array_append_new(array, json_integer(id));
    if (got == PROGRAM_END)
        return array;
    json_decref(array);
    ctl_invalid(err, "token ids are whole numbers: byte %zu of the input is none", start + 1);
    return NULL;
}

int ctl_detokenize(struct ctl *ctl)
{
    static const struct text_command command = {
        .parse = parse_ids,
        .convert = convert,
    };

    return ctl_text_run(&command, ctl, ctl_option(ctl, "skip-special"));
}
