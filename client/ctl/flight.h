/* flight.h - many requests in flight at a time; what a busy daemon refuses is sent again. */
#ifndef NVLLM_CLIENT_CTL_FLIGHT_H
#define NVLLM_CLIENT_CTL_FLIGHT_H

#include "client/ctl/ctl.h"

/* The owner's request begins with it. */
struct flight_request {
    uint64_t id;           /* of a request in flight */
    int64_t not_before_ms; /* of one that waits to be sent again */
    int n_tries;
};

/* Its owner fills the first members. */
struct flight {
    struct ctl *ctl;
    void *owner;
    /* Starts it, each time that it is sent, and sets its id. */
    enum nvllm_code (*start)(void *owner, struct flight_request *r, struct nvllm_error *err);
    /* Takes a delta, or the end: done, an embedding or an error. NULL: it was not sent before
     * flight_stop(). */
    void (*take)(void *owner, struct flight_request *r, const struct nvllm_event *event);
    int max_tries; /* of a request that is refused */
    size_t limit;  /* requests in flight at a time, at most */
    bool adapts;   /* a refusal lowers the limit to what is in flight then */

    void *sent; /* search tree of requests in flight, by id */
    size_t n_sent;
    struct flight_request **waiting; /* [n_waiting] to be sent, in order */
    size_t n_waiting, cap;
    uint64_t n_refused;
    int64_t wake_ns;         /* arrival time of the events being taken: one per wake-up */
    struct nvllm_error dead; /* not NVLLM_OK: the connection has failed, and all have ended */
    bool stopping;
    int64_t stop_end;
};

/* Frees requests in flight, unless all have ended. */
void flight_deinit(struct flight *f);

/* Adds a request, which flight_send() sends. */
void flight_add(struct flight *f, struct flight_request *r);

/* The requests that have not ended. */
static inline size_t flight_count(const struct flight *f)
{
    return f->n_sent + f->n_waiting;
}

/* Sends what may be sent. Returns the milliseconds until it should be called again. */
int flight_send(struct flight *f);

/* Takes events, if some come in time or before also_fd (-1: none) is readable. */
void flight_wait(struct flight *f, int also_fd, int timeout_ms);

/* Cancels what is in flight, which should have ended by stop_end. */
void flight_stop(struct flight *f);

/* Ends all requests with an error. */
void flight_fail(struct flight *f, const struct nvllm_error *err);

#endif
