/* request.c - see request.h. An unknown or wrongly typed member is an error that names it; null
 * means absent. Numbers in tools and arguments keep their value to the last bit. */
#include "client/ctl/request.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "client/ctl/json.h"
#include "client/json/format.h"

void ctl_request_init(struct ctl_request *q)
{
    *q = (struct ctl_request){0};
    nvllm_request_init(&q->r);
    nvllm_chat_init(&q->chat);
    nvllm_embed_options_init(&q->embed);
    q->sources = json_array();
}

void ctl_request_deinit(struct ctl_request *q)
{
    while (q->n_pieces > 0)
        free(q->pieces[--q->n_pieces]);
    free(q->pieces);
    q->pieces = NULL;
    json_decref(q->sources);
    q->sources = NULL;
}

/* Memory that is freed with the request. */
static void *keep(struct ctl_request *q, void *memory)
{
    q->pieces = ctl_grow(q->pieces, q->n_pieces + 1, sizeof(*q->pieces));
    return q->pieces[q->n_pieces++] = memory;
}

/* The same, new and zeroed. */
static void *take(struct ctl_request *q, size_t n, size_t size)
{
    return keep(q, ctl_alloc(n, size));
}

/* ---- values */

/* The value being read: `where` is its name, as in "messages[0].role". */
struct reading {
    struct ctl_request *q;
    const char *where;
    struct nvllm_error *err;
};

/* Reads a value into *out. False, with anything in *out, with in->err. */
typedef bool read_value(struct reading *in, void *out, const json_t *value);

static bool wrong(const struct reading *in, const char *wanted)
{
    return ctl_invalid(in->err, "%s: must be %s", in->where, wanted);
}

static bool read_float(struct reading *in, void *out, const json_t *value)
{
    float number = (float)json_number_value(value);

    *(float *)out = number;
    return (json_is_number(value) && isfinite(number)) || wrong(in, "a number");
}

static bool read_count(struct reading *in, void *out, const json_t *value)
{
    json_int_t count = json_integer_value(value);

    if (!json_is_number(value))
        return wrong(in, "a number");
    if (!json_is_integer(value) || count < 0 || count > UINT32_MAX)
        return ctl_invalid(in->err, "%s: must be a whole number from 0 to %u", in->where,
                           UINT32_MAX);
    *(int64_t *)out = count;
    return true;
}

static bool read_u32(struct reading *in, void *out, const json_t *value)
{
    int64_t count = 0;
    bool ok = read_count(in, &count, value);

    *(uint32_t *)out = (uint32_t)count;
    return ok;
}

static bool read_flag(struct reading *in, void *out, const json_t *value)
{
    *(bool *)out = json_is_true(value);
    return json_is_boolean(value) || wrong(in, "true or false");
}

static bool read_switch(struct reading *in, void *out, const json_t *value)
{
    *(enum nvllm_switch *)out = json_is_true(value) ? NVLLM_ON : NVLLM_OFF;
    return json_is_boolean(value) || wrong(in, "true or false");
}

static bool read_text(struct reading *in, void *out, const json_t *value)
{
    *(struct nvllm_text *)out = ctl_json_string(value);
    return json_is_string(value) || wrong(in, "a string");
}

static bool read_word(struct reading *in, void *out, const json_t *value)
{
    *(const char **)out = json_string_value(value);
    return json_is_string(value) || wrong(in, "a string");
}

static void *take_memory(void *q, size_t n, size_t size)
{
    return take(q, n, size);
}

/* The JSON text of a value, in memory of the request. */
static struct nvllm_text dumped(struct ctl_request *q, const json_t *value)
{
    return format_dump(&(struct format_reading){.take = take_memory, .owner = q}, value);
}

static bool read_object_text(struct reading *in, void *out, const json_t *value)
{
    if (!json_is_object(value))
        return wrong(in, "an object");
    *(struct nvllm_text *)out = dumped(in->q, value);
    return true;
}

