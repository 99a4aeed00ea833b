/* blocking.c - the calls of the public header that ask for something, and those that wait. */
#include "client/client.h"
#include "client/clock.h"
#include "client/error.h"
#include "client/pack.h"

enum { CANCEL_WAIT_MS = 5000 }; /* for the end of a request that a callback has cancelled */

static enum nvllm_code dead(const struct nvllm_client *c, struct nvllm_error *err)
{
    if (err)
        *err = c->conn.death;
    return c->conn.death.code;
}

/* ---- one request among many */

enum nvllm_code nvllm_generate_start(struct nvllm_client *c, uint64_t *id,
                                     const struct nvllm_request *request, struct nvllm_error *err)
{
    Nvllm__V1__ClientFrame frame = NVLLM__V1__CLIENT_FRAME__INIT;
    Nvllm__V1__Generate generate;
    struct pack pack = {0};
    enum nvllm_code code;

    code = pack_generate(&pack, &generate, request, err);
    if (code != NVLLM_OK)
        goto out;
    frame.op_case = NVLLM__V1__CLIENT_FRAME__OP_GENERATE;
    frame.generate = &generate;
    code = conn_send(&c->conn, &frame, PENDING_GENERATE, generate.has_n ? generate.n : 1, id, err);
    if (code != NVLLM_OK)
        goto out;
    c->n_open++;
    client_pump(c);
out:
    pack_deinit(&pack);
    return code;
}

enum nvllm_code nvllm_cancel(struct nvllm_client *c, uint64_t id, struct nvllm_error *err)
{
    enum nvllm_code code = conn_cancel(&c->conn, id, err);

    if (code == NVLLM_OK)
        client_pump(c);
    return code;
}

static struct event *next_event(struct nvllm_client *c, struct event_list *list)
{
    struct event *e = client_take(c, list);

    if (e && e->kind == PENDING_GENERATE && e->terminal)
        c->n_open--;
    return e;
}

enum nvllm_code nvllm_next(struct nvllm_client *c, int timeout_ms, const struct nvllm_event **event,
                           struct nvllm_error *err)
{
    int64_t deadline = clock_deadline(timeout_ms);

    for (;;) {
        struct event *e;

        if (!c->queue.first)
            client_pump(c);
        e = next_event(c, &c->queue);
        if (e) {
            *event = &e->public;
            return NVLLM_OK;
        }
        if (c->conn.death.code != NVLLM_OK) {
            c->n_open = 0;
            return dead(c, err);
        }
        if (!client_wait(c, deadline))
            return error_set(err, NVLLM_E_TIMEOUT, 0, "no answer in %d ms", timeout_ms);
    }
}

size_t nvllm_pending(const struct nvllm_client *c)
{
    return c->n_open;
}

/* ---- one request, waited for */

static void want(struct nvllm_client *c, uint64_t id)
{
    c->wanted_id = id;
}

static enum nvllm_code wanted_event(struct nvllm_client *c, int64_t deadline, struct event **out,
                                    struct nvllm_error *err)
{
    for (;;) {
        struct event *e;

        if (!c->wanted.first)
            client_pump(c);
        e = next_event(c, &c->wanted);
        if (e) {
            *out = e;
            return NVLLM_OK;
        }
        if (c->conn.death.code != NVLLM_OK)
            return dead(c, err);
        if (!(nvllm_wants(c) & NVLLM_WANT_READ))
            return error_set(err, NVLLM_E_BUSY, 0,
                             "too many events of other requests have not been fetched");
        if (!client_wait(c, deadline))
            return error_set(err, NVLLM_E_TIMEOUT, 0, "no answer in time");
    }
}

enum nvllm_code client_call(struct nvllm_client *c, Nvllm__V1__ClientFrame *frame,
                            enum pending_kind kind, int timeout_ms, struct event **out,
                            struct nvllm_error *err)
{
    int64_t deadline = clock_deadline(timeout_ms);
    struct event *e;
    enum nvllm_code code;
    uint64_t id;

    code = conn_send(&c->conn, frame, kind, 0, &id, err);
    if (code != NVLLM_OK)
        return code;
    want(c, id);
    code = wanted_event(c, deadline, &e, err);
    c->wanted_id = 0;
    if (code != NVLLM_OK) {
        conn_abandon(&c->conn, id);
        return code;
    }
    if (e->is_error) {
        if (err)
            *err = e->error;
        return e->error.code;
    }
    *out = e;
    return NVLLM_OK;
}

static enum nvllm_code run_generate(struct nvllm_client *c, uint64_t id, nvllm_callback *callback,
                                    void *arg, int64_t deadline, struct nvllm_error *err)
{
    bool cancelled = false;

    for (;;) {
        struct event *e;
        enum nvllm_code code = wanted_event(c, deadline, &e, err);

        if (code != NVLLM_OK)
            return code;
        if (e->is_error) {
            if (err)
                *err = e->error;
            return e->error.code;
        }
        if (callback(arg, &e->public) != 0 && !cancelled && !e->terminal) {
            int64_t end = clock_deadline(CANCEL_WAIT_MS);

            cancelled = true;
            if (deadline < 0 || end < deadline)
                deadline = end;
            code = conn_cancel(&c->conn, id, err);
            if (code != NVLLM_OK)
                return code;
        }
        if (e->terminal)
            return NVLLM_OK;
        /* A fast daemon may always have another event. */
        if (clock_left_ms(deadline) == 0)
            return error_set(err, NVLLM_E_TIMEOUT, 0, "no end in time");
    }
}

