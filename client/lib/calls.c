/* calls.c - the short operations: each packs its arguments and waits for the answer, or starts a
 * request whose answer is an event. */
#include "client/lib/client.h"
#include "client/lib/clock.h"
#include "client/lib/error.h"
#include "client/lib/pack.h"

/* Sends an operation and waits for its answer, *out. With id it does not wait, but sets *id. */
static enum nvllm_code call(struct nvllm_client *c, Nvllm__V1__ClientFrame__OpCase op_case,
                            void *op, uint64_t *id, int timeout_ms, const void **out,
                            struct nvllm_error *err)
{
    Nvllm__V1__ClientFrame frame = NVLLM__V1__CLIENT_FRAME__INIT;

    frame.op_case = op_case;
    frame.drain = op; /* whichever it is: the oneof is a union of pointers */
    if (!id)
        return client_call(c, &frame, timeout_ms, out, err);
    return client_send(c, &frame, true, clock_deadline(timeout_ms), id, err);
}

/* ---- tokens, texts and the status */

static enum nvllm_code tokenize(struct nvllm_client *c, struct nvllm_text text, bool special,
                                uint64_t *id, int timeout_ms, const void **out,
                                struct nvllm_error *err)
{
    Nvllm__V1__Tokenize op = NVLLM__V1__TOKENIZE__INIT;

    if (!text.data && text.len > 0)
        return error_field(err, "text", "text is NULL");
    op.has_text = op.has_special = true;
    op.text = pack_bytes(text);
    op.special = special;
    return call(c, OP(TOKENIZE), &op, id, timeout_ms, out, err);
}

enum nvllm_code nvllm_tokenize(struct nvllm_client *c, struct nvllm_text text, bool special,
                               int timeout_ms, const struct nvllm_tokens **tokens,
                               struct nvllm_error *err)
{
    return tokenize(c, text, special, NULL, timeout_ms, (const void **)tokens, err);
}

enum nvllm_code nvllm_tokenize_start(struct nvllm_client *c, uint64_t *id, struct nvllm_text text,
                                     bool special, int timeout_ms, struct nvllm_error *err)
{
    return tokenize(c, text, special, id, timeout_ms, NULL, err);
}

enum nvllm_code nvllm_token_bytes_start(struct nvllm_client *c, uint64_t *id, const int32_t *ids,
                                        size_t n_ids, int timeout_ms, struct nvllm_error *err)
{
    Nvllm__V1__Tokenize op = NVLLM__V1__TOKENIZE__INIT;

    if (!ids || n_ids == 0)
        return error_field(err, "ids", "there are no ids");
    op.n_ids = n_ids;
    op.ids = (int32_t *)ids;
    return call(c, OP(TOKENIZE), &op, id, timeout_ms, NULL, err);
}

static enum nvllm_code detokenize(struct nvllm_client *c, const int32_t *ids, size_t n_ids,
                                  bool skip_special, uint64_t *id, int timeout_ms, const void **out,
                                  struct nvllm_error *err)
{
    Nvllm__V1__Detokenize op = NVLLM__V1__DETOKENIZE__INIT;

    if (!ids && n_ids > 0)
        return error_field(err, "ids", "ids is NULL");
    op.n_ids = n_ids;
    op.ids = (int32_t *)ids;
    op.has_skip_special = true;
    op.skip_special = skip_special;
    return call(c, OP(DETOKENIZE), &op, id, timeout_ms, out, err);
}

enum nvllm_code nvllm_detokenize(struct nvllm_client *c, const int32_t *ids, size_t n_ids,
                                 bool skip_special, int timeout_ms, struct nvllm_text *text,
                                 struct nvllm_error *err)
{
    const void *answer;
    enum nvllm_code code = detokenize(c, ids, n_ids, skip_special, NULL, timeout_ms, &answer, err);

    if (code == NVLLM_OK)
        *text = *(const struct nvllm_text *)answer;
    return code;
}

enum nvllm_code nvllm_detokenize_start(struct nvllm_client *c, uint64_t *id, const int32_t *ids,
                                       size_t n_ids, bool skip_special, int timeout_ms,
                                       struct nvllm_error *err)
{
    return detokenize(c, ids, n_ids, skip_special, id, timeout_ms, NULL, err);
}

