/* request.h - what a client asks for, checked field by field, becomes what the engine takes.
 *
 * Pure: no sockets, no engine calls, the time comes in. Every refusal names the field and what is
 * allowed. What the result points to lives in the unpacked message. */
#ifndef NVLLMD_REQUEST_H
#define NVLLMD_REQUEST_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/chat.h"
#include "engine/engine.h"
#include "proto/nvllm.pb-c.h"
#include "proto/unpack.h"

enum {
    REQUEST_MAX_CHOICES = 64,
    REQUEST_MAX_SALT_BYTES = 256,
};

/* What requests are measured against. */
struct request_rules {
    const struct model_defaults *defaults; /* for absent sampling fields */
    int32_t vocab_size;
    int32_t max_seq_len;
};

struct request_error {
    Nvllm__V1__ErrorCode code;
    char field[96];     /* "sampling.logit_bias" */
    struct err message; /* "sampling.logit_bias[3].id: is missing" */
};

/* Fills all of *out but id, client, owner and release. A seed that is absent is drawn with
 * getrandom(). -EINVAL with *e, or -ENOMEM. */
int request_generate(struct engine_request *out, const Nvllm__V1__Generate *g, struct unpacked *u,
                     const struct request_rules *rules, uint64_t now_us, struct request_error *e);

/* A chat of the protocol as chat.h has it. */
int request_chat(struct chat **out, const Nvllm__V1__Chat *c, struct unpacked *u, const char *field,
                 struct request_error *e);

int request_tokenize(struct text *out, const Nvllm__V1__Tokenize *t, struct request_error *e);

/* Ids of Detokenize: none negative. */
int request_detokenize(const Nvllm__V1__Detokenize *d, struct request_error *e);

/* The owner that the engine is given: an unpacked message whose bytes are counted while held. */
struct request_owner {
    struct unpacked *message;
    atomic_uint_fast64_t *held; /* the daemon's account */
    size_t bytes;
};

/* Takes the message over; NULL: no memory, the message is still the caller's. */
struct request_owner *request_owner_new(struct unpacked *u, atomic_uint_fast64_t *held);
void request_owner_release(void *owner); /* any thread */

#endif
