/* conn_resume.c - requests that the next daemon answers.
 *
 * A daemon that is about to exit refuses new requests, ends the others when its drain is over, and
 * says so at the end of the connection; the one that replaces it answers what is left. Held is a
 * request that no daemon has. Sent again are only those of which the program has seen nothing yet,
 * and only after the daemon has announced its exit. */
#include "client/lib/conn_impl.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "client/lib/error.h"

enum { ASK_MS = 100 }; /* between two looks at a daemon that loads its model */

/* ---- what is kept */

bool conn_keep(struct conn *c, struct pending *request, const Nvllm__V1__ClientFrame *frame)
{
    const size_t bytes = protobuf_c_message_get_packed_size(&frame->base);

    if (c->kept_bytes > 0 &&
        (c->kept_bytes > c->max_queue_bytes || bytes > c->max_queue_bytes - c->kept_bytes))
        return false;
    request->frame = malloc(bytes);
    if (!request->frame)
        return false;
    request->frame_bytes = protobuf_c_message_pack(&frame->base, request->frame);
    c->kept_bytes += request->frame_bytes;
    return true;
}

void conn_drop(struct conn *c, struct pending *request)
{
    if (!request->frame)
        return;
    free(request->frame);
    request->frame = NULL;
    c->kept_bytes -= request->frame_bytes;
}

/* ---- from the daemon */

bool conn_take_own_answer(struct conn *c, struct pending *request,
                          const Nvllm__V1__ServerFrame *frame)
{
    if (request->asks) {
        if (frame->event_case == ANSWER(STATUS))
            c->state = event_read_state((int)frame->status->state);
        conn_forget(c, request);
        return true;
    }
    if (frame->event_case != ANSWER(ERROR) || !frame->error->reconnect || !request->frame)
        return false;
    if (request->abandoned || request->end != NVLLM_OK)
        return false;
    conn_set_held(c, request, true);
    return true;
}

/* ---- requests that the library ends */

static void explain_end(struct nvllm_error *err, enum nvllm_code code)
{
    static const char *const texts[] = {
        [NVLLM_E_TOO_LONG] = "the next nvllmd does not accept a request of this length",
        [NVLLM_E_NOT_RUNNING] = "nvllmd has exited, and no process is listening on its socket",
        [NVLLM_E_CONNECTION] = "nvllmd has exited, and its socket cannot be connected to again",
        [NVLLM_E_UNAVAILABLE] = "nvllmd has exited before the answer was complete",
        [NVLLM_E_DEADLINE] = "the deadline expired while the request waited for the next nvllmd",
        [NVLLM_E_CANCELLED] = "cancelled while it waited for the next nvllmd",
        [NVLLM_E_TIMEOUT] = "the request timed out",
        [NVLLM_E_NOMEM] = "out of memory for a request",
    };

    error_set(err, code, code == NVLLM_E_NOMEM ? ENOMEM : 0, "%s", texts[code]);
}

struct event *conn_take_end(struct conn *c)
{
    struct pending *request = c->pending;
    struct event *e = NULL;
    struct nvllm_error err;

    while (request->end == NVLLM_OK)
        request++;
    if (!request->abandoned) {
        explain_end(&err, request->end);
        e = event_error(request, &err);
        if (!e)
            conn_die_no_memory(c);
    }
    if (request->held) {
        conn_forget(c, request);
    } else { /* its answer still comes */
        request->end = NVLLM_OK;
        request->abandoned = true;
        c->n_ending--;
    }
    return e;
}

/* ---- the next daemon */

static bool waits(const struct pending *request)
{
    return request->held && request->end == NVLLM_OK;
}

bool conn_holds_requests(const struct conn *c)
{
    for (size_t i = 0; i < c->n_pending; i++)
        if (waits(&c->pending[i]))
            return true;
    return false;
}

void conn_give_up(struct conn *c, enum nvllm_code code)
{
    for (size_t i = 0; i < c->n_pending; i++)
        if (waits(&c->pending[i]))
            conn_end(c, &c->pending[i], code);
}

void conn_hold_rest(struct conn *c)
{
    for (size_t i = c->n_pending; i-- > 0;) {
        struct pending *request = &c->pending[i];

        if (request->abandoned || request->asks) {
            conn_forget(c, request);
            continue;
        }
        conn_set_held(c, request, true);
        if (!request->frame && request->end == NVLLM_OK)
            conn_end(c, request, NVLLM_E_UNAVAILABLE);
    }
}

void conn_restart(struct conn *c)
{
    const uint32_t max_bytes = c->in.max_bytes;

    frame_decoder_deinit(&c->in);
    frame_decoder_init(&c->in, max_bytes);
    frame_buffer_deinit(&c->out);
    c->out = (struct frame_buffer){0};
    c->welcomed = c->ended = c->replaceable = false;
    c->end_errno = 0;
    c->death = (struct nvllm_error){0};
    c->resuming = true;
    c->ask_at = 0;
    conn_hold_rest(c);
}

/* Asks for the state; the answer is not the program's. */
static void ask(struct conn *c, int64_t now)
{
    Nvllm__V1__GetStatus op = NVLLM__V1__GET_STATUS__INIT;
    Nvllm__V1__ClientFrame frame = NVLLM__V1__CLIENT_FRAME__INIT;
    struct pending *own;

    frame.op_case = OP(GET_STATUS);
    frame.get_status = &op;
    c->ask_at = now + ASK_MS;
    if (conn_send(c, &frame, INT64_MAX, INT64_MAX, &own, NULL) == NVLLM_OK)
        own->asks = c->asking = true;
}

/* With the rest of its deadline_ms. */
static enum nvllm_code send_again(struct conn *c, const struct pending *request, int64_t now)
{
    struct unpacked *memory;
    Nvllm__V1__ClientFrame *frame;
    enum nvllm_code code = NVLLM_E_NOMEM;

    if (unpack(&memory, &nvllm__v1__client_frame__descriptor, request->frame,
               request->frame_bytes) != UNPACK_OK)
        return code;
    frame = (Nvllm__V1__ClientFrame *)unpacked_message(memory);
    if (request->expires <= now) {
        code = NVLLM_E_DEADLINE;
    } else {
        if (request->expires != INT64_MAX)
            *conn_deadline_ms(frame) = (uint32_t)(request->expires - now);
        code = conn_put(c, frame, NULL);
    }
    unpacked_free(memory);
    return code;
}

void conn_resume(struct conn *c, int64_t now)
{
    if (!c->resuming || !c->welcomed || c->death.code != NVLLM_OK)
        return;
    if (c->state == NVLLM_STATE_LOADING) {
        if (!c->asking && now >= c->ask_at)
            ask(c, now);
        return;
    }
    for (size_t i = 0; i < c->n_pending; i++) {
        struct pending *request = &c->pending[i];
        enum nvllm_code code;

        if (!waits(request))
            continue;
        code = send_again(c, request, now);
        if (code == NVLLM_E_BUSY)
            return; /* the rest once these are written */
        if (code == NVLLM_OK)
            conn_set_held(c, request, false);
        else
            conn_end(c, request, code);
    }
    c->resuming = false;
}

int64_t conn_resume_at(const struct conn *c)
{
    return c->resuming && c->welcomed && c->state == NVLLM_STATE_LOADING && !c->asking ? c->ask_at
                                                                                       : INT64_MAX;
}
