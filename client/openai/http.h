/* http.h - the HTTP server: connections, requests as they come in, answers as they go out.
 *
 * A connection serves one request at a time; what a client sends meanwhile waits in its socket.
 * What is added to answers is written once for each wake-up of the loop, by http_flush(). Whoever
 * answers holds the connection by pointer until http_reply() or http_stream_end(), or until it is
 * told that the client has gone; no call of this file tells that from inside.
 *
 * libevent's evhttp is not used: it has no limit on connections, no answer of our own to what is
 * too large or malformed, no look at the key before the body, and does not notice a client that
 * leaves while its answer is awaited. */
#ifndef NVLLM_CLIENT_OPENAI_HTTP_H
#define NVLLM_CLIENT_OPENAI_HTTP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "client/lib/nvllm_client.h"
#include "client/openai/buf.h"
#include "client/openai/parse.h"

enum { HTTP_MAX_LISTENERS = 8 };

struct event_base;
struct http;
struct http_conn;

struct http_options {
    size_t max_connections;
    size_t max_body;   /* bytes of a request */
    size_t max_memory; /* bytes of all requests and answers that wait to be read on */
    int timeout_s;     /* a request must arrive within, an answer be read on, and an idle connection
                          be used again */
    void *arg;         /* of the functions below */

    /* A head has arrived, the body not yet. False: it has replied, and the body is not wanted. */
    bool (*head)(void *arg, struct http_conn *conn, const struct http_head *head);
    /* The whole request has. Head and body are gone after the call. */
    void (*request)(void *arg, struct http_conn *conn, const struct http_head *head,
                    struct nvllm_text body);
    /* A request is refused before its head or its body is known. */
    void (*refuse)(void *arg, struct http_conn *conn, int status, const char *why);
};

/* The options are copied. NULL: no memory. */
struct http *http_new(struct event_base *base, const struct http_options *options);
void http_free(struct http *h); /* takes NULL; closes all connections; nobody is told */

/* Serves a listening socket, which it owns from now on. 0 or -ENOMEM. */
int http_listen(struct http *h, int fd);

/* Closes the listeners and the connections that serve no request; the others close after it. */
void http_stop(struct http *h);

/* Whether something that was answered has not been sent yet. */
bool http_unsent(const struct http *h);

/* The memory of all is used up, and who has this much of it is to blame. */
bool http_is_over(const struct http *h, size_t bytes);

/* Writes what has been added; call it before the loop sleeps. */
void http_flush(struct http *h);

/* ---- one request */

/* The user of a client that came by a Unix socket; (uid_t)-1: it came by TCP. */
uid_t http_peer(const struct http_conn *conn);

/* What is told if the client goes before the answer is complete. */
void http_watch(struct http_conn *conn, void (*gone)(void *owner), void *owner);

/* The whole answer. fields: more lines of the head, each with CRLF, or "". */
void http_reply(struct http_conn *conn, int status, const char *fields, const char *body, size_t n);

/* An answer of server-sent events: their text is appended to *http_stream(). */
void http_stream_begin(struct http_conn *conn);
struct buf *http_stream(struct http_conn *conn);
void http_stream_end(struct http_conn *conn);

#endif
