/* chat_json.c - reads a chat from a JSON object with the names that templates use. Texts point into
 * the parsed object; tools and arguments become JSON text again. */
#include <errno.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "engine/text/chat.h"
#include "engine/util/json_util.h"

enum {
    CHAT_JSON_MAX_BYTES = 64 << 20,
    PATH_BYTES = 64, /* of "messages[…].tool_calls[…]" */
};

static int check_members(const json_t *object, const char *path, const char *const *known,
                         struct err *e)
{
    const char *key;
    json_t *value;

    json_object_foreach((json_t *)object, key, value)
    {
        size_t i = 0;

        while (known[i] && strcmp(known[i], key) != 0)
            i++;
        if (!known[i])
            return err_set(e, -EINVAL, "%s%s%.64s: is not known", path, *path ? "." : "", key);
    }
    return 0;
}

static struct text text_of(const json_t *v)
{
    return (struct text){json_string_value(v), json_string_length(v)};
}

/* *has is false if the member is null or absent. */
static int get_text(struct text *out, bool *has, const json_t *object, const char *path,
                    const char *key, struct err *e)
{
    const json_t *v = json_object_get(object, key);

    *has = false;
    if (!v || json_is_null(v))
        return 0;
    if (!json_is_string(v))
        return err_set(e, -EINVAL, "%s.%s: is %s, not a text", path, key, json_type_name(v));
    *out = text_of(v);
    *has = true;
    return 0;
}

static int need_text(struct text *out, const json_t *object, const char *path, const char *key,
                     struct err *e)
{
    bool has;
    int r = get_text(out, &has, object, path, key, e);

    if (!r && !has)
        r = err_set(e, -EINVAL, "%s.%s: is missing", path, key);
    return r;
}

/* v as JSON text, a new value that its parent is to have in its place. */
static json_t *dumped(const json_t *v)
{
    char *text = json_text(v, JSON_COMPACT | JSON_ENCODE_ANY);
    json_t *string = text ? json_string(text) : NULL;

    free(text);
    return string;
}

/* Either {"type": "function", "function": {"name", "arguments"}} or the inner object alone. */
static int read_call(struct chat_tool_call *call, json_t *v, const char *path, struct err *e)
{
    static const char *const outer[] = {"id", "index", "type", "function", NULL};
    static const char *const inner[] = {"id", "index", "type", "name", "arguments", NULL};
    static const char *const function[] = {"name", "arguments", NULL};
    char below[PATH_BYTES + 16];
    json_t *arguments, *f = json_object_get(v, "function");
    int r;

    if (!json_is_object(v))
        return err_set(e, -EINVAL, "%s: is %s, not an object", path, json_type_name(v));
    r = check_members(v, path, f ? outer : inner, e);
    if (r)
        return r;
    snprintf(below, sizeof(below), "%s%s", path, f ? ".function" : "");
    if (f) {
        if (!json_is_object(f))
            return err_set(e, -EINVAL, "%s: is %s, not an object", below, json_type_name(f));
        r = check_members(f, below, function, e);
        if (r)
            return r;
        v = f;
    }
    r = need_text(&call->name, v, below, "name", e);
    if (r)
        return r;
    arguments = json_object_get(v, "arguments");
    if (!arguments)
        return err_set(e, -EINVAL, "%s.arguments: is missing", below);
    arguments = dumped(arguments);
    if (json_object_set_new(v, "arguments", arguments) < 0)
        return err_set(e, -ENOMEM, "%s: not enough memory", below);
    call->arguments_json = text_of(arguments);
    return 0;
}

/* The calls of a message go to *next, which moves on. */
static int read_calls(struct chat_message *m, struct chat_tool_call **next, const json_t *message,
                      const char *path, struct err *e)
{
    const json_t *calls = json_object_get(message, "tool_calls");
    size_t i;
    json_t *v;

    if (!calls || json_is_null(calls))
        return 0;
    if (!json_is_array(calls))
        return err_set(e, -EINVAL, "%s.tool_calls: is %s, not an array", path,
                       json_type_name(calls));
    m->tool_calls = *next;
    json_array_foreach(calls, i, v)
    {
        char below[PATH_BYTES];
        int r;

        snprintf(below, sizeof(below), "%.24s.tool_calls[%zu]", path, i);
        r = read_call(*next, v, below, e);
        if (r)
            return r;
        ++*next;
        m->n_tool_calls++;
    }
    return 0;
}

