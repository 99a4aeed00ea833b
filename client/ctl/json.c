/* json.c - reading is strict: an unknown or wrongly typed member is an error that names it, and
 * null means absent. Numbers in tools and arguments keep their value to the last bit. */
#include "client/ctl/json.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "proto/utf8.h"

json_t *ctl_json_parse(const char *data, size_t n, struct nvllm_error *err)
{
    json_error_t where;
    json_t *value =
        json_loadb(data, n, JSON_DECODE_ANY | JSON_ALLOW_NUL | JSON_REJECT_DUPLICATES, &where);

    if (!value && where.line > 1)
        ctl_invalid(err, "not JSON: %s (line %d, column %d)", where.text, where.line, where.column);
    else if (!value)
        ctl_invalid(err, "not JSON: %s (column %d)", where.text, where.column);
    return value;
}

/* ---- writing */

json_t *ctl_json_text(const char *data, size_t n)
{
    json_t *value = json_stringn(data ? data : "", n);
    size_t len = 0;
    char *clean;

    if (value)
        return value;
    if (n > SIZE_MAX / 3 || !(clean = malloc(n * 3)))
        return NULL;
    for (size_t i = 0; i < n;) {
        int k = utf8_step(data + i, n - i);

        if (k > 0) {
            memcpy(clean + len, data + i, (size_t)k);
            len += (size_t)k;
            i += (size_t)k;
        } else {
            memcpy(clean + len, "\xef\xbf\xbd", 3);
            len += 3;
            i += (size_t)-k;
        }
    }
    value = json_stringn(clean, len);
    free(clean);
    return value;
}

json_t *ctl_json_number(double value)
{
    return isfinite(value) ? json_real(value) : json_null();
}

json_t *ctl_json_ids(const int32_t *ids, size_t n)
{
    json_t *array = json_array();

    for (size_t i = 0; i < n; i++)
        json_array_append_new(array, json_integer(ids[i]));
    return array;
}

json_t *ctl_json_error(const struct nvllm_error *err)
{
    json_t *e = json_object();

    json_object_set_new(e, "code", json_string(nvllm_code_name(err->code)));
    json_object_set_new(e, "message", ctl_json_text(err->message, strlen(err->message)));
    if (err->field[0])
        json_object_set_new(e, "field", ctl_json_text(err->field, strlen(err->field)));
    if (err->limit[0]) {
        json_object_set_new(e, "limit", ctl_json_text(err->limit, strlen(err->limit)));
        json_object_set_new(e, "limit_value", json_integer((json_int_t)err->limit_value));
    }
    return e;
}

bool ctl_json_print(int fd, json_t *value)
{
    /* Nine digits distinguish any two floats. */
    char *text = value ? json_dumps(value, JSON_ENCODE_ANY | JSON_REAL_PRECISION(9)) : NULL;
    size_t n = text ? strlen(text) : 0;
    bool ok = false;

    json_decref(value);
    if (!text) {
        ctl_message("out of memory");
        return false;
    }
    text[n] = '\n'; /* in place of the NUL: each line is one write */
    ok = ctl_write(fd, text, n + 1);
    free(text);
    return ok;
}

int ctl_json_answer(json_t *value)
{
    return ctl_json_print(STDOUT_FILENO, value) ? EXIT_OK : EXIT_ERROR;
}

/* ---- reading */

static bool wrong(struct nvllm_error *err, const char *name, const char *wanted)
{
    return ctl_invalid(err, "%s: must be %s", name, wanted);
}

static bool read_text(struct nvllm_text *out, const char *name, const json_t *value,
                      struct nvllm_error *err)
{
    if (!json_is_string(value))
        return wrong(err, name, "a string");
    *out = (struct nvllm_text){json_string_value(value), json_string_length(value)};
    return true;
}

static bool read_switch(enum nvllm_switch *out, const char *name, const json_t *value,
                        struct nvllm_error *err)
{
    if (!json_is_boolean(value))
        return wrong(err, name, "true or false");
    *out = json_is_true(value) ? NVLLM_ON : NVLLM_OFF;
    return true;
}

/* The JSON text of a value, in memory of the request. */
static struct nvllm_text dumped(struct ctl_request *q, const json_t *value)
{
    const size_t flags = JSON_ENCODE_ANY | JSON_REAL_PRECISION(17);
    size_t n = json_dumpb(value, NULL, 0, flags);
    char *text = ctl_request_take(q, n + 1, 1);

