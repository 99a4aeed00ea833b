/* render.c - nvllmctl render: chat messages to the text that the model sees. */
#include "client/ctl/json.h"
#include "client/ctl/request.h"
#include "client/ctl/text.h"

static bool convert(struct text_work *w, const struct text_input *input, struct text_answer *answer,
                    struct nvllm_error *err)
{
    struct ctl_request q;
    bool ok;

    ctl_request_init(&q);
    ok = ctl_json_read_chat(&q, input->value, err) &&
         nvllm_render(w->client, &q.chat, ctl_left_ms(w->ctl), &answer->text, err) == NVLLM_OK;
    ctl_request_deinit(&q);
    return ok;
}

static json_t *parse(struct nvllm_text text, struct nvllm_error *err)
{
    return ctl_json_parse(text.data, text.len, err);
}

int ctl_render(struct ctl *ctl)
{
    static const struct text_command command = {
        .parse = parse,
        .convert = convert,
    };

    return ctl_text_run(&command, ctl, false);
}