static bool read_id(struct reading *in, void *out, const json_t *value)
{
    json_int_t id = json_integer_value(value);

    *(int32_t *)out = (int32_t)id;
    return (json_is_integer(value) && id >= 0 && id <= INT32_MAX) ||
           wrong(in, "a token id, a whole number from 0");
}

/* A member of an object, and where it is kept. */
struct member {
    const char *name;
    read_value *read; /* NULL: the member is ignored */
    size_t offset;
    size_t size;         /* of an element of an array, which read reads; 0: the member is none */
    size_t count_offset; /* where the number of elements is kept */
};

#define ONE(type, member) .offset = offsetof(struct type, member)
#define MANY(type, member, count)                                                                  \
    ONE(type, member), .size = sizeof(*((struct type *)NULL)->member),                             \
                       .count_offset = offsetof(struct type, count)

/* The elements are in memory of the request. */
static bool read_array(struct reading *in, void *out, const struct member *m, const json_t *value)
{
    size_t n = json_array_size(value);
    char *array = take(in->q, n + 1, m->size); /* not NULL, even if empty */
    const char *where = in->where;
    char path[120];

    if (!json_is_array(value))
        return wrong(in, m->read == read_id ? "an array of token ids" : "an array");
    in->where = path;
    for (size_t i = 0; i < n; i++) {
        snprintf(path, sizeof(path), "%s[%zu]", where, i);
        if (!m->read(in, array + i * m->size, json_array_get(value, i)))
            return false;
    }
    in->where = where;
    memcpy((char *)out + m->offset, &array, sizeof(array));
    memcpy((char *)out + m->count_offset, &n, sizeof(n));
    return true;
}

static bool read_member(struct reading *in, void *out, const struct member *m, const json_t *value)
{
    if (!m->read)
        return true;
    return m->size ? read_array(in, out, m, value) : m->read(in, (char *)out + m->offset, value);
}

static bool read_members(struct reading *in, void *out, const struct member *members, size_t n,
                         const json_t *object)
{
    const char *where = in->where, *name;
    const char *dot = where[0] ? "." : "", *colon = where[0] ? ": " : "";
    const json_t *value;
    char path[120];

    if (!json_is_object(object))
        return wrong(in, "an object");
    json_object_foreach((json_t *)object, name, value)
    {
        size_t i = 0;

        if (json_is_null(value))
            continue;
        while (i < n && strcmp(members[i].name, name) != 0)
            i++;
        if (i == n)
            return ctl_invalid(in->err, "%s%sthere is no field “%s”", where, colon, name);
        snprintf(path, sizeof(path), "%s%s%.40s", where, dot, name);
        in->where = path;
        if (!read_member(in, out, &members[i], value))
            return false;
        in->where = where;
    }
    return true;
}

/* ---- chats */

/* Name and arguments are members of the call or, as OpenAI has it, of its function. */
static bool read_tool_call(struct reading *in, void *out, const json_t *value)
{
    static const struct member members[] = {
        {.name = "function"}, {.name = "type"}, {.name = "id"},
        {.name = "index"},    {.name = "name"}, {.name = "arguments"},
    };
    const json_t *function = json_object_get(value, "function");
    const json_t *source = json_is_object(function) ? function : value;
    const json_t *name = json_object_get(source, "name"), *id = json_object_get(value, "id");
    const json_t *arguments = json_object_get(source, "arguments");
    struct nvllm_tool_call *call = out;

    if (!read_members(in, call, members, sizeof(members) / sizeof(members[0]), value))
        return false;
    if (!json_is_string(name))
        return ctl_invalid(in->err, "%s.name: must be a string", in->where);
    if (!arguments)
        return ctl_invalid(in->err, "%s.arguments: is missing", in->where);
    if (id && !json_is_null(id) && !json_is_string(id))
        return ctl_invalid(in->err, "%s.id: must be a string", in->where);
    call->id = ctl_json_string(id);
    call->name = ctl_json_string(name);
    call->arguments = dumped(in->q, arguments);
    return true;
}