    json_dumpb(value, text, n, flags);
    return (struct nvllm_text){text, n};
}

bool ctl_json_read_ids(struct ctl_request *q, const char *name, const json_t *value,
                       const int32_t **ids, size_t *n, struct nvllm_error *err)
{
    size_t count = json_array_size(value);
    int32_t *out;

    if (!json_is_array(value))
        return wrong(err, name, "an array of token ids");
    out = ctl_request_take(q, count + 1, sizeof(*out)); /* not NULL, even if empty */
    for (size_t i = 0; i < count; i++) {
        const json_t *id = json_array_get(value, i);

        if (!json_is_integer(id) || json_integer_value(id) < 0 ||
            json_integer_value(id) > INT32_MAX)
            return ctl_invalid(err, "%s[%zu]: must be a token id, a whole number from 0", name, i);
        out[i] = (int32_t)json_integer_value(id);
    }
    *ids = out;
    *n = count;
    return true;
}

static bool read_tool_call(struct ctl_request *q, struct nvllm_tool_call *call, const char *where,
                           const json_t *value, struct nvllm_error *err)
{
    const json_t *function = json_object_get(value, "function");
    const json_t *source = json_is_object(function) ? function : value;
    const json_t *member;
    const char *name;
    char path[120];

    if (!json_is_object(value))
        return wrong(err, where, "an object");
    json_object_foreach((json_t *)value, name, member)
    {
        bool known = strcmp(name, "function") == 0 || strcmp(name, "type") == 0 ||
                     strcmp(name, "id") == 0 || strcmp(name, "index") == 0 ||
                     strcmp(name, "name") == 0 || strcmp(name, "arguments") == 0;

        if (!known)
            return ctl_invalid(err, "%s: “%s” is not known", where, name);
    }
    snprintf(path, sizeof(path), "%s.name", where);
    if (!read_text(&call->name, path, json_object_get(source, "name"), err))
        return false;
    member = json_object_get(source, "arguments");
    if (!member)
        return ctl_invalid(err, "%s.arguments: is missing", where);
    call->arguments = dumped(q, member);
    return true;
}

static bool read_tool_calls(struct ctl_request *q, struct nvllm_message *m, const char *where,
                            const json_t *value, struct nvllm_error *err)
{
    size_t n = json_array_size(value);
    struct nvllm_tool_call *calls;
    char path[100];

    if (!json_is_array(value))
        return ctl_invalid(err, "%s.tool_calls: must be an array", where);
    calls = ctl_request_take(q, n + 1, sizeof(*calls));
    for (size_t i = 0; i < n; i++) {
        snprintf(path, sizeof(path), "%s.tool_calls[%zu]", where, i);
        if (!read_tool_call(q, &calls[i], path, json_array_get(value, i), err))
            return false;
    }
    m->tool_calls = calls;
    m->n_tool_calls = n;
    return true;
}

static bool read_message(struct ctl_request *q, struct nvllm_message *m, const char *where,
                         const json_t *value, struct nvllm_error *err)
{
    const json_t *member;
    const char *name;
    char path[100];

    if (!json_is_object(value))
        return wrong(err, where, "an object");
    json_object_foreach((json_t *)value, name, member)
    {
        bool ok = true;

        snprintf(path, sizeof(path), "%s.%.40s", where, name);
        if (json_is_null(member))
            continue;
        if (strcmp(name, "role") == 0) {
            ok = json_is_string(member) || wrong(err, path, "a string");
            m->role = json_string_value(member);
        } else if (strcmp(name, "content") == 0) {
            ok = read_text(&m->content, path, member, err);
        } else if (strcmp(name, "reasoning_content") == 0) {
            ok = read_text(&m->reasoning_content, path, member, err);
        } else if (strcmp(name, "tool_calls") == 0) {
            ok = read_tool_calls(q, m, where, member, err);
        } else if (strcmp(name, "tool_call_id") != 0 && strcmp(name, "name") != 0) {
            /* Those two are common, and no chat template here uses them. */
            ok = ctl_invalid(err, "%s: “%s” is not known", where, name);
        }
        if (!ok)
            return false;
    }
    return m->role || ctl_invalid(err, "%s.role: is missing", where);
}

