/* pack.h - converts requests to protobuf structures that point at the program's own data. */
#ifndef NVLLM_CLIENT_LIB_PACK_H
#define NVLLM_CLIENT_LIB_PACK_H

#include "client/lib/nvllm_client.h"
#include "proto/nvllm.pb-c.h"

/* The memory of one request's structures. Zero-initialise. */
struct pack {
    struct pack_piece *pieces;
};

void pack_deinit(struct pack *p);

/* Fill *out, whose parts live as long as p and the arguments. Only what cannot be encoded is
 * refused here: the daemon checks values. */
enum nvllm_code pack_generate(struct pack *p, Nvllm__V1__Generate *out, uint32_t *timeout_ms,
                              const struct nvllm_request *request, struct nvllm_error *err);
enum nvllm_code pack_chat(struct pack *p, Nvllm__V1__Chat *out, const struct nvllm_chat *chat,
                          struct nvllm_error *err);

/* The input of a request, a pin or an explain: one of three. */
struct pack_input {
    enum { PACK_PROMPT, PACK_PROMPT_IDS, PACK_CHAT } kind;
    ProtobufCBinaryData prompt;
    Nvllm__V1__TokenIds *prompt_ids;
    Nvllm__V1__Chat *chat;
};

/* NVLLM_E_INVALID unless exactly one of prompt, ids and chat is given. */
enum nvllm_code pack_input(struct pack *p, struct pack_input *out, struct nvllm_text prompt,
                           const int32_t *ids, size_t n_ids, const struct nvllm_chat *chat,
                           struct nvllm_error *err);

/* The same for a message whose oneof has these three cases, numbered from PREFIX##PROMPT on; o is
 * the struct with the arguments. Sets code. */
#define PACK_INPUT(code, p, out, oneof, PREFIX, o, err)                                            \
    do {                                                                                           \
        struct pack_input in;                                                                      \
                                                                                                   \
        code =                                                                                     \
            pack_input(p, &in, (o)->prompt, (o)->prompt_ids, (o)->n_prompt_ids, (o)->chat, err);   \
        if (code != NVLLM_OK)                                                                      \
            break;                                                                                 \
        (out)->oneof##_case = PREFIX##PROMPT + (in.kind - PACK_PROMPT);                            \
        if (in.kind == PACK_PROMPT)                                                                \
            (out)->prompt = in.prompt;                                                             \
        else if (in.kind == PACK_PROMPT_IDS)                                                       \
            (out)->prompt_ids = in.prompt_ids;                                                     \
        else                                                                                       \
            (out)->chat = in.chat;                                                                 \
    } while (0)

enum nvllm_code pack_salt(protobuf_c_boolean *has, ProtobufCBinaryData *out, struct nvllm_text salt,
                          struct nvllm_error *err);

ProtobufCBinaryData pack_bytes(struct nvllm_text text);

#endif
