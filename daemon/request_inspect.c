/* request_inspect.c - see request_inspect.h. */
#include "daemon/request_inspect.h"

#include <errno.h>

#define CODE(name) NVLLM__V1__ERROR_CODE__ERROR_##name
#define OP(name)   NVLLM__V1__CLIENT_FRAME__OP_##name

static int32_t limit_of(bool has, uint32_t limit)
{
    return !has || limit == 0 || limit > INSPECT_MAX_ENTRIES ? INSPECT_MAX_ENTRIES : (int32_t)limit;
}

static int take_pin(struct inspect_query *out, struct engine_request *request,
                    const Nvllm__V1__PinCache *m, struct unpacked *u,
                    const struct request_rules *rules, struct refusal *e)
{
    const struct request_input input = REQUEST_INPUT(m, input_case, NVLLM__V1__PIN_CACHE__INPUT);
    int r;

    out->kind = INSPECT_CACHE_PIN;
    out->unpin = m->has_unpin && m->unpin;
    if (m->has_uid)
        out->client = m->uid;
    r = m->has_cache_salt ? request_salt(&out->cache_salt, &m->cache_salt, rules, e) : 0;
    return r < 0 ? r : request_input(request, &input, u, rules, e);
}

static int take_explain(struct inspect_query *out, struct engine_request *request,
                        const Nvllm__V1__Explain *m, struct unpacked *u,
                        const struct request_rules *rules, struct refusal *e)
{
    const struct request_input input = REQUEST_INPUT(m, about_case, NVLLM__V1__EXPLAIN__ABOUT);
    int r;

    if (m->about_case == NVLLM__V1__EXPLAIN__ABOUT_REQUEST) {
        out->kind = INSPECT_EXPLAIN_REQUEST;
        out->request = m->request;
        return 0;
    }
    out->kind = INSPECT_EXPLAIN_PROMPT;
    if (!input.prompt && !input.ids && !input.chat)
        return refusal_of_field(e, CODE(INVALID), "about",
                                "one of request, prompt, prompt_ids and chat is required");
    r = m->has_cache_salt ? request_salt(&out->cache_salt, &m->cache_salt, rules, e) : 0;
    return r < 0 ? r : request_input(request, &input, u, rules, e);
}

static int take_clear(struct inspect_query *out, const Nvllm__V1__ClearCache *m, struct refusal *e)
{
    out->kind = INSPECT_CACHE_CLEAR;
    out->clear_all = m->has_all && m->all;
    if (out->clear_all && !out->all)
        return refusal_of_field(e, CODE(DENIED), "all",
                                "only admins may clear the caches of all users");
    return 0;
}

int request_inspect(struct inspect_query *out, struct engine_request *request,
                    const Nvllm__V1__ClientFrame *f, struct unpacked *u,
                    const struct request_rules *rules, const struct request_viewer *viewer,
                    struct refusal *e)
{
    *request = (struct engine_request){.kind = ENGINE_INSPECT};
    *out = (struct inspect_query){
        .viewer = viewer->client,
        .all = viewer->all,
        .limit = INSPECT_MAX_ENTRIES,
        .client = viewer->client,
    };
    switch (f->op_case) {
    case OP(LIST_REQUESTS):
        out->kind = INSPECT_REQUESTS;
        out->limit = limit_of(f->list_requests->has_limit, f->list_requests->limit);
        return 0;
    case OP(GET_BLOCKS):
        out->kind = INSPECT_BLOCKS;
        out->map = f->get_blocks->has_map && f->get_blocks->map;
        return 0;
    case OP(SHOW_CACHE):
        out->kind = INSPECT_CACHE;
        out->limit = limit_of(f->show_cache->has_limit, f->show_cache->limit);
        return 0;
    case OP(CLEAR_CACHE):
        return take_clear(out, f->clear_cache, e);
    case OP(PIN_CACHE):
        return take_pin(out, request, f->pin_cache, u, rules, e);
    default:
        return take_explain(out, request, f->explain, u, rules, e);
    }
}
