/* request_chat.c - checks a chat of a client's request; see request.h. */
#include "daemon/request_checker.h"

static void take_tool_call(struct checker *c, struct chat_tool_call *out,
                           const Nvllm__V1__ToolCall *m)
{
    if (!m->has_name)
        refuse(c, CODE(INVALID), "name", "is missing");
    take_text(c, &out->name, m->name.data, m->name.len, "name");
    if (!m->has_arguments)
        refuse(c, CODE(INVALID), "arguments", "is missing; it must be a JSON object");
    take_text(c, &out->arguments_json, m->arguments.data, m->arguments.len, "arguments");
    take_text(c, &out->id, m->id.data, m->id.len, "id");
}

static void take_message(struct checker *c, struct chat_message *out, const Nvllm__V1__Message *m)
{
    struct chat_tool_call *calls;

    if (!m->role)
        refuse(c, CODE(INVALID), "role", "is missing; it must be system, user, assistant or tool");
    else
        take_text(c, &out->role, m->role, strlen(m->role), "role");
    out->has_content = m->has_content;
    take_text(c, &out->content, m->content.data, m->content.len, "content");
    out->has_reasoning = m->has_reasoning_content;
    take_text(c, &out->reasoning, m->reasoning_content.data, m->reasoning_content.len,
              "reasoning_content");
    take_text(c, &out->name, m->name.data, m->name.len, "name");
    take_text(c, &out->tool_call_id, m->tool_call_id.data, m->tool_call_id.len, "tool_call_id");
    calls = take_memory(c, m->n_tool_calls, sizeof(*calls));
    for (size_t i = 0; c->r == 0 && i < m->n_tool_calls; i++) {
        const size_t path = enter(c, "tool_calls", i);

        take_tool_call(c, &calls[i], m->tool_calls[i]);
        leave(c, path);
    }
    out->tool_calls = calls;
    out->n_tool_calls = m->n_tool_calls;
}

static void take_tool_choice(struct checker *c, struct chat *chat, const Nvllm__V1__Chat *m)
{
    chat->one_call = m->has_parallel_tool_calls && !m->parallel_tool_calls;
    take_text(c, &chat->called_tool, m->called_tool.data, m->called_tool.len, "chat.called_tool");
    switch (m->tool_choice) {
    case NVLLM__V1__TOOL_CHOICE__TOOL_CHOICE_AUTO:
        break;
    case NVLLM__V1__TOOL_CHOICE__TOOL_CHOICE_NONE:
        chat->no_tools = true;
        chat->n_tools = 0;
        break;
    case NVLLM__V1__TOOL_CHOICE__TOOL_CHOICE_REQUIRED:
        chat->must_call = true;
        break;
    default:
        refuse(c, CODE(INVALID), "chat.tool_choice", "%d is not a choice", (int)m->tool_choice);
        break;
    }
    if (m->has_called_tool && (!chat->must_call || m->called_tool.len == 0))
        refuse(c, CODE(INVALID), "chat.called_tool",
               "must be the name of a tool, with tool_choice TOOL_CHOICE_REQUIRED");
}

const struct chat *request_take_chat(struct checker *c, const Nvllm__V1__Chat *m)
{
    struct chat *chat = take_memory(c, 1, sizeof(*chat));
    struct chat_message *messages = take_memory(c, m->n_messages, sizeof(*messages));
    struct text *tools = take_texts(c, m->tools, m->n_tools, "chat.tools");
    struct text *documents = take_texts(c, m->documents, m->n_documents, "chat.documents");
    struct text kwargs;

    take_text(c, &kwargs, m->chat_template_kwargs.data, m->chat_template_kwargs.len,
              "chat.chat_template_kwargs");
    for (size_t i = 0; c->r == 0 && i < m->n_messages; i++) {
        const size_t path = enter(c, "chat.messages", i);

        take_message(c, &messages[i], m->messages[i]);
        leave(c, path);
    }
    if (c->r < 0)
        return NULL;
    chat->messages = messages;
    chat->n_messages = m->n_messages;
    chat->tools = tools;
    chat->n_tools = m->n_tools;
    chat->documents = documents;
    chat->n_documents = m->n_documents;
    chat->kwargs = kwargs;
    chat->add_generation_prompt = !m->has_add_generation_prompt || m->add_generation_prompt;
    chat->thinking = !m->has_enable_thinking ? CHAT_THINKING_UNSET
                     : m->enable_thinking    ? CHAT_THINKING_ON
                                             : CHAT_THINKING_OFF;
    take_tool_choice(c, chat, m);
    return chat;
}

const struct chat *request_take_prompt(struct checker *c, const Nvllm__V1__Chat *m)
{
    const struct chat *chat = request_take_chat(c, m);

    if (chat && chat->must_call && chat->n_tools == 0)
        refuse(c, CODE(INVALID), "chat.tool_choice", "a call is required, but there are no tools");
    if (m->n_messages == 0)
        refuse(c, CODE(INVALID), "chat.messages", "is empty");
    if (chat)
        check_limit(c, LIMIT_PROMPT_BYTES, chat_bytes(chat), "chat");
    return chat;
}

int request_chat(const struct chat **out, const Nvllm__V1__Chat *m, struct unpacked *u,
                 const struct request_rules *rules, struct refusal *e)
{
    struct checker c = {.rules = rules, .u = u, .e = e};
    const struct chat *chat = request_take_chat(&c, m);
    struct err why;

    if (m->has_add_generation_prompt)
        refuse(&c, CODE(INVALID), "chat.add_generation_prompt", "is not of a session");
    if (m->has_tool_choice || m->has_called_tool)
        refuse(&c, CODE(INVALID), "chat.tool_choice", "is of a turn, not of a session");
    if (m->has_parallel_tool_calls)
        refuse(&c, CODE(INVALID), "chat.parallel_tool_calls", "is of a turn, not of a session");
    if (c.r == 0 && chat->n_messages > 0 && chat_check(chat, &why) < 0) { /* "field: text" */
        c.r = refusal_set(e, CODE(INVALID), "%s", why.text);
        snprintf(e->field, sizeof(e->field), "%.*s", (int)strcspn(why.text, ":"), why.text);
    }
    *out = chat;
    return c.r;
}
