/* conn.h - one connection to nvllmd without its socket: bytes come in, events go out; frames are
 * queued, bytes go out.
 *
 * It implements the protocol: greeting, ids, which answer belongs to which request. It does no I/O,
 * reads no clock and belongs to one thread. */
#ifndef NVLLM_CLIENT_LIB_CONN_H
#define NVLLM_CLIENT_LIB_CONN_H

#include "client/lib/event.h"
#include "client/lib/nvllm_client.h"
#include "proto/frame.h"
#include "proto/nvllm.pb-c.h"

struct conn {
    struct frame_decoder in;
    struct frame_buffer out;
    size_t max_queue_bytes;  /* of out, and of events that are kept */
    struct pending *pending; /* [n_pending] without their last answer, by id */
    size_t n_pending, cap_pending;
    int64_t nearest; /* the earliest deadline of these; INT64_MAX: none */
    uint64_t last_id;
    bool welcomed;
    enum nvllm_state state; /* of the daemon at the greeting */
    float progress;
    uint32_t max_frame_bytes; /* that the daemon takes */
    bool ended;               /* no more bytes will come */
    int end_errno;            /* the reason; 0: the daemon closed */
    struct nvllm_error death; /* NVLLM_OK, or the error that ended the connection */

    /* Requests for the next daemon, see conn_resume.c. */
    bool keeps;       /* a request is kept until its answer begins, so that it can be sent again */
    bool replaceable; /* the connection has ended so that the next request may go to another one */
    bool resuming;    /* connected again; requests are held until the model is loaded */
    bool asking;      /* for the state of a daemon that loads it */
    int64_t ask_at;   /* when to do so */
    size_t kept_bytes;
    size_t n_ending; /* requests that conn_take() ends */
};

void conn_init(struct conn *c, uint32_t max_in_frame, size_t max_queue_bytes);
void conn_deinit(struct conn *c);

/* Queues the greeting; must come first. */
enum nvllm_code conn_hello(struct conn *c, const char *name, struct nvllm_error *err);

/* Where an operation has its deadline_ms, 0 for none; NULL: it has no such field. */
uint32_t *conn_deadline_ms(Nvllm__V1__ClientFrame *frame);

/* Queues a request. frame holds the operation; its id is assigned here. *request is valid until the
 * next is sent or one ends. deadline, and expires for its deadline_ms: INT64_MAX for none. */
enum nvllm_code conn_send(struct conn *c, Nvllm__V1__ClientFrame *frame, int64_t deadline,
                          int64_t expires, struct pending **request, struct nvllm_error *err);

/* A request that has not ended, valid as long. NULL: no such id. */
struct pending *conn_find(const struct conn *c, uint64_t id);

/* Queues a cancel of generate, tokenize, detokenize, render or trace, or ends it where no daemon
 * has it; does nothing if it has ended. */
enum nvllm_code conn_cancel(struct conn *c, uint64_t id, struct nvllm_error *err);

/* Drops whatever still arrives for id. */
void conn_abandon(struct conn *c, uint64_t id);

/* Cancels the requests whose deadline has passed; conn_take() returns the errors that end them. */
void conn_expire(struct conn *c, int64_t now);

/* Adds bytes from the daemon, copied. */
void conn_push(struct conn *c, const void *data, size_t n);

/* The next event, which the caller frees. NULL: none yet, or see death. */
struct event *conn_take(struct conn *c);

/* conn_take() may return an event. */
bool conn_ready(const struct conn *c);

/* Fails with the end of the stream if no whole frame is left. */
void conn_settle(struct conn *c);

/* ---- the next daemon */

/* The connection has ended, but another may follow. */
static inline bool conn_can_restart(const struct conn *c)
{
    return c->death.code != NVLLM_OK && c->keeps && c->replaceable;
}

/* There are requests that no daemon has. */
bool conn_holds_requests(const struct conn *c);

/* Ends these. */
void conn_give_up(struct conn *c, enum nvllm_code code);

/* Begins again, on a new connection; conn_hello() must follow. */
void conn_restart(struct conn *c);

/* Sends held requests once the daemon has loaded its model, for whose state it asks until then. */
void conn_resume(struct conn *c, int64_t now);

/* When conn_resume() has something to do next; INT64_MAX: with the daemon's next frame. */
int64_t conn_resume_at(const struct conn *c);

#endif
