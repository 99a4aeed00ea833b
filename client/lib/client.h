/* client.h - struct nvllm_client: a connection, its socket, and events not yet fetched.
 *
 * Shared by connect.c, which creates it, and blocking.c, whose calls wait. */
#ifndef NVLLM_CLIENT_LIB_CLIENT_H
#define NVLLM_CLIENT_LIB_CLIENT_H

#include "client/lib/conn.h"

struct event_list {
    struct event *first, **last;
};

struct nvllm_client {
    int fd;
    bool out_broken; /* writing has failed; what the daemon has sent can still be read */
    bool drained;    /* the last read emptied the socket */
    bool calling;    /* a callback of nvllm_generate() runs, whose event must stay valid */
    struct conn conn;
    struct event_list
        queue;             /* events received while waiting for another; older than those in conn */
    struct event *current; /* the event fetched last */
    size_t queue_bytes;
    size_t max_queue_bytes;
    int64_t greet_deadline; /* for the daemon's greeting; INT64_MAX: none */
    size_t n_open;          /* requests whose last event nvllm_next() has not returned */
};

/* Takes over fd, a connected socket; no greeting is sent. NULL: no memory, and fd stays open. */
struct nvllm_client *client_new(int fd, const struct nvllm_options *options);

/* Waits until the socket is ready, or for the client's own deadlines. False when the caller's
 * deadline has passed. */
bool client_wait(struct nvllm_client *c, int64_t deadline);

/* Reads once and writes, without waiting; errors are in conn.death. */
void client_pump(struct nvllm_client *c);

/* Writes as much as the socket takes. */
void client_flush(struct nvllm_client *c);

/* The oldest event, which becomes current; NULL: none. */
struct event *client_take(struct nvllm_client *c);

/* The oldest event of one request; other events are kept. */
struct event *client_take_of(struct nvllm_client *c, uint64_t id);

/* Makes the request just sent one of nvllm_next(), until it ends or its deadline (0: none) passes.
 */
void client_open(struct nvllm_client *c, uint64_t id, int64_t deadline);

/* No more events of other requests may be kept. */
static inline bool client_queue_full(const struct nvllm_client *c)
{
    return c->queue_bytes > c->max_queue_bytes;
}

/* NVLLM_E_INVALID while a callback runs: the call could take the events that the callback is for.
 */
enum nvllm_code client_check_callback(const struct nvllm_client *c, struct nvllm_error *err);

/* Sends a short operation and waits for its answer, which becomes current. *out, unless out is
 * NULL, is the member of the event's union that this kind of answer fills. */
enum nvllm_code client_call(struct nvllm_client *c, Nvllm__V1__ClientFrame *frame, int answer,
                            int timeout_ms, const void **out, struct nvllm_error *err);

#endif
