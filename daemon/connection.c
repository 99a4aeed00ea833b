/* connection.c - see connection.h. */
#include "daemon/connection.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

enum {
    READ_BYTES = 64 << 10, /* at a time, so that other events come between */
    LINGER_S = 5,
};

enum state {         /* in this order */
             OPEN,   /* frames are taken; the timer is a frame's */
             PAUSED, /* for unread output; the timer is the slow reader's */
             ENDING, /* closes once all is written, or when the timer expires */
             GONE,   /* in shared->gone */
};

struct connection {
    struct connections *shared;
    void *owner;
    int fd;
    struct event *readable, *writable, *timer;
    struct frame_decoder in;
    struct frame_buffer out;
    size_t counted;      /* bytes of buffers that the owner has been told */
    struct list dirty;   /* in shared->dirty */
    struct list leaving; /* in shared->gone */
    struct list waiting; /* in shared->waiting, while nothing is read */
    enum state state;
    bool greeted;
    bool overdue; /* the frame's timer has expired, but the socket may hold its rest */
};

/* Puts it on connections_flush's list. */
static void mark(struct connection *c)
{
    if (list_empty(&c->dirty))
        list_append(&c->shared->dirty, &c->dirty);
}

static bool is_waiting(const struct connection *c)
{
    return !list_empty(&c->waiting);
}

static void fault(struct connection *c, enum connection_fault which)
{
    c->shared->handler->fault(c->owner, which);
}

/* Tells the owner where the size of the buffers has changed. */
static void count_buffers(struct connection *c)
{
    const size_t bytes = c->in.held.cap + c->out.cap;

    if (bytes == c->counted)
        return;
    c->counted = bytes;
    c->shared->handler->buffers(c->owner, bytes);
}

static void set_timer(struct connection *c, int64_t seconds)
{
    struct timeval tv = {.tv_sec = (time_t)seconds};

    evtimer_add(c->timer, &tv);
}

/* A frame that has begun must end in time. Time in which nothing is read does not count. */
static void watch_frame(struct connection *c, bool progress)
{
    if (c->state != OPEN || is_waiting(c))
        return;
    if (progress)
        c->overdue = false;
    if (c->greeted && !frame_decoder_partial(&c->in))
        evtimer_del(c->timer);
    else if (!c->overdue && (progress || !evtimer_pending(c->timer, NULL)))
        set_timer(c, c->greeted ? c->shared->options->frame_timeout_s
                                : c->shared->options->hello_timeout_s);
}

static void stop_reading(struct connection *c, enum state state)
{
    c->state = state;
    list_remove(&c->waiting);
    event_del(c->readable);
}

static void leave(struct connection *c)
{
    if (c->state == GONE)
        return;
    stop_reading(c, GONE);
    list_append(&c->shared->gone, &c->leaving);
    event_del(c->writable);
    evtimer_del(c->timer);
}

/* Unread bytes over which the connection is paused. */
static size_t pause_bytes(const struct connection *c)
{
    const struct options *o = c->shared->options;

    return (size_t)(o->output_pause_bytes < o->max_output_bytes ? o->output_pause_bytes
                                                                : o->max_output_bytes);
}

/* 0: all is written. -EAGAIN: the socket is full. Else the client has left. */
static int write_out(struct connection *c)
{
    int r = 0;

    while (r == 0 && frame_buffer_bytes(&c->out)) {
        ssize_t n = send(c->fd, c->out.data + c->out.start, frame_buffer_bytes(&c->out),
                         MSG_NOSIGNAL | MSG_DONTWAIT);

        if (n >= 0)
            frame_buffer_consume(&c->out, (size_t)n);
        else if (errno != EINTR)
            r = -errno;
    }
    count_buffers(c);
    return r;
}

/* Writes, and pauses the connection where too much is left. */
static void flush(struct connection *c)
{
    int r = c->state == GONE ? 0 : write_out(c);

    if (r == -EAGAIN) {
        event_add(c->writable, NULL);
        if (c->state == OPEN && frame_buffer_bytes(&c->out) > pause_bytes(c)) {
            stop_reading(c, PAUSED);
            set_timer(c, c->shared->options->slow_reader_s);
        }
    } else if (r < 0 || c->state == ENDING) {
        leave(c);
    }
}

