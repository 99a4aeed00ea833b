/* blocking.c - generate, and calls that wait for any event, or for those of one request. */
#include "client/lib/client.h"
#include "client/lib/clock.h"
#include "client/lib/error.h"
#include "client/lib/pack.h"

enum { CANCEL_WAIT_MS = 5000 }; /* for a request to end that a callback has cancelled */

static enum nvllm_code dead(const struct nvllm_client *c, struct nvllm_error *err)
{
    if (err)
        *err = c->conn.death;
    return c->conn.death.code;
}

enum nvllm_code client_check_callback(const struct nvllm_client *c, struct nvllm_error *err)
{
    if (!c->calling)
        return NVLLM_OK;
    return error_field(err, "client", "a callback of nvllm_generate() must not use its client");
}

/* ---- one request among many */

/* *deadline is what the request's own timeout makes it; 0: none. */
static enum nvllm_code start(struct nvllm_client *c, uint64_t *id, int64_t *deadline,
                             const struct nvllm_request *request, struct nvllm_error *err)
{
    Nvllm__V1__ClientFrame frame = NVLLM__V1__CLIENT_FRAME__INIT;
    Nvllm__V1__Generate generate;
    struct pack pack = {0};
    enum nvllm_code code;
    uint32_t timeout_ms;

    code = pack_generate(&pack, &generate, &timeout_ms, request, err);
    if (code != NVLLM_OK)
        goto out;
    frame.op_case = NVLLM__V1__CLIENT_FRAME__OP_GENERATE;
    frame.generate = &generate;
    code = conn_send(&c->conn, &frame, ANSWER(DELTA), generate.has_n ? generate.n : 1, id, err);
    *deadline = timeout_ms > 0 ? clock_ms() + timeout_ms : 0;
out:
    pack_deinit(&pack);
    return code;
}

enum nvllm_code nvllm_generate_start(struct nvllm_client *c, uint64_t *id,
                                     const struct nvllm_request *request, struct nvllm_error *err)
{
    int64_t deadline;
    enum nvllm_code code = start(c, id, &deadline, request, err);

    if (code == NVLLM_OK)
        client_open(c, *id, deadline);
    return code;
}

enum nvllm_code nvllm_cancel(struct nvllm_client *c, uint64_t id, struct nvllm_error *err)
{
    enum nvllm_code code = conn_cancel(&c->conn, id, err);

    if (code == NVLLM_OK)
        client_flush(c);
    return code;
}

enum nvllm_code nvllm_next(struct nvllm_client *c, int timeout_ms, const struct nvllm_event **event,
                           struct nvllm_error *err)
{
    int64_t deadline = clock_deadline(timeout_ms);
    enum nvllm_code code = client_check_callback(c, err);

    if (code != NVLLM_OK)
        return code;
    for (;;) {
        struct event *e = client_take(c);

        if (e) {
            *event = &e->public;
            return NVLLM_OK;
        }
        if (c->conn.death.code != NVLLM_OK) {
            c->n_open = 0;
            return dead(c, err);
        }
        /* In a loop of calls, the socket is read once each time it is readable. */
        if (!c->drained)
            client_pump(c);
        else if (!client_wait(c, deadline))
            return timeout_ms == 0
                       ? error_const(err, NVLLM_E_TIMEOUT, "no event is available")
                       : error_set(err, NVLLM_E_TIMEOUT, 0, "no answer in %d ms", timeout_ms);
    }
}

size_t nvllm_pending(const struct nvllm_client *c)
{
    return c->n_open;
}

/* ---- one request, waited for */

static enum nvllm_code wanted_event(struct nvllm_client *c, uint64_t id, int64_t deadline,
                                    struct event **out, struct nvllm_error *err)
{
    for (;;) {
        struct event *e = client_take_of(c, id);

        if (e) {
            *out = e;
            return NVLLM_OK;
        }
        if (c->conn.death.code != NVLLM_OK)
            return dead(c, err);
        if (client_queue_full(c))
            return error_set(err, NVLLM_E_BUSY, 0,
                             "too many events of other requests have not been fetched");
        if (!c->drained)
            client_pump(c);
        else if (!client_wait(c, deadline))
            return error_const(err, NVLLM_E_TIMEOUT, "no answer in time");
    }
}

enum nvllm_code client_call(struct nvllm_client *c, Nvllm__V1__ClientFrame *frame, int answer,
                            int timeout_ms, const void **out, struct nvllm_error *err)
{
    int64_t deadline = clock_deadline(timeout_ms);
    struct event *e;
    enum nvllm_code code = client_check_callback(c, err);
    uint64_t id;

    if (code == NVLLM_OK)
        code = conn_send(&c->conn, frame, answer, 0, &id, err);
    if (code != NVLLM_OK)
        return code;
    client_flush(c);
    code = wanted_event(c, id, deadline, &e, err);
    if (code != NVLLM_OK) {
        conn_abandon(&c->conn, id);
        return code;
    }
    if (e->is_error) {
        if (err)
            *err = *e->error;
        return e->error->code;
    }
    if (out)
        *out = &e->requests; /* the members of a union begin at the same place */
    return NVLLM_OK;
}

/* True: the callback cancels. */
static bool call_back(struct nvllm_client *c, nvllm_callback *callback, void *arg,
                      const struct event *e)
{
    bool enough;

    if (!callback)
        return false;
    c->calling = true;
    enough = callback(arg, &e->public) != 0;
    c->calling = false;
    return enough;
}

static enum nvllm_code run_generate(struct nvllm_client *c, uint64_t id, nvllm_callback *callback,
                                    void *arg, int64_t deadline, struct nvllm_error *err)
{
    bool cancelled = false;

    for (;;) {
        struct event *e;
        enum nvllm_code code = wanted_event(c, id, deadline, &e, err);

        if (code != NVLLM_OK)
            return code;
        if (e->is_error) {
            if (err)
                *err = *e->error;
            return e->error->code;
        }
        if (call_back(c, callback, arg, e) && !cancelled && !e->terminal) {
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
        /* Checked each time: a fast daemon may always have another event. */
        if (clock_left_ms(deadline) == 0)
            return error_set(err, NVLLM_E_TIMEOUT, 0, "the request timed out");
    }
}

enum nvllm_code nvllm_generate(struct nvllm_client *c, const struct nvllm_request *request,
                               nvllm_callback *callback, void *arg, int timeout_ms,
                               struct nvllm_error *err)
{
    int64_t deadline = clock_deadline(timeout_ms), own;
    enum nvllm_code code = client_check_callback(c, err);
    uint64_t id;

    if (code == NVLLM_OK)
        code = start(c, &id, &own, request, err);
    if (code != NVLLM_OK)
        return code;
    client_flush(c);
    if (own != 0 && (deadline < 0 || own < deadline))
        deadline = own;
    code = run_generate(c, id, callback, arg, deadline, err);
    if (pending_find(&c->conn.pending, id)) {
        conn_cancel(&c->conn, id, NULL);
        conn_abandon(&c->conn, id);
        client_flush(c);
    }
    return code;
}
