/* session.h - the connected clients and their requests.
 *
 * A request is in its session's map by the client's id, and in the map of all by the daemon's id,
 * until its terminal event. When a client leaves, its requests are cancelled but stay in the map of
 * all, and on the user's account, until the engine ends them.
 * rights.h decides who may do what, limits.h how much, on the accounts. Loop thread only.
 */
#ifndef NVLLM_DAEMON_SESSION_H
#define NVLLM_DAEMON_SESSION_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "daemon/accounts.h"
#include "daemon/connection.h"
#include "daemon/limits.h"
#include "daemon/options.h"
#include "daemon/replies.h"
#include "daemon/request.h"
#include "daemon/rights.h"
#include "engine/engine.h"
#include "engine/util/id_map.h"
#include "engine/util/list.h"

struct session;
struct server;

struct sessions {
    struct engine *engine;
    struct options *options;    /* admins may set the log level */
    struct reply_facts facts;   /* the state, connections and uptime included */
    struct request_rules rules; /* from READY on */
    struct rights rights;
    struct connections connections;
    struct accounts accounts;
    struct id_map requests; /* struct pending, by our id */
    uint64_t last_id;
    uint64_t round;  /* see connection.h */
    struct list all; /* struct session */
    /* Limits that other threads read: output_bytes, request_bytes, request_bytes_per_uid. */
    atomic_size_t most_answer_bytes, most_request_bytes, most_request_bytes_per_uid;
    uint64_t start_ms;
    uint64_t busy_logged_ms, refused_logged_ms, dropped_logged_ms; /* for log_due */
    uint64_t n_refused, n_dropped; /* connections since the last log line */
    bool closed;                   /* every request is refused */
    struct server *server;
};

/* The state is LOADING at first. The parts' pointers must outlive the sessions, but the engine,
 * which must be freed before sessions_deinit. */
struct session_parts {
    struct event_base *base;
    struct engine *engine;
    struct options *options;
    struct rights rights;
    struct reply_facts facts;
    struct server *server;
};

void sessions_init(struct sessions *s, const struct session_parts *parts);
void sessions_deinit(struct sessions *s);

/* Takes over changed limits, for new requests. */
void sessions_limits_changed(struct sessions *s);

/* A new client; takes ownership of fd. admin: it used the admin socket. */
void sessions_accept(struct sessions *s, int fd, bool admin);

/* The engine is ready: requests are taken. */
void sessions_ready(struct sessions *s);

/* Delivers one engine event; may take the packed answer out of it. */
void sessions_event(struct sessions *s, struct engine_event *ev);

/* Requests without a terminal event, those of clients that have left included. */
size_t sessions_n_requests(const struct sessions *s);

/* How many of them are inspect requests, which a drain does not refuse. */
size_t sessions_n_inspects(const struct sessions *s);

/* Refuses every new request. */
void sessions_close(struct sessions *s);

void sessions_cancel_all(struct sessions *s);

/* Ends each request with an error, for its client. The record stays until the engine's own terminal
 * event, or until sessions_deinit. */
void sessions_fail_all(struct sessions *s, const struct refusal *e);

/* Closes every connection once its client has read all. */
void sessions_end_all(struct sessions *s);

/* Answers the reloads that wait for this reading, or an earlier one: with the change, or with why
 * nothing has changed where that is NULL. */
void sessions_reloaded(struct sessions *s, uint64_t reading, const struct options_change *change,
                       const struct refusal *why);

/* Writes buffered answers and frees closed sessions. Call it at the end of each wake-up. */
void sessions_settle(struct sessions *s);

#endif
