/* fields.c - see fields.h. Ranges are nvllmd's to check: its errors name the field, too. */
#include "client/openai/fields.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "client/json/format.h"

enum {
    JSON_FACTOR = 16,     /* bytes of memory for each byte of a body: lists of ids take that */
    JSON_SPARE = 4 << 20, /* and for any body */
    MAX_SALT = 256,       /* nvllmd's limits.salt_bytes */
};

static size_t json_left;  /* that the body being parsed may take */
static bool json_refused; /* it wanted more */

void *fields_alloc_json(size_t n)
{
    if (n > json_left) {
        json_refused = true;
        return NULL;
    }
    json_left -= n;
    return malloc(n);
}

/* ---- memory */

void *intake_take(struct intake *in, size_t n, size_t size)
{
    void **pieces = realloc(in->pieces, (in->n_pieces + 1) * sizeof(*pieces));
    void *piece = NULL;

    if (pieces) {
        in->pieces = pieces;
        piece = calloc(n + 1, size); /* not NULL, even for nothing */
    }
    if (piece)
        in->pieces[in->n_pieces++] = piece;
    else
        api_fail(&in->e, 503, "out_of_memory", "", "There is no memory for the request.");
    return piece;
}

static void *take_memory(void *in, size_t n, size_t size)
{
    return intake_take(in, n, size);
}

void intake_deinit(struct intake *in)
{
    while (in->n_pieces > 0)
        free(in->pieces[--in->n_pieces]);
    free(in->pieces);
    in->pieces = NULL;
    json_decref(in->root);
    in->root = NULL;
}

/* ---- values */

bool fields_wrong(struct intake *in, const char *param, const char *wanted)
{
    return api_fail(&in->e, 400, "invalid_value", param, "%s must be %s.", param, wanted);
}

bool fields_refuse_flag(struct intake *in, const char *name, bool value)
{
    const json_t *flag = json_object_get(in->root, name);

    return !(value ? json_is_true(flag) : json_is_false(flag)) ||
           api_fail(&in->e, 400, "unsupported_parameter", name, "%s: %s is not supported.", name,
                    value ? "true" : "false");
}

const json_t *fields_get(const json_t *object, const char *name)
{
    const json_t *value = json_object_get(object, name);

    return json_is_null(value) ? NULL : value;
}

bool read_text(struct intake *in, const char *param, void *out, const json_t *value)
{
    if (!json_is_string(value))
        return fields_wrong(in, param, "a string");
    *(struct nvllm_text *)out =
        (struct nvllm_text){json_string_value(value), json_string_length(value)};
    return true;
}

bool read_flag(struct intake *in, const char *param, void *out, const json_t *value)
{
    *(bool *)out = json_is_true(value);
    return json_is_boolean(value) || fields_wrong(in, param, "true or false");
}

bool read_count(struct intake *in, const char *param, void *out, const json_t *value)
{
    json_int_t n = json_integer_value(value);

    *(int64_t *)out = n;
    return (json_is_integer(value) && n >= 0 && n <= INT32_MAX) ||
           fields_wrong(in, param, "a whole number from 0 to 2147483647");
}

static bool take_id(int32_t *out, const json_t *value)
{
    json_int_t n = json_integer_value(value);

    *out = (int32_t)n;
    return json_is_integer(value) && n >= 0 && n <= INT32_MAX;
}

bool read_id(struct intake *in, const char *param, void *out, const json_t *value)
{
    return take_id(out, value) ||
           fields_wrong(in, param, "the id of a token, a whole number from 0");
}

bool read_object(struct intake *in, const char *param, void *out, const json_t *value)
{
    const struct format_reading reading = {.take = take_memory, .owner = in};
    struct nvllm_text text;

    if (!json_is_object(value))
        return fields_wrong(in, param, "an object");
    text = format_dump(&reading, value);
    *(struct nvllm_text *)out = text;
    return text.data != NULL;
}

bool read_array(struct intake *in, const char *param, void **out, size_t *n, size_t size,
                read_value *read, const json_t *value)
{
    char *array;
    char path[120];

    if (!json_is_array(value))
        return fields_wrong(in, param, "an array");
    array = intake_take(in, json_array_size(value), size);
    if (!array)
        return false;
    for (size_t i = 0; i < json_array_size(value); i++) {
        if (read == read_id &&
            take_id((int32_t *)(void *)(array + i * size), json_array_get(value, i)))
            continue; /* there may be many, and a path takes time */
        snprintf(path, sizeof(path), "%.80s[%zu]", param, i);
        if (!read(in, path, array + i * size, json_array_get(value, i)))
            return false;
    }
    *out = array;
    *n = json_array_size(value);
    return true;
}

