/* conn.c - see conn.h. An error of the stream is final: each later call returns it, from death. */
#include "client/lib/conn_impl.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/param.h>

#include "client/lib/error.h"

enum {
    PROTOCOL_VERSION = 1,
    LARGE_FRAME_BYTES =
        UNPACK_MAX_FIELDS, /* a shorter frame cannot exceed any of unpack.h's limits */
};

/* What answers an operation. */
static const int answers[] = {
    [OP(GENERATE)] = ANSWER(DELTA),
    [OP(CANCEL)] = ANSWER(CANCELLED),
    [OP(TOKENIZE)] = ANSWER(TOKENS),
    [OP(DETOKENIZE)] = ANSWER(TEXT),
    [OP(RENDER)] = ANSWER(TEXT),
    [OP(GET_STATUS)] = ANSWER(STATUS),
    [OP(LIST_REQUESTS)] = ANSWER(REQUEST_LIST),
    [OP(GET_BLOCKS)] = ANSWER(BLOCK_REPORT),
    [OP(SHOW_CACHE)] = ANSWER(CACHE_REPORT),
    [OP(CLEAR_CACHE)] = ANSWER(CACHE_CHANGED),
    [OP(PIN_CACHE)] = ANSWER(CACHE_CHANGED),
    [OP(EXPLAIN)] = ANSWER(EXPLANATION),
    [OP(DRAIN)] = ANSWER(CHANGED),
    [OP(RESUME)] = ANSWER(CHANGED),
    [OP(RELOAD)] = ANSWER(RELOADED),
    [OP(SET_LOG_LEVEL)] = ANSWER(CHANGED),
    [OP(SHUTDOWN)] = ANSWER(CHANGED),
    [OP(SLEEP)] = ANSWER(SLEPT),
    [OP(WAKE)] = ANSWER(SLEPT),
    [OP(TRACE)] = ANSWER(TRACED),
    [OP(EMBED)] = ANSWER(EMBEDDING),
    [OP(CREATE_SESSION)] = ANSWER(SESSION_INFO),
    [OP(FORK_SESSION)] = ANSWER(SESSION_INFO),
    [OP(REWIND_SESSION)] = ANSWER(SESSION_INFO),
    [OP(LIST_SESSIONS)] = ANSWER(SESSION_LIST),
    [OP(SHOW_SESSION)] = ANSWER(SESSION_CONTENTS),
    [OP(DELETE_SESSION)] = ANSWER(SESSION_INFO),
};

/* ---- the requests that have not ended */

static int compare_ids(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = ((const struct pending *)b)->id;

    return (x > y) - (x < y);
}

/* Ids are mostly consecutive: the distances to the first and the last one bound the place. */
struct pending *conn_find(const struct conn *c, uint64_t id)
{
    const struct pending *first = c->pending, *last;
    size_t n = c->n_pending, lo, hi;

    if (n == 0)
        return NULL;
    last = first + n - 1;
    if (id < first->id || id > last->id)
        return NULL;
    lo = last->id - id < n ? n - 1 - (size_t)(last->id - id) : 0;
    hi = id - first->id < n ? (size_t)(id - first->id) + 1 : n;
    return bsearch(&id, first + lo, hi - lo, sizeof(*first), compare_ids);
}

/* Makes room for another. -ENOMEM. */
static int reserve_pending(struct conn *c)
{
    size_t cap = c->cap_pending ? 2 * c->cap_pending : 16;
    struct pending *p;

    if (c->n_pending < c->cap_pending)
        return 0;
    p = reallocarray(c->pending, cap, sizeof(*p));
    if (!p)
        return -ENOMEM;
    c->pending = p;
    c->cap_pending = cap;
    return 0;
}

/* When the library ends a request: the daemon's deadline is the library's while it is held. */
static int64_t due(const struct pending *request)
{
    return request->held ? MIN(request->deadline, request->expires) : request->deadline;
}

/* Finds the nearest deadline again, after one that was due then has changed. */
static void deadline_changed(struct conn *c, int64_t was_due, const struct pending *request)
{
    if (due(request) < c->nearest) {
        c->nearest = due(request);
    } else if (was_due == c->nearest && was_due != INT64_MAX) {
        c->nearest = INT64_MAX;
        for (size_t i = 0; i < c->n_pending; i++)
            c->nearest = MIN(c->nearest, due(&c->pending[i]));
    }
}

