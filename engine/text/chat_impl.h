/* chat_impl.h - shared by chat.c and the renderers. */
#ifndef NVLLM_ENGINE_TEXT_CHAT_IMPL_H
#define NVLLM_ENGINE_TEXT_CHAT_IMPL_H

#include <jansson.h>
#include <string.h>

#include "engine/text/chat.h"

/* A prompt while it is written. After the first error nothing more is written. */
struct chat_writer {
    char *data;
    size_t len, cap;
    struct text_range *ranges; /* what the template wrote */
    size_t n_ranges, ranges_cap;
    int error;
};

void chat_write(struct chat_writer *w, const char *literal);   /* the template's own text */
void chat_write_text(struct chat_writer *w, struct text text); /* text of the request */

/* A JSON value as Python's json.dumps(value, ensure_ascii=False) writes it, as request text. */
void chat_write_json(struct chat_writer *w, const json_t *value);

/* A checked chat: known roles, at least one message, JSON parsed. */
struct chat_checked {
    const struct chat *chat;
    json_t **values; /* [n_values] of the tools, which are objects, then of all calls' arguments */
    size_t n_values;
};

/* A family of templates. Its renderer refuses nothing. */
struct chat_template {
    const char *name;
    void (*render)(struct chat_writer *w, const struct chat_checked *c);
};

enum { CHAT_TINY, CHAT_QWEN3, CHAT_QWEN25, N_CHAT_TEMPLATES };

extern const struct chat_template chat_templates[N_CHAT_TEMPLATES];

static inline bool text_is(struct text t, const char *s)
{
    return t.len == strlen(s) && (!t.len || !memcmp(t.data, s, t.len));
}

#endif
