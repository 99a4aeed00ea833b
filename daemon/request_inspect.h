/* request_inspect.h - checks the operations that look into the engine or change its prefix cache,
 * and turns them into what the engine takes. As request.h otherwise: pure, and refusals name the
 * field. */
#ifndef NVLLM_DAEMON_REQUEST_INSPECT_H
#define NVLLM_DAEMON_REQUEST_INSPECT_H

#include "daemon/request.h"
#include "engine/inspect.h"

/* Who asks. */
struct request_viewer {
    uint64_t client; /* the uid */
    bool all;        /* may see and change what belongs to others */
};

/* ListRequests, GetBlocks, ShowCache, ClearCache, PinCache and Explain: fills *out, and all
 * of *request but id, owner and release. What both point to lives in the unpacked message. -EINVAL
 * with *e, or -ENOMEM. */
int request_inspect(struct inspect_query *out, struct engine_request *request,
                    const Nvllm__V1__ClientFrame *f, struct unpacked *u,
                    const struct request_rules *rules, const struct request_viewer *viewer,
                    struct refusal *e);

#endif
