/* client.c - the socket under a connection, and the queues of its events. */
#include "client/lib/client.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include "client/lib/clock.h"
#include "client/lib/error.h"

enum { READ_BYTES = 32 << 10 }; /* with half a frame this fits the capacity that a decoder keeps */

static void list_init(struct event_list *l)
{
    l->first = NULL;
    l->last = &l->first;
}

static void list_free(struct event_list *l)
{
    while (l->first) {
        struct event *e = l->first;

        l->first = e->next;
        event_free(e);
    }
    list_init(l);
}

static void keep_event(struct nvllm_client *c, struct event *e)
{
    e->next = NULL;
    *c->queue.last = e;
    c->queue.last = &e->next;
    c->queue_bytes += event_bytes(e);
}

/* INT64_MAX if there is none. */
static int64_t nearest_deadline(const struct nvllm_client *c)
{
    int64_t greet = c->conn.welcomed ? INT64_MAX : c->greet_deadline;

    return greet < c->conn.deadline ? greet : c->conn.deadline;
}

static void set_current(struct nvllm_client *c, struct event *e)
{
    event_free(c->current);
    c->current = e;
    if (e && e->open && e->terminal)
        c->n_open--;
}

struct event *client_take(struct nvllm_client *c)
{
    struct event_list *l = &c->queue;
    struct event *e = l->first;

    if (e) {
        l->first = e->next;
        if (!l->first)
            l->last = &l->first;
        c->queue_bytes -= event_bytes(e);
    } else {
        e = conn_take(&c->conn);
    }
    set_current(c, e);
    return e;
}

struct event *client_take_of(struct nvllm_client *c, uint64_t id)
{
    struct event *e;

    while (!client_queue_full(c) && (e = conn_take(&c->conn)) != NULL) {
        if (e->public.id == id) {
            set_current(c, e);
            return e;
        }
        keep_event(c, e);
    }
    return NULL;
}

struct nvllm_client *client_new(int fd, const struct nvllm_options *options)
{
    struct nvllm_client *c = calloc(1, sizeof(*c));
    size_t max_frame = options->max_frame_bytes;

    if (!c)
        return NULL;
    if (max_frame < 1)
        max_frame = 1;
    if (max_frame > FRAME_LARGEST_MAX)
        max_frame = FRAME_LARGEST_MAX;
    c->fd = fd;
    c->max_queue_bytes = options->max_queue_bytes;
    conn_init(&c->conn, (uint32_t)max_frame, options->max_queue_bytes);
    list_init(&c->queue);
    c->greet_deadline = INT64_MAX;
    return c;
}

void nvllm_close(struct nvllm_client *c)
{
    if (!c)
        return;
    close(c->fd);
    list_free(&c->queue);
    event_free(c->current);
    conn_deinit(&c->conn);
    free(c);
}

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
    return client_queue_full(c) ||
           (conn_bytes(&c->conn) > c->max_queue_bytes && conn_ready(&c->conn));
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
        conn_end(&c->conn, 0);
    } else if (errno == EINTR) {
        c->drained = false;
    } else if (errno != EAGAIN && errno != EWOULDBLOCK) {
        /* A killed peer with unread bytes of ours resets the connection: treated as closed. */
        conn_end(&c->conn, errno == ECONNRESET ? 0 : errno);
    }
}

/* Deadlines of the library itself. */
static void expire(struct nvllm_client *c)
{
    struct event *e;
    int64_t now;

    if (nearest_deadline(c) == INT64_MAX)
        return;
    now = clock_ms();
    if (!c->conn.welcomed && now >= c->greet_deadline && !conn_ready(&c->conn))
        error_set(&c->conn.death, NVLLM_E_TIMEOUT, 0, "nvllmd does not answer");
    while ((e = conn_expire(&c->conn, now)) != NULL)
        keep_event(c, e);
    client_flush(c); /* their cancels */
}

void client_pump(struct nvllm_client *c)
{
    if (c->conn.death.code != NVLLM_OK)
        return;
    client_flush(c);
    pump_in(c);
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
        return 0;
    if (!c->conn.ended && !full(c))
        wants |= NVLLM_WANT_READ;
    if (!c->out_broken && frame_buffer_bytes(&c->conn.out) > 0)
        wants |= NVLLM_WANT_WRITE;
    return wants;
}

int nvllm_timeout(const struct nvllm_client *c)
{
    int64_t deadline = nearest_deadline(c);

    if (c->queue.first || conn_ready(&c->conn))
        return 0;
    if (c->conn.death.code != NVLLM_OK)
        return 0;
    return deadline == INT64_MAX ? -1 : clock_left_ms(deadline);
}

bool client_wait(struct nvllm_client *c, int64_t deadline)
{
    unsigned wants = nvllm_wants(c);
    struct pollfd p = {.fd = c->fd};
    int left = clock_left_ms(deadline), own = nvllm_timeout(c);

    c->drained = false; /* the socket is to be read again */
    p.events =
        (short)((wants & NVLLM_WANT_READ ? POLLIN : 0) | (wants & NVLLM_WANT_WRITE ? POLLOUT : 0));
    if (left == 0)
        return false;
    poll(&p, 1, own >= 0 && (left < 0 || own < left) ? own : left);
    return true;
}

enum nvllm_code nvllm_process(struct nvllm_client *c, struct nvllm_error *err)
{
    enum nvllm_code code = client_check_callback(c, err);

    if (code != NVLLM_OK)
        return code;
    client_pump(c);
    conn_settle(&c->conn);
    if (c->conn.death.code != NVLLM_OK && !c->queue.first) {
        if (err)
            *err = c->conn.death;
        return c->conn.death.code;
    }
    return NVLLM_OK;
}

void client_open(struct nvllm_client *c, uint64_t id, int64_t deadline)
{
    pending_find(&c->conn.pending, id)->open = true;
    if (deadline != 0)
        conn_set_deadline(&c->conn, id, deadline);
    c->n_open++;
    client_flush(c);
}
