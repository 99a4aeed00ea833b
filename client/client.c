/* client.c - the socket under a connection, and the queues of its events. */
#include "client/client.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include "client/clock.h"

enum {
    READ_BYTES = 64 << 10,
    READS_A_PUMP = 16, /* so that a fast daemon cannot hold a caller for ever */
};

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

static void list_add(struct event_list *l, struct event *e)
{
    e->next = NULL;
    *l->last = e;
    l->last = &e->next;
}

struct event *client_take(struct nvllm_client *c, struct event_list *l)
{
    struct event *e = l->first;

    if (!e)
        return NULL;
    l->first = e->next;
    if (!l->first)
        l->last = &l->first;
    c->queue_bytes -= event_bytes(e);
    event_free(c->current);
    c->current = e;
    return e;
}

void client_unwant(struct nvllm_client *c)
{
    while (c->wanted.first)
        client_take(c, &c->wanted);
    c->wanted_id = 0;
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
    list_init(&c->wanted);
    return c;
}

void nvllm_close(struct nvllm_client *c)
{
    if (!c)
        return;
    close(c->fd);
    list_free(&c->queue);
    list_free(&c->wanted);
    event_free(c->current);
    conn_deinit(&c->conn);
    free(c);
}

static void pump_out(struct nvllm_client *c)
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

static bool queue_full(const struct nvllm_client *c)
{
    return c->queue_bytes > c->max_queue_bytes;
}

static void sort_events(struct nvllm_client *c)
{
    struct event *e;

    while ((e = conn_take(&c->conn)) != NULL) {
        c->queue_bytes += event_bytes(e);
        list_add(e->public.id == c->wanted_id ? &c->wanted : &c->queue, e);
    }
}

static void pump_in(struct nvllm_client *c)
{
    char buf[READ_BYTES];

    for (int i = 0; i < READS_A_PUMP && !queue_full(c) && c->conn.death.code == NVLLM_OK; i++) {
        ssize_t n = recv(c->fd, buf, sizeof(buf), MSG_DONTWAIT);

        if (n > 0) {
            conn_push(&c->conn, buf, (size_t)n);
            sort_events(c);
            if ((size_t)n < sizeof(buf))
                return;
        } else if (n == 0) {
            conn_end(&c->conn, 0);
        } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
            return;
        } else if (errno != EINTR) {
            /* A peer that was killed with our bytes unread resets: for us it closed. */
            conn_end(&c->conn, errno == ECONNRESET ? 0 : errno);
        }
    }
}

void client_pump(struct nvllm_client *c)
{
    if (c->conn.death.code != NVLLM_OK)
        return;
    pump_out(c);
    pump_in(c);
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
    if (!queue_full(c))
        wants |= NVLLM_WANT_READ;
    if (!c->out_broken && frame_buffer_bytes(&c->conn.out) > 0)
        wants |= NVLLM_WANT_WRITE;
    return wants;
}

bool client_wait(const struct nvllm_client *c, int64_t deadline)
{
    unsigned wants = nvllm_wants(c);
    struct pollfd p = {.fd = c->fd};
    int left = clock_left_ms(deadline);

    p.events =
        (short)((wants & NVLLM_WANT_READ ? POLLIN : 0) | (wants & NVLLM_WANT_WRITE ? POLLOUT : 0));
    if (left == 0)
        return false;
    poll(&p, 1, left);
    return true;
}

enum nvllm_code nvllm_process(struct nvllm_client *c, struct nvllm_error *err)
{
    client_pump(c);
    if (c->conn.death.code != NVLLM_OK && !c->queue.first) {
        if (err)
            *err = c->conn.death;
        return c->conn.death.code;
    }
    return NVLLM_OK;
}
