/* chat_impl.h - shared by chat.c and the renderers. */
#ifndef NVLLM_ENGINE_TEXT_CHAT_IMPL_H
#define NVLLM_ENGINE_TEXT_CHAT_IMPL_H

#include <stdint.h>
#include <string.h>

#include "engine/text/chat.h"

/* A prompt while it is written. After the first error nothing more is written. */
struct chat_writer {
    struct chat_text text;
    size_t cap, ranges_cap;
    int error;
};

void chat_write(struct chat_writer *w, const char *literal);   /* the template's own text */
void chat_write_text(struct chat_writer *w, struct text text); /* text of the request */

/* JSON text, which has been checked, as Python's json.dumps(value, ensure_ascii=False) writes its
 * value, as request text. With bare_strings a string is written without quotes. */
void chat_write_json(struct chat_writer *w, struct text json, bool bare_strings);

/* The constant that a role equals; NULL: it is not known. */
const char *chat_role(struct text role);

/* A known template. The renderer of its family refuses nothing: roles are known, there is a
 * message, tools are objects and arguments JSON. */
struct chat_template {
    const char *family;
    uint64_t high, low; /* XXH3-128 of the text without trailing newlines */
    void (*render)(struct chat_writer *w, const struct chat *chat);
};

enum { N_CHAT_TEMPLATES = 4 };

extern const struct chat_template chat_templates[N_CHAT_TEMPLATES];

static inline bool text_is(struct text t, const char *s)
{
    return t.len == strlen(s) && (!t.len || !memcmp(t.data, s, t.len));
}

#endif
