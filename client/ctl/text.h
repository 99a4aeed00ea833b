/* text.h - the way of the commands that make one value of another: tokenize, detokenize,
 * render.
 *
 * The input is one argument or stdin, or with --jsonl a JSON value a line. */
#ifndef NVLLM_CLIENT_CTL_TEXT_H
#define NVLLM_CLIENT_CTL_TEXT_H

#include <jansson.h>

#include "client/ctl/ctl.h"

struct text_work {
    struct ctl *ctl;
    struct nvllm_client *client;
    bool special; /* tokenize: match them; detokenize: skip them */
    bool json;
};

struct text_input {
    struct nvllm_text text;
    json_t *value; /* NULL: the text is all there is */
};

/* What the daemon said; it holds until the next call. */
struct text_answer {
    const struct nvllm_tokens *tokens; /* NULL: it is a text */
    struct nvllm_text text;
};

struct text_command {
    /* What the bytes of an argument or of stdin stand for; NULL, with *err, for nothing. As a
     * function NULL where convert() takes them as they are. */
    json_t *(*parse)(struct nvllm_text text, struct nvllm_error *err);
    bool (*convert)(struct text_work *w, const struct text_input *input, struct text_answer *answer,
                    struct nvllm_error *err);
};

int ctl_text_run(const struct text_command *command, struct ctl *ctl, bool special);

#endif
