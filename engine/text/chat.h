/* chat.h - renders chat messages as prompt text, equal to the model's Jinja template to the byte.
 *
 * Each template family has a small renderer, found by a hash of the template's text. What the
 * template itself writes is marked: special tokens are matched there alone, so that nothing that
 * users write becomes one. */
#ifndef NVLLM_ENGINE_TEXT_CHAT_H
#define NVLLM_ENGINE_TEXT_CHAT_H

#include <stdbool.h>
#include <stddef.h>

#include "engine/util/err.h"
#include "engine/util/text.h"
#include "engine/text/tokenizer.h"

struct chat_template; /* one of a few constants */

/* Reads folder/chat_template.jinja, else chat_template of folder/tokenizer_config.json. *out is
 * NULL if there is neither. -ENOTSUP, with its hash, for an unknown template. */
int chat_template_load(const struct chat_template **out, const char *folder, struct err *e);
/* The same from the template's text. */
int chat_template_parse(const struct chat_template **out, struct text text, struct err *e);

struct chat_tool_call {
    struct text name;
    struct text arguments_json; /* one JSON value */
};

struct chat_message {
    struct text role; /* system, user, assistant or tool */
    bool has_content; /* false: null or absent */
    struct text content;
    bool has_reasoning;
    struct text reasoning; /* reasoning_content */
    const struct chat_tool_call *tool_calls;
    size_t n_tool_calls;
};

enum chat_thinking { CHAT_THINKING_UNSET, CHAT_THINKING_ON, CHAT_THINKING_OFF };

struct chat {
    const struct chat_message *messages;
    size_t n_messages;
    const struct text *tools; /* [n_tools] one JSON object each */
    size_t n_tools;
    bool add_generation_prompt;
    enum chat_thinking thinking;
};

/* A rendered prompt and the ranges that the template wrote: ascending, disjoint, merged. */
struct chat_text {
    char *data; /* NUL-terminated */
    size_t len;
    struct text_range *ranges;
    size_t n_ranges;
};

/* An estimate of the prompt's length without rendering it. */
size_t chat_bytes(const struct chat *chat);

/* -EINVAL names the message and field ("messages[3].tool_calls[0].arguments: not JSON: …"). */
int chat_render(const struct chat_template *t, const struct chat *chat, struct chat_text *out,
                struct err *e);
void chat_text_deinit(struct chat_text *t);

/* Reads a chat from a JSON object {messages, tools, add_generation_prompt, enable_thinking}; the
 * texts belong to *out. An unknown member, of messages and calls too, is an error
 * that names it; ids and names that no template uses are ignored. Absent means what it means to a
 * template: no generation prompt, thinking unset. */
struct chat_json {
    struct chat chat;
    bool has_prompt_flag; /* add_generation_prompt is not absent */

    struct json_t *root;
    struct chat_message *messages;
    struct chat_tool_call *calls; /* of all messages */
    struct text *tools;
};
int chat_json_parse(struct chat_json *out, const char *json, size_t len, struct err *e);
void chat_json_deinit(struct chat_json *c);

#endif
