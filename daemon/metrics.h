/* metrics.h - the daemon's figures for monitoring, at metrics.path: a Unix socket that answers HTTP
 * GET, or a file that is rewritten now and then.
 *
 * A thread of its own serves them, so that neither a scrape, nor a slow disk, nor the devices'
 * driver takes time of the loop. Figures are sums over all users and hold nothing of a request. */
#ifndef NVLLM_DAEMON_METRICS_H
#define NVLLM_DAEMON_METRICS_H

#include <stdatomic.h>

#include "daemon/options.h"
#include "engine/engine.h"
#include "proto/nvllm.pb-c.h"

struct metrics;

/* They outlive it. */
struct metrics_parts {
    const struct options *options;
    const struct engine *engine;
    const char *backend, *model;
    const atomic_uint_fast64_t *connections;
};

/* Opens the socket, or writes the file for the first time, and starts the thread; *out is NULL
 * where metrics.path is empty. Negative errno as of listener_open(), or of writing the file. */
int metrics_new(struct metrics **out, const struct metrics_parts *parts, struct err *e);

/* Ends the thread and removes socket or file. False: it has not ended within a second, because the
 * disk or the devices' driver does not answer, and the process must be left without joining it. */
bool metrics_stop(struct metrics *m);
void metrics_free(struct metrics *m); /* stopped; both take NULL */

/* The errors that metrics_new() would return to the calling user for metrics.path; changes nothing.
 * -EADDRINUSE: a daemon serves them there now. */
int metrics_check(const struct options *o, struct err *e);

/* Told by the loop; m may be NULL. A generate request ends in one of the two ways. */
void metrics_set_state(struct metrics *m, Nvllm__V1__State state);
void metrics_count_end(struct metrics *m, Nvllm__V1__FinishReason reason);
void metrics_count_error(struct metrics *m, Nvllm__V1__ErrorCode code);

#endif
