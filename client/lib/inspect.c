/* inspect.c - the calls that look into the daemon, and those that change its prefix cache. */
#include "client/lib/client.h"
#include "client/lib/error.h"
#include "client/lib/pack.h"
#include "client/lib/sized.h"

/* ---- options */

static const struct nvllm_list_options default_list = {.size = sizeof(default_list)};
static const struct nvllm_blocks_options default_blocks = {.size = sizeof(default_blocks)};
static const struct nvllm_clear_options default_clear = {.size = sizeof(default_clear)};
static const struct nvllm_pin_options default_pin = {.size = sizeof(default_pin)};
static const struct nvllm_explain_options default_explain = {.size = sizeof(default_explain)};

void nvllm_list_options_init_size(struct nvllm_list_options *options, size_t size)
{
    sized_give(options, size, &default_list, sizeof(default_list));
}

void nvllm_blocks_options_init_size(struct nvllm_blocks_options *options, size_t size)
{
    sized_give(options, size, &default_blocks, sizeof(default_blocks));
}

void nvllm_clear_options_init_size(struct nvllm_clear_options *options, size_t size)
{
    sized_give(options, size, &default_clear, sizeof(default_clear));
}

void nvllm_pin_options_init_size(struct nvllm_pin_options *options, size_t size)
{
    sized_give(options, size, &default_pin, sizeof(default_pin));
}

void nvllm_explain_options_init_size(struct nvllm_explain_options *options, size_t size)
{
    sized_give(options, size, &default_explain, sizeof(default_explain));
}

/* Lays options, which may be NULL, over ours. */
static enum nvllm_code take_options(void *ours, size_t size, const void *options,
                                    struct nvllm_error *err)
{
    if (options && !sized_take(ours, size, options))
        return error_field(err, "options", "the options were not prepared by their init");
    return NVLLM_OK;
}

/* ---- what is under way */

enum nvllm_code nvllm_list_requests(struct nvllm_client *c,
                                    const struct nvllm_list_options *options, int timeout_ms,
                                    const struct nvllm_request_list **list, struct nvllm_error *err)
{
    Nvllm__V1__ClientFrame frame = NVLLM__V1__CLIENT_FRAME__INIT;
    Nvllm__V1__ListRequests op = NVLLM__V1__LIST_REQUESTS__INIT;
    struct nvllm_list_options o = default_list;
    struct event *e;
    enum nvllm_code code = take_options(&o, sizeof(o), options, err);

    if (code != NVLLM_OK)
        return code;
    op.has_limit = o.limit != 0;
    op.limit = o.limit;
    frame.op_case = NVLLM__V1__CLIENT_FRAME__OP_LIST_REQUESTS;
    frame.list_requests = &op;
    code = client_call(c, &frame, PENDING_REQUESTS, timeout_ms, &e, err);
    if (code == NVLLM_OK)
        *list = &e->requests;
    return code;
}

enum nvllm_code nvllm_cancel_request(struct nvllm_client *c, uint64_t request, int timeout_ms,
                                     bool *found, struct nvllm_error *err)
{
    Nvllm__V1__ClientFrame frame = NVLLM__V1__CLIENT_FRAME__INIT;
    Nvllm__V1__Cancel op = NVLLM__V1__CANCEL__INIT;
    struct event *e;
    enum nvllm_code code;

    if (request == 0)
        return error_field(err, "request", "0 is no request");
    op.has_request = true;
    op.request = request;
    frame.op_case = NVLLM__V1__CLIENT_FRAME__OP_CANCEL;
    frame.cancel = &op;
    code = client_call(c, &frame, PENDING_CANCEL, timeout_ms, &e, err);
    if (code == NVLLM_OK && found)
        *found = e->found;
    return code;
}

