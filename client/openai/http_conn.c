/* http_conn.c - see http_impl.h: connections, and requests as they come in. */
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "client/openai/http_impl.h"

enum {
    HEAD_BYTES = 32 << 10,
    MAX_READS = 16, /* of one connection, before others have their turn */
    LINGER_S = 2,   /* a client that was refused may read why */
};

/* ---- connections */

void conn_set_timer(struct http_conn *c, int seconds)
{
    const struct timeval t = {.tv_sec = seconds};

    event_add(c->timer, &t);
}

void conn_set_phase(struct http_conn *c, enum phase phase)
{
    struct http *h = c->http;

    TAILQ_REMOVE(c->phase == PHASE_IDLE ? &h->idle : &h->busy, c, link);
    TAILQ_INSERT_TAIL(phase == PHASE_IDLE ? &h->idle : &h->busy, c, link);
    c->phase = phase;
    if (phase == PHASE_ANSWER)
        event_del(c->timer);
    else if (phase != PHASE_BODY) /* the same deadline as the head's */
        conn_set_timer(c, phase == PHASE_LINGER ? LINGER_S : h->options.timeout_s);
}

void conn_touch(struct http_conn *c)
{
    if (!c->is_dirty)
        TAILQ_INSERT_TAIL(&c->http->dirty, c, dirty);
    c->is_dirty = true;
}

void conn_kill(struct http_conn *c)
{
    c->dead = true;
    conn_touch(c);
}

static void drop_body(struct http_conn *c)
{
    buf_deinit(&c->body);
    c->http->admitted -= c->admitted;
    c->admitted = 0;
}

void conn_free(struct http_conn *c)
{
    struct http *h = c->http;

    TAILQ_REMOVE(c->phase == PHASE_IDLE ? &h->idle : &h->busy, c, link);
    if (c->is_dirty)
        TAILQ_REMOVE(&h->dirty, c, dirty);
    h->n_conns--;
    if (c->event)
        event_free(c->event);
    if (c->timer)
        event_free(c->timer);
    close(c->fd);
    buf_deinit(&c->in);
    buf_deinit(&c->head);
    drop_body(c);
    buf_deinit(&c->out);
    free(c);
}

static uid_t peer_of(int fd, int family)
{
    struct ucred cred;
    socklen_t n = sizeof(cred);

    return family == AF_UNIX && getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &cred, &n) == 0 ? cred.uid
                                                                                        : (uid_t)-1;
}

void conn_new(struct http *h, int fd, int family, event_callback_fn on_event,
              event_callback_fn on_timer)
{
    struct http_conn *c = calloc(1, sizeof(*c));
    const int on = 1;

    if (!c) {
        close(fd);
        return;
    }
    *c = (struct http_conn){.http = h, .fd = fd, .peer = peer_of(fd, family)};
    TAILQ_INSERT_TAIL(&h->idle, c, link);
    h->n_conns++;
    if (family != AF_UNIX)
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    c->timer = evtimer_new(h->base, on_timer, c);
    c->event =
        event_new(h->base, fd, EV_READ | EV_WRITE | EV_CLOSED | EV_ET | EV_PERSIST, on_event, c);
    if (!c->timer || !c->event || event_add(c->event, NULL) < 0) {
        conn_free(c);
        return;
    }
    conn_set_timer(c, h->options.timeout_s);
}

void conn_finish(struct http_conn *c)
{
    if (c->phase == PHASE_LINGER)
        return;
    shutdown(c->fd, SHUT_WR);
    buf_deinit(&c->in);
    buf_deinit(&c->head);
    drop_body(c);
    conn_set_phase(c, PHASE_LINGER);
}

/* ---- reading */

/* A request that is refused before it is complete: the rest of it cannot be told from another. */
void conn_refuse(struct http_conn *c, int status, const char *why)
{
    const struct http_options *o = &c->http->options;

    c->keep_alive = false;
    conn_set_phase(c, PHASE_ANSWER);
    o->refuse(o->arg, c, status, why);
}

static const char *why_refused(int status)
{
    return status == 431   ? "The head of the request has too many fields."
           : status == 501 ? "Only the transfer encoding “chunked” is known."
           : status == 505 ? "Only HTTP/1.0 and HTTP/1.1 are spoken here."
           : status == 417 ? "Only the expectation “100-continue” is known."
                           : "This is not an HTTP/1.1 request.";
}

/* Room for a body of n bytes more: bodies may have half of the memory, small ones any. */
static bool admit_body(struct http_conn *c, uint64_t n)
{
    const struct http_options *o = &c->http->options;
    struct http *h = c->http;
    char why[120];

    if (n > o->max_body - c->admitted) {
        snprintf(why, sizeof(why), "The request is larger than the %zu bytes that are allowed.",
                 o->max_body);
        conn_refuse(c, 413, why);
        return false;
    }
    if (c->admitted + n > HTTP_FAIR_BYTES && h->admitted + n > o->max_memory / 2) {
        conn_refuse(c, 503, "Too many large requests at a time: try again later.");
        return false;
    }
    c->admitted += n;
    h->admitted += n;
    return true;
}

