/* reports.h - what the engine says of itself when it is looked into, as frames of the protocol. */
#ifndef NVLLM_DAEMON_REPORTS_H
#define NVLLM_DAEMON_REPORTS_H

#include "daemon/connection.h"
#include "engine/inspect.h"

/* What the daemon adds: facts of the engine that no report holds, and who has asked. */
struct report_facts {
    int32_t block_len;
    uint64_t block_bytes;
    int32_t (*pid_of)(void *ctx, uint64_t request); /* 0: not known any more */
    void *ctx;
};

/* Puts the answer of the report's kind for the client's id, as connection_put() does. Of an
 * explained request that is not found nothing is put: the caller says so. */
int report_put(struct connection *c, uint64_t id, const struct inspect_report *r,
               const struct report_facts *facts);

#endif
