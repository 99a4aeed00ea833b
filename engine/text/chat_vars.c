/* chat_vars.c - checks chats, and makes them the variables of a template. See chat_impl.h.
 *
 * Roles are the template's own text, as templates put them into special tokens, and so are those
 * tokens; all else comes from the request. */
#include <errno.h>
#include <string.h>

#include "engine/text/chat_impl.h"
#include "engine/text/jinja_impl.h"
#include "engine/util/json_util.h"

/* ---- checks */

static bool is_role(const char *role, size_t len)
{
    static const char *const roles[] = {"system", "developer", "user", "assistant", "tool"};

    for (size_t i = 0; i < sizeof(roles) / sizeof(*roles); i++)
        if (len == strlen(roles[i]) && memcmp(role, roles[i], len) == 0)
            return true;
    return false;
}

static int check_role(const char *role, size_t len, size_t i, struct err *e)
{
    if (is_role(role, len))
        return 0;
    return err_set(e, -EINVAL,
                   "chat.messages[%zu].role: \"%.*s\" is not one of system, developer, user, "
                   "assistant and tool",
                   i, len < 64 ? (int)len : 64, role ? role : "");
}

static int no_messages(struct err *e)
{
    return err_set(e, -EINVAL, "chat.messages: is empty");
}

int chat_check(const struct chat *chat, struct err *e)
{
    int r = chat->n_messages ? 0 : no_messages(e);

    for (size_t i = 0; i < chat->n_messages && !r; i++)
        r = check_role(chat->messages[i].role.data, chat->messages[i].role.len, i, e);
    return r;
}

/* Name and arguments are in the call, or in its function. */
static int check_call(const json_t *call, size_t message, size_t i, struct err *e)
{
    const json_t *function = json_object_get(call, "function");
    char path[96];

    snprintf(path, sizeof(path), "chat.messages[%zu].tool_calls[%zu]%s", message, i,
             function ? ".function" : "");
    return json_match(function ? function : call,
                      "{'name': 'a string', 'arguments': '*', '...?': '*'}", path, -EINVAL, e);
}

int chat_check_json(const json_t *object, struct err *e)
{
    static const char pattern[] =
        "{'messages': [{'role': 'a string', 'content?': 'a string or an array of parts',"
        "  'reasoning_content?': 'a string', 'tool_calls?': ['an object', '...'], '...?': '*'},"
        "  '...'],"
        " 'tools?': ['an object', '...'], 'add_generation_prompt?': 'true or false',"
        " 'enable_thinking?': 'true or false', '...?': '*'}";
    const json_t *messages = json_object_get(object, "messages"), *m, *call;
    int r = json_match(object, pattern, "chat", -EINVAL, e);
    size_t i, k;

    if (r)
        return r;
    if (!json_array_size(messages))
        return no_messages(e);
    json_array_foreach(messages, i, m)
    {
        const json_t *role = json_object_get(m, "role");

        r = check_role(json_string_value(role), json_string_length(role), i, e);
        if (r)
            return r;
        json_array_foreach(json_object_get(m, "tool_calls"), k, call)
        {
            r = check_call(call, i, k, e);
            if (r)
                return r;
        }
    }
    return 0;
}

/* ---- variables */

static void set(struct jinja_run *r, const char *name, struct value v)
{
    jinja_set(r, name, strlen(name), v);
}

static void put(struct jinja_run *r, struct dict *d, const char *key, struct value v)
{
    dict_set(r, d, value_str(str_of(r, key)), v);
}

static struct value text_value(struct jinja_run *r, struct text t, bool own)
{
    return value_str(str_new(r, t.len ? t.data : "", t.len, own));
}

static struct value object_value(struct dict *d)
{
    struct value v = value_dict(d);

    v.foreign = true;
    return v;
}

static struct value array_value(struct list *l)
{
    struct value v = value_list(l, V_LIST);

    v.foreign = true;
    return v;
}

/* Unless it is empty. */
static void put_text(struct jinja_run *r, struct dict *d, const char *key, struct text t)
{
    if (t.len)
        put(r, d, key, text_value(r, t, false));
}

static struct value calls_value(struct jinja_run *r, const struct chat_message *m, size_t i)
{
    struct list *calls = list_new(r, m->n_tool_calls);
    char path[96];

    for (size_t k = 0; k < m->n_tool_calls; k++) {
        struct dict *call = dict_new(r, 3), *function = dict_new(r, 2);

        put_text(r, call, "id", m->tool_calls[k].id);
        snprintf(path, sizeof(path), "chat.messages[%zu].tool_calls[%zu].arguments", i, k);
        put(r, function, "name", text_value(r, m->tool_calls[k].name, false));
        put(r, function, "arguments", value_parse_json(r, m->tool_calls[k].arguments_json, path));
        put(r, call, "type", value_str(str_of(r, "function")));
        put(r, call, "function", object_value(function));
        list_push(r, calls, object_value(call));
    }
    return array_value(calls);
}

/* Content that is null is empty here: templates differ in what they make of null. */
static struct value message_value(struct jinja_run *r, const struct chat_message *m, size_t i)
{
    struct dict *d = dict_new(r, 4);

