/* chat_impl.h - shared by chat.c and the renderers. */
#ifndef NVLLM_ENGINE_TEXT_CHAT_IMPL_H
#define NVLLM_ENGINE_TEXT_CHAT_IMPL_H

#include <jansson.h>

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
    json_t **tools;     /* [n_tools] objects */
    json_t **arguments; /* of all tool calls, in order */
    size_t n_arguments;
};

/* A family of templates. Its renderer refuses nothing. */
struct chat_family {
    const char *name;
    void (*render)(struct chat_writer *w, const struct chat_checked *c);
};

void chat_render_qwen3(struct chat_writer *w, const struct chat_checked *c);
void chat_render_qwen25(struct chat_writer *w, const struct chat_checked *c);
void chat_render_tiny(struct chat_writer *w, const struct chat_checked *c);

/* The template of a family by name. -ENOTSUP, -ENOMEM. */
int chat_template_named(struct chat_template **out, const char *name, struct err *e);

/* Python's str methods as the templates use them. */
bool text_is(struct text t, const char *s);
bool text_starts(struct text t, const char *s);
bool text_ends(struct text t, const char *s);
struct text text_before_first(struct text t, const char *mark); /* split(mark)[0] */
struct text text_after_last(struct text t, const char *mark);   /* split(mark)[-1] */
bool text_has(struct text t, const char *s);
struct text text_lstrip(struct text t); /* newlines only */
struct text text_rstrip(struct text t);

#endif