static bool read_messages(struct ctl_request *q, const json_t *value, struct nvllm_error *err)
{
    size_t n = json_array_size(value);
    struct nvllm_message *messages;
    char where[48];

    if (!json_is_array(value))
        return wrong(err, "messages", "an array");
    messages = ctl_request_take(q, n + 1, sizeof(*messages));
    for (size_t i = 0; i < n; i++) {
        snprintf(where, sizeof(where), "messages[%zu]", i);
        if (!read_message(q, &messages[i], where, json_array_get(value, i), err))
            return false;
    }
    q->chat.messages = messages;
    q->chat.n_messages = n;
    return true;
}

static bool read_tools(struct ctl_request *q, const json_t *value, struct nvllm_error *err)
{
    size_t n = json_array_size(value);
    struct nvllm_text *tools;

    if (!json_is_array(value))
        return wrong(err, "tools", "an array");
    tools = ctl_request_take(q, n + 1, sizeof(*tools));
    for (size_t i = 0; i < n; i++) {
        if (!json_is_object(json_array_get(value, i)))
            return ctl_invalid(err, "tools[%zu]: must be an object", i);
        tools[i] = dumped(q, json_array_get(value, i));
    }
    q->chat.tools = tools;
    q->chat.n_tools = n;
    return true;
}

/* 1: it is a member of a chat, and was read; 0: it is not; -1: *err. */
static int read_chat_member(struct ctl_request *q, const char *name, const json_t *value,
                            struct nvllm_error *err)
{
    bool ok;

    if (strcmp(name, "messages") == 0)
        ok = read_messages(q, value, err);
    else if (strcmp(name, "tools") == 0)
        ok = read_tools(q, value, err);
    else if (strcmp(name, "add_generation_prompt") == 0)
        ok = read_switch(&q->chat.add_generation_prompt, name, value, err);
    else if (strcmp(name, "enable_thinking") == 0)
        ok = read_switch(&q->chat.enable_thinking, name, value, err);
    else
        return 0;
    return ok ? 1 : -1;
}

bool ctl_json_read_chat(struct ctl_request *q, const json_t *value, struct nvllm_error *err)
{
    const json_t *member;
    const char *name;

    if (!json_is_object(value))
        return ctl_invalid(err, "must be an object with messages");
    json_object_foreach((json_t *)value, name, member)
    {
        int read = json_is_null(member) ? 1 : read_chat_member(q, name, member, err);

        if (read < 0)
            return false;
        if (read == 0)
            return ctl_invalid(err, "“%s” is not known", name);
    }
    return q->chat.messages || ctl_invalid(err, "messages: is missing");
}

/* ---- a line of a batch */

static bool read_seed(struct ctl_request *q, const json_t *value, struct nvllm_error *err)
{
    if (!json_is_integer(value) || json_integer_value(value) < 0)
        return wrong(err, "seed", "a whole number from 0");
    q->r.has_seed = true;
    q->r.seed = (uint64_t)json_integer_value(value);
    return true;
}

static bool read_stop(struct ctl_request *q, const json_t *value, struct nvllm_error *err)
{
    size_t n = json_is_string(value) ? 1 : json_array_size(value);
    struct nvllm_text *stop = ctl_request_take(q, n + 1, sizeof(*stop));

    if (!json_is_string(value) && !json_is_array(value))
        return wrong(err, "stop", "a string or an array of strings");
    for (size_t i = 0; i < n; i++)
        if (!read_text(&stop[i], "stop", json_is_string(value) ? value : json_array_get(value, i),
                       err))
            return false;
    q->r.stop = stop;
    q->r.n_stop = n;
    return true;
}

static bool set_bias(struct nvllm_logit_bias *out, json_int_t id, const json_t *bias,
                     struct nvllm_error *err)
{
    if (id < 0 || id > INT32_MAX || !json_is_number(bias))
        return wrong(err, "logit_bias", "[{\"id\", \"bias\"}, …] or {\"id\": bias, …}");
    out->id = (int32_t)id;
    out->bias = (float)json_number_value(bias);
    return true;
}