static bool read_message(struct reading *in, void *out, const json_t *value)
{
    static const struct member members[] = {
        {"role", read_word, ONE(nvllm_message, role)},
        {"content", read_text, ONE(nvllm_message, content)},
        {"reasoning_content", read_text, ONE(nvllm_message, reasoning_content)},
        {"tool_calls", read_tool_call, MANY(nvllm_message, tool_calls, n_tool_calls)},
        {"name", read_text, ONE(nvllm_message, name)},
        {"tool_call_id", read_text, ONE(nvllm_message, tool_call_id)},
    };
    const struct nvllm_message *m = out;

    return read_members(in, out, members, sizeof(members) / sizeof(members[0]), value) &&
           (m->role || ctl_invalid(in->err, "%s.role: is missing", in->where));
}

/* ---- the fields of a request */

static bool read_seed(struct reading *in, void *out, const json_t *value)
{
    struct nvllm_request *r = &in->q->r;

    (void)out;
    r->has_seed = true;
    r->seed = (uint64_t)json_integer_value(value);
    return (json_is_integer(value) && json_integer_value(value) >= 0) ||
           wrong(in, "a whole number from 0");
}

static bool read_stop(struct reading *in, void *out, const json_t *value)
{
    static const struct member strings = {"stop", read_text, MANY(ctl_request, r.stop, r.n_stop)};
    json_t *one = json_is_string(value) ? json_pack("[O]", value) : NULL;
    bool ok = one || json_is_array(value) ? read_array(in, in->q, &strings, one ? one : value)
                                          : wrong(in, "a string or an array of strings");

    (void)out;
    json_decref(one);
    return ok;
}

static bool set_bias(struct nvllm_logit_bias *out, json_int_t id, const json_t *bias)
{
    out->id = (int32_t)id;
    out->bias = (float)json_number_value(bias);
    return id >= 0 && id <= INT32_MAX && json_is_number(bias);
}

static bool read_logit_bias(struct reading *in, void *out, const json_t *value)
{
    size_t n = json_is_object(value) ? json_object_size(value) : json_array_size(value), i = 0;
    struct nvllm_logit_bias *biases = take(in->q, n + 1, sizeof(*biases));
    bool ok = json_is_object(value) || json_is_array(value);
    struct nvllm_request *r = &in->q->r;
    const json_t *member;
    const char *name;

    (void)out;
    json_object_foreach((json_t *)value, name, member)
    {
        char *end;
        long id = strtol(name, &end, 10);

        ok = set_bias(&biases[i++], *name && !*end ? id : -1, member) && ok;
    }
    json_array_foreach((json_t *)value, i, member)
    {
        const json_t *id = json_object_get(member, "id");

        ok = set_bias(&biases[i], json_is_integer(id) ? json_integer_value(id) : -1,
                      json_object_get(member, "bias")) &&
             ok;
    }
    r->logit_bias = biases;
    r->n_logit_bias = n;
    return ok || wrong(in, "[{\"id\", \"bias\"}, …] or {\"id\": bias, …}");
}

static bool read_priority(struct reading *in, void *out, const json_t *value)
{
    const char *name = json_is_string(value) ? json_string_value(value) : "";
    enum nvllm_priority *p = out;

    for (*p = NVLLM_PRIORITY_NORMAL; *p <= NVLLM_PRIORITY_HIGH; ++*p)
        if (strcmp(name, nvllm_priority_name(*p)) == 0)
            return true;
    return wrong(in, "\"low\", \"normal\" or \"high\"");
}

static bool read_format(struct reading *in, void *out, const json_t *value)
{
    struct format_reading format = {.take = take_memory, .owner = in->q};

    return format_read(&format, out, in->where, value) ||
           ctl_invalid(in->err, "%s: must be %s", format.where, format.wanted);
}

static bool read_tool_choice(struct reading *in, void *out, const json_t *value)
{
    struct format_reading format = {.take = take_memory, .owner = in->q};

    return format_read_tool_choice(&format, out, in->where, value) ||
           ctl_invalid(in->err, "%s: must be %s", format.where, format.wanted);
}

