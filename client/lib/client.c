/* client.c - the socket under a connection, the queue of its events, and waiting for them. */
#include "client/lib/client.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/param.h>
#include <sys/socket.h>
#include <unistd.h>

#include "client/lib/clock.h"
#include "client/lib/error.h"
#include "client/lib/pack.h"

enum {
    READ_BYTES = 32 << 10,
    CANCEL_WAIT_MS = 5000, /* for a request to end that a callback has cancelled */
};

/* ---- events */

static void keep_event(struct nvllm_client *c, struct event *e)
{
    STAILQ_INSERT_TAIL(&c->queue, e, next);
    c->queue_bytes += unpacked_bytes(e->memory);
}

/* No more events of other requests may be kept. */
static bool queue_full(const struct nvllm_client *c)
{
    return c->queue_bytes > c->conn.max_queue_bytes;
}

struct event *client_take(struct nvllm_client *c, uint64_t id)
{
    struct event *e = id == 0 ? STAILQ_FIRST(&c->queue) : NULL;

    if (e) {
        STAILQ_REMOVE_HEAD(&c->queue, next);
        c->queue_bytes -= unpacked_bytes(e->memory);
    }
    while (!e && (id == 0 || !queue_full(c)) && (e = conn_take(&c->conn)) != NULL)
        if (id != 0 && e->public.id != id) {
            keep_event(c, e);
            e = NULL;
        }
    event_free(c->current);
    c->current = e;
    if (e && e->open && event_is_last(e))
        c->n_open--;
    return e;
}

struct nvllm_client *client_new(int fd, const struct nvllm_options *options)
{
    struct nvllm_client *c = calloc(1, sizeof(*c));
    size_t max_frame = MIN(MAX(options->max_frame_bytes, 1), FRAME_LARGEST_MAX);

    if (!c)
        return NULL;
    c->fd = fd;
    conn_init(&c->conn, (uint32_t)max_frame, options->max_queue_bytes);
    STAILQ_INIT(&c->queue);
    c->greet_deadline = c->give_up_at = INT64_MAX;
    if (!options->reconnect || options->fd >= 0)
        return c;
    c->conn.keeps = true;
    c->wait_start = options->wait_start;
    c->timeout_ms = options->timeout_ms;
    c->socket_path = strdup(options->socket_path);
    c->name = strdup(options->name);
    if (c->socket_path && c->name)
        return c;
    c->fd = -1;
    nvllm_close(c);
    return NULL;
}

void nvllm_close(struct nvllm_client *c)
{
    struct event *e;

    if (!c)
        return;
    if (c->fd >= 0)
        close(c->fd);
    while ((e = STAILQ_FIRST(&c->queue)) != NULL) {
        STAILQ_REMOVE_HEAD(&c->queue, next);
        event_free(e);
    }
    event_free(c->current);
    conn_deinit(&c->conn);
    free(c->socket_path);
    free(c->name);
    free(c);
}

/* ---- the socket */

void client_flush(struct nvllm_client *c)
{
    struct frame_buffer *out = &c->conn.out;

    while (!c->out_broken && frame_buffer_bytes(out) > 0) {
        ssize_t n = send(c->fd, out->data + out->start, frame_buffer_bytes(out),
                         MSG_NOSIGNAL | MSG_DONTWAIT);

        if (n >= 0)
            frame_buffer_consume(out, (size_t)n);
        else if (errno == EAGAIN || errno == EWOULDBLOCK)
            return;
        else if (errno != EINTR)
            c->out_broken = true; /* reading tells why */
    }
}

/* Reading continues in the middle of a frame, whatever is queued. */
static bool full(const struct nvllm_client *c)
{
    return queue_full(c) ||
           (frame_buffer_bytes(&c->conn.in.held) > c->conn.max_queue_bytes && conn_ready(&c->conn));
}

static void pump_in(struct nvllm_client *c)
{
    char buf[READ_BYTES];
    ssize_t n;

    c->drained = !full(c);
    if (c->conn.ended || !c->drained)
        return;
    n = recv(c->fd, buf, sizeof(buf), MSG_DONTWAIT);
    if (n > 0) {
        conn_push(&c->conn, buf, (size_t)n);
        c->drained = (size_t)n < sizeof(buf);
    } else if (n == 0) {
        c->conn.ended = true;
    } else if (errno == EINTR) {
        c->drained = false;
    } else if (errno != EAGAIN && errno != EWOULDBLOCK) {
        /* A killed peer with unread bytes of ours resets the connection: treated as closed. */
        c->conn.ended = true;
        c->conn.end_errno = errno == ECONNRESET ? 0 : errno;
    }
}

/* The connection has ended for good. */
static bool has_ended(const struct nvllm_client *c)
{
    return c->conn.death.code != NVLLM_OK && !conn_can_restart(&c->conn);
}

/* When the library itself has something to do next; INT64_MAX: never. */
static int64_t own_deadline(const struct nvllm_client *c)
{
    int64_t at;

    if (c->conn.death.code != NVLLM_OK)
        at = conn_holds_requests(&c->conn) ? c->reconnect_at : INT64_MAX;
    else if (c->conn.welcomed)
        at = conn_resume_at(&c->conn);
    else
        at = c->greet_deadline;
    return MIN(at, c->conn.nearest);
}