/* Whether the request goes on to its body. */
static bool begin_request(struct http_conn *c)
{
    const struct http_options *o = &c->http->options;
    int status = http_parse_head(&c->parsed, c->head.data, c->head.len);

    if (http_is_word(c->parsed.method, "HEAD"))
        c->parsed.keep_alive = false; /* the error that it gets has a body */
    c->chunks = (struct http_chunks){0};
    c->keep_alive = status == 0 && c->parsed.keep_alive;
    if (status != 0) {
        conn_refuse(c, status, why_refused(status));
        return false;
    }
    if (!admit_body(c, c->parsed.content_length))
        return false;
    conn_set_phase(c, PHASE_BODY);
    /* A reply that comes before the body has been read ends the connection. */
    c->keep_alive = c->parsed.keep_alive && !c->parsed.chunked && c->parsed.content_length == 0;
    if (!o->head(o->arg, c, &c->parsed))
        return false;
    c->keep_alive = c->parsed.keep_alive;
    if (c->parsed.expects_continue && c->in.len == 0 && !c->out.len) {
        buf_lit(&c->out, "HTTP/1.1 100 Continue\r\n\r\n");
        conn_touch(c);
    }
    return true;
}

/* Takes the head out of in, if all of it is there; false: there is nothing more to do. */
static bool take_head(struct http_conn *c)
{
    const size_t from = c->scanned < 3 ? 0 : c->scanned - 3;
    const char *end;
    size_t n;

    if (c->scanned == 0) {
        for (n = 0; n < c->in.len && (c->in.data[n] == '\r' || c->in.data[n] == '\n'); n++)
            ;
        buf_consume(&c->in, n); /* empty lines between requests */
    }
    if (c->in.len == 0)
        return false;
    if (c->phase == PHASE_IDLE)
        conn_set_phase(c, PHASE_HEAD);
    end = memmem(c->in.data + from, c->in.len - from, "\r\n\r\n", 4);
    n = end ? (size_t)(end - c->in.data) + 4 : c->in.len;
    c->scanned = n;
    if (n > HEAD_BYTES) {
        conn_refuse(c, 431, "The head of the request is too long.");
        return false;
    }
    if (!end)
        return false;
    buf_deinit(&c->head);
    drop_body(c);
    buf_add(&c->head, c->in.data, n);
    buf_consume(&c->in, n);
    c->scanned = 0;
    return begin_request(c);
}

/* Takes what is there of a body out of in; true: it is complete. */
static bool take_body(struct http_conn *c)
{
    const struct http_head *head = &c->parsed;

    while (head->chunked && c->chunks.state != CHUNK_DONE && c->in.len > 0) {
        size_t at = 0;

        while (at < c->in.len && c->chunks.state != CHUNK_DONE) {
            struct nvllm_text data;
            ptrdiff_t n = http_chunks_take(&c->chunks, &data, c->in.data + at, c->in.len - at);

            if (n < 0) {
                conn_refuse(c, 400, "The body is not in valid chunks.");
                return false;
            }
            if (!admit_body(c, data.len))
                return false;
            buf_add(&c->body, data.data, data.len);
            at += (size_t)n;
        }
        buf_consume(&c->in, at);
    }
    if (!head->chunked && c->body.len < head->content_length) {
        size_t left = (size_t)head->content_length - c->body.len;
        size_t n = left < c->in.len ? left : c->in.len;

        buf_add(&c->body, c->in.data, n);
        buf_consume(&c->in, n);
    }
    return head->chunked ? c->chunks.state == CHUNK_DONE : c->body.len == head->content_length;
}

static void run_request(struct http_conn *c)
{
    const struct http_options *o = &c->http->options;
    struct nvllm_text body = {c->body.data ? c->body.data : "", c->body.len};

    conn_set_phase(c, PHASE_ANSWER);
    o->request(o->arg, c, &c->parsed, body);
    buf_deinit(&c->head);
    drop_body(c);
}

void conn_advance(struct http_conn *c)
{
    while (!c->dead && conn_unsent(c) == 0 && !c->is_dirty) {
        if (c->in.failed || c->head.failed || c->body.failed)
            conn_kill(c);
        else if (c->phase == PHASE_IDLE || c->phase == PHASE_HEAD) {
            if (!take_head(c))
                return;
        } else if (c->phase != PHASE_BODY || !take_body(c))
            return;
        else
            run_request(c);
    }
}

bool conn_is_there(struct http_conn *c)
{
    char byte;
    ssize_t n = recv(c->fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT);

    return n > 0 || (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR));
}

/* More may be read now, and would be taken. */
static bool wants_more(const struct http_conn *c)
{
    return !c->dead && c->readable &&
           (c->phase == PHASE_LINGER || (c->phase != PHASE_ANSWER && conn_unsent(c) == 0));
}

void conn_read(struct http_conn *c)
{
    struct http *h = c->http;

    for (int i = 0; wants_more(c); i++) {
        ssize_t n;

        if (i == MAX_READS) {
            event_active(c->event, EV_READ, 0);
            return;
        }
        n = recv(c->fd, h->scratch, sizeof(h->scratch), MSG_DONTWAIT);
        if (n > 0 && c->phase != PHASE_LINGER) {
            buf_add(&c->in, h->scratch, (size_t)n);
            conn_advance(c);
        } else if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
            c->readable = false;
        } else if (n == 0 || (n < 0 && errno != EINTR)) {
            conn_kill(c);
        }
    }
}