#define FIELD(name, read) #name, read, ONE(ctl_request, r.name)

enum { N_CHAT_FIELDS = 8, N_INPUT_FIELDS = 14, N_FIELDS = 39 };

/* First those of a chat, then other inputs, then those that are options, too. */
static const struct member fields[N_FIELDS] = {
    {"messages", read_message, MANY(ctl_request, chat.messages, chat.n_messages)},
    {"tools", read_object_text, MANY(ctl_request, chat.tools, chat.n_tools)},
    {"tool_choice", read_tool_choice, ONE(ctl_request, chat)},
    {"parallel_tool_calls", read_switch, ONE(ctl_request, chat.parallel_tool_calls)},
    {"add_generation_prompt", read_switch, ONE(ctl_request, chat.add_generation_prompt)},
    {"enable_thinking", read_switch, ONE(ctl_request, chat.enable_thinking)},
    {"documents", read_object_text, MANY(ctl_request, chat.documents, chat.n_documents)},
    {"chat_template_kwargs", read_object_text, ONE(ctl_request, chat.chat_template_kwargs)},
    {"embed", read_text, ONE(ctl_request, embed.prompt)},
    {"embed_ids", read_id, MANY(ctl_request, embed.prompt_ids, embed.n_prompt_ids)},
    {"prompt_name", read_word, ONE(ctl_request, embed.prompt_name)},
    {"dimensions", read_count, ONE(ctl_request, embed.dimensions)},
    {FIELD(prompt, read_text)},
    {"prompt_ids", read_id, MANY(ctl_request, r.prompt_ids, r.n_prompt_ids)},
    {FIELD(temperature, read_float)},
    {FIELD(top_k, read_count)},
    {FIELD(top_p, read_float)},
    {FIELD(min_p, read_float)},
    {FIELD(repetition_penalty, read_float)},
    {FIELD(presence_penalty, read_float)},
    {FIELD(frequency_penalty, read_float)},
    {FIELD(min_tokens, read_count)},
    {FIELD(max_tokens, read_count)},
    {FIELD(logprobs, read_count)},
    {FIELD(n, read_count)},
    {FIELD(deadline_ms, read_u32)},
    {FIELD(ignore_eos, read_flag)},
    {FIELD(keep_special, read_flag)},
    {FIELD(raw_text, read_flag)},
    {FIELD(seed, read_seed)},
    {FIELD(stop, read_stop)},
    {"stop_token_ids", read_id, MANY(ctl_request, r.stop_token_ids, r.n_stop_token_ids)},
    {FIELD(logit_bias, read_logit_bias)},
    {FIELD(priority, read_priority)},
    {FIELD(cache_salt, read_text)},
    {FIELD(session, read_word)},
    {"response_format", read_format, ONE(ctl_request, r)},
    /* The output repeats the id; streaming changes no line of it. */
    {.name = "id"},
    {.name = "stream"},
};

bool ctl_request_read_chat(struct ctl_request *q, const json_t *value, struct nvllm_error *err)
{
    struct reading in = {q, "", err};

    if (!json_is_object(value))
        return ctl_invalid(err, "must be an object with messages");
    q->r.chat = &q->chat;
    return read_members(&in, q, fields, N_CHAT_FIELDS, value) &&
           (q->chat.messages || ctl_invalid(err, "messages: is missing"));
}

bool ctl_request_read_ids(struct ctl_request *q, const json_t *value, struct nvllm_error *err)
{
    struct reading in = {q, "ids", err};

    return read_array(&in, q, &fields[N_INPUT_FIELDS - 1], value);
}

