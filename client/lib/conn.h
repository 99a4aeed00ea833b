/* conn.h - one connection to nvllmd without its socket: bytes come in, events go out; frames are
 * queued, bytes go out.
 *
 * It knows the protocol: greeting, ids, which answer belongs to which request. It does no I/O,
 * reads no clock and belongs to one thread. */
#ifndef NVLLM_CLIENT_LIB_CONN_H
#define NVLLM_CLIENT_LIB_CONN_H

#include "client/lib/event.h"
#include "client/lib/nvllm_client.h"
#include "client/lib/pending.h"
#include "proto/frame.h"
#include "proto/nvllm.pb-c.h"

struct conn {
    struct frame_decoder in;
    struct frame_buffer out;
    size_t max_out_bytes;
    struct pending pending;
    uint64_t last_id;
    bool welcomed;
    enum nvllm_state state; /* of the daemon, when it greeted */
    float progress;
    uint32_t max_frame_bytes; /* that the daemon takes */
    int64_t deadline;         /* none of the requests' is earlier; INT64_MAX: there is none */
    bool ended;               /* no more bytes will come */
    int end_errno;            /* why; 0: the daemon closed */
    struct nvllm_error death; /* code is not NVLLM_OK: no more events will come */
};

void conn_init(struct conn *c, uint32_t max_in_frame, size_t max_out_bytes);
void conn_deinit(struct conn *c);

/* Queues the greeting: the first thing to do. */
enum nvllm_code conn_hello(struct conn *c, const char *name, struct nvllm_error *err);

/* Queues a request; the op of frame is set, its id is given here and handed out. n_choices is of
 * generate, else 0. */
enum nvllm_code conn_send(struct conn *c, Nvllm__V1__ClientFrame *frame, enum pending_kind kind,
                          uint32_t n_choices, uint64_t *id, struct nvllm_error *err);

/* Queues a cancel of generate, tokenize, detokenize or render; nothing if it is not under way. */
enum nvllm_code conn_cancel(struct conn *c, uint64_t id, struct nvllm_error *err);

/* Whatever still comes for id is dropped. */
void conn_abandon(struct conn *c, uint64_t id);

/* The request is given up at this time of the monotonic clock, in ms, if it has not ended then. */
void conn_set_deadline(struct conn *c, uint64_t id, int64_t deadline);

/* Gives up one request whose deadline is over: cancels it, and makes the error that ends it. NULL:
 * there is none, or no memory, see death. */
struct event *conn_expire(struct conn *c, int64_t now);

/* Bytes from the daemon, copied. */
void conn_push(struct conn *c, const void *data, size_t n);

/* No more bytes will come. sys_errno 0: the daemon closed the connection. */
void conn_end(struct conn *c, int sys_errno);

/* The next event, which the caller frees, or NULL: nothing is there, see death. */
struct event *conn_take(struct conn *c);

static inline size_t conn_bytes(const struct conn *c)
{
    return c->in.end - c->in.start;
}

/* conn_take() may have one. */
bool conn_ready(const struct conn *c);

/* Dies of the end if nothing whole came before it. */
void conn_settle(struct conn *c);

void conn_no_memory(struct conn *c);

#endif
