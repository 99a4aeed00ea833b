/* connection.h - one client's socket: frames in, frames out, deadlines; nothing of what they mean.
 *
 * What is put is gathered and goes out in one write when the loop's wake-up is settled. A client
 * that leaves much unread is paused: nothing more is read from it until it has read half of that,
 * and if that takes too long it is a fault. Beyond a further limit connection_put() refuses.
 * Whose owner has had its part of the loop's time waits for the next round, one behind the other.
 * Callbacks but buffers and turn come from the loop or connections_flush(), never from within a
 * call of the others. Loop thread only.
 */
#ifndef NVLLM_DAEMON_CONNECTION_H
#define NVLLM_DAEMON_CONNECTION_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <event2/event.h>

#include "engine/util/list.h"
#include "proto/frame.h"

struct connection;

enum connection_fault {
    CONNECTION_TOO_LARGE, /* a frame over the limit */
    CONNECTION_GARBAGE,   /* no length of a frame */
    CONNECTION_TIMED_OUT, /* a frame, or the first, did not come in time */
    CONNECTION_SLOW,      /* paused for too long */
    CONNECTION_NO_MEMORY,
};

/* What the owner is told. settle comes last in each wake-up and is where connections may be freed;
 * buffers may come from within any call: the bytes that its buffers take have changed. */
struct connection_handler {
    void (*frame)(void *owner, const uint8_t *data, size_t n);
    void (*fault)(void *owner, enum connection_fault fault);
    void (*buffers)(void *owner, size_t input_bytes, size_t output_bytes);
    void (*settle)(void *shared);
    bool (*turn)(void *owner);   /* asked before each frame: may more be taken in this round? */
    void (*round)(void *shared); /* one begins: all that was there to be done has had its turn */
};

/* What all connections of a daemon share. */
struct connections {
    struct event_base *base;
    const struct connection_handler *handler;
    void *shared; /* for settle and round */
    uint32_t max_frame_bytes;
    size_t pause_bytes; /* unread, that pause it */
    size_t max_output_bytes;
    int slow_reader_s;
    int hello_timeout_s;
    int frame_timeout_s;
    struct list dirty; /* something was put, or the end is near */
    struct list gone;  /* to be freed; connections_next_gone */
    size_t n_gone;
    struct list waiting; /* for their turn, who waits longest first */
    struct event *again; /* a round of those is due */
};

/* Once base, handler and limits are there. -ENOMEM. */
int connections_init(struct connections *shared);
void connections_deinit(struct connections *shared);

enum {
    CONNECTION_OK,
    CONNECTION_E_SLOW,  /* more than max_output_bytes are unread: nothing was put */
    CONNECTION_E_LARGE, /* the message alone is more than that: likewise */
};

/* Takes fd over, success or not. -ENOMEM. */
int connection_new(struct connection **out, struct connections *shared, int fd, void *owner);
void connection_free(struct connection *c);

/* The first frame was good: from now on only frames that have begun have a deadline. */
void connection_greeted(struct connection *c);

/* Appends a message: CONNECTION_OK, CONNECTION_E_SLOW, CONNECTION_E_LARGE or -ENOMEM. Dropped
 * silently where the connection is ending. */
int connection_put(struct connection *c, const ProtobufCMessage *message);

/* Likewise, of a message that frame_body_pack() has packed but for the few fields of head. The body
 * is taken over where CONNECTION_OK comes back, else it is still the caller's. */
int connection_put_body(struct connection *c, const ProtobufCMessage *head, void *body,
                        size_t bytes);

/* What is not urgent should not be put now. */
bool connection_paused(const struct connection *c);

size_t connection_unread_bytes(const struct connection *c);

/* Whatever has been put goes out, message last where it is not NULL, then the connection is gone;
 * nothing more is read. A client that does not read is not waited for long. */
void connection_end(struct connection *c, const ProtobufCMessage *message);

/* Gone at once, with what is in its buffers. The message is sent where nothing else is unread, as
 * far as the socket takes it. */
void connection_drop(struct connection *c, const ProtobufCMessage *message);

/* Writes what has been put since the last call. */
void connections_flush(struct connections *shared);

/* The owner of a connection that is to be freed: the peer has left, or all is written after
 * connection_end(). NULL: there is none. */
void *connections_next_gone(const struct connections *shared);

#endif