bool ctl_request_read(struct ctl_request *q, json_t *value, struct nvllm_error *err)
{
    struct reading in = {q, "", err};
    int n_inputs;

    json_array_append(q->sources, value);
    if (!json_is_object(value))
        return ctl_invalid(err, "a line must be a JSON object");
    if (!read_members(&in, q, fields, N_FIELDS, value))
        return false;
    q->embeds = q->embed.prompt.data || q->embed.prompt_ids;
    n_inputs = (q->r.prompt.data != NULL) + (q->r.prompt_ids != NULL) + (q->chat.messages != NULL) +
               (q->embed.prompt.data != NULL) + (q->embed.prompt_ids != NULL);
    if (n_inputs != 1)
        return ctl_invalid(err,
                           "a line needs one of prompt, prompt_ids, messages, embed and "
                           "embed_ids, not %d",
                           n_inputs);
    if (!q->embeds && (q->embed.prompt_name || q->embed.dimensions >= 0))
        return ctl_invalid(err, "prompt_name and dimensions need embed or embed_ids");
    q->embed.priority = q->r.priority;
    q->embed.cache_salt = q->r.cache_salt;
    q->embed.deadline_ms = q->r.deadline_ms;
    if (q->chat.messages)
        q->r.chat = &q->chat;
    else if (q->chat.tools || q->chat.tool_choice != NVLLM_TOOLS_AUTO ||
             q->chat.parallel_tool_calls != NVLLM_UNSET ||
             q->chat.add_generation_prompt != NVLLM_UNSET ||
             q->chat.enable_thinking != NVLLM_UNSET || q->chat.documents ||
             q->chat.chat_template_kwargs.data)
        return ctl_invalid(err, "tools, tool_choice, parallel_tool_calls, documents, "
                                "enable_thinking, add_generation_prompt and "
                                "chat_template_kwargs need messages");
    return true;
}

/* ---- options */

static json_t *number_of(const struct ctl *ctl, const char *option, const char *text)
{
    char *end;
    double value = strtod(text, &end);

    if (end == text || *end != '\0')
        ctl_usage(ctl, "--%s takes a number, not “%s”", option, text);
    return floor(value) == value && fabs(value) < 1e15 ? json_integer((json_int_t)value)
                                                       : json_real(value);
}

static json_t *bias_of(const struct ctl *ctl, const char *text)
{
    long long id = -1;
    float bias;
    int n = 0;

    if (sscanf(text, "%lld:%f%n", &id, &bias, &n) != 2 || text[n] != '\0' || id < 0 ||
        id > INT32_MAX || !isfinite(bias))
        ctl_usage(ctl, "--logit-bias takes ID:BIAS, as in 42:-5, not “%s”", text);
    return json_pack("{sIsf}", "id", (json_int_t)id, "bias", (double)bias);
}

/* What an option gives for a field: "--top-p 0.9" is {"top_p": 0.9}. */
static json_t *value_of(const struct ctl *ctl, const struct member *f, const char *option,
                        const char *text)
{
    if (f->read == read_flag)
        return json_true();
    if (f->read == read_id)
        return json_integer(ctl_number(ctl, option, text, 0, INT32_MAX));
    if (f->read == read_logit_bias)
        return bias_of(ctl, text);
    if (f->read == read_float || f->read == read_count || f->read == read_u32)
        return number_of(ctl, option, text);
    return json_stringn_nocheck(text, strlen(text)); /* any bytes: the daemon checks them */
}

/* "top_p" is "--top-p", and "--stop-token-id" adds to "stop_token_ids". NULL: no field. */
static const struct member *field_of(const char *option)
{
    char name[40];

    snprintf(name, sizeof(name), "%s%s", option, strcmp(option, "stop-token-id") == 0 ? "s" : "");
    for (char *p = name; *p; p++)
        *p = *p == '-' ? '_' : *p;
    for (size_t i = N_INPUT_FIELDS; i < N_FIELDS; i++)
        if (strcmp(fields[i].name, name) == 0)
            return &fields[i];
    return NULL;
}

/* Whether the prompt, or the file of a batch, comes from elsewhere. */
static bool is_stdin_free(const struct usage_line *line)
{
    static const char *const options[] = {"prompt", "prompt-file", "input"};
    const char *source = line->n_words ? line->words[0] : NULL;

    for (size_t i = 0; !source && i < sizeof(options) / sizeof(options[0]); i++)
        source = usage_value(line, options[i]);
    return source && strcmp(source, "-") != 0;
}

