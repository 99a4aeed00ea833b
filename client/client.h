/* client.h - struct nvllm_client: a connection, its socket, and the events not yet fetched.
 *
 * Shared by connect.c (how one comes to be), blocking.c (the calls that wait). */
#ifndef NVLLM_CLIENT_CLIENT_H
#define NVLLM_CLIENT_CLIENT_H

#include "client/conn.h"

struct event_list {
    struct event *first, **last;
};

struct nvllm_client {
    int fd;
    bool out_broken; /* nothing more can be written; what the daemon said last can still be read */
    struct conn conn;
    struct event_list queue;  /* for nvllm_next() */
    struct event_list wanted; /* for the call that is waiting now */
    uint64_t wanted_id;       /* its request; 0: none */
    struct event *current;    /* what was handed out last */
    size_t queue_bytes;       /* of both lists */
    size_t max_queue_bytes;
    size_t n_open; /* requests of generate whose last event has not been handed out */
};

/* A client on a connected socket, which it takes over; it has not greeted. NULL: no memory, and fd
 * is left alone. */
struct nvllm_client *client_new(int fd, const struct nvllm_options *options);

/* Waits until the socket can do what is wanted. False when the deadline is over. */
bool client_wait(const struct nvllm_client *c, int64_t deadline);

/* Reads and writes without waiting; what goes wrong is in conn.death. */
void client_pump(struct nvllm_client *c);

/* The oldest event of one of the lists, which is current now; NULL if it is empty. */
struct event *client_take(struct nvllm_client *c, struct event_list *l);

/* Nothing is waited for any more; drops what has come for it. */
void client_unwant(struct nvllm_client *c);

/* Sends a short operation and waits for its one answer, *out, which is current then. */
enum nvllm_code client_call(struct nvllm_client *c, Nvllm__V1__ClientFrame *frame,
                            enum pending_kind kind, int timeout_ms, struct event **out,
                            struct nvllm_error *err);

#endif
