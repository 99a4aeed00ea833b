/* connection.h - one client's socket: frames in, frames out, deadlines; not what they mean.
 *
 * Messages are buffered and written together when the loop's wake-up is settled. A client with too
 * many unread bytes is paused: nothing is read from it until it has read half of them, and a pause
 * that lasts too long is a fault. Over a higher limit connection_put() refuses.
 * Owners share the loop's time in rounds: one that has used its quantum waits for the next round.
 * All callbacks but buffers and may_take come from the loop or connections_flush(). Loop thread
 * only. */
#ifndef NVLLM_DAEMON_CONNECTION_H
#define NVLLM_DAEMON_CONNECTION_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <event2/event.h>

#include "daemon/options.h"
#include "engine/util/list.h"
#include "proto/frame.h"

struct connection;

enum connection_fault {
    CONNECTION_TOO_LARGE, /* a frame over the limit */
    CONNECTION_GARBAGE,   /* not a frame length */
    CONNECTION_TIMED_OUT, /* a frame that began, or the first one, is late */
    CONNECTION_SLOW,      /* paused for too long */
    CONNECTION_NO_MEMORY,
};

/* Calls to the owner. settle comes last in each wake-up; connections may be freed there. buffers
 * may come from within any call: the size of the connection's buffers has changed. */
struct connection_handler {
    void (*frame)(void *owner, const uint8_t *data, size_t n);
    void (*fault)(void *owner, enum connection_fault fault);
    void (*buffers)(void *owner, size_t bytes);
    void (*settle)(void *ctx);
    bool (*may_take)(void *owner); /* before each frame: is the owner within its quantum? */
};

/* Shared by all connections of a daemon. */
struct connections {
    struct event_base *base;
    const struct connection_handler *handler;
    void *settle_ctx;
    const struct options *options; /* limits; a new frame_bytes is for new connections only */
    struct list dirty;             /* with something to write, or ending */
    struct list gone;              /* to be freed; connections_next_gone */
    struct list waiting;           /* for the next round, longest first */
    struct event *again;           /* starts the next round */
    uint64_t round;                /* its number */
};

/* Call it once base, handler and options are set. -ENOMEM. */
int connections_init(struct connections *shared);
void connections_deinit(struct connections *shared);

enum {
    CONNECTION_OK,
    CONNECTION_E_SLOW,  /* over limits.output_bytes are unread: nothing was put */
    CONNECTION_E_LARGE, /* the message alone is over limits.output_bytes */
};

/* Takes ownership of fd, also on failure. -ENOMEM. */
int connection_new(struct connection **out, struct connections *shared, int fd, void *owner);
void connection_free(struct connection *c);

/* Ends the deadline of the first frame; later frames have one once they have begun. */
void connection_greeted(struct connection *c);

/* Appends a message: CONNECTION_OK, CONNECTION_E_SLOW, CONNECTION_E_LARGE or -ENOMEM. A connection
 * that is ending drops it and returns CONNECTION_OK. Behind the message's fields may come a body of
 * frame_body_pack(), or NULL; on CONNECTION_OK the connection owns it. */
int connection_put(struct connection *c, const ProtobufCMessage *message, void *body, size_t bytes);

size_t connection_unread_bytes(const struct connection *c);

/* Stops reading, writes what is buffered and then the message, unless NULL, and closes. A client
 * that does not read is given a few seconds. */
void connection_end(struct connection *c, const ProtobufCMessage *message);

/* Closes at once and frees the buffers. The message is sent if no other is unread and it fits. */
void connection_drop(struct connection *c, const ProtobufCMessage *message);

/* Writes all buffered messages. */
void connections_flush(struct connections *shared);

/* The owner of a connection to free: the client has left, or connection_end() is done. Or NULL. */
void *connections_next_gone(const struct connections *shared);

#endif
