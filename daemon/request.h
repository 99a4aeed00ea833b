/* request.h - checks a client's request field by field and turns it into the engine's.
 *
 * Pure: no sockets, no engine calls, the time is an argument. Every refusal names the field and the
 * allowed values. The result points into the unpacked message. */
#ifndef NVLLM_DAEMON_REQUEST_H
#define NVLLM_DAEMON_REQUEST_H

#include <stddef.h>
#include <stdint.h>

#include "daemon/limits.h"
#include "daemon/options.h"
#include "engine/text/chat.h"
#include "engine/engine.h"
#include "proto/nvllm.pb-c.h"
#include "proto/unpack.h"

/* The rules that requests are checked against. */
struct request_rules {
    const struct options *options;         /* the limits */
    const struct model_defaults *defaults; /* for absent sampling fields */
    int32_t vocab_size;
    int32_t max_seq_len;
};

/* Who sends a request, and when. */
struct request_origin {
    uint64_t uid;
    bool admin;
    uint64_t now_us; /* CLOCK_MONOTONIC */
};

/* A request for the engine: fills all of *out but id, owner and its functions. An absent seed is
 * drawn with getrandom(). -EINVAL with *e, or -ENOMEM; *out is not to be used then. */
int request_start(struct engine_request *out, const Nvllm__V1__ClientFrame *f, struct unpacked *u,
                  const struct request_rules *rules, const struct request_origin *origin,
                  struct refusal *e);

/* A chat, which may have no messages yet, in memory of u that m points to as well. As above. */
int request_chat(const struct chat **out, const Nvllm__V1__Chat *m, struct unpacked *u,
                 const struct request_rules *rules, struct refusal *e);

/* The tokens of its input, estimated for a text; 0 where it has none. */
uint64_t request_tokens(const struct engine_request *r);

#endif