static int read_message(struct chat_message *m, struct chat_tool_call **next_call, const json_t *v,
                        size_t i, struct err *e)
{
    static const char *const known[] = {"role",       "content", "reasoning_content",
                                        "tool_calls", "name",    "tool_call_id",
                                        NULL};
    char path[32];
    int r;

    snprintf(path, sizeof(path), "messages[%zu]", i);
    if (!json_is_object(v))
        return err_set(e, -EINVAL, "%s: is %s, not an object", path, json_type_name(v));
    r = check_members(v, path, known, e);
    if (!r)
        r = need_text(&m->role, v, path, "role", e);
    if (!r)
        r = get_text(&m->content, &m->has_content, v, path, "content", e);
    if (!r)
        r = get_text(&m->reasoning, &m->has_reasoning, v, path, "reasoning_content", e);
    if (!r)
        r = read_calls(m, next_call, v, path, e);
    return r;
}

static int read_messages(struct chat_json *c, struct err *e)
{
    const json_t *messages = json_object_get(c->root, "messages");
    struct chat_tool_call *next_call;
    size_t n_calls = 0, i;
    json_t *v;

    if (!json_is_array(messages))
        return err_set(e, -EINVAL, "messages: is %s, not an array", json_type_name(messages));
    json_array_foreach(messages, i, v) n_calls += json_array_size(json_object_get(v, "tool_calls"));
    c->messages = calloc(json_array_size(messages) + 1, sizeof(*c->messages));
    c->calls = calloc(n_calls + 1, sizeof(*c->calls));
    if (!c->messages || !c->calls)
        return err_set(e, -ENOMEM, "messages: not enough memory");
    next_call = c->calls;
    json_array_foreach(messages, i, v)
    {
        int r = read_message(&c->messages[i], &next_call, v, i, e);

        if (r)
            return r;
    }
    c->chat.messages = c->messages;
    c->chat.n_messages = json_array_size(messages);
    return 0;
}

static int read_tools(struct chat_json *c, struct err *e)
{
    json_t *tools = json_object_get(c->root, "tools");
    size_t i;
    json_t *v;

    if (!tools || json_is_null(tools))
        return 0;
    if (!json_is_array(tools))
        return err_set(e, -EINVAL, "tools: is %s, not an array", json_type_name(tools));
    c->tools = calloc(json_array_size(tools) + 1, sizeof(*c->tools));
    if (!c->tools)
        return err_set(e, -ENOMEM, "tools: not enough memory");
    c->chat.tools = c->tools;
    json_array_foreach(tools, i, v)
    {
        char path[32];

        snprintf(path, sizeof(path), "tools[%zu]", i);
        if (!json_is_object(v))
            return err_set(e, -EINVAL, "%s: is %s, not an object", path, json_type_name(v));
        v = dumped(v);
        if (json_array_set_new(tools, i, v) < 0)
            return err_set(e, -ENOMEM, "%s: not enough memory", path);
        c->tools[c->chat.n_tools++] = text_of(v);
    }
    return 0;
}

/* *out is -1 if the member is null or absent. */
static int read_flag(int *out, const json_t *root, const char *key, struct err *e)
{
    const json_t *v = json_object_get(root, key);

    *out = -1;
    if (!v || json_is_null(v))
        return 0;
    if (!json_is_boolean(v))
        return err_set(e, -EINVAL, "%s: is %s, not true or false", key, json_type_name(v));
    *out = json_is_true(v);
    return 0;
}

static int read_chat(struct chat_json *c, struct err *e)
{
    static const char *const known[] = {"messages", "tools", "add_generation_prompt",
                                        "enable_thinking", NULL};
    int prompt, thinking;
    int r = check_members(c->root, "", known, e);

    if (!r)
        r = read_messages(c, e);
    if (!r)
        r = read_tools(c, e);
    if (!r)
        r = read_flag(&prompt, c->root, "add_generation_prompt", e);
    if (!r)
        r = read_flag(&thinking, c->root, "enable_thinking", e);
    if (r)
        return r;
    c->has_prompt_flag = prompt >= 0;
    c->chat.add_generation_prompt = prompt == 1;
    c->chat.thinking = thinking < 0 ? CHAT_THINKING_UNSET
                       : thinking   ? CHAT_THINKING_ON
                                    : CHAT_THINKING_OFF;
    return 0;
}

int chat_json_parse(struct chat_json *out, const char *json, size_t len, struct err *e)
{
    struct chat_json c = {0};
    int r;

    if (len > CHAT_JSON_MAX_BYTES)
        return err_set(e, -E2BIG, "chat: larger than %d MiB", CHAT_JSON_MAX_BYTES >> 20);
    r = json_parse(&c.root, "chat", json, len, JSON_ALLOW_NUL, e);
    if (r == 0 && !json_is_object(c.root))
        r = err_set(e, -EINVAL, "chat: is %s, not an object", json_type_name(c.root));
    if (r == 0)
        r = read_chat(&c, e);
    if (r)
        chat_json_deinit(&c);
    else
        *out = c;
    return r;
}

void chat_json_deinit(struct chat_json *c)
{
    free(c->calls);
    free(c->tools);
    free(c->messages);
    json_decref(c->root);
    *c = (struct chat_json){0};
}