enum nvllm_code nvllm_get_blocks(struct nvllm_client *c, const struct nvllm_blocks_options *options,
                                 int timeout_ms, const struct nvllm_blocks **blocks,
                                 struct nvllm_error *err)
{
    Nvllm__V1__ClientFrame frame = NVLLM__V1__CLIENT_FRAME__INIT;
    Nvllm__V1__GetBlocks op = NVLLM__V1__GET_BLOCKS__INIT;
    struct nvllm_blocks_options o = default_blocks;
    struct event *e;
    enum nvllm_code code = take_options(&o, sizeof(o), options, err);

    if (code != NVLLM_OK)
        return code;
    op.has_map = op.map = o.map;
    frame.op_case = NVLLM__V1__CLIENT_FRAME__OP_GET_BLOCKS;
    frame.get_blocks = &op;
    code = client_call(c, &frame, PENDING_BLOCKS, timeout_ms, &e, err);
    if (code == NVLLM_OK)
        *blocks = &e->blocks;
    return code;
}

/* ---- the prefix cache */

enum nvllm_code nvllm_show_cache(struct nvllm_client *c, const struct nvllm_list_options *options,
                                 int timeout_ms, const struct nvllm_cache **cache,
                                 struct nvllm_error *err)
{
    Nvllm__V1__ClientFrame frame = NVLLM__V1__CLIENT_FRAME__INIT;
    Nvllm__V1__ShowCache op = NVLLM__V1__SHOW_CACHE__INIT;
    struct nvllm_list_options o = default_list;
    struct event *e;
    enum nvllm_code code = take_options(&o, sizeof(o), options, err);

    if (code != NVLLM_OK)
        return code;
    op.has_limit = o.limit != 0;
    op.limit = o.limit;
    frame.op_case = NVLLM__V1__CLIENT_FRAME__OP_SHOW_CACHE;
    frame.show_cache = &op;
    code = client_call(c, &frame, PENDING_CACHE, timeout_ms, &e, err);
    if (code == NVLLM_OK)
        *cache = &e->cache;
    return code;
}

static enum nvllm_code cache_change_call(struct nvllm_client *c, Nvllm__V1__ClientFrame *frame,
                                         int timeout_ms, const struct nvllm_cache_change **change,
                                         struct nvllm_error *err)
{
    struct event *e;
    enum nvllm_code code = client_call(c, frame, PENDING_CACHE_CHANGE, timeout_ms, &e, err);

    if (code == NVLLM_OK && change)
        *change = &e->cache_change;
    return code;
}

enum nvllm_code nvllm_clear_cache(struct nvllm_client *c, const struct nvllm_clear_options *options,
                                  int timeout_ms, const struct nvllm_cache_change **change,
                                  struct nvllm_error *err)
{
    Nvllm__V1__ClientFrame frame = NVLLM__V1__CLIENT_FRAME__INIT;
    Nvllm__V1__ClearCache op = NVLLM__V1__CLEAR_CACHE__INIT;
    struct nvllm_clear_options o = default_clear;
    enum nvllm_code code = take_options(&o, sizeof(o), options, err);

    if (code != NVLLM_OK)
        return code;
    op.has_all = op.all = o.all;
    frame.op_case = NVLLM__V1__CLIENT_FRAME__OP_CLEAR_CACHE;
    frame.clear_cache = &op;
    return cache_change_call(c, &frame, timeout_ms, change, err);
}

enum nvllm_code nvllm_pin_cache(struct nvllm_client *c, const struct nvllm_pin_options *options,
                                int timeout_ms, const struct nvllm_cache_change **change,
                                struct nvllm_error *err)
{
    Nvllm__V1__ClientFrame frame = NVLLM__V1__CLIENT_FRAME__INIT;
    Nvllm__V1__PinCache op;
    struct nvllm_pin_options o = default_pin;
    struct pack_input in;
    struct pack pack = {0};
    enum nvllm_code code = take_options(&o, sizeof(o), options, err);

