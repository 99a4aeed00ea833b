/* pack.h - what a program asks for, as protobuf structures that point at the program's own data. */
#ifndef NVLLM_CLIENT_PACK_H
#define NVLLM_CLIENT_PACK_H

#include "client/nvllm_client.h"
#include "proto/nvllm.pb-c.h"

/* The memory of one request's structures. Zero-initialise. */
struct pack {
    struct pack_piece *pieces;
};

void pack_deinit(struct pack *p);

/* Fill *out, whose parts live as long as p and what was passed in. Only what cannot be packed is
 * refused here: judging values is the daemon's. */
enum nvllm_code pack_generate(struct pack *p, Nvllm__V1__Generate *out,
                              const struct nvllm_request *request, struct nvllm_error *err);
enum nvllm_code pack_chat(struct pack *p, Nvllm__V1__Chat *out, const struct nvllm_chat *chat,
                          struct nvllm_error *err);

ProtobufCBinaryData pack_bytes(struct nvllm_text text);

#endif
