/* session_private.h - what session.c (clients and their frames), session_requests.c (what they have
 * under way) and session_ops.c (looking into the daemon and changing it) share. Nobody else
 * includes it. */
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
    size_t input_bytes, output_bytes; /* of the connection, as they are on the account */
    pid_t pid;
    bool admin;
    bool greeted;
};

/* A request from its acceptance to its terminal event. The engine is given it as the owner: it
 * stays until that event is taken, or the engine has ended. */
struct pending {
    uint64_t id;        /* ours */
    uint64_t client_id; /* the client's */
    struct sessions *shared;
    struct session *session; /* NULL: the client has left, or was told an end */
    struct account *account; /* whose it is; a reference */
    pid_t pid;
    bool inspect;             /* on the account as one */
    uint64_t queued_tokens;   /* still on the account */
    uint64_t reading;         /* of the options, that answers it; 0: the engine does */
    struct unpacked *message; /* until the engine releases it, on whatever thread */
    uint64_t message_bytes;   /* on the account, as long */
    uint64_t engine_bytes;    /* on the account; grown by the engine thread */
    enum limit exceeded;      /* by the answer, once the engine says ENGINE_E_MEMORY_LIMIT */
};

uint64_t session_now_us(void);

/* ---- session.c */

/* An error of the connection as a whole: told, then closed. */
void session_fail(struct session *s, const struct refusal *e);

/* What became of a put: a client that does not read is let go. */
void session_check_put(struct session *s, int r);

void session_answer_error(struct session *s, uint64_t id, const struct refusal *e);

/* ---- session_requests.c */

/* The client has no more part in its requests: they are cancelled and belong to nobody. */
void session_abandon_requests(struct session *s);

void pending_cancel(struct sessions *s, struct pending *p);

/* Out of both tables and off the accounts. */
void pending_forget(struct sessions *s, struct pending *p);

/* What a request would take. */
struct demand {
    bool new_work; /* refused while draining */
    uint64_t tokens;
    uint64_t bytes;
};

/* Why no request that needs the engine is taken now: 0, or -EINVAL with *e. */
int session_refuse(const struct session *s, const struct demand *d, struct refusal *e);

/* Enters a request into both tables and on the account; the message, which may be NULL, belongs to
 * it from then on. NULL: no memory. */
struct pending *session_enter(struct session *s, uint64_t client_id, uint64_t queued_tokens,
                              struct unpacked *message);

/* For the engine, see engine_request. */
void pending_release(void *owner);

/* Generate, Tokenize, Detokenize and Render; true when the message has been taken over. */
bool session_start(struct session *s, const Nvllm__V1__ClientFrame *f, struct unpacked *u);

/* Answers a request that could not be started: r is -EINVAL with *e, or -ENOMEM. */
void session_answer_refusal(struct session *s, uint64_t id, int r, struct refusal *e);

/* At the end of all, once the engine has ended. */
void sessions_forget_requests(struct sessions *s);

/* ---- session_ops.c */

/* Cancel, and the operations from ListRequests on; true as for session_start. */
bool session_operate(struct session *s, const Nvllm__V1__ClientFrame *f, struct unpacked *u);

/* The answer to what was asked of the engine by session_operate. */
int session_report(struct sessions *s, struct pending *p, const struct inspect_report *r);

#endif
