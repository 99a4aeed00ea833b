/* chat_qwen.c - the ChatML templates of Qwen3, of Qwen2.5 and of nvllm-tiny.
 *
 * Each function follows the order of its Jinja template. Null content is the empty text where a
 * template would fail. */
#include "engine/text/chat_impl.h"

static const char tools_head[] =
    "# Tools\n\nYou may call one or more functions to assist with the user query.\n\n"
    "You are provided with function signatures within <tools></tools> XML tags:\n<tools>";
static const char tools_tail[] =
    "\n</tools>\n\nFor each function call, return a json object with function name and arguments "
    "within <tool_call></tool_call> XML tags:\n<tool_call>\n"
    "{\"name\": <function-name>, \"arguments\": <args-json-object>}\n</tool_call><|im_end|>\n";
static const char qwen25_system[] =
    "You are Qwen, created by Alibaba Cloud. You are a helpful assistant.";

/* ---- Python's str methods, as the templates use them */

static bool starts_with(struct text t, const char *s)
{
    size_t len = strlen(s);

    return t.len >= len && !memcmp(t.data, s, len);
}

static bool ends_with(struct text t, const char *s)
{
    size_t len = strlen(s);

    return t.len >= len && !memcmp(t.data + t.len - len, s, len);
}

static const char *find(struct text t, const char *s)
{
    return t.len ? memmem(t.data, t.len, s, strlen(s)) : NULL;
}

/* split(mark)[-1] */
static struct text after_last(struct text t, const char *mark)
{
    const char *at;

    while ((at = find(t, mark))) {
        at += strlen(mark);
        t = (struct text){at, t.len - (size_t)(at - t.data)};
    }
    return t;
}

/* lstrip('\n') */
static struct text lstrip(struct text t)
{
    while (t.len && t.data[0] == '\n')
        t = (struct text){t.data + 1, t.len - 1};
    return t;
}

/* rstrip('\n') */
static struct text rstrip(struct text t)
{
    while (t.len && t.data[t.len - 1] == '\n')
        t.len--;
    return t;
}

/* ---- what the templates have in common */

static struct text content_of(const struct chat_message *m)
{
    return m->has_content ? m->content : (struct text){0};
}

static bool has_role(const struct chat *chat, size_t i, const char *role)
{
    return i < chat->n_messages && text_is(chat->messages[i].role, role);
}

static void write_tools(struct chat_writer *w, const struct chat *chat)
{
    chat_write(w, tools_head);
    for (size_t i = 0; i < chat->n_tools; i++) {
        chat_write(w, "\n");
        chat_write_json(w, chat->tools[i], false);
    }
    chat_write(w, tools_tail);
}

/* The role, one of four known words, counts as the template's own text. */
static void write_message(struct chat_writer *w, const char *role, struct text content)
{
    chat_write(w, "<|im_start|>");
    chat_write(w, role);
    chat_write(w, "\n");
    chat_write_text(w, content);
    chat_write(w, "<|im_end|>\n");
}

/* Consecutive tool responses share one user message. */
static void write_tool_response(struct chat_writer *w, const struct chat *chat, size_t i)
{
    if (i == 0 || !has_role(chat, i - 1, "tool"))
        chat_write(w, "<|im_start|>user");
    chat_write(w, "\n<tool_response>\n");
    chat_write_text(w, content_of(&chat->messages[i]));
    chat_write(w, "\n</tool_response>");
    if (!has_role(chat, i + 1, "tool"))
        chat_write(w, "<|im_end|>\n");
}

static void write_tool_call(struct chat_writer *w, const struct chat_tool_call *call,
                            bool bare_strings)
{
    chat_write(w, "<tool_call>\n{\"name\": \"");
    chat_write_text(w, call->name);
    chat_write(w, "\", \"arguments\": ");
    chat_write_json(w, call->arguments_json, bare_strings);
    chat_write(w, "}\n</tool_call>");
}

/* All messages but a system message at the beginning. */
static void write_messages(struct chat_writer *w, const struct chat *chat,
                           void (*write_answer)(struct chat_writer *w, const struct chat *chat,
                                                size_t i, size_t query),
                           size_t query)
{
    for (size_t i = 0; i < chat->n_messages; i++) {
        const struct chat_message *m = &chat->messages[i];

        if (text_is(m->role, "assistant"))
            write_answer(w, chat, i, query);
        else if (text_is(m->role, "tool"))
            write_tool_response(w, chat, i);
        else if (i || !text_is(m->role, "system"))
            write_message(w, chat_role(m->role), content_of(m));
    }
}

static void write_prompt(struct chat_writer *w, const struct chat *chat, bool thinks)
{
    if (!chat->add_generation_prompt)
        return;
    chat_write(w, "<|im_start|>assistant\n");
    if (thinks && chat->thinking == CHAT_THINKING_OFF)
        chat_write(w, "<think>\n\n</think>\n\n");
}