static void expire(struct nvllm_client *c)
{
    int64_t now;

    if (own_deadline(c) == INT64_MAX)
        return;
    now = clock_ms();
    if (!c->conn.welcomed && now >= c->greet_deadline && !conn_ready(&c->conn))
        error_set(&c->conn.death, NVLLM_E_TIMEOUT, 0, "nvllmd does not answer");
    conn_expire(&c->conn, now);
    client_flush(c); /* their cancels */
}

/* Until it connects again there is nothing to read, and no end of a connection either. */
static void rest(struct nvllm_client *c)
{
    int fd;

    if (c->idle_fd)
        return;
    fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (fd < 0) {
        c->conn.replaceable = false; /* a program would spin on the old one */
        return;
    }
    close(c->fd);
    c->fd = fd;
    c->idle_fd = true;
}

/* Goes on with the requests that wait for the next daemon. */
static void resume(struct nvllm_client *c)
{
    if (conn_can_restart(&c->conn) && conn_holds_requests(&c->conn))
        client_reconnect(c);
    if (conn_can_restart(&c->conn))
        rest(c);
    if (c->conn.resuming && c->conn.welcomed)
        conn_resume(&c->conn, clock_ms());
}

/* Reads once and writes, without waiting; errors are in conn.death. */
static void pump(struct nvllm_client *c)
{
    resume(c);
    if (has_ended(c))
        return;
    client_flush(c);
    if (c->conn.death.code == NVLLM_OK)
        pump_in(c);
    else
        c->drained = true;
    expire(c);
}

int nvllm_fd(const struct nvllm_client *c)
{
    return c->fd;
}

unsigned nvllm_wants(const struct nvllm_client *c)
{
    unsigned wants = 0;

    if (c->conn.death.code != NVLLM_OK)
        return has_ended(c) ? 0 : NVLLM_WANT_READ;
    if (!c->conn.ended && !full(c))
        wants |= NVLLM_WANT_READ;
    if (!c->out_broken && frame_buffer_bytes(&c->conn.out) > 0)
        wants |= NVLLM_WANT_WRITE;
    return wants;
}

int nvllm_timeout(const struct nvllm_client *c)
{
    if (!STAILQ_EMPTY(&c->queue) || conn_ready(&c->conn) || has_ended(c))
        return 0;
    return clock_left_ms(own_deadline(c));
}

enum nvllm_code client_wait(struct nvllm_client *c, int64_t deadline, struct nvllm_error *err)
{
    static const struct nvllm_error none_in_time = {.code = NVLLM_E_TIMEOUT,
                                                    .retryable = true,
                                                    .message = "timed out waiting for an answer"};
    struct pollfd p = {0};
    unsigned wants;
    int left, own;

    resume(c);
    client_flush(c);
    if (has_ended(c))
        return error_copy(err, &c->conn.death);
    if (c->conn.n_ending > 0)
        return NVLLM_OK;
    if (!c->drained) { /* in a loop of calls, a readable socket is read once */
        pump(c);
        return NVLLM_OK;
    }
    c->drained = false;
    left = clock_left_ms(deadline);
    if (left == 0)
        return error_copy(err, &none_in_time);
    own = clock_left_ms(own_deadline(c)); /* queued events of other requests wake nobody */
    wants = nvllm_wants(c);
    p.fd = c->fd;
    p.events =
        (short)((wants & NVLLM_WANT_READ ? POLLIN : 0) | (wants & NVLLM_WANT_WRITE ? POLLOUT : 0));
    poll(&p, 1, own >= 0 && (left < 0 || own < left) ? own : left);
    return NVLLM_OK;
}

/* ---- calls */

/* The call could take the events that a callback is for. */
static enum nvllm_code check_callback(const struct nvllm_client *c, struct nvllm_error *err)
{
    if (!c->calling)
        return NVLLM_OK;
    return error_field(err, "client", "a callback of nvllm_generate() must not use its client");
}

enum nvllm_code nvllm_process(struct nvllm_client *c, struct nvllm_error *err)
{
    enum nvllm_code code = check_callback(c, err);

    if (code != NVLLM_OK)
        return code;
    pump(c);
    conn_settle(&c->conn);
    return STAILQ_EMPTY(&c->queue) && !conn_ready(&c->conn) && has_ended(c)
               ? error_copy(err, &c->conn.death)
               : NVLLM_OK;
}

enum nvllm_code client_send(struct nvllm_client *c, Nvllm__V1__ClientFrame *frame, bool open,
                            int64_t deadline, uint64_t *id, struct nvllm_error *err)
{
    const uint32_t *deadline_ms = conn_deadline_ms(frame);
    const int64_t expires = deadline_ms && *deadline_ms ? clock_deadline(*deadline_ms) : INT64_MAX;
    struct pending *request;
    enum nvllm_code code;

    if (conn_can_restart(&c->conn))
        client_reconnect(c);
    code = conn_send(&c->conn, frame, deadline, expires, &request, err);
    if (code != NVLLM_OK)
        return code;
    *id = request->id;
    request->open = open;
    c->n_open += open;
    client_flush(c);
    return NVLLM_OK;
}