    if (code != NVLLM_OK)
        return code;
    nvllm__v1__pin_cache__init(&op);
    code = pack_input(&pack, &in, o.prompt, o.prompt_ids, o.n_prompt_ids, o.chat, err);
    if (code == NVLLM_OK)
        code = pack_salt(&op.has_cache_salt, &op.cache_salt, o.cache_salt, err);
    if (code != NVLLM_OK)
        goto out;
    switch (in.kind) {
    case PACK_PROMPT:
        op.input_case = NVLLM__V1__PIN_CACHE__INPUT_PROMPT;
        op.prompt = in.prompt;
        break;
    case PACK_PROMPT_IDS:
        op.input_case = NVLLM__V1__PIN_CACHE__INPUT_PROMPT_IDS;
        op.prompt_ids = in.prompt_ids;
        break;
    case PACK_CHAT:
        op.input_case = NVLLM__V1__PIN_CACHE__INPUT_CHAT;
        op.chat = in.chat;
        break;
    }
    op.has_unpin = op.unpin = o.unpin;
    op.has_uid = o.has_uid;
    op.uid = o.uid;
    frame.op_case = NVLLM__V1__CLIENT_FRAME__OP_PIN_CACHE;
    frame.pin_cache = &op;
    code = cache_change_call(c, &frame, timeout_ms, change, err);
out:
    pack_deinit(&pack);
    return code;
}

/* ---- why */

static enum nvllm_code pack_explain(struct pack *pack, Nvllm__V1__Explain *op,
                                    const struct nvllm_explain_options *o, struct nvllm_error *err)
{
    struct pack_input in;
    enum nvllm_code code;

    if (o->request != 0) {
        if (o->prompt.data || o->prompt_ids || o->chat)
            return error_field(err, "about", "both a request and a prompt are asked about");
        op->about_case = NVLLM__V1__EXPLAIN__ABOUT_REQUEST;
        op->request = o->request;
        return NVLLM_OK;
    }
    code = pack_input(pack, &in, o->prompt, o->prompt_ids, o->n_prompt_ids, o->chat, err);
    if (code == NVLLM_OK)
        code = pack_salt(&op->has_cache_salt, &op->cache_salt, o->cache_salt, err);
    if (code != NVLLM_OK)
        return code;
    switch (in.kind) {
    case PACK_PROMPT:
        op->about_case = NVLLM__V1__EXPLAIN__ABOUT_PROMPT;
        op->prompt = in.prompt;
        break;
    case PACK_PROMPT_IDS:
        op->about_case = NVLLM__V1__EXPLAIN__ABOUT_PROMPT_IDS;
        op->prompt_ids = in.prompt_ids;
        break;
    case PACK_CHAT:
        op->about_case = NVLLM__V1__EXPLAIN__ABOUT_CHAT;
        op->chat = in.chat;
        break;
    }
    return NVLLM_OK;
}

enum nvllm_code nvllm_explain(struct nvllm_client *c, const struct nvllm_explain_options *options,
                              int timeout_ms, const struct nvllm_explanation **explanation,
                              struct nvllm_error *err)
{
    Nvllm__V1__ClientFrame frame = NVLLM__V1__CLIENT_FRAME__INIT;
    Nvllm__V1__Explain op = NVLLM__V1__EXPLAIN__INIT;
    struct nvllm_explain_options o = default_explain;
    struct pack pack = {0};
    struct event *e;
    enum nvllm_code code = take_options(&o, sizeof(o), options, err);

    if (code == NVLLM_OK)
        code = pack_explain(&pack, &op, &o, err);
    if (code == NVLLM_OK) {
        frame.op_case = NVLLM__V1__CLIENT_FRAME__OP_EXPLAIN;
        frame.explain = &op;
        code = client_call(c, &frame, PENDING_EXPLAIN, timeout_ms, &e, err);
    }
    if (code == NVLLM_OK)
        *explanation = &e->explanation;
    pack_deinit(&pack);
    return code;
}
