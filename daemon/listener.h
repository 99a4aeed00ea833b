/* listener.h - the socket that clients connect to: our own, or the one that systemd passes.
 *
 * A lock file beside the socket (PATH.lock) says that a daemon serves it: so of two daemons
 * started at once one refuses, and a socket left by a dead one is replaced without a race. */
#ifndef NVLLM_DAEMON_LISTENER_H
#define NVLLM_DAEMON_LISTENER_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "daemon/options.h"
#include "engine/util/err.h"

struct listener;

struct listener_options {
    const char *path;
    mode_t mode;
    const char *group;        /* "": the daemon's own */
    const char *group_option; /* static; what names the group: "daemon.socket_group" */
};

/* Of what clients connect to, and of what only admins do (a path of "": there is none). They point
 * into the options. */
struct listener_options listener_options_of(const struct options *o);
struct listener_options listener_options_of_admins(const struct options *o);

/* Listens, not blocking; the group is looked up here, and never again. -EADDRINUSE: another daemon
 * does; -EEXIST: the path is no socket; -ENAMETOOLONG; others as they come, with a text. */
int listener_open(struct listener **out, const struct listener_options *options, struct err *e);

/* What listener_open would say now, by whoever calls, without changing anything. -EADDRINUSE where
 * a daemon listens; -ENOENT where the folder is missing; others as of listener_open. */
int listener_check(const struct listener_options *options, struct err *e);

/* As listener_open, on the socket that systemd has passed; 0 with *out NULL when there is none. */
int listener_inherit(struct listener **out, struct err *e);

/* Whether the path still names our socket; those of systemd are systemd's to look after. */
bool listener_intact(const struct listener *l);

/* Makes a socket anew that was removed or replaced, with a new descriptor: who waits at the old one
 * is lost unless accepted before. Negative errno with a text: the old one is still there. */
int listener_mend(struct listener *l, struct err *e);

int listener_fd(const struct listener *l);
const char *listener_path(const struct listener *l);

/* Stops listening and removes a socket of our own; the lock stays until listener_free. */
void listener_stop(struct listener *l);
void listener_free(struct listener *l); /* takes NULL */

#endif
