/* server.h - nvllmd at work: the loop that joins clients, engine, signals and systemd, from
 * loading to the last answer. One thread. */
#ifndef NVLLMD_SERVER_H
#define NVLLMD_SERVER_H

#include "daemon/listener.h"
#include "daemon/options.h"
#include "engine/engine.h"

struct server;

/* All parts stay the caller's and outlive the server. backend and model are names for people. */
struct server_parts {
    const struct options *options;
    struct listener *listener;
    struct engine *engine;
    const char *backend;
    const char *model;
};

int server_new(struct server **out, const struct server_parts *parts, struct err *e);
void server_free(struct server *s);

enum server_end {
    SERVER_ENDED,  /* by a signal; each request was told */
    SERVER_STUCK,  /* likewise, but the engine is loading or does not answer: it cannot be freed */
    SERVER_FAILED, /* the engine has failed, and may never come back from being freed */
};

/* Serves until a signal or the engine's failure. */
enum server_end server_run(struct server *s);

#endif