/* *deadline is that of the request's own timeout, at which the library ends an open request. */
static enum nvllm_code start(struct nvllm_client *c, uint64_t *id, bool open, int64_t *deadline,
                             const struct nvllm_request *request, struct nvllm_error *err)
{
    Nvllm__V1__ClientFrame frame = NVLLM__V1__CLIENT_FRAME__INIT;
    struct unpacked *memory = unpacked_new();
    Nvllm__V1__Generate generate;
    struct nvllm_request ours;
    enum nvllm_code code = pack_generate(memory, &generate, &ours, request, err);

    if (code == NVLLM_OK) {
        frame.op_case = OP(GENERATE);
        frame.generate = &generate;
        *deadline = clock_deadline(ours.timeout_ms);
        code = client_send(c, &frame, open, open ? *deadline : INT64_MAX, id, err);
    }
    if (code == NVLLM_OK)
        conn_find(&c->conn, *id)->user_data = ours.user_data;
    unpacked_free(memory);
    return code;
}

enum nvllm_code nvllm_generate_start(struct nvllm_client *c, uint64_t *id,
                                     const struct nvllm_request *request, struct nvllm_error *err)
{
    int64_t deadline;

    return start(c, id, true, &deadline, request, err);
}

enum nvllm_code nvllm_cancel(struct nvllm_client *c, uint64_t id, struct nvllm_error *err)
{
    enum nvllm_code code = conn_cancel(&c->conn, id, err);

    if (code == NVLLM_OK)
        client_flush(c);
    return code;
}

/* The next event of a request, or of any with id 0. */
static enum nvllm_code wait_event(struct nvllm_client *c, uint64_t id, int64_t deadline,
                                  struct event **out, struct nvllm_error *err)
{
    while ((*out = client_take(c, id)) == NULL) {
        enum nvllm_code code;

        if (id != 0 && queue_full(c) && !has_ended(c))
            return error_set(err, NVLLM_E_BUSY, 0,
                             "too many events of other requests are queued: fetch them first");
        code = client_wait(c, deadline, err);
        if (code != NVLLM_OK)
            return code;
    }
    return NVLLM_OK;
}

enum nvllm_code nvllm_next(struct nvllm_client *c, int timeout_ms, const struct nvllm_event **event,
                           struct nvllm_error *err)
{
    enum nvllm_code code = check_callback(c, err);
    struct event *e;

    if (code != NVLLM_OK)
        return code;
    code = wait_event(c, 0, clock_deadline(timeout_ms), &e, err);
    if (code == NVLLM_OK)
        *event = &e->public;
    else if (has_ended(c))
        c->n_open = 0;
    return code;
}

size_t nvllm_pending(const struct nvllm_client *c)
{
    return c->n_open;
}

enum nvllm_code client_call(struct nvllm_client *c, Nvllm__V1__ClientFrame *frame, int timeout_ms,
                            const void **out, struct nvllm_error *err)
{
    int64_t deadline = clock_deadline(timeout_ms);
    enum nvllm_code code = check_callback(c, err);
    struct event *e;
    uint64_t id;

    if (code == NVLLM_OK)
        code = client_send(c, frame, false, INT64_MAX, &id, err);
    if (code != NVLLM_OK)
        return code;
    code = wait_event(c, id, deadline, &e, err);
    if (code != NVLLM_OK) {
        conn_abandon(&c->conn, id);
        return code;
    }
    if (e->public.error)
        return error_copy(err, e->public.error);
    if (out)
        *out = &e->requests; /* the members of a union begin at the same place */
    return NVLLM_OK;
}

static enum nvllm_code run_generate(struct nvllm_client *c, uint64_t id, nvllm_callback *callback,
                                    void *arg, int64_t deadline, struct nvllm_error *err)
{
    bool cancelled = false;

    for (;;) {
        bool enough = false;
        struct event *e;
        enum nvllm_code code = wait_event(c, id, deadline, &e, err);

        if (code != NVLLM_OK)
            return code;
        if (e->public.error)
            return error_copy(err, e->public.error);
        if (callback) {
            c->calling = true;
            enough = callback(arg, &e->public) != 0;
            c->calling = false;
        }
        if (enough && !cancelled && !event_is_last(e)) {
            int64_t end = clock_deadline(CANCEL_WAIT_MS);

            cancelled = true;
            deadline = MIN(end, deadline);
            code = conn_cancel(&c->conn, id, err);
            if (code != NVLLM_OK)
                return code;
        }
        if (event_is_last(e))
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
    enum nvllm_code code = check_callback(c, err);
    uint64_t id;

    if (code == NVLLM_OK)
        code = start(c, &id, false, &own, request, err);
    if (code != NVLLM_OK)
        return code;
    code = run_generate(c, id, callback, arg, MIN(own, deadline), err);
    if (conn_find(&c->conn, id)) {
        conn_cancel(&c->conn, id, NULL);
        conn_abandon(&c->conn, id);
        client_flush(c);
    }
    return code;
}
