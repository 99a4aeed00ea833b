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

static int run_command(struct ctl *ctl, int argc, char **argv)
{
    static const struct option options[] = {
        CTL_COMMON_OPTIONS,
        {"json", no_argument, NULL, 'j'},
        {"jsonl", no_argument, NULL, 'l'},
        {NULL, 0, NULL, 0},
    };
    static const struct text_command command = {
        .options = options,
        .parse = parse,
        .convert = convert,
    };

    return ctl_text_run(&command, ctl, argc, argv);
}

const struct ctl_command ctl_render = {
    .name = "render",
    .about = "chat messages to the text that the model sees",
    .run = run_command,
    .help = "usage: nvllmctl render [OPTION…] [JSON|-]\n\n"
            "Prints, byte for byte, what the model's chat template makes of one JSON object\n"
            "{\"messages\", \"tools\", \"add_generation_prompt\", \"enable_thinking\"}, from\n"
            "stdin where it is missing or “-”.\n\n"
            "  --json                    print {\"text\"}\n"
            "  --jsonl                   an object a line in, an object a line out\n",
    .examples = "  nvllmctl render '{\"messages\": [{\"role\": \"user\", \"content\": \"hi\"}]}'\n",
};