static void set_deadlines(struct conn *c, struct pending *request, int64_t deadline,
                          int64_t expires)
{
    const int64_t was_due = due(request);

    request->deadline = deadline;
    request->expires = expires;
    deadline_changed(c, was_due, request);
}

void conn_set_held(struct conn *c, struct pending *request, bool held)
{
    const int64_t was_due = due(request);

    request->held = held;
    deadline_changed(c, was_due, request);
}

void conn_forget(struct conn *c, struct pending *request)
{
    struct pending *end = c->pending + c->n_pending;

    set_deadlines(c, request, INT64_MAX, INT64_MAX);
    conn_drop(c, request);
    c->n_ending -= request->end != NVLLM_OK;
    c->asking = c->asking && !request->asks;
    memmove(request, request + 1, (size_t)(end - (request + 1)) * sizeof(*request));
    c->n_pending--;
}

void conn_init(struct conn *c, uint32_t max_in_frame, size_t max_queue_bytes)
{
    *c = (struct conn){
        .max_queue_bytes = max_queue_bytes,
        .max_frame_bytes = FRAME_DEFAULT_MAX,
        .nearest = INT64_MAX,
    };
    frame_decoder_init(&c->in, max_in_frame);
}

void conn_deinit(struct conn *c)
{
    frame_decoder_deinit(&c->in);
    frame_buffer_deinit(&c->out);
    for (size_t i = 0; i < c->n_pending; i++)
        free(c->pending[i].frame);
    free(c->pending);
}

void conn_die_no_memory(struct conn *c)
{
    error_set(&c->death, NVLLM_E_NOMEM, ENOMEM, "out of memory for an answer from the daemon");
}

/* ---- towards the daemon */

/* Before the greeting the daemon's limit is unknown, and its default is used. */
static enum nvllm_code refuse_size(const struct conn *c, size_t bytes, struct nvllm_error *err)
{
    error_set(err, NVLLM_E_TOO_LONG, 0,
              "the request has %zu bytes, and the daemon accepts at most %u (limits.frame_bytes)",
              bytes, c->max_frame_bytes);
    if (err && c->welcomed) {
        strcpy(err->limit, "limits.frame_bytes");
        err->limit_value = c->max_frame_bytes;
    }
    return NVLLM_E_TOO_LONG;
}

enum nvllm_code conn_put(struct conn *c, const Nvllm__V1__ClientFrame *frame,
                         struct nvllm_error *err)
{
    size_t queued = frame_buffer_bytes(&c->out);
    size_t bytes = protobuf_c_message_get_packed_size(&frame->base);

    if (c->death.code != NVLLM_OK)
        return error_copy(err, &c->death);
    if (bytes > c->max_frame_bytes)
        return refuse_size(c, bytes, err);
    if (queued > 0 && (queued > c->max_queue_bytes || bytes > c->max_queue_bytes - queued))
        return error_set(err, NVLLM_E_BUSY, 0,
                         "%zu bytes of requests are waiting to be sent: fetch events first",
                         queued);
    if (frame_buffer_put(&c->out, &frame->base) != 0)
        return error_set(err, NVLLM_E_NOMEM, ENOMEM, "out of memory for a request");
    /* The daemon would close the connection, with all requests, for a frame over these limits. */
    if (bytes > LARGE_FRAME_BYTES && !unpack_fits(&nvllm__v1__client_frame__descriptor,
                                                  c->out.data + c->out.end - bytes, bytes)) {
        c->out.end = c->out.start + queued;
        frame_buffer_consume(&c->out, 0); /* what it took goes back */
        return error_set(err, NVLLM_E_TOO_LONG, 0,
                         "the request has more fields or numbers than nvllmd accepts in one "
                         "frame (%d and %d)",
                         UNPACK_MAX_FIELDS, UNPACK_MAX_NUMBERS);
    }
    return NVLLM_OK;
}

enum nvllm_code conn_hello(struct conn *c, const char *name, struct nvllm_error *err)
{
    Nvllm__V1__ClientFrame frame = NVLLM__V1__CLIENT_FRAME__INIT;
    Nvllm__V1__Hello hello = NVLLM__V1__HELLO__INIT;

    hello.has_protocol = true;
    hello.protocol = PROTOCOL_VERSION;
    hello.client = (char *)name;
    frame.op_case = OP(HELLO);
    frame.hello = &hello;
    return conn_put(c, &frame, err);
}

