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

/* A prompt in one of three ways; the others are NULL. */
struct request_input {
    const ProtobufCBinaryData *prompt;
    const Nvllm__V1__TokenIds *ids;
    const Nvllm__V1__Chat *chat;
};

/* Of Generate, PinCache and Explain, whose oneofs name the three alike. */
#define REQUEST_INPUT(m, which, CASE)                                                              \
    {                                                                                              \
        .prompt = (m)->which == CASE##_PROMPT ? &(m)->prompt : NULL,                               \
        .ids = (m)->which == CASE##_PROMPT_IDS ? (m)->prompt_ids : NULL,                           \
        .chat = (m)->which == CASE##_CHAT ? (m)->chat : NULL,                                      \
    }

/* Fills the input of *out. A prompt must not be empty, ids must be of the vocabulary. */
int request_input(struct engine_request *out, const struct request_input *in, struct unpacked *u,
                  const struct request_rules *rules, struct refusal *e);

int request_salt(struct text *out, const ProtobufCBinaryData *salt,
                 const struct request_rules *rules, struct refusal *e);

/* Generate, Tokenize, Detokenize or Render of a frame: fills all of *out but id, client, owner and
 * its functions. admin: the client is an admin. An absent seed is drawn with getrandom(). -EINVAL
 * with *e, or -ENOMEM; *out is not to be used then. */
int request_start(struct engine_request *out, const Nvllm__V1__ClientFrame *f, struct unpacked *u,
                  const struct request_rules *rules, bool admin, uint64_t now_us,
                  struct refusal *e);

/* The tokens of its input, estimated for a text. */
uint64_t request_tokens(const struct engine_request *r);

#endif
