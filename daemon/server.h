/* server.h - the daemon's event loop: clients, engine, signals and systemd, from loading to the
 * last answer. Its thread alone reads and writes sockets. */
#ifndef NVLLM_DAEMON_SERVER_H
#define NVLLM_DAEMON_SERVER_H

#include "daemon/accounts.h"
#include "daemon/listener.h"
#include "daemon/options.h"
#include "engine/engine.h"

struct server;

enum { FOR_CLIENTS, FOR_ADMINS, N_LISTENERS };

/* The parts belong to the caller. All but the engine outlive the server. */
struct server_parts {
    struct options *options; /* a reload and admins change some */
    /* Reads all options, on a thread of its own; *out is set on success only. */
    int (*reread)(void *arg, struct options *out, struct err *e);
    void *reread_arg;
    struct rights rights;
    struct listener *listeners[N_LISTENERS]; /* that of admins may be NULL */
    struct engine *engine;
    const char *backend;
    const char *model;
    const char
        *session_folder; /* where a folder for files of chat sessions is made; NULL: nowhere */
};

int server_new(struct server **out, const struct server_parts *parts, struct err *e);
void server_free(struct server *s);

/* Blocks the loop's signals before threads start; they wait until the loop runs. */
void server_hold_signals(int how); /* SIG_BLOCK */

/* Raises RLIMIT_NOFILE to what the limits of connections need. */
void server_raise_descriptors(const struct options *o);

enum server_end {
    SERVER_ENDED,  /* by a signal, or an admin; each request has its answer */
    SERVER_STUCK,  /* likewise, but threads that load, compute or read options cannot be joined */
    SERVER_FAILED, /* the engine or the loop has failed; threads cannot be joined */
};

/* Serves until a signal or a failure. Free the engine before the server. */
enum server_end server_run(struct server *s);

/* Tells systemd that the daemon is about to fail, with a negative errno, and why. */
void server_tell_failure(int code, const char *why);

#endif