/* Leaves the rest to the next round. False: there is no memory for a timer. */
static bool wait_for_round(struct connection *c)
{
    const struct timeval at_once = {0};

    if (!evtimer_pending(c->shared->again, NULL) && evtimer_add(c->shared->again, &at_once) < 0)
        return false;
    if (!is_waiting(c))
        list_append(&c->shared->waiting, &c->waiting);
    event_del(c->readable);
    evtimer_del(c->timer);
    return true;
}

/* Hands over whole frames until none is left, a pause begins, or the owner's quantum is used. */
static void take_frames(struct connection *c)
{
    const struct connection_handler *h = c->shared->handler;
    const uint8_t *frame;
    bool progress = false;
    size_t n;
    int r = FRAME_MORE;

    while (c->state == OPEN) {
        if (frame_buffer_bytes(&c->out) > pause_bytes(c))
            flush(c);
        if (c->state != OPEN ||
            (!h->may_take(c->owner) && frame_decoder_ready(&c->in) && wait_for_round(c)))
            break;
        r = frame_decoder_take(&c->in, &frame, &n);
        if (r != FRAME_OK)
            break;
        progress = true;
        h->frame(c->owner, frame, n);
    }
    count_buffers(c);
    if (r == FRAME_E_TOO_LARGE || r == FRAME_E_PREFIX)
        fault(c, r == FRAME_E_PREFIX ? CONNECTION_GARBAGE : CONNECTION_TOO_LARGE);
    watch_frame(c, progress);
}

/* False: there was nothing to read. */
static bool read_some(struct connection *c)
{
    uint8_t buf[READ_BYTES];
    ssize_t n = read(c->fd, buf, sizeof(buf));

    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return false;
    if (n <= 0) {
        leave(c);
    } else if (frame_decoder_push(&c->in, buf, (size_t)n) < 0) {
        fault(c, CONNECTION_NO_MEMORY);
    } else {
        take_frames(c);
    }
    return true;
}

/* Reads again after a pause or a wait, and takes first what has been read already. */
static void read_again(struct connection *c)
{
    if (event_add(c->readable, NULL) < 0)
        fault(c, CONNECTION_NO_MEMORY);
    else if (frame_decoder_ready(&c->in))
        take_frames(c);
    else
        (void)read_some(c);
    watch_frame(c, true); /* the time until now does not count */
}

/* Ends the pause once the client has read enough. */
static void resume(struct connection *c)
{
    if (c->state != PAUSED || frame_buffer_bytes(&c->out) > pause_bytes(c) / 2)
        return;
    c->state = OPEN;
    evtimer_del(c->timer);
    read_again(c);
}

/* Serves each waiting connection once. One whose owner has used its quantum keeps its place; one
 * that was served and has more goes to the end, so that all connections of an owner are served. */
static void on_again(evutil_socket_t fd, short what, void *arg)
{
    struct connections *shared = arg;
    const struct timeval at_once = {0};
    struct list now, kept;
    bool another;

    (void)fd;
    (void)what;
    another = evtimer_add(shared->again, &at_once) == 0; /* else this round serves all */
    list_init(&now);
    list_init(&kept);
    list_move(&now, &shared->waiting);
    shared->round++;
    while (!list_empty(&now)) {
        struct connection *c = CONTAINER_OF(now.next, struct connection, waiting);

        list_remove(&c->waiting);
        if (!another || shared->handler->may_take(c->owner))
            read_again(c);
        else
            list_append(&kept, &c->waiting);
    }
    list_move(&kept, &shared->waiting); /* the kept ones go first */
    list_move(&shared->waiting, &kept);
    if (list_empty(&shared->waiting))
        evtimer_del(shared->again);
    shared->handler->settle(shared->settle_ctx);
}

int connections_init(struct connections *shared)
{
    list_init(&shared->dirty);
    list_init(&shared->gone);
    list_init(&shared->waiting);
    shared->again = evtimer_new(shared->base, on_again, shared);
    return shared->again ? 0 : -ENOMEM;
}

void connections_deinit(struct connections *shared)
{
    if (shared->again)
        event_free(shared->again);
    shared->again = NULL;
}

/* The process may have been stopped while the rest of the frame came, or the client read: reads or
 * writes before it judges. */
static void timed_out(struct connection *c)
{
    if (c->state == ENDING) {
        leave(c);
    } else if (c->state == PAUSED) {
        flush(c);
        resume(c);
        if (c->state == PAUSED && !evtimer_pending(c->timer, NULL)) /* else it is paused anew */
            fault(c, CONNECTION_SLOW);
    } else {
        c->overdue = true;
        while (c->overdue && c->state == OPEN && !is_waiting(c) && read_some(c))
            ;
        if (c->overdue && c->state == OPEN && !is_waiting(c))
            fault(c, CONNECTION_TIMED_OUT);
        c->overdue = false;
    }
}

