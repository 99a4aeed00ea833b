/* tokenize.c - nvllmctl tokenize: text to token ids. */
#include "client/ctl/text.h"

static bool convert(struct text_work *w, const struct text_input *input, struct text_answer *answer,
                    struct nvllm_error *err)
{
    return nvllm_tokenize(w->client, input->text, w->special, ctl_left_ms(w->ctl), &answer->tokens,
                          err) == NVLLM_OK;
}

int ctl_tokenize(struct ctl *ctl)
{
    static const struct text_command command = {.convert = convert};

    return ctl_text_run(&command, ctl, ctl_option(ctl, "special"));
}
