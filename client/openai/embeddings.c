/* embeddings.c - POST /v1/embeddings: a text, or a list of texts, each a request of nvllmd.
 *
 * The texts are copied out of the body. At most IN_PROGRESS at a time are requests; the answer goes
 * out when all have ended, or with the first error. */
#include <endian.h>
#include <stdlib.h>
#include <string.h>

#include "client/openai/fields.h"

enum {
    MAX_INPUTS = 2048, /* as OpenAI has it */
    IN_PROGRESS = 64,
};

struct input {
    struct upstream_request upstream; /* first, so that one is the other */
    struct embeddings *of;
    size_t at, n; /* in texts: bytes, or ids */
    bool is_ids, open;
    struct buf json; /* its value in the answer */
};

/* One request of a client. It frees itself when nothing of it is in progress any more. */
struct embeddings {
    TAILQ_ENTRY(embeddings) link;
    struct gateway *gateway;
    struct http_conn *conn; /* NULL: the client has its answer, or has gone */
    struct nvllm_embed_options options;
    struct buf texts; /* of all inputs, then the salt and the name of the prompt */
    size_t salt, salt_len, name;
    bool base64;
    struct input *inputs; /* [n_inputs] */
    size_t n_inputs, n_started, n_open;
    size_t json_bytes; /* of all inputs */
    uint64_t n_tokens;
};

/* ---- the end */

static void free_embeddings(struct embeddings *y)
{
    TAILQ_REMOVE(&y->gateway->embeddings, y, link);
    for (size_t i = 0; i < y->n_inputs; i++)
        buf_deinit(&y->inputs[i].json);
    buf_deinit(&y->texts);
    free(y->inputs);
    free(y);
}

/* Starts no more, and ends what is in progress. */
static void drop(struct embeddings *y)
{
    y->conn = NULL;
    y->n_started = y->n_inputs;
    for (size_t i = 0; i < y->n_inputs; i++)
        if (y->inputs[i].open)
            upstream_cancel(y->gateway->upstream, &y->inputs[i].upstream);
}

static void fail(struct embeddings *y, const struct api_error *e)
{
    if (y->conn)
        api_reply_error(y->conn, e);
    drop(y);
}

static void fail_memory(struct embeddings *y)
{
    struct api_error e;

    api_fail(&e, 503, "out_of_memory", "", "There is no memory for the answer.");
    fail(y, &e);
}

static void on_gone(void *owner)
{
    struct embeddings *y = owner;

    drop(y);
    if (y->n_open == 0)
        free_embeddings(y);
}

static void reply(struct embeddings *y)
{
    struct nvllm_error err;
    const char *model = upstream_model(y->gateway->upstream, &err);
    struct buf out = {0};

    buf_lit(&out, "{\"object\":\"list\",\"data\":[");
    for (size_t i = 0; i < y->n_inputs; i++) {
        struct buf *json = &y->inputs[i].json;

        buf_printf(&out, "%s{\"object\":\"embedding\",\"index\":%zu,\"embedding\":", i ? "," : "",
                   i);
        buf_add(&out, json->data, json->len);
        buf_lit(&out, "}");
        out.failed = out.failed || json->failed;
        buf_deinit(json);
    }
    buf_lit(&out, "],\"model\":");
    buf_json_string(&out, model ? model : "", model ? strlen(model) : 0);
    buf_printf(&out, ",\"usage\":{\"prompt_tokens\":%llu,\"total_tokens\":%llu}}",
               (unsigned long long)y->n_tokens, (unsigned long long)y->n_tokens);
    if (out.failed)
        fail_memory(y);
    else
        http_reply(y->conn, 200, "", out.data, out.len);
    y->conn = NULL;
    buf_deinit(&out);
}

/* ---- values */

/* RFC 4648, of the values as little-endian floats. */
static void put_base64(struct buf *out, const float *values, size_t n)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    const size_t n_bytes = n * sizeof(*values);
    uint32_t group = 0;

    buf_lit(out, "\"");
    for (size_t i = 0; i < (n_bytes + 2) / 3 * 3; i++) {
        uint32_t bits = 0;

        if (i < n_bytes) {
            memcpy(&bits, &values[i / sizeof(bits)], sizeof(bits));
            bits = (uint32_t)(htole32(bits) >> i % sizeof(bits) * 8) & 0xff;
        }
        group = group << 8 | bits;
        if (i % 3 == 2) {
            const char four[4] = {digits[group >> 18 & 63], digits[group >> 12 & 63],
                                  i - 1 < n_bytes ? digits[group >> 6 & 63] : '=',
                                  i < n_bytes ? digits[group & 63] : '='};

            buf_add(out, four, sizeof(four));
        }
    }
    buf_lit(out, "\"");
}