static bool read_float(struct intake *in, const char *param, void *out, const json_t *value)
{
    float x = (float)json_number_value(value);

    *(float *)out = x;
    return (json_is_number(value) && isfinite(x)) || fields_wrong(in, param, "a number");
}

/* ---- fields of more than one kind */

static bool read_model(struct intake *in, const char *param, void *out, const json_t *value)
{
    (void)out;
    in->model = json_string_value(value);
    return in->model || fields_wrong(in, param, "a string");
}

/* As many as vLLM takes for “all”, too. */
static bool read_top_k(struct intake *in, const char *param, void *out, const json_t *value)
{
    if (json_is_integer(value) && json_integer_value(value) == -1) {
        *(int64_t *)out = 0;
        return true;
    }
    return read_count(in, param, out, value);
}

static bool read_seed(struct intake *in, const char *param, void *out, const json_t *value)
{
    (void)out;
    in->r.has_seed = true;
    in->r.seed = (uint64_t)json_integer_value(value);
    return json_is_integer(value) || fields_wrong(in, param, "a whole number");
}

static bool read_stop(struct intake *in, const char *param, void *out, const json_t *value)
{
    struct nvllm_text *stop;

    (void)out;
    if (json_is_array(value))
        return read_array(in, param, (void **)&in->r.stop, &in->r.n_stop, sizeof(*stop), read_text,
                          value);
    if (!json_is_string(value))
        return fields_wrong(in, param, "a string or an array of strings");
    stop = intake_take(in, 1, sizeof(*stop));
    if (!stop || !read_text(in, param, stop, value))
        return false;
    in->r.stop = stop;
    in->r.n_stop = 1;
    return true;
}

static bool read_stop_ids(struct intake *in, const char *param, void *out, const json_t *value)
{
    (void)out;
    return read_array(in, param, (void **)&in->r.stop_token_ids, &in->r.n_stop_token_ids,
                      sizeof(int32_t), read_id, value);
}

static bool read_bias(struct intake *in, const char *param, void *out, const json_t *value)
{
    struct nvllm_logit_bias *list;
    const json_t *bias;
    const char *name;
    char path[120];

    (void)out;
    if (!json_is_object(value))
        return fields_wrong(in, param, "an object of token ids and numbers");
    list = intake_take(in, json_object_size(value), sizeof(*list));
    if (!list)
        return false;
    in->r.logit_bias = list;
    json_object_foreach((json_t *)value, name, bias)
    {
        char *end;
        long id = strtol(name, &end, 10);

        snprintf(path, sizeof(path), "%s.%.40s", param, name);
        if (name[0] < '0' || name[0] > '9' || *end || id > INT32_MAX)
            return fields_wrong(in, param, "an object whose names are ids of tokens");
        list->id = (int32_t)id;
        if (!read_float(in, path, &list->bias, bias))
            return false;
        list++;
        in->r.n_logit_bias++;
    }
    return true;
}

/* As vLLM has it: lower goes first. */
static bool read_priority(struct intake *in, const char *param, void *out, const json_t *value)
{
    json_int_t n = json_integer_value(value);

    (void)out;
    in->r.priority = n > 0   ? NVLLM_PRIORITY_LOW
                     : n < 0 ? NVLLM_PRIORITY_HIGH
                             : NVLLM_PRIORITY_NORMAL;
    return json_is_integer(value) || fields_wrong(in, param, "a whole number");
}

static bool read_deadline(struct intake *in, const char *param, void *out, const json_t *value)
{
    int64_t ms;

    if (!read_count(in, param, &ms, value))
        return false;
    *(uint32_t *)out = (uint32_t)ms;
    return true;
}

static bool read_skip_special(struct intake *in, const char *param, void *out, const json_t *value)
{
    bool skip;

    if (!read_flag(in, param, &skip, value))
        return false;
    *(bool *)out = !skip;
    return true;
}

static bool read_stream_options(struct intake *in, const char *param, void *out,
                                const json_t *value)
{
    const json_t *usage = fields_get(value, "include_usage");

    (void)out;
    if (!json_is_object(value))
        return fields_wrong(in, param, "an object");
    return !usage || read_flag(in, "stream_options.include_usage", &in->include_usage, usage);
}

/* ---- fields that would lose their meaning */

static bool asks_for_nothing(const json_t *value)
{
    return json_is_null(value) || json_is_false(value) ||
           (json_is_number(value) && json_number_value(value) == 0) ||
           (json_is_string(value) && json_string_length(value) == 0) ||
           (json_is_array(value) && json_array_size(value) == 0) ||
           (json_is_object(value) && json_object_size(value) == 0);
}

