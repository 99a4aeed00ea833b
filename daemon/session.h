/* session.h - the clients: Hello, the requests that each has under way, and what becomes of them.
 *
 * A request lives in the table of its session, by the client's id, and in that of all, by ours,
 * until its terminal event. When a session goes its requests are cancelled and stay in the table
 * of all until the engine has let go of them: what clients leave behind is counted too.
 * Loop thread only. */
#ifndef NVLLMD_SESSION_H
#define NVLLMD_SESSION_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "daemon/connection.h"
#include "daemon/options.h"
#include "daemon/replies.h"
#include "daemon/request.h"
#include "engine/engine.h"
#include "engine/id_map.h"

struct session;

struct sessions {
    struct engine *engine;
    const struct options *options;
    struct reply_facts facts;   /* state, connections and uptime are kept here */
    struct request_rules rules; /* from READY on */
    struct connections connections;
    struct id_map requests; /* struct pending, by our id */
    uint64_t last_id;
    struct session *all;
    atomic_uint_fast64_t held_bytes;
    uint64_t start_ms;
    uint64_t busy_logged_ms;       /* for log_due */
    void (*settled)(void *server); /* at the end of each wake-up */
    void *server;
};

/* state begins as LOADING. facts' texts and options stay the caller's. */
void sessions_init(struct sessions *s, struct event_base *base, struct engine *engine,
                   const struct options *options, const struct reply_facts *facts);
void sessions_deinit(struct sessions *s);

/* A new client on fd, which is taken over. */
void sessions_accept(struct sessions *s, int fd);

/* The engine is ready: from now on requests are taken. */
void sessions_ready(struct sessions *s);

/* One event of the engine to whom it concerns. */
void sessions_event(struct sessions *s, const struct engine_event *ev);

/* Requests not yet told their end, those of clients that have left included. */
size_t sessions_n_requests(const struct sessions *s);

void sessions_cancel_all(struct sessions *s);

/* Each request still under way gets an error as its terminal answer. */
void sessions_fail_all(struct sessions *s, Nvllm__V1__ErrorCode code, const char *message);

/* Every client is let go when it has read what there is. */
void sessions_end_all(struct sessions *s);

/* Writes what was put, frees who is gone; to be called at the end of each wake-up. */
void sessions_settle(struct sessions *s);

#endif
