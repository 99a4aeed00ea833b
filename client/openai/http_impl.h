/* http_impl.h - the server and its connections, for the files of http.h alone. */
#ifndef NVLLM_CLIENT_OPENAI_HTTP_IMPL_H
#define NVLLM_CLIENT_OPENAI_HTTP_IMPL_H

#include <event2/event.h>
#include <sys/queue.h>

#include "client/openai/http.h"

enum {
    HTTP_READ_BYTES = 64 << 10,
    HTTP_FAIR_BYTES = 64 << 10, /* that a connection may have where the memory of all is used up */
};

enum phase {
    PHASE_IDLE, /* nothing of the next request has arrived */
    PHASE_HEAD,
    PHASE_BODY,
    PHASE_ANSWER, /* it is being answered: nothing is read */
    PHASE_LINGER, /* all has been sent: what still comes is dropped */
};

struct http_conn {
    TAILQ_ENTRY(http_conn) link;  /* of http.idle or http.busy */
    TAILQ_ENTRY(http_conn) dirty; /* of http.dirty, where is_dirty */
    struct http *http;
    struct event *event, *timer;
    int fd;
    uid_t peer;
    enum phase phase;
    bool is_dirty, readable;
    bool dead;       /* closed by the next flush */
    bool keep_alive; /* after the answer */
    bool streaming;  /* an answer of events has begun */
    bool blocked;    /* the socket takes no more for now */
    bool closed;     /* the client sends no more */
    size_t scanned;  /* bytes of in without an end of the head */
    size_t sent;     /* bytes of out that are */
    size_t chunk;    /* where in out the open chunk begins, if in_chunk */
    bool in_chunk;
    struct buf in;   /* received, not yet taken */
    struct buf head; /* of the request */
    struct buf body;
    size_t admitted; /* bytes of body, come or announced */
    struct buf out;
    struct http_head parsed; /* points into head */
    struct http_chunks chunks;
    void (*gone)(void *owner);
    void *owner;
};

TAILQ_HEAD(conn_list, http_conn);

struct http {
    struct event_base *base;
    struct http_options options;
    struct evconnlistener *listeners[HTTP_MAX_LISTENERS];
    struct event *resume; /* accepting, after a pause */
    size_t n_listeners, n_conns;
    size_t admitted;       /* of all connections */
    struct conn_list idle; /* the one that has been so for longest first */
    struct conn_list busy, dirty;
    bool stopping;
    char scratch[HTTP_READ_BYTES];
};

/* ---- http_conn.c */

/* Takes over a descriptor that has been accepted; closes it where there is no memory. */
void conn_new(struct http *h, int fd, int family, event_callback_fn on_event,
              event_callback_fn on_timer);
void conn_free(struct http_conn *c);

void conn_set_timer(struct http_conn *c, int seconds);
void conn_set_phase(struct http_conn *c, enum phase phase);
void conn_touch(struct http_conn *c); /* the next flush looks at it */
void conn_kill(struct http_conn *c);  /* closed by the next flush, which tells the owner */

/* Ends a request that cannot be read to its end. */
void conn_refuse(struct http_conn *c, int status, const char *why);

/* Goes on with what has been received, up to the next request that is not answered at once. */
void conn_advance(struct http_conn *c);
void conn_read(struct http_conn *c);

/* Whether a client whose request is being answered is still there: it may have sent another. */
bool conn_is_there(struct http_conn *c);

/* Says that no more will come, and waits for the client to have read that. */
void conn_finish(struct http_conn *c);

/* ---- http_answer.c */

/* Bytes of out that are not sent. */
static inline size_t conn_unsent(const struct http_conn *c)
{
    return c->out.len - c->sent;
}

/* Sends what the socket takes; an error, or a reader too slow, makes it dead. */
void conn_write(struct http_conn *c);

#endif
