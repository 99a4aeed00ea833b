/* ask.c - the calls for tokens, texts and the status: each waits for its answer, or starts a
 * request whose answer is an event. */
#include "client/lib/client.h"
#include "client/lib/clock.h"
#include "client/lib/error.h"
#include "client/lib/pack.h"

/* A short operation as a frame that points at the program's own data. */
struct ask {
    Nvllm__V1__ClientFrame frame;
    int answer;
    struct pack pack;
    union {
        Nvllm__V1__Tokenize tokenize;
        Nvllm__V1__Detokenize detokenize;
        Nvllm__V1__Render render;
        Nvllm__V1__GetStatus status;
    };
    Nvllm__V1__Chat chat;
};

static void ask_init(struct ask *a, Nvllm__V1__ClientFrame__OpCase op, int answer)
{
    nvllm__v1__client_frame__init(&a->frame);
    a->frame.op_case = op;
    a->answer = answer;
    a->pack = (struct pack){0};
}

/* Sends it, unless code is an error, and waits; *out is the answer. Frees what a holds. */
static enum nvllm_code ask_wait(enum nvllm_code code, struct ask *a, struct nvllm_client *c,
                                int timeout_ms, const void **out, struct nvllm_error *err)
{
    if (code == NVLLM_OK)
        code = client_call(c, &a->frame, a->answer, timeout_ms, out, err);
    pack_deinit(&a->pack);
    return code;
}

/* The same for an answer that is a text. */
static enum nvllm_code ask_text(enum nvllm_code code, struct ask *a, struct nvllm_client *c,
                                int timeout_ms, struct nvllm_text *text, struct nvllm_error *err)
{
    const void *answer;

    code = ask_wait(code, a, c, timeout_ms, &answer, err);
    if (code == NVLLM_OK)
        *text = *(const struct nvllm_text *)answer;
    return code;
}

/* Sends it, unless code is an error, without waiting. Frees what a holds. */
static enum nvllm_code ask_start(enum nvllm_code code, struct ask *a, struct nvllm_client *c,
                                 uint64_t *id, int timeout_ms, struct nvllm_error *err)
{
    if (code == NVLLM_OK)
        code = conn_send(&c->conn, &a->frame, a->answer, 0, id, err);
    if (code == NVLLM_OK)
        client_open(c, *id, timeout_ms < 0 ? 0 : clock_ms() + timeout_ms);
    pack_deinit(&a->pack);
    return code;
}

/* ---- what is asked */

static enum nvllm_code ask_tokenize(struct ask *a, struct nvllm_text text, bool special,
                                    struct nvllm_error *err)
{
    ask_init(a, NVLLM__V1__CLIENT_FRAME__OP_TOKENIZE, ANSWER(TOKENS));
    if (!text.data && text.len > 0)
        return error_field(err, "text", "text is NULL");
    nvllm__v1__tokenize__init(&a->tokenize);
    a->tokenize.has_text = a->tokenize.has_special = true;
    a->tokenize.text = pack_bytes(text);
    a->tokenize.special = special;
    a->frame.tokenize = &a->tokenize;
    return NVLLM_OK;
}

static enum nvllm_code ask_detokenize(struct ask *a, const int32_t *ids, size_t n_ids,
                                      bool skip_special, struct nvllm_error *err)
{
    ask_init(a, NVLLM__V1__CLIENT_FRAME__OP_DETOKENIZE, ANSWER(TEXT));
    if (!ids && n_ids > 0)
        return error_field(err, "ids", "ids is NULL");
    nvllm__v1__detokenize__init(&a->detokenize);
    a->detokenize.n_ids = n_ids;
    a->detokenize.ids = (int32_t *)ids;
    a->detokenize.has_skip_special = true;
    a->detokenize.skip_special = skip_special;
    a->frame.detokenize = &a->detokenize;
    return NVLLM_OK;
}

static enum nvllm_code ask_render(struct ask *a, const struct nvllm_chat *chat,
                                  struct nvllm_error *err)
{
    enum nvllm_code code;

    ask_init(a, NVLLM__V1__CLIENT_FRAME__OP_RENDER, ANSWER(TEXT));
    code = pack_chat(&a->pack, &a->chat, chat, err);
    if (code != NVLLM_OK)
        return code;
    nvllm__v1__render__init(&a->render);
    a->render.chat = &a->chat;
    a->frame.render = &a->render;
    return NVLLM_OK;
}

static enum nvllm_code ask_status(struct ask *a)
{
    ask_init(a, NVLLM__V1__CLIENT_FRAME__OP_GET_STATUS, ANSWER(STATUS));
    nvllm__v1__get_status__init(&a->status);
    a->frame.get_status = &a->status;
    return NVLLM_OK;
}

/* ---- with waiting */

enum nvllm_code nvllm_tokenize(struct nvllm_client *c, struct nvllm_text text, bool special,
                               int timeout_ms, const struct nvllm_tokens **tokens,
                               struct nvllm_error *err)
{
    struct ask a;

    return ask_wait(ask_tokenize(&a, text, special, err), &a, c, timeout_ms, (const void **)tokens,
                    err);
}

enum nvllm_code nvllm_detokenize(struct nvllm_client *c, const int32_t *ids, size_t n_ids,
                                 bool skip_special, int timeout_ms, struct nvllm_text *text,
                                 struct nvllm_error *err)
{
    struct ask a;

    return ask_text(ask_detokenize(&a, ids, n_ids, skip_special, err), &a, c, timeout_ms, text,
                    err);
}

enum nvllm_code nvllm_render(struct nvllm_client *c, const struct nvllm_chat *chat, int timeout_ms,
                             struct nvllm_text *text, struct nvllm_error *err)
{
    struct ask a;

    return ask_text(ask_render(&a, chat, err), &a, c, timeout_ms, text, err);
}

enum nvllm_code nvllm_get_status(struct nvllm_client *c, int timeout_ms,
                                 const struct nvllm_status **status, struct nvllm_error *err)
{
    struct ask a;

    return ask_wait(ask_status(&a), &a, c, timeout_ms, (const void **)status, err);
}

/* ---- without */

enum nvllm_code nvllm_tokenize_start(struct nvllm_client *c, uint64_t *id, struct nvllm_text text,
                                     bool special, int timeout_ms, struct nvllm_error *err)
{
    struct ask a;

    return ask_start(ask_tokenize(&a, text, special, err), &a, c, id, timeout_ms, err);
}

enum nvllm_code nvllm_detokenize_start(struct nvllm_client *c, uint64_t *id, const int32_t *ids,
                                       size_t n_ids, bool skip_special, int timeout_ms,
                                       struct nvllm_error *err)
{
    struct ask a;

    return ask_start(ask_detokenize(&a, ids, n_ids, skip_special, err), &a, c, id, timeout_ms, err);
}

enum nvllm_code nvllm_render_start(struct nvllm_client *c, uint64_t *id,
                                   const struct nvllm_chat *chat, int timeout_ms,
                                   struct nvllm_error *err)
{
    struct ask a;

    return ask_start(ask_render(&a, chat, err), &a, c, id, timeout_ms, err);
}

enum nvllm_code nvllm_get_status_start(struct nvllm_client *c, uint64_t *id, int timeout_ms,
                                       struct nvllm_error *err)
{
    struct ask a;

    return ask_start(ask_status(&a), &a, c, id, timeout_ms, err);
}
