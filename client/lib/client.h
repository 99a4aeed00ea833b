/* client.h - struct nvllm_client: a connection, its socket, and the events not yet fetched.
 *
 * Shared by connect.c (how one comes to be), blocking.c (the calls that wait). */
#ifndef NVLLM_CLIENT_LIB_CLIENT_H
#define NVLLM_CLIENT_LIB_CLIENT_H

#include "client/lib/conn.h"

struct event_list {
    struct event *first, **last;
};

struct nvllm_client {
    int fd;
    bool out_broken; /* nothing more can be written; what the daemon said last can still be read */
    bool drained;    /* the socket had no more when it was looked at last */
    bool calling;    /* nvllm_generate()'s callback runs, whose event has to last */
    struct conn conn;
    struct event_list queue; /* that came while another was waited for; older than conn's own */
    struct event *current;   /* what was handed out last, where it has memory */
    size_t queue_bytes;
    size_t max_queue_bytes;
    int64_t
        greet_deadline; /* the daemon must have greeted by then; INT64_MAX: that is no concern */
    size_t n_open;      /* requests whose last event nvllm_next() has not handed out */
};

/* A client on a connected socket, which it takes over; it has not greeted. NULL: no memory, and fd
 * is left alone. */
struct nvllm_client *client_new(int fd, const struct nvllm_options *options);

/* Waits until the socket can do what is wanted, or for the client's own deadlines. False when the
 * caller's is over. */
bool client_wait(struct nvllm_client *c, int64_t deadline);

/* Reads once and writes, without waiting; what goes wrong is in conn.death. */
void client_pump(struct nvllm_client *c);

/* Writes what the socket takes. */
void client_flush(struct nvllm_client *c);

/* The oldest event, which is current now; NULL: none is here. */
struct event *client_take(struct nvllm_client *c);

/* The oldest event of one request, the others being kept; likewise. */
struct event *client_take_of(struct nvllm_client *c, uint64_t id);

/* The request that was just sent is one of nvllm_next(), until its end or its deadline (0: none).
 */
void client_open(struct nvllm_client *c, uint64_t id, int64_t deadline);

/* So many events of others were kept that no more are. */
static inline bool client_queue_full(const struct nvllm_client *c)
{
    return c->queue_bytes > c->max_queue_bytes;
}

/* NVLLM_E_INVALID while a callback runs: what takes events would take those it is called for. */
enum nvllm_code client_check_callback(const struct nvllm_client *c, struct nvllm_error *err);

/* Sends a short operation and waits for its one answer, *out, which is current then. */
enum nvllm_code client_call(struct nvllm_client *c, Nvllm__V1__ClientFrame *frame,
                            enum pending_kind kind, int timeout_ms, struct event **out,
                            struct nvllm_error *err);

#endif