static enum nvllm_code render(struct nvllm_client *c, const struct nvllm_chat *given, uint64_t *id,
                              int timeout_ms, const void **out, struct nvllm_error *err)
{
    Nvllm__V1__Render op = NVLLM__V1__RENDER__INIT;
    struct unpacked *memory = unpacked_new();
    Nvllm__V1__Chat chat;
    enum nvllm_code code = pack_chat(memory, &chat, given, err);

    op.chat = &chat;
    if (code == NVLLM_OK)
        code = call(c, OP(RENDER), &op, id, timeout_ms, out, err);
    unpacked_free(memory);
    return code;
}

enum nvllm_code nvllm_render(struct nvllm_client *c, const struct nvllm_chat *chat, int timeout_ms,
                             struct nvllm_text *text, struct nvllm_error *err)
{
    const void *answer;
    enum nvllm_code code = render(c, chat, NULL, timeout_ms, &answer, err);

    if (code == NVLLM_OK)
        *text = *(const struct nvllm_text *)answer;
    return code;
}

enum nvllm_code nvllm_render_start(struct nvllm_client *c, uint64_t *id,
                                   const struct nvllm_chat *chat, int timeout_ms,
                                   struct nvllm_error *err)
{
    return render(c, chat, id, timeout_ms, NULL, err);
}

/* Defines an operation without arguments, and the answer that it waits for. */
#define PLAIN(name, type, Operation, OPERATION)                                                    \
    enum nvllm_code nvllm_##name(struct nvllm_client *c, int timeout_ms,                           \
                                 const struct nvllm_##type **answer, struct nvllm_error *err)      \
    {                                                                                              \
        Nvllm__V1__##Operation op = NVLLM__V1__##OPERATION##__INIT;                                \
                                                                                                   \
        return call(c, OP(OPERATION), &op, NULL, timeout_ms, (const void **)answer, err);          \
    }

PLAIN(get_status, status, GetStatus, GET_STATUS)
PLAIN(resume, change, Resume, RESUME)
PLAIN(reload, reloaded, Reload, RELOAD)
PLAIN(shutdown, change, Shutdown, SHUTDOWN)
PLAIN(wake, sleep_change, Wake, WAKE)

enum nvllm_code nvllm_get_status_start(struct nvllm_client *c, uint64_t *id, int timeout_ms,
                                       struct nvllm_error *err)
{
    Nvllm__V1__GetStatus op = NVLLM__V1__GET_STATUS__INIT;

    return call(c, OP(GET_STATUS), &op, id, timeout_ms, NULL, err);
}

/* ---- options */

/* Defines nvllm_name_options_init_size(), and default_name: what is not given is zero. */
#define OPTIONS(name, ...)                                                                         \
    static const struct nvllm_##name##_options default_##name = {.size = sizeof(default_##name),   \
                                                                 __VA_ARGS__};                     \
                                                                                                   \
    void nvllm_##name##_options_init_size(struct nvllm_##name##_options *options, size_t size)     \
    {                                                                                              \
        sized_give(options, size, &default_##name, sizeof(default_##name));                        \
    }

OPTIONS(list)
OPTIONS(blocks)
OPTIONS(clear)
OPTIONS(pin)
OPTIONS(explain)
OPTIONS(embed, .dimensions = -1)
OPTIONS(drain, .drain_timeout_ms = -1)
OPTIONS(sleep, .level = NVLLM_SLEEP_ALL)
OPTIONS(trace, .duration_ms = 5000)

/* What is wrong with options that sized_take() does not take. */
static enum nvllm_code unprepared(struct nvllm_error *err)
{
    return error_field(err, "options", "initialise the options by their init function");
}

/* Defines an operation whose one argument is a member of its options, sent unless it is zero, and
 * the answer that it waits for. */
#define ONE_OPTION(name, type, options_of, member, Operation, OPERATION)                           \
    enum nvllm_code nvllm_##name(struct nvllm_client *c,                                           \
                                 const struct nvllm_##options_of##_options *options,               \
                                 int timeout_ms, const struct nvllm_##type **answer,               \
                                 struct nvllm_error *err)                                          \
    {                                                                                              \
        Nvllm__V1__##Operation op = NVLLM__V1__##OPERATION##__INIT;                                \
        struct nvllm_##options_of##_options o = default_##options_of;                              \
                                                                                                   \
        if (!sized_take(&o, sizeof(o), options))                                                   \
            return unprepared(err);                                                                \
        op.has_##member = o.member != 0;                                                           \
        op.member = o.member;                                                                      \
        return call(c, OP(OPERATION), &op, NULL, timeout_ms, (const void **)answer, err);          \
    }

