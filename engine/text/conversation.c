/* conversation.c - see conversation.h. A message and all its texts are one allocation, as are the
 * texts that the template is given beside the messages. */
#include "engine/text/conversation.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "engine/util/checked.h"
#include "engine/util/must.h"

/* ---- texts */

static struct text copy_text(struct text from, char **at)
{
    char *copy = *at;

    if (from.len)
        memcpy(copy, from.data, from.len);
    *at += from.len;
    return (struct text){copy, from.len};
}

static size_t message_bytes(const struct chat_message *m)
{
    size_t n = 1 + m->role.len + m->content.len + m->reasoning.len + m->name.len +
               m->tool_call_id.len + m->n_tool_calls * sizeof(*m->tool_calls);

    for (size_t i = 0; i < m->n_tool_calls; i++) {
        const struct chat_tool_call *call = &m->tool_calls[i];

        n += call->name.len + call->arguments_json.len + call->id.len;
    }
    return n;
}

size_t conversation_message_bytes(const struct chat_message *messages, size_t n)
{
    size_t bytes = n * sizeof(*messages);

    for (size_t i = 0; i < n; i++)
        bytes += message_bytes(&messages[i]);
    return bytes;
}

/* The copy's tool calls are the beginning of its memory. */
static int copy_message(struct chat_message *out, const struct chat_message *from)
{
    struct chat_tool_call *calls = malloc(message_bytes(from));
    char *at = (char *)(calls + from->n_tool_calls);

    if (!calls)
        return -ENOMEM;
    *out = *from;
    out->tool_calls = calls;
    for (size_t i = 0; i < from->n_tool_calls; i++) {
        calls[i].name = copy_text(from->tool_calls[i].name, &at);
        calls[i].arguments_json = copy_text(from->tool_calls[i].arguments_json, &at);
        calls[i].id = copy_text(from->tool_calls[i].id, &at);
    }
    out->role = copy_text(from->role, &at);
    out->content = copy_text(from->content, &at);
    out->reasoning = copy_text(from->reasoning, &at);
    out->name = copy_text(from->name, &at);
    out->tool_call_id = copy_text(from->tool_call_id, &at);
    return 0;
}

/* Drops all but the first n messages. */
static void drop_messages(struct conversation *c, size_t n)
{
    struct chat_message *messages = (struct chat_message *)(uintptr_t)c->chat.messages;

    while (c->chat.n_messages > n) {
        struct chat_message *last = &messages[--c->chat.n_messages];

        c->text_bytes -= conversation_message_bytes(last, 1);
        free((void *)(uintptr_t)last->tool_calls);
    }
}

static int add_messages(struct conversation *c, const struct chat_message *from, size_t n)
{
    const size_t before = c->chat.n_messages;
    struct chat_message *messages;

    if (!array_reserve(&c->chat.messages, &c->messages_cap, before + n, sizeof(*messages)))
        return -ENOMEM;
    messages = (struct chat_message *)(uintptr_t)c->chat.messages;
    for (size_t i = 0; i < n; i++) {
        if (copy_message(&messages[before + i], &from[i]) < 0) {
            drop_messages(c, before);
            return -ENOMEM;
        }
        c->text_bytes += conversation_message_bytes(&from[i], 1);
        c->chat.n_messages++;
    }
    return 0;
}

/* The texts beside the messages; the tools are the beginning of their memory. */
static int copy_options(struct conversation *c, const struct chat *from)
{
    size_t bytes = (from->n_tools + from->n_documents) * sizeof(struct text) + from->kwargs.len + 1;
    struct text *texts;
    char *at;

    for (size_t i = 0; i < from->n_tools; i++)
        bytes += from->tools[i].len;
    for (size_t i = 0; i < from->n_documents; i++)
        bytes += from->documents[i].len;
    texts = malloc(bytes);
    if (!texts)
        return -ENOMEM;
    at = (char *)(texts + from->n_tools + from->n_documents);
    for (size_t i = 0; i < from->n_tools; i++)
        texts[i] = copy_text(from->tools[i], &at);
    for (size_t i = 0; i < from->n_documents; i++)
        texts[from->n_tools + i] = copy_text(from->documents[i], &at);
    c->chat.tools = texts;
    c->chat.n_tools = from->n_tools;
    c->chat.documents = texts + from->n_tools;
    c->chat.n_documents = from->n_documents;
    c->chat.kwargs = copy_text(from->kwargs, &at);
    c->chat.thinking = from->thinking;
    c->chat.add_generation_prompt = true;
    c->text_bytes += bytes;
    return 0;
}