static void on_event(evutil_socket_t fd, short what, void *arg)
{
    struct connection *c = arg;
    struct connections *shared = c->shared;

    (void)fd;
    if (what & EV_READ) {
        if (shared->handler->may_take(c->owner) || !wait_for_round(c))
            (void)read_some(c);
    } else if (what & EV_WRITE) {
        flush(c);
        resume(c);
    } else {
        timed_out(c);
    }
    shared->handler->settle(shared->settle_ctx);
}

int connection_new(struct connection **out, struct connections *shared, int fd, void *owner)
{
    struct connection *c = calloc(1, sizeof(*c));

    if (!c) {
        close(fd);
        return -ENOMEM;
    }
    c->shared = shared;
    c->owner = owner;
    c->fd = fd;
    list_init(&c->dirty);
    list_init(&c->leaving);
    list_init(&c->waiting);
    frame_decoder_init(&c->in, (uint32_t)shared->options->max_frame_bytes);
    c->readable = event_new(shared->base, fd, EV_READ | EV_PERSIST, on_event, c);
    c->writable = event_new(shared->base, fd, EV_WRITE, on_event, c);
    c->timer = evtimer_new(shared->base, on_event, c);
    if (!c->readable || !c->writable || !c->timer || event_add(c->readable, NULL) < 0) {
        connection_free(c);
        return -ENOMEM;
    }
    set_timer(c, shared->options->hello_timeout_s);
    *out = c;
    return 0;
}

void connection_free(struct connection *c)
{
    list_remove(&c->waiting);
    list_remove(&c->dirty);
    list_remove(&c->leaving);
    if (c->readable)
        event_free(c->readable);
    if (c->writable)
        event_free(c->writable);
    if (c->timer)
        event_free(c->timer);
    frame_decoder_deinit(&c->in);
    frame_buffer_deinit(&c->out);
    count_buffers(c);
    close(c->fd);
    free(c);
}

void connection_greeted(struct connection *c)
{
    c->greeted = true;
}

/* Over pause_bytes it writes first, after which the connection may be gone. */
int connection_put(struct connection *c, const ProtobufCMessage *message, void *body, size_t bytes)
{
    const size_t most = (size_t)c->shared->options->max_output_bytes;
    int r;

    if (c->state <= PAUSED && frame_buffer_bytes(&c->out) > pause_bytes(c)) {
        mark(c);
        if (c->state == OPEN)
            flush(c);
        if (c->state != GONE && frame_buffer_bytes(&c->out) > most)
            return CONNECTION_E_SLOW;
    }
    if (c->state >= ENDING) {
        free(body);
        return CONNECTION_OK;
    }
    r = frame_buffer_put_body(&c->out, message, body, bytes, most);
    if (r < 0)
        return r == -EMSGSIZE ? CONNECTION_E_LARGE : -ENOMEM;
    count_buffers(c);
    mark(c);
    return CONNECTION_OK;
}

void connection_end(struct connection *c, const ProtobufCMessage *message)
{
    if (c->state >= ENDING)
        return;
    if (message)
        (void)frame_buffer_put(&c->out, message); /* no memory: the client sees the close alone */
    count_buffers(c);
    stop_reading(c, ENDING);
    set_timer(c, LINGER_S);
    mark(c);
}

size_t connection_unread_bytes(const struct connection *c)
{
    return frame_buffer_bytes(&c->out);
}

void connection_drop(struct connection *c, const ProtobufCMessage *message)
{
    if (!frame_buffer_bytes(&c->out) && c->state != GONE && frame_buffer_put(&c->out, message) == 0)
        (void)write_out(c);
    leave(c);
    frame_decoder_deinit(&c->in);
    frame_buffer_deinit(&c->out);
    count_buffers(c);
}

void connections_flush(struct connections *shared)
{
    while (!list_empty(&shared->dirty)) {
        struct connection *c = CONTAINER_OF(shared->dirty.next, struct connection, dirty);

        list_remove(&c->dirty);
        flush(c);
        resume(c); /* may mark it again */
    }
}

void *connections_next_gone(const struct connections *shared)
{
    return list_empty(&shared->gone)
               ? NULL
               : CONTAINER_OF(shared->gone.next, struct connection, leaving)->owner;
}