ONE_OPTION(list_requests, request_list, list, limit, ListRequests, LIST_REQUESTS)
ONE_OPTION(get_blocks, blocks, blocks, map, GetBlocks, GET_BLOCKS)
ONE_OPTION(show_cache, cache, list, limit, ShowCache, SHOW_CACHE)
ONE_OPTION(clear_cache, cache_change, clear, all, ClearCache, CLEAR_CACHE)

enum nvllm_code nvllm_sleep(struct nvllm_client *c, const struct nvllm_sleep_options *options,
                            int timeout_ms, const struct nvllm_sleep_change **change,
                            struct nvllm_error *err)
{
    Nvllm__V1__Sleep op = NVLLM__V1__SLEEP__INIT;
    struct nvllm_sleep_options o = default_sleep;

    if (!sized_take(&o, sizeof(o), options))
        return unprepared(err);
    if (o.level != NVLLM_SLEEP_WEIGHTS && o.level != NVLLM_SLEEP_ALL)
        return error_field(err, "level", "level is neither WEIGHTS nor ALL");
    op.has_level = true;
    op.level = (Nvllm__V1__SleepLevel)o.level;
    return call(c, OP(SLEEP), &op, NULL, timeout_ms, (const void **)change, err);
}

enum nvllm_code nvllm_trace_start(struct nvllm_client *c, uint64_t *id,
                                  const struct nvllm_trace_options *options, int timeout_ms,
                                  struct nvllm_error *err)
{
    Nvllm__V1__Trace op = NVLLM__V1__TRACE__INIT;
    struct nvllm_trace_options o = default_trace;

    if (!sized_take(&o, sizeof(o), options))
        return unprepared(err);
    op.has_duration_ms = true;
    op.duration_ms = o.duration_ms;
    return call(c, OP(TRACE), &op, id, timeout_ms, NULL, err);
}

/* ---- requests */

enum nvllm_code nvllm_cancel_request(struct nvllm_client *c, uint64_t request, int timeout_ms,
                                     bool *found, struct nvllm_error *err)
{
    Nvllm__V1__Cancel op = NVLLM__V1__CANCEL__INIT;
    const void *was_found;
    enum nvllm_code code;

    if (request == 0)
        return error_field(err, "request", "request: 0 is not the number of a request");
    op.has_request = true;
    op.request = request;
    code = call(c, OP(CANCEL), &op, NULL, timeout_ms, &was_found, err);
    if (code == NVLLM_OK && found)
        *found = *(const bool *)was_found;
    return code;
}

/* ---- the prefix cache */

/* Calls an operation on a prompt. */
static enum nvllm_code call_prompt(struct nvllm_client *c, Nvllm__V1__ClientFrame__OpCase op_case,
                                   ProtobufCMessage *op, const struct nvllm_request *input,
                                   uint64_t *id, int timeout_ms, const void **out,
                                   struct nvllm_error *err)
{
    struct unpacked *memory = unpacked_new();
    enum nvllm_code code = pack_input(memory, op, input, err);

    if (code == NVLLM_OK)
        code = call(c, op_case, op, id, timeout_ms, out, err);
    unpacked_free(memory);
    return code;
}

/* What the options of a pin or an explanation have in common with a request. */
#define INPUT(o)                                                                                   \
    {                                                                                              \
        .prompt = (o).prompt, .prompt_ids = (o).prompt_ids, .n_prompt_ids = (o).n_prompt_ids,      \
        .chat = (o).chat, .cache_salt = (o).cache_salt                                             \
    }

enum nvllm_code nvllm_pin_cache(struct nvllm_client *c, const struct nvllm_pin_options *options,
                                int timeout_ms, const struct nvllm_cache_change **change,
                                struct nvllm_error *err)
{
    Nvllm__V1__PinCache op;
    struct nvllm_pin_options o = default_pin;

    if (!sized_take(&o, sizeof(o), options))
        return unprepared(err);
    nvllm__v1__pin_cache__init(&op);
    op.has_unpin = op.unpin = o.unpin;
    op.has_uid = o.has_uid;
    op.uid = o.uid;
    return call_prompt(c, OP(PIN_CACHE), &op.base, &(struct nvllm_request)INPUT(o), NULL,
                       timeout_ms, (const void **)change, err);
}

/* ---- why */