enum nvllm_code nvllm_generate(struct nvllm_client *c, const struct nvllm_request *request,
                               nvllm_callback *callback, void *arg, int timeout_ms,
                               struct nvllm_error *err)
{
    int64_t deadline = clock_deadline(timeout_ms);
    enum nvllm_code code;
    uint64_t id;

    /* Started by hand, so that no event of it can come before it is wanted. */
    want(c, c->conn.last_id + 1);
    code = nvllm_generate_start(c, &id, request, err);
    if (code == NVLLM_OK) {
        code = run_generate(c, id, callback, arg, deadline, err);
        if (pending_find(&c->conn.pending, id)) {
            conn_cancel(&c->conn, id, NULL);
            conn_abandon(&c->conn, id);
            c->n_open--;
            client_pump(c);
        }
    }
    client_unwant(c);
    return code;
}

/* ---- tokenizer, template, status */

enum nvllm_code nvllm_tokenize(struct nvllm_client *c, struct nvllm_text text, bool special,
                               int timeout_ms, const struct nvllm_tokens **tokens,
                               struct nvllm_error *err)
{
    Nvllm__V1__ClientFrame frame = NVLLM__V1__CLIENT_FRAME__INIT;
    Nvllm__V1__Tokenize op = NVLLM__V1__TOKENIZE__INIT;
    struct event *e;
    enum nvllm_code code;

    if (!text.data && text.len > 0)
        return error_field(err, "text", "text is NULL");
    op.has_text = op.has_special = true;
    op.text = pack_bytes(text);
    op.special = special;
    frame.op_case = NVLLM__V1__CLIENT_FRAME__OP_TOKENIZE;
    frame.tokenize = &op;
    code = client_call(c, &frame, PENDING_TOKENIZE, timeout_ms, &e, err);
    if (code == NVLLM_OK)
        *tokens = &e->tokens;
    return code;
}

enum nvllm_code nvllm_detokenize(struct nvllm_client *c, const int32_t *ids, size_t n_ids,
                                 bool skip_special, int timeout_ms, struct nvllm_text *text,
                                 struct nvllm_error *err)
{
    Nvllm__V1__ClientFrame frame = NVLLM__V1__CLIENT_FRAME__INIT;
    Nvllm__V1__Detokenize op = NVLLM__V1__DETOKENIZE__INIT;
    struct event *e;
    enum nvllm_code code;

    if (!ids && n_ids > 0)
        return error_field(err, "ids", "ids is NULL");
    op.n_ids = n_ids;
    op.ids = (int32_t *)ids;
    op.has_skip_special = true;
    op.skip_special = skip_special;
    frame.op_case = NVLLM__V1__CLIENT_FRAME__OP_DETOKENIZE;
    frame.detokenize = &op;
    code = client_call(c, &frame, PENDING_DETOKENIZE, timeout_ms, &e, err);
    if (code == NVLLM_OK)
        *text = e->text;
    return code;
}

enum nvllm_code nvllm_render(struct nvllm_client *c, const struct nvllm_chat *chat, int timeout_ms,
                             struct nvllm_text *text, struct nvllm_error *err)
{
    Nvllm__V1__ClientFrame frame = NVLLM__V1__CLIENT_FRAME__INIT;
    Nvllm__V1__Render op = NVLLM__V1__RENDER__INIT;
    Nvllm__V1__Chat packed;
    struct pack pack = {0};
    struct event *e;
    enum nvllm_code code;

    code = pack_chat(&pack, &packed, chat, err);
    if (code == NVLLM_OK) {
        op.chat = &packed;
        frame.op_case = NVLLM__V1__CLIENT_FRAME__OP_RENDER;
        frame.render = &op;
        code = client_call(c, &frame, PENDING_RENDER, timeout_ms, &e, err);
    }
    if (code == NVLLM_OK)
        *text = e->text;
    pack_deinit(&pack);
    return code;
}

enum nvllm_code nvllm_get_status(struct nvllm_client *c, int timeout_ms,
                                 const struct nvllm_status **status, struct nvllm_error *err)
{
    Nvllm__V1__ClientFrame frame = NVLLM__V1__CLIENT_FRAME__INIT;
    Nvllm__V1__GetStatus op = NVLLM__V1__GET_STATUS__INIT;
    struct event *e;
    enum nvllm_code code;

    frame.op_case = NVLLM__V1__CLIENT_FRAME__OP_GET_STATUS;
    frame.get_status = &op;
    code = client_call(c, &frame, PENDING_STATUS, timeout_ms, &e, err);
    if (code == NVLLM_OK)
        *status = &e->status;
    return code;
}
