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

/* Serves until a signal or a failure. Free the engine before the server. */
enum server_end server_run(struct server *s);

#endif
