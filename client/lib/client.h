/* client.h - struct nvllm_client: a connection, its socket, and events not yet fetched. */
#ifndef NVLLM_CLIENT_LIB_CLIENT_H
#define NVLLM_CLIENT_LIB_CLIENT_H

#include <sys/queue.h>

#include "client/lib/conn.h"

struct nvllm_client {
    int fd;
    char *socket_path; /* NULL: the client does not connect again */
    char *name;
    bool wait_start;
    int timeout_ms;       /* for the next daemon to listen */
    int64_t reconnect_at; /* the next attempt, not before this time */
    int64_t give_up_at;   /* INT64_MAX: not trying */
    bool idle_fd;         /* fd is nothing to read from, until the next attempt */
    bool out_broken;      /* writing has failed; what the daemon has sent can still be read */
    bool drained;         /* the last read emptied the socket */
    bool calling;         /* a callback of nvllm_generate() runs, whose event must stay valid */
    struct conn conn;
    STAILQ_HEAD(, event) queue; /* received while waiting for another; older than those in conn */
    size_t queue_bytes;
    struct event *current;  /* the event fetched last */
    int64_t greet_deadline; /* for the daemon's greeting; INT64_MAX: none */
    size_t n_open;          /* requests whose last event nvllm_next() has not returned */
};

/* Takes over fd, a connected socket; no greeting is sent. NULL: no memory, and fd stays open. */
struct nvllm_client *client_new(int fd, const struct nvllm_options *options);

/* The oldest event of a request, or of any with id 0; it becomes current. NULL: none has arrived.
 * Events of other requests are kept, up to max_queue_bytes. */
struct event *client_take(struct nvllm_client *c, uint64_t id);

/* Reads what has arrived, or waits for it, for the deadline (NVLLM_E_TIMEOUT) or for one of the
 * client's own. The error of a connection that has ended. */
enum nvllm_code client_wait(struct nvllm_client *c, int64_t deadline, struct nvllm_error *err);

/* Writes as much as the socket takes. */
void client_flush(struct nvllm_client *c);

/* Connects again after the end of the connection, if it is time for that; requests that wait for it
 * end where it fails. */
void client_reconnect(struct nvllm_client *c);

/* Sends an operation. The events of an open one are for nvllm_next(), until its deadline or end. */
enum nvllm_code client_send(struct nvllm_client *c, Nvllm__V1__ClientFrame *frame, bool open,
                            int64_t deadline, uint64_t *id, struct nvllm_error *err);

/* Sends a short operation and waits for its answer, which becomes current. *out, unless out is
 * NULL, is the member of the event's union that this kind of answer fills. */
enum nvllm_code client_call(struct nvllm_client *c, Nvllm__V1__ClientFrame *frame, int timeout_ms,
                            const void **out, struct nvllm_error *err);

#endif
