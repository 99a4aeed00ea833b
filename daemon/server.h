/* server.h - the daemon's event loop: clients, engine, signals and systemd, from loading to the
 * last answer. Its thread alone reads and writes sockets. */
#ifndef NVLLM_DAEMON_SERVER_H
#define NVLLM_DAEMON_SERVER_H

#include "daemon/listener.h"
#include "daemon/options.h"
#include "daemon/reload.h"
#include "daemon/rights.h"
#include "engine/engine.h"

struct server;

/* The parts belong to the caller. All but the engine outlive the server. */
struct server_parts {
    struct options *options; /* a reload changes some */
    reload_read reread;      /* reads all options, on a thread of its own */
    void *reread_arg;
    struct rights rights;
    struct listener *listener;
    struct listener *admin_listener; /* NULL: none */
    struct engine *engine;
    const char *backend;
    const char *model;
};

int server_new(struct server **out, const struct server_parts *parts, struct err *e);
void server_free(struct server *s);

/* Records SIGTERM and SIGINT until the loop runs, and ignores them after it. Call it once, before
 * threads start. */
void server_catch_signals(void);

/* Raises RLIMIT_NOFILE to what the limits of connections need. */
void server_raise_descriptors(const struct options *o);

enum server_end {
    SERVER_ENDED,  /* by a signal, or an admin; each request has its answer */
    SERVER_STUCK,  /* likewise, but threads that load, compute or read options cannot be joined */
    SERVER_FAILED, /* the engine or the loop has failed; threads cannot be joined */
};

/* For sessions: the operations of admins on the daemon as a whole. */
void server_drain(struct server *s, uint64_t timeout_ms);
int server_resume(struct server *s); /* -EBUSY: the daemon is shutting down */
void server_shutdown(struct server *s);

/* Starts to read the options. *reading is the number that sessions_reloaded answers with. Negative
 * errno with a text: it could not be started. */
int server_reload(struct server *s, uint64_t *reading, struct err *e);

/* Called at the end of each wake-up: starts the next phase of the shutdown where it is due. */
void server_settled(struct server *s);

/* Serves until a signal or a failure. Free the engine before the server. */
enum server_end server_run(struct server *s);

#endif
