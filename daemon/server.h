/* server.h - nvllmd at work: the loop that joins clients, engine, signals and systemd, from
 * loading to the last answer. One thread, which alone reads and writes sockets. */
#ifndef NVLLM_DAEMON_SERVER_H
#define NVLLM_DAEMON_SERVER_H

#include "daemon/listener.h"
#include "daemon/options.h"
#include "daemon/reload.h"
#include "daemon/rights.h"
#include "engine/engine.h"

struct server;

/* All parts stay the caller's and outlive the server. backend and model are names for people. */
struct server_parts {
    struct options *options; /* some of which change, when they are read anew */
    reload_read reread;      /* as when the daemon started, by a thread of its own */
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

/* From now on a signal that ends the daemon is noted where it comes before the loop runs, and is
 * nothing any more where it comes after it. Called once, before threads start. */
void server_catch_signals(void);

/* Each client is a descriptor, and some are the daemon's own: as many as the limits want. */
void server_raise_descriptors(const struct options *o);

enum server_end {
    SERVER_ENDED,  /* by a signal; each request was told */
    SERVER_STUCK,  /* likewise, but the engine is loading or does not answer, or the options are
                    * being read: threads work that cannot be waited for */
    SERVER_FAILED, /* the engine or the loop has failed; threads may work on, as above */
};

/* Serves until a signal or a failure. The engine is to be freed before the server. */
enum server_end server_run(struct server *s);

#endif
