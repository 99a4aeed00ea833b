/* admin.c - the calls of nvllm_admin.h: each packs one operation and waits for its answer. */
#include "client/lib/client.h"
#include "client/lib/error.h"
#include "client/lib/pack.h"
#include "client/lib/sized.h"

#define OP(name) NVLLM__V1__CLIENT_FRAME__OP_##name

/* Sends an operation and waits for its answer. */
static enum nvllm_code call(struct nvllm_client *c, Nvllm__V1__ClientFrame__OpCase op_case,
                            void *op, int answer, int timeout_ms, const void **out,
                            struct nvllm_error *err)
{
    Nvllm__V1__ClientFrame frame = NVLLM__V1__CLIENT_FRAME__INIT;

    frame.op_case = op_case;
    frame.drain = op; /* whichever it is: the oneof is a union of pointers */
    return client_call(c, &frame, answer, timeout_ms, out, err);
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
OPTIONS(drain, .timeout_ms = -1)

/* Copies options, which may be NULL, over our defaults. */
static enum nvllm_code take_options(void *ours, size_t size, const void *options,
                                    struct nvllm_error *err)
{
    if (options && !sized_take(ours, size, options))
        return error_field(err, "options", "the options were not prepared by their init");
    return NVLLM_OK;
}

/* ---- requests and blocks */

enum nvllm_code nvllm_list_requests(struct nvllm_client *c,
                                    const struct nvllm_list_options *options, int timeout_ms,
                                    const struct nvllm_request_list **list, struct nvllm_error *err)
{
    Nvllm__V1__ListRequests op = NVLLM__V1__LIST_REQUESTS__INIT;
    struct nvllm_list_options o = default_list;
    enum nvllm_code code = take_options(&o, sizeof(o), options, err);

    if (code != NVLLM_OK)
        return code;
    op.has_limit = o.limit != 0;
    op.limit = o.limit;
    return call(c, OP(LIST_REQUESTS), &op, ANSWER(REQUEST_LIST), timeout_ms, (const void **)list,
                err);
}

enum nvllm_code nvllm_cancel_request(struct nvllm_client *c, uint64_t request, int timeout_ms,
                                     bool *found, struct nvllm_error *err)
{
    Nvllm__V1__Cancel op = NVLLM__V1__CANCEL__INIT;
    const void *was_found;
    enum nvllm_code code;

    if (request == 0)
        return error_field(err, "request", "request: 0 is never a request's number");
    op.has_request = true;
    op.request = request;
    code = call(c, OP(CANCEL), &op, ANSWER(CANCELLED), timeout_ms, &was_found, err);
    if (code == NVLLM_OK && found)
        *found = *(const bool *)was_found;
    return code;
}

enum nvllm_code nvllm_get_blocks(struct nvllm_client *c, const struct nvllm_blocks_options *options,
                                 int timeout_ms, const struct nvllm_blocks **blocks,
                                 struct nvllm_error *err)
{
    Nvllm__V1__GetBlocks op = NVLLM__V1__GET_BLOCKS__INIT;
    struct nvllm_blocks_options o = default_blocks;
    enum nvllm_code code = take_options(&o, sizeof(o), options, err);

    if (code != NVLLM_OK)
        return code;
    op.has_map = op.map = o.map;
    return call(c, OP(GET_BLOCKS), &op, ANSWER(BLOCK_REPORT), timeout_ms, (const void **)blocks,
                err);
}

/* ---- the prefix cache */

enum nvllm_code nvllm_show_cache(struct nvllm_client *c, const struct nvllm_list_options *options,
                                 int timeout_ms, const struct nvllm_cache **cache,
                                 struct nvllm_error *err)
{
    Nvllm__V1__ShowCache op = NVLLM__V1__SHOW_CACHE__INIT;
    struct nvllm_list_options o = default_list;
    enum nvllm_code code = take_options(&o, sizeof(o), options, err);

    if (code != NVLLM_OK)
        return code;
    op.has_limit = o.limit != 0;
    op.limit = o.limit;
    return call(c, OP(SHOW_CACHE), &op, ANSWER(CACHE_REPORT), timeout_ms, (const void **)cache,
                err);
}

enum nvllm_code nvllm_clear_cache(struct nvllm_client *c, const struct nvllm_clear_options *options,
                                  int timeout_ms, const struct nvllm_cache_change **change,
                                  struct nvllm_error *err)
{
    Nvllm__V1__ClearCache op = NVLLM__V1__CLEAR_CACHE__INIT;
    struct nvllm_clear_options o = default_clear;
    enum nvllm_code code = take_options(&o, sizeof(o), options, err);

    if (code != NVLLM_OK)
        return code;
    op.has_all = op.all = o.all;
    return call(c, OP(CLEAR_CACHE), &op, ANSWER(CACHE_CHANGED), timeout_ms, (const void **)change,
                err);
}

enum nvllm_code nvllm_pin_cache(struct nvllm_client *c, const struct nvllm_pin_options *options,
                                int timeout_ms, const struct nvllm_cache_change **change,
                                struct nvllm_error *err)
{
    Nvllm__V1__PinCache op;
    struct nvllm_pin_options o = default_pin;
    struct pack pack = {0};
    enum nvllm_code code = take_options(&o, sizeof(o), options, err);

