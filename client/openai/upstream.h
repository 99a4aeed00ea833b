/* upstream.h - the connection to nvllmd: made, and made again when nvllmd has gone.
 *
 * All requests share it. Each is a struct upstream_request in the caller's memory, whose function
 * is called for every event up to the last. No event comes from inside a call of this file. */
#ifndef NVLLM_CLIENT_OPENAI_UPSTREAM_H
#define NVLLM_CLIENT_OPENAI_UPSTREAM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/queue.h>

#include "client/lib/nvllm_client.h"

struct event_base;
struct upstream;

struct upstream_request {
    TAILQ_ENTRY(upstream_request) link;
    uint64_t id;
    bool to_cancel;
    /* After an event that is no delta the request has ended, and may be freed. What the event
     * points to is valid during the call. */
    void (*event)(struct upstream_request *q, const struct nvllm_event *event);
};

struct upstream_options {
    const char *socket_path; /* must outlive it */
    /* Called after events, and after the connection has gone (lost), in which all requests have
     * ended. */
    void (*after)(void *arg, bool lost);
    void *arg;
};

/* NULL: no memory. Connects when the loop runs. */
struct upstream *upstream_new(struct event_base *base, const struct upstream_options *options);
void upstream_free(struct upstream *u); /* takes NULL; ends all requests by an error */

/* Whether the first connection has been made, or could not be. */
bool upstream_tried(const struct upstream *u);

/* The model that nvllmd serves; NULL: there is no nvllmd, *err says why. */
const char *upstream_model(const struct upstream *u, struct nvllm_error *err);

/* These fill *err when they fail; then there is no event. */
bool upstream_generate(struct upstream *u, struct upstream_request *q,
                       const struct nvllm_request *request, struct nvllm_error *err);
bool upstream_embed(struct upstream *u, struct upstream_request *q,
                    const struct nvllm_embed_options *options, struct nvllm_error *err);
bool upstream_token_bytes(struct upstream *u, struct upstream_request *q, const int32_t *ids,
                          size_t n, struct nvllm_error *err);
bool upstream_status(struct upstream *u, struct upstream_request *q, struct nvllm_error *err);

/* Its last event follows soon. */
void upstream_cancel(struct upstream *u, struct upstream_request *q);

#endif
