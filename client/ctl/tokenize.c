/* tokenize.c - nvllmctl tokenize: text to token ids. */
#include "client/ctl/text.h"

static bool convert(struct text_work *w, const struct text_input *input, struct text_answer *answer,
                    struct nvllm_error *err)
{
    return nvllm_tokenize(w->client, input->text, w->special, ctl_left_ms(w->ctl), &answer->tokens,
                          err) == NVLLM_OK;
}

static int run_command(struct ctl *ctl, int argc, char **argv)
{
    static const struct option options[] = {
        CTL_COMMON_OPTIONS,
        {"json", no_argument, NULL, 'j'},
        {"jsonl", no_argument, NULL, 'l'},
        {"special", no_argument, NULL, 's'},
        {NULL, 0, NULL, 0},
    };
    static const struct text_command command = {.options = options, .convert = convert};

    return ctl_text_run(&command, ctl, argc, argv);
}

const struct ctl_command ctl_tokenize = {
    .name = "tokenize",
    .about = "text to token ids",
    .run = run_command,
    .help = "usage: nvllmctl tokenize [OPTION…] [TEXT|-]\n\n"
            "Prints the token ids of TEXT, or of stdin where TEXT is missing or “-”.\n\n"
            "  --special                 match special tokens spelled out in the text\n"
            "  --json                    print {\"ids\", \"tokens\"}\n"
            "  --jsonl                   a JSON string a line in, an object a line out\n",
    .examples = "  nvllmctl tokenize \"Hello, world\"\n"
                "  nvllmctl tokenize --special --json <prompt.txt\n",
};