    nvllm__v1__pin_cache__init(&op);
    if (code == NVLLM_OK)
        PACK_INPUT(code, &pack, &op, input, NVLLM__V1__PIN_CACHE__INPUT_, &o, err);
    if (code == NVLLM_OK)
        code = pack_salt(&op.has_cache_salt, &op.cache_salt, o.cache_salt, err);
    op.has_unpin = op.unpin = o.unpin;
    op.has_uid = o.has_uid;
    op.uid = o.uid;
    if (code == NVLLM_OK)
        code = call(c, OP(PIN_CACHE), &op, ANSWER(CACHE_CHANGED), timeout_ms, (const void **)change,
                    err);
    pack_deinit(&pack);
    return code;
}

/* ---- why */

enum nvllm_code nvllm_explain(struct nvllm_client *c, const struct nvllm_explain_options *options,
                              int timeout_ms, const struct nvllm_explanation **explanation,
                              struct nvllm_error *err)
{
    Nvllm__V1__Explain op;
    struct nvllm_explain_options o = default_explain;
    struct pack pack = {0};
    enum nvllm_code code = take_options(&o, sizeof(o), options, err);

    nvllm__v1__explain__init(&op);
    if (code == NVLLM_OK && o.request == 0) {
        PACK_INPUT(code, &pack, &op, about, NVLLM__V1__EXPLAIN__ABOUT_, &o, err);
        if (code == NVLLM_OK)
            code = pack_salt(&op.has_cache_salt, &op.cache_salt, o.cache_salt, err);
    } else if (code == NVLLM_OK && (o.prompt.data || o.prompt_ids || o.chat)) {
        code = error_field(err, "about", "about: a request and a prompt are both given");
    } else {
        op.about_case = NVLLM__V1__EXPLAIN__ABOUT_REQUEST;
        op.request = o.request;
    }
    if (code == NVLLM_OK)
        code = call(c, OP(EXPLAIN), &op, ANSWER(EXPLANATION), timeout_ms,
                    (const void **)explanation, err);
    pack_deinit(&pack);
    return code;
}

/* ---- the daemon itself */

enum nvllm_code nvllm_drain(struct nvllm_client *c, const struct nvllm_drain_options *options,
                            int timeout_ms, const struct nvllm_change **change,
                            struct nvllm_error *err)
{
    Nvllm__V1__Drain op = NVLLM__V1__DRAIN__INIT;
    struct nvllm_drain_options o = default_drain;
    enum nvllm_code code = take_options(&o, sizeof(o), options, err);

    if (code != NVLLM_OK)
        return code;
    if (o.timeout_ms > UINT32_MAX)
        return error_field(err, "timeout_ms", "timeout_ms: %lld is too large",
                           (long long)o.timeout_ms);
    op.has_timeout_ms = o.timeout_ms >= 0;
    op.timeout_ms = op.has_timeout_ms ? (uint32_t)o.timeout_ms : 0;
    return call(c, OP(DRAIN), &op, ANSWER(CHANGED), timeout_ms, (const void **)change, err);
}

enum nvllm_code nvllm_resume(struct nvllm_client *c, int timeout_ms,
                             const struct nvllm_change **change, struct nvllm_error *err)
{
    Nvllm__V1__Resume op = NVLLM__V1__RESUME__INIT;

    return call(c, OP(RESUME), &op, ANSWER(CHANGED), timeout_ms, (const void **)change, err);
}

enum nvllm_code nvllm_set_log_level(struct nvllm_client *c, const char *level, int timeout_ms,
                                    const struct nvllm_change **change, struct nvllm_error *err)
{
    Nvllm__V1__SetLogLevel op = NVLLM__V1__SET_LOG_LEVEL__INIT;

    if (!level)
        return error_field(err, "level", "level is NULL");
    op.level = (char *)level;
    return call(c, OP(SET_LOG_LEVEL), &op, ANSWER(CHANGED), timeout_ms, (const void **)change, err);
}

enum nvllm_code nvllm_shutdown(struct nvllm_client *c, int timeout_ms,
                               const struct nvllm_change **change, struct nvllm_error *err)
{
    Nvllm__V1__Shutdown op = NVLLM__V1__SHUTDOWN__INIT;

    return call(c, OP(SHUTDOWN), &op, ANSWER(CHANGED), timeout_ms, (const void **)change, err);
}

enum nvllm_code nvllm_reload(struct nvllm_client *c, int timeout_ms,
                             const struct nvllm_reloaded **reloaded, struct nvllm_error *err)
{
    Nvllm__V1__Reload op = NVLLM__V1__RELOAD__INIT;

    return call(c, OP(RELOAD), &op, ANSWER(RELOADED), timeout_ms, (const void **)reloaded, err);
}
