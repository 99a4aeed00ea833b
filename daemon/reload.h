/* reload.h - the options read anew, beside the loop: the file may lie on a slow disk, and whoever
 * knows the users that it names may be asked over a network.
 *
 * One reading at a time, on a thread of its own; all functions are the loop's to call. */
#ifndef NVLLM_DAEMON_RELOAD_H
#define NVLLM_DAEMON_RELOAD_H

#include <stdbool.h>

#include "daemon/options.h"
#include "daemon/shares.h"
#include "engine/util/err.h"

struct reload;

/* *out is made on success only. From the thread of a reading. */
typedef int (*reload_read)(void *arg, struct options *out, struct err *e);

/* What a reading has found: options that are sound as a whole, or why they are not. */
struct reload_result {
    int r;                  /* 0, or a negative errno with why */
    struct err why;         /* one line */
    struct options options; /* the taker's; where r is 0 */
    struct shares shares;   /* that the options say */
};

int reload_new(struct reload **out, reload_read read, void *arg); /* negative errno */

/* Takes NULL. None may be under way: it could not be waited for. */
void reload_free(struct reload *r);

/* Begins a reading; none may be under way. Negative errno: there is no thread to be had. */
int reload_begin(struct reload *r);

/* It was begun and not taken. */
bool reload_under_way(const struct reload *r);

int reload_fd(const struct reload *r); /* readable: reload_take has something */

/* True once after each reading. */
bool reload_take(struct reload *r, struct reload_result *out);

/* At the end: whether none is under way, waiting a moment for that; what it finds is forgotten. */
bool reload_end(struct reload *r);

#endif
