/* session_private.h - shared by session.c (clients and frames), session_requests.c (requests for
 * the engine) and session_ops.c (inspection and control). Nobody else includes it. */
#ifndef NVLLM_DAEMON_SESSION_PRIVATE_H
#define NVLLM_DAEMON_SESSION_PRIVATE_H

#include "daemon/rights.h"
#include "daemon/session.h"
#include "engine/util/list.h"

#define CODE(name) NVLLM__V1__ERROR_CODE__ERROR_##name
#define OP(name)   NVLLM__V1__CLIENT_FRAME__OP_##name

struct session {
    struct sessions *shared;
    struct list link; /* in shared->all */
    struct connection *connection;
    struct id_map requests; /* struct pending, by the client's id */
    struct account *account;
    size_t input_bytes, output_bytes; /* of buffers, charged to the account */
    pid_t pid;
    bool admin;
    bool greeted;
};

/* A request from its acceptance to its terminal event. It is the owner that the engine is given, so
 * it stays until that event is delivered, or the engine is freed. */
struct pending {
    uint64_t id;        /* the daemon's */
    uint64_t client_id; /* the client's */
    struct sessions *shared;
    struct session *session; /* NULL: the client has left, or has its answer */
    struct account *account; /* a reference */
    pid_t pid;
    bool inspect;             /* counted as an inspect request */
    uint64_t queued_tokens;   /* charged until the first event */
    uint64_t reading;         /* a reload: the reading that answers it; else 0 */
    struct unpacked *message; /* until the engine releases it, on any thread */
    uint64_t message_bytes;   /* charged as long */
    uint64_t engine_bytes;    /* charged until the end; the engine thread adds to it */
    enum limit exceeded;      /* with ENGINE_E_MEMORY_LIMIT */
};

uint64_t session_now_us(void);

/* ---- session.c */

/* Sends an error of the connection as a whole, and closes it. */
void session_fail(struct session *s, const struct refusal *e);

/* Handles the result of a put: a client that does not read is disconnected. */
void session_check_put(struct session *s, int r);

void session_answer_error(struct session *s, uint64_t id, const struct refusal *e);

/* ---- session_requests.c */

/* Cancels the client's requests and detaches them from it. */
void session_abandon_requests(struct session *s);

void pending_cancel(struct sessions *s, struct pending *p);

/* Frees it: out of both maps and off the account. */
void pending_forget(struct sessions *s, struct pending *p);

/* The resources that a request needs. */
struct demand {
    bool new_work; /* refused while draining */
    uint64_t tokens;
    uint64_t bytes;
};

/* Checks the state and the limits for an engine request: 0, or -EINVAL with *e. */
int session_refuse(const struct session *s, const struct demand *d, struct refusal *e);

/* Enters a request into both maps and charges the account. On success it owns the message, which
 * may be NULL. NULL: no memory. */
struct pending *session_enter(struct session *s, uint64_t client_id, uint64_t queued_tokens,
                              struct unpacked *message);

/* engine_request.release */
void pending_release(void *owner);

/* Starts a request of the engine. Sets *taken where the message has a new owner, on failure too.
 * -EINVAL with *e, or -ENOMEM. */
typedef int (*session_starter)(struct session *s, const Nvllm__V1__ClientFrame *f,
                               struct unpacked *u, bool *taken, struct refusal *e);

/* Starts a request, and answers one that is refused. True: the message has a new owner. */
bool session_begin(struct session *s, const Nvllm__V1__ClientFrame *f, struct unpacked *u,
                   session_starter start);

/* For Generate, Tokenize, Detokenize and Render. */
int session_start(struct session *s, const Nvllm__V1__ClientFrame *f, struct unpacked *u,
                  bool *taken, struct refusal *e);

/* Frees all requests, once the engine has been freed. */
void sessions_forget_requests(struct sessions *s);

/* ---- session_ops.c */

/* Cancel, and the operations from ListRequests on. True as for session_begin. */
bool session_operate(struct session *s, const Nvllm__V1__ClientFrame *f, struct unpacked *u);

/* Sends the report that answers an inspect request. */
int session_report(struct sessions *s, struct pending *p, const struct inspect_report *r);

#endif
