/* request_inspect.c - see request_inspect.h. */
#include "daemon/request_inspect.h"

#include <errno.h>

#define CODE(name) NVLLM__V1__ERROR_CODE__ERROR_##name
#define OP(name)   NVLLM__V1__CLIENT_FRAME__OP_##name

static int32_t limit_of(bool has, uint32_t limit)
{
    return !has || limit == 0 || limit > INSPECT_MAX_ENTRIES ? INSPECT_MAX_ENTRIES : (int32_t)limit;
}

/* A prompt given in one of three ways, and its salt; what is not given is NULL. */
struct prompt {
    const ProtobufCBinaryData *text;
    const Nvllm__V1__TokenIds *ids;
    const Nvllm__V1__Chat *chat;
    const ProtobufCBinaryData *salt;
};

/* Of PinCache and Explain, whose oneofs name the three alike. */
#define PROMPT_OF(m, which, CASE)                                                                  \
    {                                                                                              \
        .text = (m)->which == CASE##_PROMPT ? &(m)->prompt : NULL,                                 \
        .ids = (m)->which == CASE##_PROMPT_IDS ? (m)->prompt_ids : NULL,                           \
        .chat = (m)->which == CASE##_CHAT ? (m)->chat : NULL,                                      \
        .salt = (m)->has_cache_salt ? &(m)->cache_salt : NULL,                                     \
    }

static int take_prompt(struct inspect_query *out, const struct prompt *p, struct unpacked *u,
                       const struct request_rules *rules, struct refusal *e)
{
    struct chat *chat;
    int r = p->salt ? request_salt(&out->cache_salt, p->salt, rules, e) : 0;

    if (r < 0)
        return r;
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
    struct prompt p = PROMPT_OF(m, input_case, NVLLM__V1__PIN_CACHE__INPUT);

    out->kind = INSPECT_CACHE_PIN;
    out->unpin = m->has_unpin && m->unpin;
    if (m->has_uid)
        out->client = m->uid;
    if (!p.text && !p.ids && !p.chat)
        return refusal_of_field(e, CODE(INVALID), "input",
                                "one of prompt, prompt_ids and chat is required");
    return take_prompt(out, &p, u, rules, e);
}

static int take_explain(struct inspect_query *out, const Nvllm__V1__Explain *m, struct unpacked *u,
                        const struct request_rules *rules, struct refusal *e)
{
    struct prompt p = PROMPT_OF(m, about_case, NVLLM__V1__EXPLAIN__ABOUT);

    if (m->about_case == NVLLM__V1__EXPLAIN__ABOUT_REQUEST) {
        out->kind = INSPECT_EXPLAIN_REQUEST;
        out->request = m->request;
        return 0;
    }
    out->kind = INSPECT_EXPLAIN_PROMPT;
    if (!p.text && !p.ids && !p.chat)
        return refusal_of_field(e, CODE(INVALID), "about",
                                "one of request, prompt, prompt_ids and chat is required");
    return take_prompt(out, &p, u, rules, e);
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

int request_inspect(struct inspect_query *out, const Nvllm__V1__ClientFrame *f, struct unpacked *u,
                    const struct request_rules *rules, const struct request_viewer *viewer,
                    struct refusal *e)
{
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
        return take_pin(out, f->pin_cache, u, rules, e);
    default:
        return take_explain(out, f->explain, u, rules, e);
    }
}
