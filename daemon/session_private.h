/* session_private.h - what session.c (clients and their frames), session_requests.c (what they have
 * under way) and session_ops.c (looking into the daemon and changing it) share. Nobody else
 * includes it. */
#ifndef NVLLM_DAEMON_SESSION_PRIVATE_H
#define NVLLM_DAEMON_SESSION_PRIVATE_H

#include "daemon/held.h"
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
    size_t held_bytes;                /* of requests' deltas while it is paused, likewise */
    pid_t pid;
    bool admin;
    bool greeted;
};

/* A request between its acceptance and its terminal event. */
struct pending {
    uint64_t id;             /* ours */
    uint64_t client_id;      /* the client's */
    struct session *session; /* NULL: the client has left */
    struct account *account; /* whose it is; a reference */
    pid_t pid;
    bool question;          /* on the account as one */
    int32_t n;              /* choices of generate, 0 for others */
    uint64_t told;          /* bit i: choice i has its finish reason */
    uint64_t queued_tokens; /* still on the account */
    uint64_t engine_bytes;  /* on the account, among the bytes of requests */
    struct held *held;      /* deltas for a client that does not read now */
    uint64_t reading;       /* of the options, that answers it; 0: the engine does */
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

/* The client reads again: what was gathered for it goes out. */
void session_put_held(struct session *s);

/* Why no request that needs the engine is taken now: 0, or -EINVAL with *e. new_work: it makes
 * some, and is refused while draining. */
int session_refuse(const struct session *s, bool new_work, uint64_t queued_tokens,
                   struct refusal *e);

/* What a text counts for among queued_tokens, before it is known how many they are. */
uint64_t session_tokens(size_t n_bytes);

/* Enters a request into both tables; NULL: no memory. */
struct pending *session_enter(struct session *s, uint64_t client_id, int32_t n,
                              uint64_t queued_tokens);

/* Generate, Tokenize, Detokenize and Render; true when the message now belongs to the engine. */
bool session_start(struct session *s, const Nvllm__V1__ClientFrame *f, struct unpacked *u);

/* ---- session_ops.c */

/* Cancel, and the operations from ListRequests on; true as for session_start. */
bool session_operate(struct session *s, const Nvllm__V1__ClientFrame *f, struct unpacked *u);

/* The answer to what was asked of the engine by session_operate. */
int session_report(struct sessions *s, struct pending *p, const struct inspect_report *r);

#endif
