/* pack.h - takes a program's structs, and converts requests to protobuf structures that point at
 * the program's own data.
 *
 * memory is of unpacked_new(); NULL is refused as out of memory. */
#ifndef NVLLM_CLIENT_LIB_PACK_H
#define NVLLM_CLIENT_LIB_PACK_H

#include <string.h>

#include "client/lib/nvllm_client.h"
#include "proto/nvllm.pb-c.h"
#include "proto/unpack.h"

/* These fill *out, whose parts live as long as memory and the arguments. Only what cannot be
 * encoded is refused here: the daemon checks values. *ours: the request with all members that this
 * library knows. */
enum nvllm_code pack_generate(struct unpacked *memory, Nvllm__V1__Generate *out,
                              struct nvllm_request *ours, const struct nvllm_request *request,
                              struct nvllm_error *err);
enum nvllm_code pack_chat(struct unpacked *memory, Nvllm__V1__Chat *out,
                          const struct nvllm_chat *chat, struct nvllm_error *err);

/* The input of a request (or of what has the same members), and its cache_salt, of a message whose
 * oneof has the cases prompt, prompt_ids and chat. NVLLM_E_INVALID unless exactly one is given. */
enum nvllm_code pack_input(struct unpacked *memory, ProtobufCMessage *out,
                           const struct nvllm_request *in, struct nvllm_error *err);

/* A number that is absent if it is negative. */
enum nvllm_code pack_count(protobuf_c_boolean *has, uint32_t *out, int64_t value, const char *field,
                           struct nvllm_error *err);
enum nvllm_code pack_priority(protobuf_c_boolean *has, Nvllm__V1__Priority *out,
                              enum nvllm_priority priority, struct nvllm_error *err);

ProtobufCBinaryData pack_bytes(struct nvllm_text text);

/* ---- public structs that begin with their size: a program built with an older or newer library
 * may pass a shorter or longer one */

/* Writes our defaults into a program's struct of size bytes. */
static inline void sized_give(void *theirs, size_t size, const void *ours, size_t our_size)
{
    memset(theirs, 0, size);
    memcpy(theirs, ours, size < our_size ? size : our_size);
    memcpy(theirs, &size, sizeof(size));
}

/* Copies a program's struct, unless NULL, over our defaults. False if it was never initialised. */
static inline bool sized_take(void *ours, size_t our_size, const void *theirs)
{
    size_t size;

    if (!theirs)
        return true;
    memcpy(&size, theirs, sizeof(size));
    if (size < 2 * sizeof(size))
        return false;
    memcpy(ours, theirs, size < our_size ? size : our_size);
    memcpy(ours, &our_size, sizeof(our_size));
    return true;
}

#endif
