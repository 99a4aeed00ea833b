/* chat_json.c - reads a chat from a JSON object with the names that templates use. Texts point into
 * the parsed object; tools and arguments become JSON text again. */
#include <errno.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "engine/text/chat.h"
#include "engine/util/json_util.h"

enum { CHAT_JSON_MAX_BYTES = 64 << 20 };

static const char pattern[] =
    "{'messages': [{'role': 'a string', 'content?': 'a string', 'reasoning_content?': 'a string',"
    "  'tool_calls?': 'an array', 'name?': '*', 'tool_call_id?': '*'}, '...'],"
    " 'tools?': ['an object', '...'],"
    " 'add_generation_prompt?': 'true or false', 'enable_thinking?': 'true or false'}";

/* A call is spelled in one of two ways. */
static const char call_pattern[] =
    "{'id?': '*', 'index?': '*', 'type?': '*', 'name': 'a string', 'arguments': '*'}";
static const char nested_call_pattern[] = "{'id?': '*', 'index?': '*', 'type?': '*',"
                                          " 'function': {'name': 'a string', 'arguments': '*'}}";

static struct text text_of(const json_t *v)
{
    return (struct text){json_string_value(v), json_string_length(v)};
}

/* v as JSON text, a new value that its parent is to have in its place. */
static json_t *dumped(const json_t *v)
{
    char *text = json_text(v, JSON_COMPACT | JSON_ENCODE_ANY);
    json_t *string = text ? json_string(text) : NULL;

    free(text);
    return string;
}

static int no_memory(struct err *e)
{
    return err_set(e, -ENOMEM, "chat: not enough memory");
}

static int read_call(struct chat_tool_call *call, json_t *v, const char *path, struct err *e)
{
    json_t *function = json_object_get(v, "function"), *arguments;
    int r = json_match(v, function ? nested_call_pattern : call_pattern, path, -EINVAL, e);

    if (r)
        return r;
    v = function ? function : v;
    arguments = dumped(json_object_get(v, "arguments"));
    if (json_object_set_new(v, "arguments", arguments) < 0)
        return no_memory(e);
    *call = (struct chat_tool_call){text_of(json_object_get(v, "name")), text_of(arguments)};
    return 0;
}

static int read_messages(struct chat_json *c, struct err *e)
{
    const json_t *messages = json_object_get(c->root, "messages");
    struct chat_tool_call *call;
    size_t n_calls = 0, i, k;
    json_t *v, *v_call;

    json_array_foreach(messages, i, v) n_calls += json_array_size(json_object_get(v, "tool_calls"));
    c->messages = calloc(json_array_size(messages) + 1, sizeof(*c->messages));
    c->calls = call = calloc(n_calls + 1, sizeof(*c->calls));
    if (!c->messages || !c->calls)
        return no_memory(e);
    json_array_foreach(messages, i, v)
    {
        const json_t *content = json_object_get(v, "content");
        const json_t *reasoning = json_object_get(v, "reasoning_content");
        const json_t *calls = json_object_get(v, "tool_calls");

        c->messages[i] = (struct chat_message){.role = text_of(json_object_get(v, "role")),
                                               .has_content = json_is_string(content),
                                               .content = text_of(content),
                                               .has_reasoning = json_is_string(reasoning),
                                               .reasoning = text_of(reasoning),
                                               .tool_calls = call,
                                               .n_tool_calls = json_array_size(calls)};
        json_array_foreach(calls, k, v_call)
        {
            char path[64];
            int r;

            snprintf(path, sizeof(path), "messages[%zu].tool_calls[%zu]", i, k);
            r = read_call(call++, v_call, path, e);
            if (r)
                return r;
        }
    }
    c->chat.messages = c->messages;
    c->chat.n_messages = json_array_size(messages);
    return 0;
}

static int read_tools(struct chat_json *c, struct err *e)
{
    json_t *tools = json_object_get(c->root, "tools"), *v;
    size_t i;

    c->chat.tools = c->tools = calloc(json_array_size(tools) + 1, sizeof(*c->tools));
    if (!c->tools)
        return no_memory(e);
    json_array_foreach(tools, i, v)
    {
        v = dumped(v);
        if (json_array_set_new(tools, i, v) < 0)
            return no_memory(e);
        c->tools[c->chat.n_tools++] = text_of(v);
    }
    return 0;
}

static int read_chat(struct chat_json *c, struct err *e)
{
    const json_t *prompt = json_object_get(c->root, "add_generation_prompt");
    const json_t *thinking = json_object_get(c->root, "enable_thinking");
    int r = json_match(c->root, pattern, "", -EINVAL, e);

    if (!r)
        r = read_messages(c, e);
    if (!r)
        r = read_tools(c, e);
    c->has_prompt_flag = json_is_boolean(prompt);
    c->chat.add_generation_prompt = json_is_true(prompt);
    if (json_is_boolean(thinking))
        c->chat.thinking = json_is_true(thinking) ? CHAT_THINKING_ON : CHAT_THINKING_OFF;
    return r;
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