uint32_t *conn_deadline_ms(Nvllm__V1__ClientFrame *frame)
{
    return frame->op_case == OP(GENERATE) ? &frame->generate->deadline_ms
           : frame->op_case == OP(EMBED)  ? &frame->embed->deadline_ms
                                          : NULL;
}

enum nvllm_code conn_send(struct conn *c, Nvllm__V1__ClientFrame *frame, int64_t deadline,
                          int64_t expires, struct pending **request, struct nvllm_error *err)
{
    struct pending new = {
        .answer = answers[frame->op_case],
        .n_choices = 1,
        .deadline = INT64_MAX,
        .expires = INT64_MAX,
    };
    enum nvllm_code code = NVLLM_OK;
    bool kept;

    frame->has_id = true;
    frame->id = new.id = c->last_id + 1;
    if (frame->op_case == OP(GENERATE) && frame->generate->has_n)
        new.n_choices = frame->generate->n;
    new.held = takes_time(new.answer) && (c->resuming || conn_can_restart(c));
    if (reserve_pending(c) != 0)
        return error_set(err, NVLLM_E_NOMEM, ENOMEM, "out of memory for a request");
    kept = c->keeps && takes_time(new.answer) && conn_keep(c, &new, frame);
    if (!new.held)
        code = conn_put(c, frame, err);
    else if (!kept)
        code = error_set(err, NVLLM_E_BUSY, 0,
                         "too many requests wait for the next nvllmd: fetch events first");
    if (code != NVLLM_OK) {
        conn_drop(c, &new);
        return code;
    }
    *request = &c->pending[c->n_pending++];
    **request = new;
    set_deadlines(c, *request, deadline, expires);
    c->last_id = frame->id;
    return NVLLM_OK;
}

enum nvllm_code conn_cancel(struct conn *c, uint64_t id, struct nvllm_error *err)
{
    Nvllm__V1__ClientFrame frame = NVLLM__V1__CLIENT_FRAME__INIT;
    Nvllm__V1__Cancel cancel = NVLLM__V1__CANCEL__INIT;
    struct pending *target = conn_find(c, id), *own;
    enum nvllm_code code;

    if (!target || (!takes_time(target->answer) && target->answer != ANSWER(TRACED)))
        return NVLLM_OK;
    if (target->held) {
        conn_end(c, target, NVLLM_E_CANCELLED);
        return NVLLM_OK;
    }
    cancel.has_target = true;
    cancel.target = id;
    frame.op_case = OP(CANCEL);
    frame.cancel = &cancel;
    code = conn_send(c, &frame, INT64_MAX, INT64_MAX, &own, err);
    if (code == NVLLM_OK)
        own->abandoned = true;
    return code;
}

void conn_abandon(struct conn *c, uint64_t id)
{
    struct pending *request = conn_find(c, id);

    if (!request)
        return;
    if (request->held)
        conn_forget(c, request);
    else
        request->abandoned = true;
}

void conn_end(struct conn *c, struct pending *request, enum nvllm_code code)
{
    c->n_ending += request->end == NVLLM_OK;
    request->end = code;
    set_deadlines(c, request, INT64_MAX, INT64_MAX);
}

void conn_expire(struct conn *c, int64_t now)
{
    while (c->nearest <= now) {
        struct pending *request = c->pending;

        while (due(request) > now)
            request++;
        conn_end(c, request, request->deadline <= now ? NVLLM_E_TIMEOUT : NVLLM_E_DEADLINE);
        if (!request->held)
            conn_cancel(c, request->id, NULL); /* requests may move */
    }
}

/* ---- from the daemon */

void conn_push(struct conn *c, const void *data, size_t n)
{
    if (c->death.code == NVLLM_OK && frame_decoder_push(&c->in, data, n) != 0)
        conn_die_no_memory(c);
}

bool conn_ready(const struct conn *c)
{
    return c->n_ending > 0 || (c->death.code == NVLLM_OK && frame_decoder_ready(&c->in));
}

void conn_settle(struct conn *c)
{
    if (!c->ended || c->death.code != NVLLM_OK || conn_ready(c))
        return;
    if (c->end_errno != 0)
        error_set(&c->death, NVLLM_E_CONNECTION, c->end_errno, "the connection to nvllmd broke: %s",
                  strerror(c->end_errno));
    else
        error_set(&c->death, NVLLM_E_CONNECTION, 0, "nvllmd closed the connection%s",
                  c->welcomed ? "" : " before it sent a greeting");
    /* Without a word it may have died of a request, which is not sent to the next one then. */
    c->replaceable = true;
    for (size_t i = 0; i < c->n_pending; i++)
        c->replaceable &= c->pending[i].held || c->pending[i].abandoned || c->pending[i].asks;
}