enum nvllm_code nvllm_explain(struct nvllm_client *c, const struct nvllm_explain_options *options,
                              int timeout_ms, const struct nvllm_explanation **explanation,
                              struct nvllm_error *err)
{
    Nvllm__V1__Explain op;
    struct nvllm_explain_options o = default_explain;

    if (!sized_take(&o, sizeof(o), options))
        return unprepared(err);
    if ((o.request != 0) + (o.prompt.data != NULL) + (o.prompt_ids != NULL) + (o.chat != NULL) != 1)
        return error_field(err, "about",
                           "about: set exactly one of request, prompt, prompt_ids and chat");
    nvllm__v1__explain__init(&op);
    if (o.request != 0) {
        op.about_case = NVLLM__V1__EXPLAIN__ABOUT_REQUEST;
        op.request = o.request;
        return call(c, OP(EXPLAIN), &op, NULL, timeout_ms, (const void **)explanation, err);
    }
    return call_prompt(c, OP(EXPLAIN), &op.base, &(struct nvllm_request)INPUT(o), NULL, timeout_ms,
                       (const void **)explanation, err);
}

/* ---- embed */

static enum nvllm_code embed(struct nvllm_client *c, const struct nvllm_embed_options *options,
                             uint64_t *id, int timeout_ms, const void **out,
                             struct nvllm_error *err)
{
    struct nvllm_embed_options o = default_embed;
    enum nvllm_code code;
    Nvllm__V1__Embed op;

    if (!options || !sized_take(&o, sizeof(o), options))
        return unprepared(err);
    nvllm__v1__embed__init(&op);
    op.prompt_name = (char *)o.prompt_name;
    op.has_deadline_ms = o.deadline_ms != 0;
    op.deadline_ms = o.deadline_ms;
    code = pack_count(&op.has_dimensions, &op.dimensions, o.dimensions, "dimensions", err);
    if (code == NVLLM_OK)
        code = pack_priority(&op.has_priority, &op.priority, o.priority, err);
    if (code != NVLLM_OK)
        return code;
    code = call_prompt(c, OP(EMBED), &op.base,
                       &(struct nvllm_request){.prompt = o.prompt,
                                               .prompt_ids = o.prompt_ids,
                                               .n_prompt_ids = o.n_prompt_ids,
                                               .cache_salt = o.cache_salt},
                       id, timeout_ms, out, err);
    if (code == NVLLM_OK && id)
        conn_find(&c->conn, *id)->user_data = o.user_data;
    return code;
}

enum nvllm_code nvllm_embed(struct nvllm_client *c, const struct nvllm_embed_options *options,
                            int timeout_ms, const struct nvllm_embedding **embedding,
                            struct nvllm_error *err)
{
    return embed(c, options, NULL, timeout_ms, (const void **)embedding, err);
}

enum nvllm_code nvllm_embed_start(struct nvllm_client *c, uint64_t *id,
                                  const struct nvllm_embed_options *options, int timeout_ms,
                                  struct nvllm_error *err)
{
    return embed(c, options, id, timeout_ms, NULL, err);
}

/* ---- the daemon itself */

enum nvllm_code nvllm_drain(struct nvllm_client *c, const struct nvllm_drain_options *options,
                            int timeout_ms, const struct nvllm_change **change,
                            struct nvllm_error *err)
{
    Nvllm__V1__Drain op = NVLLM__V1__DRAIN__INIT;
    struct nvllm_drain_options o = default_drain;

    if (!sized_take(&o, sizeof(o), options))
        return unprepared(err);
    if (o.drain_timeout_ms > UINT32_MAX)
        return error_field(err, "drain_timeout_ms", "drain_timeout_ms: %lld is too large",
                           (long long)o.drain_timeout_ms);
    op.has_drain_timeout_ms = o.drain_timeout_ms >= 0;
    op.drain_timeout_ms = op.has_drain_timeout_ms ? (uint32_t)o.drain_timeout_ms : 0;
    return call(c, OP(DRAIN), &op, NULL, timeout_ms, (const void **)change, err);
}

enum nvllm_code nvllm_set_log_level(struct nvllm_client *c, const char *level, int timeout_ms,
                                    const struct nvllm_change **change, struct nvllm_error *err)
{
    Nvllm__V1__SetLogLevel op = NVLLM__V1__SET_LOG_LEVEL__INIT;

    if (!level)
        return error_field(err, "level", "level is NULL");
    op.level = (char *)level;
    return call(c, OP(SET_LOG_LEVEL), &op, NULL, timeout_ms, (const void **)change, err);
}
