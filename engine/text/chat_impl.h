/* chat_impl.h - shared by chat.c and the renderers. */
#ifndef NVLLM_ENGINE_TEXT_CHAT_IMPL_H
#define NVLLM_ENGINE_TEXT_CHAT_IMPL_H

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

/* JSON text, which has been checked, as Python's json.dumps(value, ensure_ascii=False) writes its
 * value, as request text. With bare_strings a string is written without quotes. */
void chat_write_json(struct chat_writer *w, struct text json, bool bare_strings);

/* A family of templates. Its renderer refuses nothing: roles are known, there is a message, tools
 * are objects and arguments JSON. */
struct chat_template {
    const char *name;
    void (*render)(struct chat_writer *w, const struct chat *chat);
};

enum { CHAT_TINY, CHAT_QWEN3, CHAT_QWEN25, N_CHAT_TEMPLATES };

extern const struct chat_template chat_templates[N_CHAT_TEMPLATES];

static inline bool text_is(struct text t, const char *s)
{
    return t.len == strlen(s) && (!t.len || !memcmp(t.data, s, t.len));
}

#endif
