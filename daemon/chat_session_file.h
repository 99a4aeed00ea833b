/* chat_session_file.h - a chat session as the bytes of a file, and back.
 *
 * A file is 16 bytes of magic with the version, the XXH3-128 of what follows, and a SessionFile of
 * proto/session_file.proto. Reading takes any bytes: what is not such a file, or not consistent, is
 * refused. Pure. */
#ifndef NVLLM_DAEMON_CHAT_SESSION_FILE_H
#define NVLLM_DAEMON_CHAT_SESSION_FILE_H

#include <stddef.h>
#include <stdint.h>

#include <xxhash.h>

#include "daemon/chat_session.h"
#include "daemon/request.h"
#include "proto/nvllm.pb-c.h"
#include "proto/unpack.h"

enum { CHAT_SESSION_FILE_MAX = 1 << 30 }; /* bytes */

/* *data is malloc'ed. -ENOMEM; -EFBIG. */
int chat_session_pack(uint8_t **data, size_t *bytes, const struct chat_session *c,
                      XXH128_hash_t model);

/* What a file holds. */
struct chat_session_record {
    char name[CHAT_SESSION_NAME + 1];
    uint32_t uid;
    uint64_t created_us, used_us;
    struct conversation *talk; /* the caller's */
};

/* -EBADMSG with *e: it is damaged, of another version, or of another model; -ENOMEM. */
int chat_session_unpack(struct chat_session_record *out, const uint8_t *data, size_t bytes,
                        XXH128_hash_t model, const struct request_rules *rules, struct err *e);

/* Fills a message of the protocol with a chat's messages, or with all of it; *out points to what
 * the chat does and into u. -ENOMEM. */
int chat_session_fill_chat(Nvllm__V1__Chat *out, const struct chat *chat, struct unpacked *u);

#endif
