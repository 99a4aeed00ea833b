/* event.h - one frame of the daemon, checked and converted to what the public header shows.
 *
 * It lives in the memory of the unpacked frame. */
#ifndef NVLLM_CLIENT_LIB_EVENT_H
#define NVLLM_CLIENT_LIB_EVENT_H

#include <sys/queue.h>

#include "client/lib/nvllm_client.h"
#include "proto/nvllm.pb-c.h"
#include "proto/unpack.h"

/* An operation, and the event that answers it; for generate, its deltas. */
#define OP(name)     NVLLM__V1__CLIENT_FRAME__OP_##name
#define ANSWER(name) NVLLM__V1__SERVER_FRAME__EVENT_##name

/* A request that has no terminal answer yet. */
struct pending {
    uint64_t id;
    int answer;         /* ANSWER(…): of generate its deltas, else the last one */
    uint32_t n_choices; /* of generate */
    bool open;          /* nvllm_next() returns its last event, and n_open counts it */
    bool abandoned;     /* answers are dropped */
    int64_t deadline;   /* of the monotonic clock, in ms; INT64_MAX: none */
    void *user_data;    /* of generate and embed */
    int64_t expires;    /* its deadline_ms, likewise: it counts while the request is held */
    uint8_t *frame;     /* [frame_bytes] packed, while it may be sent again; else NULL */
    size_t frame_bytes;
    bool held;           /* no daemon has it: it waits for the next one */
    bool asks;           /* the library's own get_status */
    enum nvllm_code end; /* not NVLLM_OK: the library ends it with this error */
};

struct event {
    STAILQ_ENTRY(event) next;
    struct unpacked *memory;
    bool open;                 /* as of the request */
    struct nvllm_event public; /* type is 0 if only a waiting call can get it */
    union {
        struct nvllm_delta delta;
        struct nvllm_done done;
        struct nvllm_embedding embedding;
        struct nvllm_tokens tokens;
        struct nvllm_text text;
        struct nvllm_status status;
        bool found; /* of cancel */
        struct nvllm_request_list requests;
        struct nvllm_blocks blocks;
        struct nvllm_cache cache;
        struct nvllm_cache_change cache_change;
        struct nvllm_sleep_change sleep_change;
        struct nvllm_explanation explanation;
        struct nvllm_change change;
        struct nvllm_reloaded reloaded;
        struct nvllm_trace trace;
        struct nvllm_traced traced;
        struct nvllm_session_info session_info;
        struct nvllm_session_list sessions;
        struct nvllm_session session;
    };
};

/* The event of a frame that answers `of`, which then owns memory. NULL for a kind of a newer
 * daemon, or with *err: NVLLM_E_NOMEM, or NVLLM_E_PROTOCOL if it does not fit the request. */
struct event *event_new(struct unpacked *memory, const struct pending *of, struct nvllm_error *err);
void event_free(struct event *e);

/* An error of the library that ends a request. NULL: no memory. */
struct event *event_error(const struct pending *of, const struct nvllm_error *error);

/* Its request has ended. */
static inline bool event_is_last(const struct event *e)
{
    return e->public.type != NVLLM_EVENT_DELTA && e->public.type != NVLLM_EVENT_TRACE;
}

/* Converts an error of the daemon. */
void event_read_error(struct nvllm_error *out, const Nvllm__V1__Error *in);

enum nvllm_state event_read_state(int wire_state);

#endif