/* ---- conversations */

int conversation_new(struct conversation **out, const struct chat *chat)
{
    struct conversation *c = calloc(1, sizeof(*c));

    if (!c || copy_options(c, chat) < 0 || add_messages(c, chat->messages, chat->n_messages) < 0 ||
        !array_reserve(&c->turns, &c->turns_cap, 1, sizeof(*c->turns))) {
        conversation_free(c);
        return -ENOMEM;
    }
    c->turns[0] = (struct conversation_turn){.n_messages = chat->n_messages};
    *out = c;
    return 0;
}

void conversation_free(struct conversation *c)
{
    if (!c)
        return;
    drop_messages(c, 0);
    free((void *)(uintptr_t)c->chat.messages);
    free((void *)(uintptr_t)c->chat.tools);
    transcript_deinit(&c->transcript);
    free(c->turns);
    free(c);
}

int conversation_fork(struct conversation **out, const struct conversation *from, size_t n_turns)
{
    struct chat chat = from->chat;
    struct conversation *c;

    must(n_turns <= from->n_turns);
    chat.n_messages = from->turns[n_turns].n_messages;
    if (conversation_new(&c, &chat) < 0)
        return -ENOMEM;
    if (transcript_copy(&c->transcript, &from->transcript, from->turns[n_turns].n_ids) < 0 ||
        !array_reserve(&c->turns, &c->turns_cap, n_turns + 1, sizeof(*c->turns))) {
        conversation_free(c);
        return -ENOMEM;
    }
    memcpy(c->turns, from->turns, (n_turns + 1) * sizeof(*c->turns));
    c->n_turns = n_turns;
    *out = c;
    return 0;
}

void conversation_rewind(struct conversation *c, size_t n_turns)
{
    must(n_turns <= c->n_turns);
    c->n_turns = n_turns;
    drop_messages(c, c->turns[n_turns].n_messages);
    transcript_cut(&c->transcript, c->turns[n_turns].n_ids);
}

size_t conversation_bytes(const struct conversation *c)
{
    return sizeof(*c) + c->text_bytes + (c->n_turns + 1) * sizeof(*c->turns) +
           transcript_bytes(&c->transcript);
}

size_t conversation_fork_bytes(const struct conversation *from, size_t n_turns)
{
    const struct conversation_turn *last = &from->turns[n_turns];

    return conversation_bytes(from) -
           conversation_message_bytes(from->chat.messages + last->n_messages,
                                      from->chat.n_messages - last->n_messages) -
           (from->n_turns - n_turns) * sizeof(*from->turns) -
           (from->transcript.ids.n - last->n_ids) * sizeof(*from->transcript.ids.ids);
}

int conversation_add(struct conversation *c, const struct chat_message *messages, size_t n,
                     const struct chat_message *answer, const struct transcript_prompt *prompt,
                     const int32_t *ids, size_t n_ids)
{
    const size_t before = c->chat.n_messages;

    if (!array_reserve(&c->turns, &c->turns_cap, c->n_turns + 2, sizeof(*c->turns)) ||
        add_messages(c, messages, n) < 0)
        return -ENOMEM;
    if (add_messages(c, answer, 1) < 0 || transcript_add(&c->transcript, prompt, ids, n_ids) < 0) {
        drop_messages(c, before);
        return -ENOMEM;
    }
    for (size_t i = 0; i <= c->n_turns; i++)
        if (c->turns[i].n_ids > prompt->n_kept)
            c->turns[i].n_ids = prompt->n_kept;
    c->turns[++c->n_turns] = (struct conversation_turn){c->chat.n_messages, c->transcript.ids.n};
    return 0;
}
