/* listener.h - the socket that clients connect to: the daemon's own, or one that systemd passes.
 *
 * A locked file beside the socket (PATH.lock) shows that a daemon serves it: of two daemons started
 * at once one refuses, and the socket of a dead one is replaced without a race. */
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
    const char *group_option; /* static; the option of the group, "daemon.socket_group" */
};

/* Those of the socket, or of the admin socket (path "": none). They point into the options. */
struct listener_options listener_options_of(const struct options *o, bool admins);

/* Listens on a non-blocking socket; looks the group up once. The texts must outlive it.
 * -EADDRINUSE: another daemon serves the path; -ENOTSOCK: the path is not a socket; -ENAMETOOLONG;
 * others with a text. */
int listener_open(struct listener **out, const struct listener_options *options, struct err *e);

/* The errors that listener_open would return for the calling user; changes nothing. -EADDRINUSE: a
 * daemon listens; -ENOENT: the folder is missing; others as of listener_open. */
int listener_check(const struct listener_options *options, struct err *e);

/* Of these, the errors of the path's folder and of the group. */
int listener_check_place(const struct listener_options *options, struct err *e);

/* As listener_open, for the socket that systemd passes; 0 with *out NULL where there is none. */
int listener_inherit(struct listener **out, struct err *e);

/* Whether the path still names this socket; always true for a socket of systemd. */
bool listener_intact(const struct listener *l);

/* Has an inotify descriptor become readable when that may have changed, through the file itself or
 * its folder. False: it cannot, and the caller is to look from time to time. */
bool listener_watch(const struct listener *l, int inotify);

/* Makes a socket again that was removed or replaced, with a new descriptor. Accept the old one's
 * clients first. Negative errno with a text: the old one stays. */
int listener_mend(struct listener *l, struct err *e);

/* Whether it is systemd's: the kernel keeps new clients for the next daemon after listener_stop. */
bool listener_inherited(const struct listener *l);

int listener_fd(const struct listener *l); /* -1: stopped */
const char *listener_path(const struct listener *l);

/* Stops listening and removes the daemon's own socket; the lock stays until listener_free. */
void listener_stop(struct listener *l);
void listener_free(struct listener *l); /* takes NULL */

#endif
