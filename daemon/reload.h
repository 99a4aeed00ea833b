/* reload.h - reads the options again without blocking the loop: the file may be on a slow disk, and
 * user names may be looked up over a network.
 *
 * One reading at a time, on a thread of its own. The functions are called on the loop thread. */
#ifndef NVLLM_DAEMON_RELOAD_H
#define NVLLM_DAEMON_RELOAD_H

#include <stdbool.h>

#include "daemon/options.h"
#include "daemon/shares.h"
#include "engine/util/err.h"

struct reload;

/* Sets *out on success only. Called on the reading's thread. */
typedef int (*reload_read)(void *arg, struct options *out, struct err *e);

/* The result of a reading: valid options, or why they are not valid. */
struct reload_result {
    int r;                  /* 0, or a negative errno with why */
    struct err why;         /* one line */
    struct options options; /* the caller's, where r is 0 */
    struct shares shares;   /* parsed from the options */
};

int reload_new(struct reload **out, reload_read read, void *arg); /* negative errno */

/* Takes NULL. No reading may be in progress. */
void reload_free(struct reload *r);

/* Starts a reading; none may be in progress. Negative errno: no thread. */
int reload_begin(struct reload *r);

/* A reading was started and its result not taken. */
bool reload_under_way(const struct reload *r);

int reload_fd(const struct reload *r); /* readable: reload_take has something */

/* Takes the result of a reading; true once for each. */
bool reload_take(struct reload *r, struct reload_result *out);

/* Waits a moment for a reading in progress and drops its result. False: it goes on. */
bool reload_end(struct reload *r);

#endif
