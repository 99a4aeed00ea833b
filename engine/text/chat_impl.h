/* chat_impl.h - shared by chat.c and chat_vars.c. */
#ifndef NVLLM_ENGINE_TEXT_CHAT_IMPL_H
#define NVLLM_ENGINE_TEXT_CHAT_IMPL_H

#include <jansson.h>

#include "engine/text/chat.h"

struct chat_template {
    struct jinja *usual, *tool_use; /* tool_use may be NULL */
    json_t *tokens;                 /* {"bos_token": "<s>", …}; NULL: none */
    struct answer_format answer;
};

/* What a rendering is given: one of both. */
struct chat_source {
    const struct chat_template *t;
    const struct chat *chat;
    const json_t *json;
};

/* A jinja_input's set(); arg is a struct chat_source. */
void chat_set_variables(struct jinja_run *r, void *arg);

/* -EINVAL, with the name of the field that is wrong. */
int chat_check_json(const json_t *object, struct err *e);

#endif
