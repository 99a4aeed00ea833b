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
/* The same in two parts: packs the frame but for the id, of at most most_bytes, -EMSGSIZE or
 * -ENOMEM; and puts it, after which *packed is empty. */
int reply_prepare(struct engine_packed *out, Nvllm__V1__ServerFrame__EventCase event, void *message,
                  size_t most_bytes);
int reply_put_packed(struct connection *c, uint64_t id, struct engine_packed *packed);
Nvllm__V1__FinishReason reply_finish(enum core_reason reason);
int reply_delta(struct connection *c, uint64_t id, const struct engine_event *ev);
int reply_done(struct connection *c, uint64_t id, const struct core_usage *usage);
int reply_prepare_done(struct engine_packed *out, const struct core_usage *usage);
int reply_embedding(struct connection *c, uint64_t id, const struct engine_event *ev);

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

/* *out points to what the call does. */
void reply_fill_call(Nvllm__V1__ToolCall *out, const struct chat_tool_call *call);

Nvllm__V1__ErrorCode reply_error_code(enum engine_error error);

#endif