static bool read_logit_bias(struct ctl_request *q, const json_t *value, struct nvllm_error *err)
{
    size_t n = json_is_object(value) ? json_object_size(value) : json_array_size(value);
    struct nvllm_logit_bias *biases = ctl_request_take(q, n + 1, sizeof(*biases));
    const json_t *member;
    const char *name;
    size_t i = 0;

    if (json_is_object(value)) {
        json_object_foreach((json_t *)value, name, member)
        {
            char *end;
            long id = strtol(name, &end, 10);

            if (!set_bias(&biases[i++], *name && !*end ? id : -1, member, err))
                return false;
        }
    } else if (json_is_array(value)) {
        json_array_foreach((json_t *)value, i, member)
        {
            const json_t *id = json_object_get(member, "id");

            if (!set_bias(&biases[i], json_is_integer(id) ? json_integer_value(id) : -1,
                          json_object_get(member, "bias"), err))
                return false;
        }
    } else {
        return set_bias(biases, -1, NULL, err);
    }
    q->r.logit_bias = biases;
    q->r.n_logit_bias = n;
    return true;
}

static bool read_priority(struct ctl_request *q, const json_t *value, struct nvllm_error *err)
{
    return (json_is_string(value) && ctl_request_set_priority(q, json_string_value(value))) ||
           wrong(err, "priority", "\"low\", \"normal\" or \"high\"");
}

static bool read_field(struct nvllm_request *r, const struct ctl_field *f, const json_t *value,
                       struct nvllm_error *err)
{
    bool yes = json_is_true(value);

    if (f->type == FIELD_FLAG) {
        if (!json_is_boolean(value))
            return wrong(err, f->name, "true or false");
        memcpy((char *)r + f->offset, &yes, sizeof(yes));
        return true;
    }
    if (!json_is_number(value))
        return wrong(err, f->name, "a number");
    return ctl_field_set_number(r, f, json_number_value(value), json_is_integer(value), err);
}

static bool read_member(struct ctl_request *q, const char *name, const json_t *value,
                        struct nvllm_error *err)
{
    int read = read_chat_member(q, name, value, err);

    if (read != 0)
        return read > 0;
    for (size_t i = 0; i < ctl_n_fields; i++)
        if (strcmp(name, ctl_fields[i].name) == 0)
            return read_field(&q->r, &ctl_fields[i], value, err);
    if (strcmp(name, "prompt") == 0)
        return read_text(&q->r.prompt, name, value, err);
    if (strcmp(name, "prompt_ids") == 0)
        return ctl_json_read_ids(q, name, value, &q->r.prompt_ids, &q->r.n_prompt_ids, err);
    if (strcmp(name, "seed") == 0)
        return read_seed(q, value, err);
    if (strcmp(name, "stop") == 0)
        return read_stop(q, value, err);
    if (strcmp(name, "stop_token_ids") == 0)
        return ctl_json_read_ids(q, name, value, &q->r.stop_token_ids, &q->r.n_stop_token_ids, err);
    if (strcmp(name, "logit_bias") == 0)
        return read_logit_bias(q, value, err);
    if (strcmp(name, "priority") == 0)
        return read_priority(q, value, err);
    if (strcmp(name, "cache_salt") == 0)
        return read_text(&q->r.cache_salt, name, value, err);
    if (strcmp(name, "id") == 0 || strcmp(name, "stream") == 0)
        return true; /* the output repeats the id; streaming changes no line of it */
    return ctl_invalid(err, "“%s” is not known", name);
}

bool ctl_json_read_request(struct ctl_request *q, json_t *value, struct nvllm_error *err)
{
    const json_t *member;
    const char *name;
    int n_inputs;

    q->source = json_incref(value);
    if (!json_is_object(value))
        return ctl_invalid(err, "a line must be a JSON object");
    json_object_foreach(value, name, member)
    {
        if (!json_is_null(member) && !read_member(q, name, member, err))
            return false;
    }
    n_inputs = (q->r.prompt.data != NULL) + (q->r.prompt_ids != NULL) + (q->chat.messages != NULL);
    if (n_inputs != 1)
        return ctl_invalid(err, "a line has one of prompt, prompt_ids and messages, not %d",
                           n_inputs);
    if (q->chat.messages)
        q->r.chat = &q->chat;
    else if (q->chat.tools || q->chat.add_generation_prompt != NVLLM_UNSET ||
             q->chat.enable_thinking != NVLLM_UNSET)
        return ctl_invalid(err, "tools, enable_thinking and add_generation_prompt go with "
                                "messages");
    return true;
}