    put(r, d, "role", text_value(r, m->role, true));
    put(r, d, "content", text_value(r, m->has_content ? m->content : (struct text){0}, false));
    if (m->has_reasoning)
        put(r, d, "reasoning_content", text_value(r, m->reasoning, false));
    if (m->n_tool_calls)
        put(r, d, "tool_calls", calls_value(r, m, i));
    put_text(r, d, "name", m->name);
    put_text(r, d, "tool_call_id", m->tool_call_id);
    return object_value(d);
}

static struct value parse_object(struct jinja_run *r, struct text t, const char *path)
{
    struct value v = value_parse_json(r, t, path);
    struct err why;

    if (v.type == V_DICT)
        return v;
    err_set(&why, -EINVAL, "%s: is not an object", path);
    jinja_fail_plain(r, -EINVAL, &why);
}

/* Sets a variable that is a list of objects, where there are any. */
static void set_objects(struct jinja_run *r, const char *name, const struct text *texts, size_t n)
{
    struct list *objects = list_new(r, n);
    char path[64];

    for (size_t i = 0; i < n; i++) {
        snprintf(path, sizeof(path), "chat.%s[%zu]", name, i);
        list_push(r, objects, parse_object(r, texts[i], path));
    }
    if (n)
        set(r, name, array_value(objects));
}

/* What a chat sets by fields of its own, and special tokens, nobody sets by kwargs. */
static bool is_set(const struct chat_source *source, const char *name)
{
    static const char *const names[] = {"messages", "tools", "documents", "add_generation_prompt"};

    for (size_t i = 0; i < sizeof(names) / sizeof(*names); i++)
        if (strcmp(name, names[i]) == 0)
            return true;
    return json_object_get(source->t->tokens, name) ||
           (source->chat->thinking != CHAT_THINKING_UNSET && strcmp(name, "enable_thinking") == 0);
}

static void set_kwargs(struct jinja_run *r, const struct chat_source *source)
{
    const struct dict *d = parse_object(r, source->chat->kwargs, "chat.chat_template_kwargs").dict;

    for (uint32_t i = 0; i < d->n; i++) {
        const struct str *name = d->entries[i].key.str;
        char copy[64];

        snprintf(copy, sizeof(copy), "%.*s", (int)name->len, name->data);
        if (is_set(source, copy)) {
            struct err why;

            err_set(&why, -EINVAL, "chat.chat_template_kwargs: \"%s\" is set already", copy);
            jinja_fail_plain(r, -EINVAL, &why);
        }
        jinja_set(r, name->data, name->len, d->entries[i].value);
    }
}

static void set_chat(struct jinja_run *r, const struct chat_source *source)
{
    const struct chat *chat = source->chat;
    struct list *messages = list_new(r, chat->n_messages);

    for (size_t i = 0; i < chat->n_messages; i++)
        list_push(r, messages, message_value(r, &chat->messages[i], i));
    set(r, "messages", array_value(messages));
    set_objects(r, "tools", chat->tools, chat->n_tools);
    set_objects(r, "documents", chat->documents, chat->n_documents);
    set(r, "add_generation_prompt", value_bool(chat->add_generation_prompt));
    if (chat->thinking != CHAT_THINKING_UNSET)
        set(r, "enable_thinking", value_bool(chat->thinking == CHAT_THINKING_ON));
    if (chat->kwargs.len)
        set_kwargs(r, source);
}

/* A message as it is, but that its role is the template's. */
static struct value json_message_value(struct jinja_run *r, const json_t *json)
{
    struct value v = value_from_json(r, json);
    const json_t *role = json_object_get(json, "role");

    put(r, v.dict, "role",
        text_value(r, (struct text){json_string_value(role), json_string_length(role)}, true));
    return v;
}

static void set_json(struct jinja_run *r, const json_t *object)
{
    const char *key;
    json_t *v, *m;
    size_t i;

    json_object_foreach((json_t *)(uintptr_t)object, key, v)
    {
        const bool token = strcmp(key, "bos_token") == 0 || strcmp(key, "eos_token") == 0;

        if (strcmp(key, "messages") == 0) {
            struct list *messages = list_new(r, json_array_size(v));

            json_array_foreach(v, i, m) list_push(r, messages, json_message_value(r, m));
            set(r, key, array_value(messages));
        } else if (token && json_is_string(v)) {
            set(r, key,
                text_value(r, (struct text){json_string_value(v), json_string_length(v)}, true));
        } else if (strcmp(key, "enable_thinking") != 0 || !json_is_null(v)) {
            set(r, key, value_from_json(r, v));
        }
    }
}

void chat_set_variables(struct jinja_run *r, void *arg)
{
    const struct chat_source *source = arg;
    const char *key;
    json_t *v;

    set(r, "tools", value_none());
    set(r, "documents", value_none());
    set(r, "add_generation_prompt", value_bool(true));
    json_object_foreach(source->t->tokens, key, v)
        set(r, key,
            text_value(r, (struct text){json_string_value(v), json_string_length(v)}, true));
    if (source->chat)
        set_chat(r, source);
    else
        set_json(r, source->json);
}
