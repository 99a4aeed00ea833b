/* chat.c - POST /v1/chat/completions: messages and tools become a chat of nvllmd. */
#include <string.h>

#include "client/json/format.h"
#include "client/openai/answer.h"
#include "client/openai/fields.h"

/* ---- messages */

/* Parts of text, one below the other, as vLLM has it. */
static bool read_parts(struct intake *in, const char *param, struct nvllm_text *out,
                       const json_t *parts)
{
    struct nvllm_text *texts = intake_take(in, json_array_size(parts), sizeof(*texts));
    size_t n = json_array_size(parts), bytes = 0;
    char path[120], *all;

    if (!texts)
        return false;
    for (size_t i = 0; i < n; i++) {
        const json_t *part = json_array_get(parts, i);
        const char *type = json_string_value(json_object_get(part, "type"));

        snprintf(path, sizeof(path), "%.80s[%zu]", param, i);
        if (!type || strcmp(type, "text") != 0)
            return api_fail(&in->e, 400, "unsupported_parameter", path,
                            "%s is of type “%.40s”: only parts of type “text” are supported.", path,
                            type ? type : "");
        strcat(path, ".text");
        if (!read_text(in, path, &texts[i], json_object_get(part, "text")))
            return false;
        bytes += texts[i].len + 1;
    }
    all = intake_take(in, bytes, 1);
    if (!all)
        return false;
    *out = (struct nvllm_text){all, bytes ? bytes - 1 : 0};
    for (size_t i = 0; i < n; i++) {
        memcpy(all, texts[i].data, texts[i].len);
        all += texts[i].len;
        *all++ = '\n';
    }
    return true;
}

static bool read_content(struct intake *in, const char *param, struct nvllm_text *out,
                         const json_t *value)
{
    if (json_is_array(value))
        return read_parts(in, param, out, value);
    if (!json_is_string(value))
        return fields_wrong(in, param, "a string or an array of parts of text");
    return read_text(in, param, out, value);
}

static bool read_call(struct intake *in, const char *param, void *out, const json_t *value)
{
    const json_t *function = json_object_get(value, "function");
    const json_t *arguments = fields_get(function, "arguments"), *id = fields_get(value, "id");
    const char *type = json_string_value(json_object_get(value, "type"));
    struct nvllm_tool_call *call = out;
    char path[120];

    if (type && strcmp(type, "function") != 0)
        return api_fail(&in->e, 400, "unsupported_parameter", param,
                        "%s is of type “%.40s”: only “function” is supported.", param, type);
    snprintf(path, sizeof(path), "%.80s.function.name", param);
    if (!read_text(in, path, &call->name, json_object_get(function, "name")))
        return false;
    snprintf(path, sizeof(path), "%.80s.id", param);
    if (id && !read_text(in, path, &call->id, id))
        return false;
    snprintf(path, sizeof(path), "%.80s.function.arguments", param);
    call->arguments = nvllm_str("{}");
    if (!arguments || (json_is_string(arguments) && json_string_length(arguments) == 0))
        return true;
    return json_is_object(arguments) ? read_object(in, path, &call->arguments, arguments)
                                     : read_text(in, path, &call->arguments, arguments);
}

static bool read_role(struct intake *in, const char *where, const char **out, const json_t *value)
{
    static const char *const roles[] = {"system", "user", "assistant", "tool"};
    const char *role = json_string_value(json_object_get(value, "role"));
    char path[120];

    snprintf(path, sizeof(path), "%.80s.role", where);
    if (role && strcmp(role, "developer") == 0)
        role = "system"; /* its later name */
    for (size_t i = 0; role && i < sizeof(roles) / sizeof(roles[0]); i++)
        if (strcmp(role, roles[i]) == 0) {
            *out = roles[i];
            return true;
        }
    return fields_wrong(in, path, "system, developer, user, assistant or tool");
}

static bool read_message(struct intake *in, const char *where, void *out, const json_t *value)
{
    const json_t *content = fields_get(value, "content");
    const json_t *calls = fields_get(value, "tool_calls");
    struct nvllm_message *m = out;
    const struct {
        const char *name;
        struct nvllm_text *text;
    } texts[] = {
        {"reasoning_content", &m->reasoning_content},
        {"name", &m->name},
        {"tool_call_id", &m->tool_call_id},
    };
    char path[120];

    if (!json_is_object(value))
        return fields_wrong(in, where, "an object");
    if (!read_role(in, where, &m->role, value))
        return false;
    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
        const json_t *text = fields_get(value, texts[i].name);

        snprintf(path, sizeof(path), "%.80s.%s", where, texts[i].name);
        if (text && !read_text(in, path, texts[i].text, text))
            return false;
    }
    snprintf(path, sizeof(path), "%.80s.tool_calls", where);
    if (calls && !read_array(in, path, (void **)&m->tool_calls, &m->n_tool_calls,
                             sizeof(*m->tool_calls), read_call, calls))
        return false;
    snprintf(path, sizeof(path), "%.80s.content", where);
    if (content)
        return read_content(in, path, &m->content, content);
    /* An assistant's turn may have had no text, and clients keep that as null. */
    return strcmp(m->role, "assistant") == 0 ||
           fields_wrong(in, path, "a string or an array of parts of text");
}