static void put_values(struct buf *out, const float *values, size_t n)
{
    for (size_t i = 0; i < n; i++)
        buf_printf(out, "%c%.9g", i ? ',' : '[', (double)values[i]);
    buf_str(out, n ? "]" : "[]");
}

/* ---- requests of nvllmd */

static void go_on(struct embeddings *y);

static void keep_values(struct embeddings *y, struct input *input,
                        const struct nvllm_embedding *embedding)
{
    struct api_error e;

    y->n_tokens += embedding->prompt_tokens;
    (y->base64 ? put_base64 : put_values)(&input->json, embedding->values, embedding->n_values);
    y->json_bytes += input->json.len;
    if (!http_is_over(y->gateway->http, y->json_bytes))
        return;
    api_fail(&e, 503, "out_of_memory", "",
             "There is no memory for an answer of this size: ask for fewer texts at a time.");
    fail(y, &e);
}

static void on_event(struct upstream_request *q, const struct nvllm_event *event)
{
    struct input *input = (struct input *)q;
    struct embeddings *y = input->of;
    struct api_error e;

    input->open = false;
    y->n_open--;
    y->gateway->n_requests--;
    if (event->type == NVLLM_EVENT_EMBEDDING && y->conn) {
        keep_values(y, input, event->embedding);
    } else if (y->conn) {
        api_error_of(&e, event->error);
        if (strncmp(e.param, "prompt", strlen("prompt")) == 0 &&
            strcmp(e.param, "prompt_name") != 0)
            strcpy(e.param, "input");
        fail(y, &e);
    }
    go_on(y);
}

static void start_next(struct embeddings *y)
{
    struct input *input = &y->inputs[y->n_started++];
    struct nvllm_embed_options o = y->options;
    const char *at = y->texts.data + input->at;
    struct nvllm_error err;
    struct api_error e;

    *input = (struct input){.upstream = {.event = on_event},
                            .of = y,
                            .at = input->at,
                            .n = input->n,
                            .is_ids = input->is_ids};
    if (input->is_ids) {
        o.prompt_ids = (const int32_t *)(const void *)at;
        o.n_prompt_ids = input->n;
    } else {
        o.prompt = (struct nvllm_text){at, input->n};
    }
    o.cache_salt = (struct nvllm_text){y->texts.data + y->salt, y->salt_len};
    o.prompt_name = y->name ? y->texts.data + y->name : NULL;
    input->open = upstream_embed(y->gateway->upstream, &input->upstream, &o, &err);
    y->n_open += input->open;
    y->gateway->n_requests += input->open;
    if (!input->open) {
        api_error_of(&e, &err);
        fail(y, &e);
    }
}

/* Whether another may be in progress beside those that are: one always may, so that it goes on. */
static bool has_room(const struct embeddings *y)
{
    return y->n_open == 0 ||
           (y->n_open < IN_PROGRESS && y->gateway->n_requests < y->gateway->max_requests);
}

/* Starts what may be started; where all have ended, this is the end. */
static void go_on(struct embeddings *y)
{
    while (y->n_started < y->n_inputs && has_room(y))
        start_next(y);
    if (y->n_open > 0)
        return;
    if (y->conn)
        reply(y);
    free_embeddings(y);
}

void embeddings_end(struct gateway *gateway, const struct api_error *why)
{
    struct embeddings *y, *next;

    for (y = TAILQ_FIRST(&gateway->embeddings); y; y = next) {
        next = TAILQ_NEXT(y, link);
        fail(y, why);
    }
}

/* ---- the request of a client */

static bool add_text(struct intake *in, struct embeddings *y, struct input *input,
                     const json_t *value)
{
    struct nvllm_text text;

    if (!read_text(in, "input", &text, value))
        return false;
    if (text.len == 0)
        return fields_wrong(in, "input", "texts that are not empty");
    input->at = y->texts.len;
    input->n = text.len;
    buf_add(&y->texts, text.data, text.len);
    return true;
}