static void take_welcome(struct conn *c, const Nvllm__V1__Welcome *w)
{
    uint32_t protocol = w->has_protocol ? w->protocol : 0;

    if (c->welcomed) {
        error_protocol(&c->death, "a second greeting");
    } else if (protocol != PROTOCOL_VERSION) {
        error_set(&c->death, NVLLM_E_PROTOCOL, 0,
                  "the daemon, %.40s, speaks version %u of the protocol and this library version "
                  "%d: install the same release of both",
                  w->server ? w->server : "nvllmd", protocol, PROTOCOL_VERSION);
    } else {
        c->welcomed = true;
        c->state = event_read_state(w->has_state ? (int)w->state : 0);
        c->progress = w->progress;
        if (w->has_max_frame_bytes && w->max_frame_bytes > 0)
            c->max_frame_bytes = w->max_frame_bytes;
    }
}

/* Frames with id 0 belong to the connection itself. */
static void take_own_frame(struct conn *c, const Nvllm__V1__ServerFrame *frame)
{
    switch (frame->event_case) {
    case NVLLM__V1__SERVER_FRAME__EVENT_WELCOME:
        take_welcome(c, frame->welcome);
        break;
    case NVLLM__V1__SERVER_FRAME__EVENT_ERROR:
        event_read_error(&c->death, frame->error);
        c->replaceable = frame->error->reconnect;
        if (c->keeps && c->replaceable)
            conn_hold_rest(c);
        break;
    case NVLLM__V1__SERVER_FRAME__EVENT__NOT_SET:
        break; /* a kind of a newer daemon */
    default:
        error_protocol(&c->death, "an answer that names no request");
    }
}

/* Consumes memory. NULL: there is nothing to return, or the connection has failed. */
static struct event *take_answer(struct conn *c, struct unpacked *memory, uint64_t id)
{
    struct pending *of = conn_find(c, id);
    struct event *e = NULL;
    bool abandoned = false;

    if (!c->welcomed)
        error_protocol(&c->death, "an answer before the greeting");
    else if (!of || of->held)
        error_protocol(&c->death, "an answer to a request that is not in progress");
    else if (!conn_take_own_answer(c, of, (const void *)unpacked_message(memory)))
        e = event_new(memory, of, &c->death);
    if (e) {
        abandoned = of->abandoned;
        if (event_is_last(e))
            conn_forget(c, of);
        else
            conn_drop(c, of); /* what the program has seen is not generated again */
    }
    if (e && !abandoned)
        return e;
    unpacked_free(memory);
    return NULL;
}

static struct event *take_frame(struct conn *c, const uint8_t *data, size_t n)
{
    const Nvllm__V1__ServerFrame *frame;
    struct unpacked *memory;

    switch (unpack(&memory, &nvllm__v1__server_frame__descriptor, data, n)) {
    case UNPACK_OK:
        break;
    case UNPACK_E_NOMEM:
        conn_die_no_memory(c);
        return NULL;
    case UNPACK_E_BUDGET:
        error_protocol(&c->death, "a frame that would take too much memory");
        return NULL;
    default:
        error_protocol(&c->death, "a frame that is not a message");
        return NULL;
    }
    frame = (const Nvllm__V1__ServerFrame *)unpacked_message(memory);
    if (frame->id != 0)
        return take_answer(c, memory, frame->id);
    take_own_frame(c, frame);
    unpacked_free(memory);
    return NULL;
}

/* The event of the next frame, if there is one. */
static struct event *take_next(struct conn *c)
{
    const uint8_t *data;
    size_t n;

    switch (frame_decoder_take(&c->in, &data, &n)) {
    case FRAME_OK:
        return take_frame(c, data, n);
    case FRAME_MORE:
        return NULL;
    case FRAME_E_TOO_LARGE:
        error_protocol(&c->death, "a frame longer than max_frame_bytes");
        return NULL;
    default:
        error_protocol(&c->death, "an invalid length");
        return NULL;
    }
}

struct event *conn_take(struct conn *c)
{
    struct event *e = NULL;

    while (!e && conn_ready(c))
        e = c->n_ending > 0 ? conn_take_end(c) : take_next(c);
    if (!e)
        conn_settle(c);
    return e;
}
