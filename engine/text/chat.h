/* chat.h - renders chat messages as prompt text, by the model's own Jinja template.
 *
 * What the template itself writes is marked: special tokens are matched there alone, so that
 * nothing that users write becomes one. Templates are only read once they are loaded, by any
 * thread. */
#ifndef NVLLM_ENGINE_TEXT_CHAT_H
#define NVLLM_ENGINE_TEXT_CHAT_H

#include <stdbool.h>
#include <stddef.h>

#include "engine/text/answer.h"
#include "engine/text/jinja.h"
#include "engine/text/tokenizer.h"

struct chat_template; /* with the special tokens that it may name */

/* Reads the file, or where it is NULL folder/chat_template.jinja, else chat_template of
 * folder/tokenizer_config.json: a string, or a list with "default" and "tool_use". *out is NULL if
 * there is none. folder may be NULL if there is a file. -ENOTSUP with line and column for a
 * template that is wrong or needs what is not known here. If the file cannot be read, the text
 * names its option. */
int chat_template_load(struct chat_template **out, const char *folder, const char *file,
                       struct err *e);
/* The same from the template's text, without a folder. */
int chat_template_parse(struct chat_template **out, struct text text, struct err *e);
void chat_template_free(struct chat_template *t);

/* The tags of the answers that its model gives. */
struct answer_format chat_template_answer(const struct chat_template *t);

struct chat_tool_call {
    struct text name;
    struct text arguments_json; /* one JSON value */
    struct text id;             /* empty: none */
};

struct chat_message {
    struct text role; /* system, developer, user, assistant or tool */
    bool has_content; /* false: null or absent */
    struct text content;
    bool has_reasoning;
    struct text reasoning; /* reasoning_content */
    const struct chat_tool_call *tool_calls;
    size_t n_tool_calls;
    struct text name, tool_call_id; /* empty: none */
};

enum chat_thinking { CHAT_THINKING_UNSET, CHAT_THINKING_ON, CHAT_THINKING_OFF };

struct chat {
    const struct chat_message *messages;
    size_t n_messages;
    const struct text *tools; /* [n_tools] one JSON object each */
    size_t n_tools;
    bool no_tools; /* nor are there those of a session that it is appended to */
    /* Of the answer, not of the prompt: */
    bool must_call;               /* it is nothing but calls */
    struct text called_tool;      /* then: the name of the one to call; empty: any */
    bool one_call;                /* one at most */
    const struct text *documents; /* [n_documents] one JSON object each */
    size_t n_documents;
    struct text kwargs; /* a JSON object of more variables, chat_template_kwargs; or empty */
    bool add_generation_prompt;
    enum chat_thinking thinking;
};

/* An estimate of the prompt's length without rendering it. */
size_t chat_bytes(const struct chat *chat);

/* That there are messages, whose roles are known: as chat_render() does. -EINVAL, as its. */
int chat_check(const struct chat *chat, struct err *e);

/* -EINVAL begins with the field ("chat.messages[3].tool_calls[0].arguments: not JSON: …"), or is
 * what the template says of the chat; -E2BIG: a limit of the interpreter. */
int chat_render(const struct chat_template *t, const struct chat *chat, struct jinja_text *out,
                struct err *e);

/* Renders a JSON object: messages, tools and enable_thinking are checked as in a chat, all other
 * members are variables of the template as they are; bos_token and eos_token replace the model's.
 * Without add_generation_prompt there is one, as in the protocol. now: of strftime_now; NULL: the
 * clock. */
int chat_render_json(const struct chat_template *t, const char *json, size_t len,
                     const struct tm *now, struct jinja_text *out, struct err *e);

#endif
