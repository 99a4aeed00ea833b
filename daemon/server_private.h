/* server_private.h - the state of the daemon for server.c (the loop), server_control.c (states,
 * reload and shutdown), clients.c (clients, frames and operations), client_requests.c (requests for
 * the engine), inspection.c and chat_operations.c. Nobody else includes it. Loop thread only. */
#ifndef NVLLM_DAEMON_SERVER_PRIVATE_H
#define NVLLM_DAEMON_SERVER_PRIVATE_H

#include <pthread.h>
#include <stdatomic.h>

#include <event2/event.h>

#include "daemon/chat_session.h"
#include "daemon/chat_session_store.h"
#include "daemon/connection.h"
#include "daemon/limits.h"
#include "daemon/log.h"
#include "daemon/metrics.h"
#include "daemon/replies.h"
#include "daemon/request.h"
#include "daemon/server.h"
#include "engine/util/id_map.h"
#include "engine/util/list.h"

#define SERVER_NAME "nvllmd/" NVLLM_VERSION /* to clients */

enum phase { PHASE_SERVING, PHASE_DRAINING, PHASE_CANCELLING, PHASE_FLUSHING };

enum server_event {
    EVENT_CLIENTS, /* a client connects: FOR_CLIENTS */
    EVENT_ADMINS,  /* likewise, at the admin socket: FOR_ADMINS */
    EVENT_ENGINE,
    EVENT_SIGTERM,
    EVENT_SIGINT,
    EVENT_SIGHUP,
    EVENT_PHASE,    /* the next phase of the shutdown is due */
    EVENT_DRAIN,    /* the timeout of an admin's drain */
    EVENT_RELOAD,   /* a moment after SIGHUP */
    EVENT_RELOADED, /* the options have been read */
    EVENT_STORE,    /* files of chat sessions have been written: from READY on */
    EVENT_STATUS,
    EVENT_SOCKETS, /* the sockets' files are to be checked */
    EVENT_INOTIFY, /* likewise: they may have changed */
    EVENT_WATCHDOG,
    N_SERVER_EVENTS,
};

/* Run for an event of the loop; buffered answers are written afterwards. */
struct server_hook {
    struct server *server;
    void (*run)(struct server *s);
};

/* Reads the options again, one reload at a time, on a thread of its own: the file may be on a slow
 * disk, and user names may be looked up over a network. */
struct reload {
    int fd; /* eventfd: the thread is done */
    bool under_way;
    bool again;      /* another was asked for meanwhile: this one may have missed changes */
    uint64_t number; /* of the last one */
    pthread_t thread;
    int r; /* what follows is the thread's until fd is readable: 0, or a negative errno with why */
    struct err why;
    struct options options;
};

struct server {
    struct server_parts parts;
    struct event_base *base;
    struct server_hook hooks[N_SERVER_EVENTS];
    struct event *events[N_SERVER_EVENTS];
    enum phase phase;
    enum server_end end;     /* FAILED as soon as the engine has failed */
    bool ready;              /* the engine is ready */
    enum sleep_level asleep; /* as last logged */
    bool drained;            /* by an admin, until resume */
    bool closed;             /* every request is refused */
    struct reload reload;
    int inotify_fd; /* of the sockets' folders; -1: there is none */
    int last_percent;
    uint64_t engine_beat;  /* at the last check of the watchdog */
    int stalled_checks;    /* in a row that have found the same, while there was work */
    uint64_t watchdog_us;  /* systemd's, or one of the daemon's own */
    bool systemd_watchdog; /* it expects WATCHDOG=1 */
    uint64_t start_ms;

    struct request_rules rules; /* from READY on */
    struct connections connections;
    struct accounts accounts;
    struct metrics *metrics;          /* NULL: none are served */
    struct chat_session_store *store; /* NULL: sessions are in memory alone */
    XXH128_hash_t model;              /* with a store: the fingerprint */
    struct list clients;
    struct id_map requests; /* struct pending, by the daemon's id */
    uint64_t last_id;
    /* Limits that other threads read: output_bytes, request_bytes, request_bytes_per_uid. */
    atomic_size_t limit_answer_bytes, limit_request_bytes, limit_request_bytes_per_uid;

