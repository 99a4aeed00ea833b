/* reports.h - the daemon's status and the engine's inspection reports, as frames of the protocol.
 */
#ifndef NVLLM_DAEMON_REPORTS_H
#define NVLLM_DAEMON_REPORTS_H

#include "daemon/replies.h"

/* Whose process sent a request; 0: not known any more. */
struct report_owners {
    int32_t (*pid_of)(void *ctx, uint64_t request);
    void *ctx;
};

/* Put one frame for the client's id, as connection_put() does; -ENOMEM. A report that explains a
 * request holds it: where there is none, the caller says so. */
int report_put_status(struct connection *c, uint64_t id, const struct reply_facts *daemon,
                      const struct engine_status *engine);
int report_put(struct connection *c, uint64_t id, const struct inspect_report *r,
               const struct engine_status *engine, const struct report_owners *owners);

#endif