/* ---- Qwen3 */

/* The index of the last message that a person wrote: later answers keep their thinking. */
static size_t last_query(const struct chat *chat)
{
    for (size_t i = chat->n_messages; i-- > 0;) {
        const struct chat_message *m = &chat->messages[i];

        if (text_is(m->role, "user") && m->has_content &&
            !(starts_with(m->content, "<tool_response>") &&
              ends_with(m->content, "</tool_response>")))
            return i;
    }
    return chat->n_messages - 1;
}

static void write_qwen3_answer(struct chat_writer *w, const struct chat *chat, size_t i,
                               size_t query)
{
    const struct chat_message *m = &chat->messages[i];
    struct text content = content_of(m), reasoning = {0};
    const char *end = find(content, "</think>");

    if (m->has_reasoning) {
        reasoning = m->reasoning;
    } else if (end) {
        reasoning = rstrip((struct text){content.data, (size_t)(end - content.data)});
        reasoning = lstrip(after_last(reasoning, "<think>"));
        content = lstrip(after_last(content, "</think>"));
    }
    chat_write(w, "<|im_start|>assistant\n");
    if (i > query && (i + 1 == chat->n_messages || reasoning.len)) {
        chat_write(w, "<think>\n");
        chat_write_text(w, lstrip(rstrip(reasoning)));
        chat_write(w, "\n</think>\n\n");
        chat_write_text(w, lstrip(content));
    } else {
        chat_write_text(w, content);
    }
    for (size_t k = 0; k < m->n_tool_calls; k++) {
        if (k || content.len)
            chat_write(w, "\n");
        write_tool_call(w, &m->tool_calls[k], true);
    }
    chat_write(w, "<|im_end|>\n");
}

static void render_qwen3(struct chat_writer *w, const struct chat *chat)
{
    bool system = has_role(chat, 0, "system");

    if (chat->n_tools) {
        chat_write(w, "<|im_start|>system\n");
        if (system) {
            chat_write_text(w, content_of(&chat->messages[0]));
            chat_write(w, "\n\n");
        }
        write_tools(w, chat);
    } else if (system) {
        write_message(w, "system", content_of(&chat->messages[0]));
    }
    write_messages(w, chat, write_qwen3_answer, last_query(chat));
    write_prompt(w, chat, true);
}

/* ---- Qwen2.5 */

static void write_qwen25_answer(struct chat_writer *w, const struct chat *chat, size_t i,
                                size_t query)
{
    const struct chat_message *m = &chat->messages[i];
    struct text content = content_of(m);

    (void)query;
    if (!m->n_tool_calls) {
        write_message(w, "assistant", content);
        return;
    }
    chat_write(w, "<|im_start|>assistant");
    if (content.len) {
        chat_write(w, "\n");
        chat_write_text(w, content);
    }
    for (size_t k = 0; k < m->n_tool_calls; k++) {
        chat_write(w, "\n");
        write_tool_call(w, &m->tool_calls[k], false);
    }
    chat_write(w, "<|im_end|>\n");
}

static void render_qwen25(struct chat_writer *w, const struct chat *chat)
{
    chat_write(w, "<|im_start|>system\n");
    if (has_role(chat, 0, "system"))
        chat_write_text(w, content_of(&chat->messages[0]));
    else
        chat_write(w, qwen25_system);
    if (chat->n_tools) {
        chat_write(w, "\n\n");
        write_tools(w, chat);
    } else {
        chat_write(w, "<|im_end|>\n");
    }
    write_messages(w, chat, write_qwen25_answer, 0);
    write_prompt(w, chat, false);
}

/* ---- nvllm-tiny */

/* Without tools: definitions and calls are omitted, a tool response is an ordinary message. */
static void render_tiny(struct chat_writer *w, const struct chat *chat)
{
    for (size_t i = 0; i < chat->n_messages; i++) {
        const struct chat_message *m = &chat->messages[i];
        struct text content = content_of(m);

        if (text_is(m->role, "assistant") && find(content, "</think>"))
            content = lstrip(after_last(content, "</think>"));
        write_message(w, chat_role(m->role), content);
    }
    write_prompt(w, chat, true);
}

/* Qwen3's first revision differs from the later one only in that it fails on null content. */
const struct chat_template chat_templates[N_CHAT_TEMPLATES] = {
    {"nvllm-tiny", UINT64_C(0x3f674ce6c3394428), UINT64_C(0x7c07a7d485608f72), render_tiny},
    {"qwen3", UINT64_C(0x0fab82ce8f4d5175), UINT64_C(0xc9e0155c80737cf2), render_qwen3},
    {"qwen3", UINT64_C(0x4457e3d12b367a86), UINT64_C(0x0283f874ff58d644), render_qwen3},
    {"qwen2.5", UINT64_C(0xe392aa06018503fd), UINT64_C(0x2469c9508f79506e), render_qwen25},
};