    struct log_rate accepts_paused, sockets_lost, sessions_unsaved; /* lines of the log */
    struct log_rate turned_away, clients_refused, clients_dropped;  /* connections */
};

/* A connected client. */
struct client {
    struct server *server;
    struct list link; /* in server->clients */
    struct connection *connection;
    struct id_map requests; /* struct pending, by the client's id */
    struct account *account;
    size_t buffer_bytes; /* charged to the account */
    pid_t pid;
    bool admin;
    bool greeted;
};

/* A request from its acceptance to its terminal event: in its client's map by the client's id, and
 * in the server's by the daemon's. When the client leaves, the request is cancelled but stays in
 * the server's map, and on the user's account, until the engine ends it: engine_request.owner. */
struct pending {
    uint64_t id;        /* the daemon's */
    uint64_t client_id; /* the client's */
    struct server *server;
    struct client *client;   /* NULL: the client has left, or has its answer */
    struct account *account; /* a reference */
    pid_t pid;
    bool inspect;             /* counted as an inspect request */
    uint64_t queued_tokens;   /* charged until the first event */
    uint64_t reload;          /* the number of the one that answers it; 0: asks for none */
    bool traces;              /* a trace, which ends when the daemon does */
    uint64_t dropped;         /* of its records */
    bool computes;            /* generate and embed */
    enum core_reason reason;  /* GENERATE: why choice 0 has ended */
    struct unpacked *message; /* charged until the engine releases it, on any thread */
    uint64_t engine_bytes;    /* charged until the end; engine and files add to it */
    enum limit exceeded;      /* with ENGINE_E_MEMORY_LIMIT */
    struct chat_turn *turn;   /* GENERATE in a chat session; NULL: none. It needs the message until
                               * the end */
    struct engine_packed answer; /* what is put once a chat session's file is written */
};

/* The resources that a request needs. */
struct demand {
    bool new_work; /* refused while draining */
    bool inspect;  /* counted as an inspect request */
    uint64_t tokens;
    uint64_t message_bytes, engine_bytes;
};

/* A request of a client, on its way. */
struct client_call {
    struct client *client;
    const Nvllm__V1__ClientFrame *frame; /* lives in the message */
    struct unpacked *message;            /* NULL: it has a new owner, which may free it */
    const struct operation *operation;
};

struct operation {
    Nvllm__V1__ClientFrame__OpCase op;
    const char *name; /* the protocol's: "drain" */
    bool for_admins;
    /* Answers, or has the engine answer: what a put returns, or -EINVAL with *e, or -ENOMEM. */
    int (*run)(struct client_call *c, struct refusal *e);
};

/* ---- server.c */

/* Connected clients. */
static inline uint64_t server_connections(const struct server *s)
{
    return s->accounts.total.amounts[ACCOUNT_CONNECTIONS];
}

void server_after(struct server *s, enum server_event timer, uint64_t ms);

/* Starts the watchdog timer, which checks the engine for as long as there are requests. */
void server_watch(struct server *s);

/* ---- server_control.c */

Nvllm__V1__State server_state(const struct server *s); /* that clients see */

/* Tells systemd what the daemon does. */
void server_tell_status(const struct server *s);

/* Schedules a status line: one a second while there are requests, none while idle. */
void server_status_soon(struct server *s);

void server_engine_failed(struct server *s, int code, const char *why); /* a negative errno */
void server_signalled(struct server *s, int number);

/* Refuses with UNAVAILABLE what the next daemon may answer; -EINVAL. */
int server_refuse_exiting(struct refusal *e, const char *why);

/* Starts the next phase of the shutdown where it is due: in clients_settle(). */
void server_settled(struct server *s);

/* The events of the loop. */
void server_on_phase(struct server *s);
void server_on_drain(struct server *s);
void server_on_status(struct server *s);
void server_on_hangup(struct server *s);
void server_on_reload(struct server *s);
void server_on_reloaded(struct server *s);

