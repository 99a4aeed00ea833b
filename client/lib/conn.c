/* conn.c - see conn.h. An error of the stream is final: each later call returns it, from death. */
#include "client/lib/conn.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

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

/* Sets a request's deadline, and which is the nearest. */
static void set_deadline(struct conn *c, struct pending *request, int64_t deadline)
{
    const bool was_nearest = request->deadline == c->nearest && c->nearest != INT64_MAX;

    request->deadline = deadline;
    if (deadline < c->nearest) {
        c->nearest = deadline;
    } else if (was_nearest) {
        c->nearest = INT64_MAX;
        for (size_t i = 0; i < c->n_pending; i++)
            if (c->pending[i].deadline < c->nearest)
                c->nearest = c->pending[i].deadline;
    }
}

static void forget(struct conn *c, struct pending *request)
{
    struct pending *end = c->pending + c->n_pending;

    set_deadline(c, request, INT64_MAX);
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
    free(c->pending);
}

static void die_no_memory(struct conn *c)
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

/* Queues a frame. */
static enum nvllm_code put(struct conn *c, const Nvllm__V1__ClientFrame *frame,
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
    return put(c, &frame, err);
}

enum nvllm_code conn_send(struct conn *c, Nvllm__V1__ClientFrame *frame, int64_t deadline,
                          struct pending **request, struct nvllm_error *err)
{
    enum nvllm_code code;

    frame->has_id = true;
    frame->id = c->last_id + 1;
    if (reserve_pending(c) != 0)
        return error_set(err, NVLLM_E_NOMEM, ENOMEM, "out of memory for a request");
    code = put(c, frame, err);
    if (code != NVLLM_OK)
        return code;
    *request = &c->pending[c->n_pending++];
    **request = (struct pending){
        .id = frame->id,
        .answer = answers[frame->op_case],
        .n_choices = 1,
        .deadline = INT64_MAX,
    };
    set_deadline(c, *request, deadline);
    if (frame->op_case == OP(GENERATE) && frame->generate->has_n)
        (*request)->n_choices = frame->generate->n;
    c->last_id = frame->id;
    return NVLLM_OK;
}

/* The operations that a program can cancel. */
static bool takes_time(int answer)
{
    return answer == ANSWER(DELTA) || answer == ANSWER(TOKENS) || answer == ANSWER(TEXT) ||
           answer == ANSWER(TRACED);
}

enum nvllm_code conn_cancel(struct conn *c, uint64_t id, struct nvllm_error *err)
{
    Nvllm__V1__ClientFrame frame = NVLLM__V1__CLIENT_FRAME__INIT;
    Nvllm__V1__Cancel cancel = NVLLM__V1__CANCEL__INIT;
    struct pending *target = conn_find(c, id), *own;
    enum nvllm_code code;

    if (!target || !takes_time(target->answer))
        return NVLLM_OK;
    cancel.has_target = true;
    cancel.target = id;
    frame.op_case = OP(CANCEL);
    frame.cancel = &cancel;
    code = conn_send(c, &frame, INT64_MAX, &own, err);
    if (code == NVLLM_OK)
        own->abandoned = true;
    return code;
}

void conn_abandon(struct conn *c, uint64_t id)
{
    struct pending *request = conn_find(c, id);

    if (request)
        request->abandoned = true;
}

struct event *conn_expire(struct conn *c, int64_t now)
{
    struct pending *request = c->pending;
    struct event *e;

    if (c->nearest > now)
        return NULL;
    while (request->deadline > now)
        request++;
    e = event_timeout(request);
    if (!e) {
        die_no_memory(c);
        return NULL;
    }
    set_deadline(c, request, INT64_MAX);
    request->abandoned = true;
    conn_cancel(c, e->public.id, NULL); /* requests may have moved */
    return e;
}

/* ---- from the daemon */

void conn_push(struct conn *c, const void *data, size_t n)
{
    if (c->death.code == NVLLM_OK && frame_decoder_push(&c->in, data, n) != 0)
        die_no_memory(c);
}

bool conn_ready(const struct conn *c)
{
    return c->death.code == NVLLM_OK && frame_decoder_ready(&c->in);
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
}

static void take_welcome(struct conn *c, const Nvllm__V1__Welcome *w)
{
    uint32_t protocol = w->has_protocol ? w->protocol : 0;

    if (c->welcomed) {
        error_protocol(&c->death, "a second greeting");
    } else if (protocol != PROTOCOL_VERSION) {
        error_set(&c->death, NVLLM_E_PROTOCOL, 0,
                  "the daemon speaks version %u of the protocol and this library version %d",
                  protocol, PROTOCOL_VERSION);
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
    else if (!of)
        error_protocol(&c->death, "an answer to a request that is not in progress");
    else
        e = event_new(memory, of, &c->death);
    if (e) {
        abandoned = of->abandoned;
        if (event_is_last(e))
            forget(c, of);
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
        die_no_memory(c);
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

struct event *conn_take(struct conn *c)
{
    while (c->death.code == NVLLM_OK) {
        const uint8_t *data;
        struct event *e;
        size_t n;

        switch (frame_decoder_take(&c->in, &data, &n)) {
        case FRAME_OK:
            e = take_frame(c, data, n);
            if (e)
                return e;
            break;
        case FRAME_MORE:
            conn_settle(c);
            return NULL;
        case FRAME_E_TOO_LARGE:
            error_protocol(&c->death, "a frame longer than max_frame_bytes");
            break;
        default:
            error_protocol(&c->death, "an invalid length");
        }
    }
    return NULL;
}
