/* request_inspect.c - see request_inspect.h. */
#include "daemon/request_inspect.h"

#include <errno.h>

#define CODE(name) NVLLM__V1__ERROR_CODE__ERROR_##name
#define OP(name)   NVLLM__V1__CLIENT_FRAME__OP_##name

static int32_t limit_of(bool has, uint32_t limit)
{
    return !has || limit == 0 || limit > INSPECT_MAX_ENTRIES ? INSPECT_MAX_ENTRIES : (int32_t)limit;
}

/* The three ways to name a prompt; those not given are NULL. */
struct prompt {
    const ProtobufCBinaryData *text;
    const Nvllm__V1__TokenIds *ids;
    const Nvllm__V1__Chat *chat;
};

static int take_prompt(struct inspect_query *out, const struct prompt *p, struct unpacked *u,
                       const struct request_rules *rules, struct refusal *e)
{
    struct chat *chat;
    int r;

    if (p->text) {
        out->input = INSPECT_PROMPT;
        return request_prompt(&out->prompt, p->text, rules, e);
    }
    if (p->ids) {
        out->input = INSPECT_PROMPT_IDS;
        out->prompt_ids = p->ids->ids;
        out->n_prompt_ids = p->ids->n_ids;
        return request_prompt_ids(p->ids, rules, e);
    }
    r = request_chat(&chat, p->chat, u, rules, e);
    if (r < 0)
        return r;
    out->input = INSPECT_CHAT;
    out->chat = chat;
    return 0;
}

static int take_pin(struct inspect_query *out, const Nvllm__V1__PinCache *m, struct unpacked *u,
                    const struct request_rules *rules, struct refusal *e)
{
    struct prompt p = {0};
    int r;

    out->kind = INSPECT_CACHE_PIN;
    out->unpin = m->has_unpin && m->unpin;
    if (m->has_uid)
        out->client = m->uid;
    switch (m->input_case) {
    case NVLLM__V1__PIN_CACHE__INPUT_PROMPT:
        p.text = &m->prompt;
        break;
    case NVLLM__V1__PIN_CACHE__INPUT_PROMPT_IDS:
        p.ids = m->prompt_ids;
        break;
    case NVLLM__V1__PIN_CACHE__INPUT_CHAT:
        p.chat = m->chat;
        break;
    default:
        return refusal_of_field(e, CODE(INVALID), "input",
                                "one of prompt, prompt_ids and chat must be there");
    }
    if (m->has_cache_salt && (r = request_salt(&out->cache_salt, &m->cache_salt, rules, e)) < 0)
        return r;
    return take_prompt(out, &p, u, rules, e);
}

static int take_explain(struct inspect_query *out, const Nvllm__V1__Explain *m, struct unpacked *u,
                        const struct request_rules *rules, struct refusal *e)
{
    struct prompt p = {0};
    int r;

    out->kind = INSPECT_EXPLAIN_PROMPT;
    switch (m->about_case) {
    case NVLLM__V1__EXPLAIN__ABOUT_REQUEST:
        out->kind = INSPECT_EXPLAIN_REQUEST;
        out->request = m->request;
        return 0;
    case NVLLM__V1__EXPLAIN__ABOUT_PROMPT:
        p.text = &m->prompt;
        break;
    case NVLLM__V1__EXPLAIN__ABOUT_PROMPT_IDS:
        p.ids = m->prompt_ids;
        break;
    case NVLLM__V1__EXPLAIN__ABOUT_CHAT:
        p.chat = m->chat;
        break;
    default:
        return refusal_of_field(e, CODE(INVALID), "about",
                                "one of request, prompt, prompt_ids and chat must be there");
    }
    if (m->has_cache_salt && (r = request_salt(&out->cache_salt, &m->cache_salt, rules, e)) < 0)
        return r;
    return take_prompt(out, &p, u, rules, e);
}

static int take_clear(struct inspect_query *out, const Nvllm__V1__ClearCache *m, struct refusal *e)
{
    out->kind = INSPECT_CACHE_CLEAR;
    out->clear_all = m->has_all && m->all;
    if (out->clear_all && !out->all)
        return refusal_of_field(e, CODE(DENIED), "all", "the cache of all users is for admins");
    return 0;
}

int request_inspect(struct inspect_query *out, const Nvllm__V1__ClientFrame *f, struct unpacked *u,
                    const struct request_rules *rules, const struct request_viewer *viewer,
                    struct refusal *e)
{
    struct inspect_query q = {
        .viewer = viewer->client,
        .all = viewer->all,
        .limit = INSPECT_MAX_ENTRIES,
        .client = viewer->client,
    };
    int r = 0;

    switch (f->op_case) {
    case OP(LIST_REQUESTS):
        q.kind = INSPECT_REQUESTS;
        q.limit = limit_of(f->list_requests->has_limit, f->list_requests->limit);
        break;
    case OP(GET_BLOCKS):
        q.kind = INSPECT_BLOCKS;
        q.map = f->get_blocks->has_map && f->get_blocks->map;
        break;
    case OP(SHOW_CACHE):
        q.kind = INSPECT_CACHE;
        q.limit = limit_of(f->show_cache->has_limit, f->show_cache->limit);
        break;
    case OP(CLEAR_CACHE):
        r = take_clear(&q, f->clear_cache, e);
        break;
    case OP(PIN_CACHE):
        r = take_pin(&q, f->pin_cache, u, rules, e);
        break;
    default:
        r = take_explain(&q, f->explain, u, rules, e);
        break;
    }
    if (r == 0)
        *out = q;
    return r;
}