static bool is_text_alone(const json_t *modalities)
{
    const char *only = json_string_value(json_array_get(modalities, 0));

    return json_array_size(modalities) == 1 && only && strcmp(only, "text") == 0;
}

static bool check_refused(struct intake *in)
{
    static const char *const names[] = {
        "allowed_token_ids",
        "audio",
        "bad_words",
        "chat_template",
        "continue_final_message",
        "echo",
        "function_call",
        "functions",
        "guided_whitespace_pattern",
        "include_stop_str_in_output",
        "logits_processors",
        "mm_processor_kwargs",
        "prompt_embeds",
        "prompt_logprobs",
        "return_tokens_as_token_ids",
        "return_token_ids",
        "suffix",
        "thinking_token_budget",
        "truncate_prompt_tokens",
        "use_beam_search",
        "web_search_options",
    };
    const json_t *modalities = fields_get(in->root, "modalities");

    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        const json_t *value = json_object_get(in->root, names[i]);

        if (value && !asks_for_nothing(value))
            return api_fail(&in->e, 400, "unsupported_parameter", names[i], "%s is not supported.",
                            names[i]);
    }
    if (modalities && !is_text_alone(modalities))
        return api_fail(&in->e, 400, "unsupported_parameter", "modalities",
                        "modalities: only [\"text\"] is supported.");
    return true;
}

/* ---- what the text must be */

/* Takes a schema, expression, grammar or choices, or with TEXT a whole response_format; one at
 * most says more than that the text may be any. */
static bool take_format(struct intake *in, enum nvllm_format format, const char *param,
                        const json_t *value)
{
    struct format_reading reading = {.take = take_memory, .owner = in};
    bool has_one = in->r.format != NVLLM_FORMAT_TEXT;

    if (format == NVLLM_FORMAT_TEXT ? !format_read(&reading, &in->r, param, value)
                                    : !format_read_value(&reading, &in->r, format, param, value))
        return reading.wanted && fields_wrong(in, reading.where, reading.wanted);
    return !has_one || api_fail(&in->e, 400, "invalid_value", param,
                                "%s: the request says elsewhere, too, what the text must be: say "
                                "it once.",
                                param);
}

/* vLLM's later field: some of its members would make the format another one. */
static bool read_structured(struct intake *in, const json_t *outputs)
{
    static const struct {
        const char *name, *param;
        enum nvllm_format format; /* TEXT: not supported */
    } members[] = {
        {"json", "structured_outputs.json", NVLLM_FORMAT_JSON_SCHEMA},
        {"regex", "structured_outputs.regex", NVLLM_FORMAT_REGEX},
        {"grammar", "structured_outputs.grammar", NVLLM_FORMAT_GRAMMAR},
        {"choice", "structured_outputs.choice", NVLLM_FORMAT_CHOICE},
        {"json_object", "structured_outputs.json_object", NVLLM_FORMAT_JSON},
        {"structural_tag", "structured_outputs.structural_tag", NVLLM_FORMAT_TEXT},
        {"whitespace_pattern", "structured_outputs.whitespace_pattern", NVLLM_FORMAT_TEXT},
        {"disable_any_whitespace", "structured_outputs.disable_any_whitespace", NVLLM_FORMAT_TEXT},
        {"disable_additional_properties", "structured_outputs.disable_additional_properties",
         NVLLM_FORMAT_TEXT},
    };

    if (!json_is_object(outputs))
        return fields_wrong(in, "structured_outputs", "an object");
    for (size_t i = 0; i < sizeof(members) / sizeof(members[0]); i++) {
        const json_t *value = fields_get(outputs, members[i].name);
        enum nvllm_format format = members[i].format;

        if (!value || (format != NVLLM_FORMAT_JSON_SCHEMA && asks_for_nothing(value)))
            continue;
        if (format == NVLLM_FORMAT_TEXT)
            return api_fail(&in->e, 400, "unsupported_parameter", members[i].param,
                            "%s is not supported.", members[i].param);
        if (!take_format(in, format, members[i].param, value))
            return false;
    }
    return true;
}

/* OpenAI's field, and vLLM's. An empty schema is one: any JSON. */
static bool read_formats(struct intake *in)
{
    static const struct {
        const char *name;
        enum nvllm_format format;
    } guided[] = {
        {"guided_json", NVLLM_FORMAT_JSON_SCHEMA},
        {"guided_regex", NVLLM_FORMAT_REGEX},
        {"guided_grammar", NVLLM_FORMAT_GRAMMAR},
        {"guided_choice", NVLLM_FORMAT_CHOICE},
    };
    const json_t *format = fields_get(in->root, "response_format");
    const json_t *outputs = fields_get(in->root, "structured_outputs");

    if (format && !take_format(in, NVLLM_FORMAT_TEXT, "response_format", format))
        return false;
    for (size_t i = 0; i < sizeof(guided) / sizeof(guided[0]); i++) {
        const json_t *value = fields_get(in->root, guided[i].name);

        if (!value || (guided[i].format != NVLLM_FORMAT_JSON_SCHEMA && asks_for_nothing(value)))
            continue;
        if (!take_format(in, guided[i].format, guided[i].name, value))
            return false;
    }
    return !outputs || asks_for_nothing(outputs) || read_structured(in, outputs);
}