/* ---- tools and the template */

static bool read_tool(struct intake *in, const char *param, void *out, const json_t *value)
{
    const char *type = json_string_value(json_object_get(value, "type"));

    if (!type || strcmp(type, "function") != 0)
        return api_fail(&in->e, 400, "unsupported_parameter", param,
                        "%s is of type “%.40s”: only “function” is supported.", param,
                        type ? type : "");
    if (!json_is_object(json_object_get(value, "function")))
        return fields_wrong(in, param, "an object with the member “function”, an object");
    return read_object(in, param, out, value);
}

static bool read_switch(struct intake *in, const char *param, enum nvllm_switch *out,
                        const json_t *value)
{
    bool on;

    if (!value)
        return true;
    if (!read_flag(in, param, &on, value))
        return false;
    *out = on ? NVLLM_ON : NVLLM_OFF;
    return true;
}

static bool read_tools(struct intake *in)
{
    const json_t *tools = fields_get(in->root, "tools");
    const json_t *choice = fields_get(in->root, "tool_choice");
    struct format_reading reading = {0};

    if (tools && !read_array(in, "tools", (void **)&in->chat.tools, &in->chat.n_tools,
                             sizeof(*in->chat.tools), read_tool, tools))
        return false;
    if (choice && !format_read_tool_choice(&reading, &in->chat, "tool_choice", choice))
        return fields_wrong(in, reading.where, reading.wanted);
    return read_switch(in, "parallel_tool_calls", &in->chat.parallel_tool_calls,
                       fields_get(in->root, "parallel_tool_calls"));
}

/* enable_thinking is a variable of nvllmd's own. */
static bool read_variables(struct intake *in)
{
    const json_t *value = fields_get(in->root, "chat_template_kwargs");
    const json_t *thinking = fields_get(value, "enable_thinking");
    json_t *rest;
    bool ok;

    if (!read_switch(in, "enable_thinking", &in->chat.enable_thinking,
                     fields_get(in->root, "enable_thinking")))
        return false;
    if (!value)
        return true;
    if (!json_is_object(value))
        return fields_wrong(in, "chat_template_kwargs", "an object");
    if (!read_switch(in, "chat_template_kwargs.enable_thinking", &in->chat.enable_thinking,
                     thinking))
        return false;
    rest = json_copy((json_t *)value);
    if (!rest)
        return api_fail(&in->e, 503, "out_of_memory", "", "There is no memory for the request.");
    json_object_del(rest, "enable_thinking");
    ok = json_object_size(rest) == 0 ||
         read_object(in, "chat_template_kwargs", &in->chat.chat_template_kwargs, rest);
    json_decref(rest);
    return ok;
}

/* ---- the request */

/* “logprobs” says whether, “top_logprobs” how many alternatives. */
static bool read_logprobs(struct intake *in)
{
    const json_t *whether = fields_get(in->root, "logprobs");
    const json_t *top = fields_get(in->root, "top_logprobs");
    int64_t n = 0;
    bool on = false;

    if ((whether && !read_flag(in, "logprobs", &on, whether)) ||
        (top && !read_count(in, "top_logprobs", &n, top)))
        return false;
    if (!on && n > 0)
        return api_fail(&in->e, 400, "invalid_value", "top_logprobs",
                        "top_logprobs needs logprobs: true.");
    in->r.logprobs = on ? n : -1;
    return true;
}

static bool read_chat(struct intake *in)
{
    const json_t *messages = fields_get(in->root, "messages");
    const json_t *documents = fields_get(in->root, "documents");

    if (!messages)
        return fields_wrong(in, "messages", "an array of messages");
    if (!read_array(in, "messages", (void **)&in->chat.messages, &in->chat.n_messages,
                    sizeof(*in->chat.messages), read_message, messages) ||
        !read_tools(in) || !read_variables(in) || !read_logprobs(in) ||
        !fields_refuse_flag(in, "add_special_tokens", true) ||
        !read_switch(in, "add_generation_prompt", &in->chat.add_generation_prompt,
                     fields_get(in->root, "add_generation_prompt")))
        return false;
    if (documents &&
        !read_array(in, "documents", (void **)&in->chat.documents, &in->chat.n_documents,
                    sizeof(*in->chat.documents), read_object, documents))
        return false;
    in->r.chat = &in->chat;
    return true;
}

void chat_request(struct gateway *gateway, struct http_conn *conn, const struct caller *caller,
                  struct nvllm_text body)
{
    struct intake in;

    if (!intake_init(&in, caller, body) || !read_chat(&in) ||
        !gateway_has_model(gateway, in.model, &in.e))
        api_reply_error(conn, &in.e);
    else
        answer_start(&(struct answer_options){
            .gateway = gateway,
            .conn = conn,
            .requests = &in.r,
            .n_requests = 1,
            .n = in.r.n < 0 ? 1 : (uint32_t)in.r.n,
            .is_chat = true,
            .stream = in.stream,
            .include_usage = in.include_usage,
            .logprobs = in.r.logprobs >= 0,
        });
    intake_deinit(&in);
}
