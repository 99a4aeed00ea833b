/* answer.h - the answer to one request of a client: events of nvllmd become JSON, at once or as
 * server-sent events.
 *
 * An answer may take several requests of nvllmd, one for each prompt. It belongs to itself: it is
 * freed when all of them have ended and the client has been answered or has gone. */
#ifndef NVLLM_CLIENT_OPENAI_ANSWER_H
#define NVLLM_CLIENT_OPENAI_ANSWER_H

#include "client/openai/gateway.h"

struct tokens;

struct answer_options {
    struct gateway *gateway;
    struct http_conn *conn;
    const struct nvllm_request *requests; /* [n_requests], alike but for the prompt */
    size_t n_requests;
    uint32_t n; /* choices of each */
    bool is_chat;
    bool stream, include_usage;
    bool logprobs;
};

/* Starts the requests. Whatever happens, the client gets an answer. */
void answer_start(const struct answer_options *options);

/* Goes on with answers that waited for the texts of tokens. */
void answers_resume(struct gateway *gateway);

/* Ends all answers in progress with an error. */
void answers_end(struct gateway *gateway, const struct api_error *why);
/* The daemon is gone, with the texts of tokens that answers wait for. */
void answers_lose_held(struct gateway *gateway);

#endif
