/* session.h - the clients: Hello, the requests that each has under way, and what becomes of them.
 *
 * A request lives in the table of its session, by the client's id, and in that of all, by ours,
 * until its terminal event. When a session goes its requests are cancelled and stay in the table
 * of all until the engine has let go of them: what clients leave behind is counted too.
 * Who may do what is decided by rights.h, how much by limits.h on the accounts. Loop thread only.
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

/* What admins may ask of the daemon as a whole; the server does it. */
struct session_control {
    void (*drain)(void *server, uint64_t timeout_ms);
    int (*resume)(void *server); /* -EBUSY: the daemon is shutting down */
    /* The options are read anew, and *reading is the number of the reading that is to answer, see
     * sessions_reloaded. Negative errno with a text: that cannot be begun. */
    int (*reload)(void *server, uint64_t *reading, struct err *e);
    void (*shutdown)(void *server);
    void (*settled)(void *server); /* at the end of each wake-up */
};

struct sessions {
    struct engine *engine;
    struct options *options;    /* the log's level is set by clients */
    struct reply_facts facts;   /* state, connections and uptime are kept here */
    struct request_rules rules; /* from READY on */
    struct rights rights;
    struct connections connections;
    struct accounts accounts;
    struct id_map requests; /* struct pending, by our id */
    uint64_t last_id;
    uint64_t round;  /* of the loop: see connection.h */
    struct list all; /* struct session */
    /* limits.output_bytes, request_bytes and request_bytes_per_uid, for other threads. */
    atomic_size_t most_answer_bytes, most_request_bytes, most_request_bytes_per_uid;
    uint64_t start_ms;
    uint64_t busy_logged_ms, refused_logged_ms, dropped_logged_ms; /* for log_due */
    uint64_t n_refused, n_dropped; /* connections since the line before */
    bool closed;                   /* no request is taken any more, of whatever kind */
    const struct session_control *control;
    void *server; /* for control */
};

/* state begins as LOADING. What the parts point to stays the caller's. The engine must have ended
 * before sessions_deinit. */
struct session_parts {
    struct event_base *base;
    struct engine *engine;
    struct options *options;
    struct rights rights;
    struct reply_facts facts;
    const struct session_control *control;
    void *server;
};

void sessions_init(struct sessions *s, const struct session_parts *parts);
void sessions_deinit(struct sessions *s);

/* The options have changed: limits hold for what comes from now on. */
void sessions_limits_changed(struct sessions *s);

/* A new client on fd, which is taken over; admin: it came by the admins' socket. */
void sessions_accept(struct sessions *s, int fd, bool admin);

/* The engine is ready: from now on requests are taken. */
void sessions_ready(struct sessions *s);

/* One event of the engine to whom it concerns; what it holds may be taken out of it. */
void sessions_event(struct sessions *s, struct engine_event *ev);

/* Requests not yet told their end, those of clients that have left included. */
size_t sessions_n_requests(const struct sessions *s);

/* Of those, inspect requests, which are answered to the end. */
size_t sessions_n_inspects(const struct sessions *s);

/* From now on every request is refused: what is under way runs out. */
void sessions_close(struct sessions *s);

void sessions_cancel_all(struct sessions *s);

/* Each client is told an error as the terminal answer of each of its requests. What the engine has
 * of them stays until its own terminal event, or its end. */
void sessions_fail_all(struct sessions *s, const struct refusal *e);

/* Every client is let go when it has read what there is. */
void sessions_end_all(struct sessions *s);

/* What became of a reading of the options: to all who wait for it or for one before. change, or
 * NULL and why nothing has changed. */
void sessions_reloaded(struct sessions *s, uint64_t reading, const struct options_change *change,
                       const struct refusal *why);

/* Writes what was put, frees who is gone; to be called at the end of each wake-up. */
void sessions_settle(struct sessions *s);

#endif