/* ---- who shares a cached prefix */

/* A text that no other caller, user and salt of the client's give. */
static bool read_salt(struct intake *in, const struct caller *caller)
{
    const char *name = fields_get(in->root, "safety_identifier") ? "safety_identifier" : "user";
    const json_t *user = fields_get(in->root, name), *own = fields_get(in->root, "cache_salt");
    struct nvllm_text parts[3] = {nvllm_str(caller->key ? caller->key : "")};
    char *salt = intake_take(in, MAX_SALT, 1);
    size_t n = 0;

    if (!salt || (user && !read_text(in, name, &parts[1], user)) ||
        (own && !read_text(in, "cache_salt", &parts[2], own)))
        return false;
    if (caller->peer != (uid_t)-1)
        n = (size_t)snprintf(salt, MAX_SALT, "%u", (unsigned)caller->peer);
    for (int i = 0; i < 3; i++) {
        int head = snprintf(salt + n, MAX_SALT - n, "/%zu:", parts[i].len);

        n += (size_t)head;
        if (n > MAX_SALT || parts[i].len > MAX_SALT - n)
            return api_fail(&in->e, 400, "invalid_value", user ? name : "cache_salt",
                            "%s and cache_salt are too long: together they have at most %d bytes.",
                            name, MAX_SALT - KEYS_MAX_NAME - 24);
        if (parts[i].len > 0)
            memcpy(salt + n, parts[i].data, parts[i].len);
        n += parts[i].len;
    }
    in->r.cache_salt = (struct nvllm_text){salt, n};
    return true;
}

/* ---- all of them */

#define ROW(name, read)                                                                            \
    {                                                                                              \
#name, read, offsetof(struct intake, r.name)                                               \
    }

static const struct field {
    const char *name;
    read_value *read;
    size_t offset;
} fields[] = {
    {"model", read_model, 0},
    {"stream", read_flag, offsetof(struct intake, stream)},
    {"stream_options", read_stream_options, 0},
    ROW(temperature, read_float),
    ROW(top_p, read_float),
    ROW(top_k, read_top_k),
    ROW(min_p, read_float),
    ROW(repetition_penalty, read_float),
    ROW(presence_penalty, read_float),
    ROW(frequency_penalty, read_float),
    ROW(logit_bias, read_bias),
    ROW(seed, read_seed),
    ROW(stop, read_stop),
    ROW(stop_token_ids, read_stop_ids),
    ROW(ignore_eos, read_flag),
    ROW(min_tokens, read_count),
    ROW(max_tokens, read_count),
    {"max_completion_tokens", read_count, offsetof(struct intake, r.max_tokens)},
    ROW(n, read_count),
    ROW(priority, read_priority),
    ROW(deadline_ms, read_deadline),
    {"skip_special_tokens", read_skip_special, offsetof(struct intake, r.keep_special)},
};

static bool parse(struct intake *in, struct nvllm_text body)
{
    json_error_t err;

    json_refused = false;
    json_left = JSON_SPARE + JSON_FACTOR * body.len;
    in->root = json_loadb(body.data, body.len, JSON_ALLOW_NUL, &err);
    json_left = SIZE_MAX;
    if (json_refused)
        return api_fail(&in->e, 413, NULL, "", "The body has too many JSON values for its size.");
    if (!in->root)
        return api_fail(&in->e, 400, "invalid_json", "",
                        "The body is not JSON: line %d, column %d: %s.", err.line, err.column,
                        err.text);
    return json_is_object(in->root) ||
           api_fail(&in->e, 400, "invalid_json", "", "The body must be a JSON object.");
}

bool intake_init(struct intake *in, const struct caller *caller, struct nvllm_text body)
{
    *in = (struct intake){0};
    nvllm_request_init(&in->r);
    nvllm_chat_init(&in->chat);
    if (!parse(in, body) || !check_refused(in))
        return false;
    for (size_t i = 0; i < sizeof(fields) / sizeof(fields[0]); i++) {
        const json_t *value = fields_get(in->root, fields[i].name);

        if (value && !fields[i].read(in, fields[i].name, (char *)in + fields[i].offset, value))
            return false;
    }
    in->r.stream = in->stream;
    return read_formats(in) && read_salt(in, caller);
}
