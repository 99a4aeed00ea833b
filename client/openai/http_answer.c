/* http_answer.c - see http_impl.h: answers as they go out. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

#include "client/openai/http_impl.h"

enum {
    UNREAD_BYTES = 4 << 20, /* of an answer in progress, at which a reader is too slow */
    CHUNK_HEAD = 10,        /* "0000abcd\r\n", filled in when the chunk is complete */
};

/* Writes the size of the open chunk into its head. */
static void close_chunk(struct http_conn *c)
{
    char digits[CHUNK_HEAD + 1];

    if (c->in_chunk && !c->out.failed) {
        const size_t n = c->out.len - c->chunk - CHUNK_HEAD;

        snprintf(digits, sizeof(digits), "%08x\r\n", (unsigned)n);
        memcpy(c->out.data + c->chunk, digits, CHUNK_HEAD);
        if (n > 0)
            buf_lit(&c->out, "\r\n");
        else
            c->out.len = c->chunk; /* one of nothing would end the body */
    }
    c->in_chunk = false;
}

static void send_out(struct http_conn *c)
{
    bool reads_on = false;

    while (!c->blocked && conn_unsent(c) > 0) {
        ssize_t n = send(c->fd, c->out.data + c->sent, conn_unsent(c), MSG_NOSIGNAL | MSG_DONTWAIT);

        if (n >= 0) {
            c->sent += (size_t)n;
            reads_on = true;
        } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
            c->blocked = true;
        } else if (errno != EINTR) {
            c->dead = true;
            return;
        }
    }
    if (conn_unsent(c) > 0 && (reads_on || !event_pending(c->timer, EV_TIMEOUT, NULL)))
        conn_set_timer(c, c->http->options.timeout_s);
    else if (conn_unsent(c) == 0 && c->phase == PHASE_ANSWER &&
             event_pending(c->timer, EV_TIMEOUT, NULL))
        event_del(c->timer);
    if (conn_unsent(c) == 0) {
        buf_deinit(&c->out);
        c->sent = 0;
    } else if (c->sent > c->out.len / 2) {
        buf_consume(&c->out, c->sent);
        c->sent = 0;
    }
}

/* A reader too slow for the memory that there is. */
static bool is_slow(const struct http_conn *c)
{
    return (c->streaming && conn_unsent(c) > UNREAD_BYTES) || http_is_over(c->http, conn_unsent(c));
}

void conn_write(struct http_conn *c)
{
    close_chunk(c);
    c->dead = c->dead || c->out.failed;
    if (!c->dead)
        send_out(c);
    c->dead = c->dead || is_slow(c);
}

static void end_answer(struct http_conn *c)
{
    c->gone = NULL;
    c->streaming = false;
    conn_set_phase(c, PHASE_IDLE);
    conn_touch(c);
}

static const char *reason_of(int status)
{
    static const struct {
        int status;
        const char *reason;
    } reasons[] = {
        {200, "OK"},
        {400, "Bad Request"},
        {401, "Unauthorized"},
        {403, "Forbidden"},
        {404, "Not Found"},
        {405, "Method Not Allowed"},
        {408, "Request Timeout"},
        {413, "Content Too Large"},
        {415, "Unsupported Media Type"},
        {417, "Expectation Failed"},
        {429, "Too Many Requests"},
        {431, "Request Header Fields Too Large"},
        {500, "Internal Server Error"},
        {501, "Not Implemented"},
        {503, "Service Unavailable"},
        {504, "Gateway Timeout"},
        {505, "HTTP Version Not Supported"},
    };

    for (size_t i = 0; i < sizeof(reasons) / sizeof(reasons[0]); i++)
        if (reasons[i].status == status)
            return reasons[i].reason;
    return "Error";
}

static void put_head(struct http_conn *c, int status, const char *type, const char *fields)
{
    c->keep_alive = c->keep_alive && !c->http->stopping;
    buf_printf(&c->out, "HTTP/1.1 %d %s\r\nContent-Type: %s\r\n%s%s", status, reason_of(status),
               type, c->keep_alive ? "" : "Connection: close\r\n", fields);
    if (c->keep_alive && c->parsed.is_1_0)
        buf_lit(&c->out, "Connection: keep-alive\r\n");
}

void http_reply(struct http_conn *c, int status, const char *fields, const char *body, size_t n)
{
    put_head(c, status, "application/json", fields);
    buf_printf(&c->out, "Content-Length: %zu\r\n\r\n", n);
    buf_add(&c->out, body, n);
    end_answer(c);
}

void http_stream_begin(struct http_conn *c)
{
    c->streaming = true;
    c->keep_alive = c->keep_alive && !c->parsed.is_1_0; /* its end is the connection's */
    put_head(c, 200, "text/event-stream", "Cache-Control: no-store\r\n");
    buf_str(&c->out, c->parsed.is_1_0 ? "\r\n" : "Transfer-Encoding: chunked\r\n\r\n");
    conn_touch(c);
}

struct buf *http_stream(struct http_conn *c)
{
    if (!c->in_chunk && !c->parsed.is_1_0) {
        c->in_chunk = true;
        c->chunk = c->out.len;
        buf_add(&c->out, "0000000000", CHUNK_HEAD);
    }
    conn_touch(c);
    return &c->out;
}

void http_stream_end(struct http_conn *c)
{
    close_chunk(c);
    if (!c->parsed.is_1_0)
        buf_lit(&c->out, "0\r\n\r\n");
    end_answer(c);
}

void http_watch(struct http_conn *c, void (*gone)(void *owner), void *owner)
{
    c->gone = gone;
    c->owner = owner;
}

uid_t http_peer(const struct http_conn *c)
{
    return c->peer;
}
