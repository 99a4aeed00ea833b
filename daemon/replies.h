/* replies.h - engine events and the daemon's answers as frames of the protocol. */
#ifndef NVLLM_DAEMON_REPLIES_H
#define NVLLM_DAEMON_REPLIES_H

#include <stdbool.h>
#include <stdint.h>

#include "daemon/connection.h"
#include "daemon/limits.h"
#include "engine/engine.h"
#include "proto/nvllm.pb-c.h"

/* Each puts one frame for the client's id, as connection_put() does. message: any of the oneof. */
int reply_put(struct connection *c, uint64_t id, Nvllm__V1__ServerFrame__EventCase event,
              void *message);
Nvllm__V1__FinishReason reply_finish(enum core_reason reason);
int reply_delta(struct connection *c, uint64_t id, const struct engine_event *ev);
int reply_done(struct connection *c, uint64_t id, const struct core_usage *usage);
int reply_embedding(struct connection *c, uint64_t id, const struct engine_event *ev);
int reply_packed(struct connection *c, uint64_t id, struct engine_event *ev); /* of reply_pack */

/* Packs an answer's frame but for the client's id: engine_packer.pack. Any thread. */
int reply_pack(struct engine_packed *out, const struct engine_event *answer,
               const struct tokenizer *tokenizer, size_t most_bytes);

/* The code decides retryable. */
int reply_error(struct connection *c, uint64_t id, const struct refusal *e);

/* The frame of an error, of no request; it points into itself. */
struct error_frame {
    Nvllm__V1__ServerFrame frame;
    Nvllm__V1__Error error;
    struct refusal refusal;
};
const ProtobufCMessage *reply_error_frame(struct error_frame *f, const struct refusal *e);

/* A text for a message: protobuf-c wants it writable, packing only reads it. */
static inline char *reply_text(const char *s)
{
    return (char *)(uintptr_t)s;
}

Nvllm__V1__ErrorCode reply_error_code(enum engine_error error);

#endif