/* The operations of admins, see struct operation. */
int control_drain(struct client_call *c, struct refusal *e);
int control_resume(struct client_call *c, struct refusal *e);
int control_reload(struct client_call *c, struct refusal *e);
int control_log_level(struct client_call *c, struct refusal *e);
int control_shutdown(struct client_call *c, struct refusal *e);

/* ---- clients.c */

const struct operation *operation_of(Nvllm__V1__ClientFrame__OpCase op); /* NULL: none */

int clients_init(struct server *s); /* -ENOMEM */
void clients_deinit(struct server *s);

/* Takes over changed limits, for new requests. */
void clients_limits_changed(struct server *s);

/* A new client; takes ownership of fd. admin: it used the admin socket. */
void clients_accept(struct server *s, int fd, bool admin);

/* Closes every connection once its client has read all, and the reason. */
void clients_end_all(struct server *s, const struct refusal *why);

/* Writes buffered answers and frees clients that have left: at the end of each wake-up. With the
 * last client of a shutdown the loop ends. */
void clients_settle(struct server *s);

/* Handles the result of a put: a client that does not read is disconnected. */
void client_check_put(struct client *client, int r);

/* ---- client_requests.c */

int client_start(struct client_call *c, struct refusal *e);
int client_pin(struct client_call *c, struct refusal *e);
int client_inspect(struct client_call *c, struct refusal *e);
int client_cancel(struct client_call *c, struct refusal *e);

/* Enters a request into both maps and charges the account. On success it owns the message, which
 * may be NULL. NULL: no memory. */
struct pending *pending_new(struct client *client, uint64_t client_id, const struct demand *d,
                            struct unpacked *message);

/* Checks the daemon's state and the limits for a request: 0, or -EINVAL with *e. */
int client_refuse(const struct client *client, const struct demand *d, struct refusal *e);

/* Frees it: out of both maps and off the account. */
void pending_forget(struct pending *p);

/* Cancels the client's requests and detaches them from it. */
void client_abandon(struct client *client);

/* Delivers one event of the engine; may take the packed answer out of it. */
void requests_event(struct server *s, struct engine_event *ev);

void requests_cancel_all(struct server *s);
void requests_end_traces(struct server *s);

/* Ends each request with an error, for its client, but those that are done and are answered once
 * their file is written. The record stays until the engine's own terminal event, or until
 * requests_deinit. */
void requests_fail_all(struct server *s, const struct refusal *e);

/* Frees all requests, once the engine has been freed. */
void requests_deinit(struct server *s);

/* ---- chat_operations.c */

int chat_create(struct client_call *c, struct refusal *e);
int chat_fork(struct client_call *c, struct refusal *e);
int chat_rewind(struct client_call *c, struct refusal *e);
int chat_list(struct client_call *c, struct refusal *e);
int chat_show(struct client_call *c, struct refusal *e);
int chat_delete(struct client_call *c, struct refusal *e);

/* The turn that a generate request is of its session: as chat_turn_begin(). */
int chat_begin_turn(struct chat_turn **out, const struct client_call *call,
                    struct engine_request *r, struct refusal *e);

/* With the last event of a request that is a turn: 1: the request is answered once its session's
 * file is written; 0: it is to be answered now; -ENOMEM: as the session is as before, with that. */
int chat_end_turn(struct pending *p, const struct engine_event *ev);

/* Opens the files of chat sessions, where there are any, and reads them: the model is ready, and no
 * request has been taken yet. */
void chat_open_store(struct server *s);
void chat_on_store(struct server *s); /* EVENT_STORE */

/* ---- inspection.c */

int client_status(struct client_call *c, struct refusal *e);

/* Puts records of a trace, unless the client has too much unread: then they are dropped. As
 * connection_put(). */
int trace_put(struct pending *p, const struct engine_event *ev);

/* *m points to what the session does. */
void inspection_fill_session(Nvllm__V1__SessionInfo *m, const struct chat_session *c);

/* Puts a report's frame, as connection_put() does; -ENOMEM. */
int inspection_put(const struct pending *p, const struct inspect_report *r);

#endif