static bool add_ids(struct intake *in, struct embeddings *y, struct input *input,
                    const json_t *value)
{
    const json_t *member;
    int32_t id;
    size_t i;

    buf_add(&y->texts, "\0\0\0", -y->texts.len % sizeof(id)); /* aligned */
    input->at = y->texts.len;
    input->n = json_array_size(value);
    input->is_ids = true;
    json_array_foreach(value, i, member)
    {
        if (!read_id(in, "input", &id, member))
            return false;
        buf_add(&y->texts, &id, sizeof(id));
    }
    return input->n > 0 || fields_wrong(in, "input", "lists of ids that are not empty");
}

static bool add_input(struct intake *in, struct embeddings *y, size_t i, const json_t *value)
{
    if (json_is_array(value))
        return add_ids(in, y, &y->inputs[i], value);
    if (!json_is_string(value))
        return fields_wrong(in, "input", "a text, token ids, or a list of such");
    return add_text(in, y, &y->inputs[i], value);
}

/* A text, ids of tokens, or an array of such. */
static bool read_inputs(struct intake *in, struct embeddings *y)
{
    const json_t *input = fields_get(in->root, "input"), *first = json_array_get(input, 0);
    const bool is_list = json_is_array(input) && !json_is_integer(first);
    size_t n;

    if (!input || (json_is_array(input) && !first))
        return fields_wrong(in, "input", "a text, token ids, or a list of such");
    if (is_list && json_array_size(input) > MAX_INPUTS)
        return api_fail(&in->e, 400, "invalid_value", "input",
                        "input: at most %d texts are taken at a time.", MAX_INPUTS);
    n = is_list ? json_array_size(input) : 1;
    y->inputs = calloc(n, sizeof(*y->inputs));
    if (!y->inputs)
        return api_fail(&in->e, 503, "out_of_memory", "", "There is no memory for the request.");
    y->n_inputs = n;
    for (size_t i = 0; i < n; i++)
        if (!add_input(in, y, i, is_list ? json_array_get(input, i) : input))
            return false;
    return true;
}

static bool read_options(struct intake *in, struct embeddings *y)
{
    const json_t *format = fields_get(in->root, "encoding_format");
    const json_t *dimensions = fields_get(in->root, "dimensions");
    const json_t *name = fields_get(in->root, "prompt_name");
    const char *word = json_string_value(format);
    struct nvllm_text text;

    nvllm_embed_options_init(&y->options);
    y->options.priority = in->r.priority;
    y->options.deadline_ms = in->r.deadline_ms;
    y->base64 = word && strcmp(word, "base64") == 0;
    if (format && !y->base64 && !(word && strcmp(word, "float") == 0))
        return fields_wrong(in, "encoding_format", "“float” or “base64”");
    if ((dimensions && !read_count(in, "dimensions", &y->options.dimensions, dimensions)) ||
        (name && !read_text(in, "prompt_name", &text, name)))
        return false;
    y->salt = y->texts.len;
    y->salt_len = in->r.cache_salt.len;
    buf_add(&y->texts, in->r.cache_salt.data, y->salt_len);
    if (!name)
        return true;
    if (memchr(text.data, '\0', text.len))
        return fields_wrong(in, "prompt_name", "the name of a prompt");
    y->name = y->texts.len;
    buf_add(&y->texts, text.data, text.len);
    buf_add(&y->texts, "", 1);
    return true;
}

static bool admit(struct gateway *gateway, const struct embeddings *y, struct api_error *e)
{
    if (y->texts.failed)
        return api_fail(e, 503, "out_of_memory", "", "There is no memory for the request.");
    return gateway_admits(gateway, 1, e);
}

void embeddings_request(struct gateway *gateway, struct http_conn *conn,
                        const struct caller *caller, struct nvllm_text body)
{
    struct embeddings *y = calloc(1, sizeof(*y));
    struct intake in = {0};
    bool ok = false;

    if (!y) {
        api_fail(&in.e, 503, "out_of_memory", "", "There is no memory for the request.");
    } else {
        y->gateway = gateway;
        y->conn = conn;
        TAILQ_INSERT_TAIL(&gateway->embeddings, y, link);
        ok = intake_init(&in, caller, body) && read_inputs(&in, y) && read_options(&in, y) &&
             gateway_has_model(gateway, in.model, &in.e) && admit(gateway, y, &in.e);
    }
    if (!ok) {
        api_reply_error(conn, &in.e);
        if (y)
            free_embeddings(y);
    } else {
        http_watch(conn, on_gone, y);
        go_on(y);
    }
    intake_deinit(&in);
}