/* An option that gives the format, or a part of it. */
static void take_format(struct ctl_request *q, const struct ctl *ctl, enum nvllm_format format,
                        const char *option, const char *text)
{
    struct nvllm_request *r = &q->r;
    struct nvllm_text *choices;
    char *memory;

    r->format = format;
    if (format == NVLLM_FORMAT_CHOICE) {
        choices = r->n_format_choices ? (struct nvllm_text *)r->format_choices
                                      : take(q, ctl->line.n_given, sizeof(*choices));
        choices[r->n_format_choices++] = nvllm_str(text);
        r->format_choices = choices;
    } else if (format == NVLLM_FORMAT_REGEX) {
        r->format_text = nvllm_str(text);
    } else if (format != NVLLM_FORMAT_JSON) {
        if (strcmp(text, "-") == 0 && !is_stdin_free(&ctl->line))
            ctl_usage(ctl, "--%s -: stdin is what %s reads already", option, ctl->command->name);
        memory = ctl_read_file(text, format == NVLLM_FORMAT_GRAMMAR ? "grammar" : "JSON Schema",
                               &r->format_text.len);
        keep(q, memory);
        r->format_text.data = memory;
    }
}

/* The options that say what the text must be: of one kind. */
static void take_formats(struct ctl_request *q, const struct ctl *ctl)
{
    static const struct {
        const char *option;
        enum nvllm_format format;
    } rows[] = {
        {"json-object", NVLLM_FORMAT_JSON}, {"json-schema", NVLLM_FORMAT_JSON_SCHEMA},
        {"regex", NVLLM_FORMAT_REGEX},      {"grammar", NVLLM_FORMAT_GRAMMAR},
        {"choice", NVLLM_FORMAT_CHOICE},
    };
    const char *before = NULL;

    for (size_t i = 0; i < ctl->line.n_given; i++) {
        const char *name = ctl->line.given[i].option->name;
        size_t k = 0;

        while (k < sizeof(rows) / sizeof(rows[0]) && strcmp(rows[k].option, name) != 0)
            k++;
        if (k == sizeof(rows) / sizeof(rows[0]))
            continue;
        if (before && strcmp(before, name) != 0)
            ctl_usage(ctl, "--%s and --%s cannot be combined", before, name);
        before = name;
        take_format(q, ctl, rows[k].format, name, ctl->line.given[i].value);
    }
}

void ctl_request_take_options(struct ctl_request *q, const struct ctl *ctl)
{
    json_t *given = json_object();

    json_array_append_new(q->sources, given);
    for (size_t i = 0; i < ctl->line.n_given; i++) {
        const struct usage_option *option = ctl->line.given[i].option;
        const char *text = ctl->line.given[i].value;
        const struct member *f = field_of(option->name);
        struct nvllm_error err;
        struct reading in = {q, f ? f->name : "", &err};
        json_t *value;

        if (!f)
            continue;
        if (f->read == read_seed) { /* JSON's integers end at INT64_MAX */
            q->r.has_seed = true;
            if (!ctl_parse_u64(&q->r.seed, text))
                ctl_usage(ctl, "--seed takes a whole number from 0 to %" PRIu64 ", not “%s”",
                          UINT64_MAX, text);
            continue;
        }
        value = value_of(ctl, f, option->name, text);
        if (option->repeats && json_object_get(given, f->name))
            json_array_append_new(json_object_get(given, f->name), value);
        else
            json_object_set_new(given, f->name, option->repeats ? json_pack("[o]", value) : value);
        if (read_member(&in, q, f, json_object_get(given, f->name)))
            continue;
        if (f->read == read_priority)
            ctl_usage(ctl, "--priority takes low, normal or high, not “%s”", text);
        ctl_usage(ctl, "--%s: invalid value “%s”: %s", option->name, text, err.message);
    }
    take_formats(q, ctl);
}
