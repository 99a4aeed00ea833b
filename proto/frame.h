/* frame.h - protobuf's delimited format: a varint length, then one message. It converts bytes to
 * frames and back, and does no I/O.
 *
 * A length is checked against the limit as soon as its digits exceed it, and memory is allocated
 * only for bytes that have arrived. A length must have its shortest encoding; length 0 is a frame
 * (an empty message), as every protobuf library writes it.
 *
 * Each object belongs to one thread. */
#ifndef NVLLM_PROTO_FRAME_H
#define NVLLM_PROTO_FRAME_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <protobuf-c/protobuf-c.h>

enum {
    FRAME_MAX_PREFIX = 5,          /* of the longest length, a uint32 */
    FRAME_DEFAULT_MAX = 4 << 20,   /* the daemon's default limit */
    FRAME_LARGEST_MAX = 512 << 20, /* the largest limit of a decoder */
};

/* Bytes in the order of a stream, the oldest at data + start. Zero-initialise. */
struct frame_buffer {
    uint8_t *data;
    size_t start, end, cap;
};

/* ---- from bytes to frames */

struct frame_decoder {
    struct frame_buffer held; /* received and not taken */
    uint32_t max_bytes;       /* of one frame, without its length prefix */
    int broken;               /* FRAME_E_… after an error in the stream */
};

enum {
    FRAME_OK,
    FRAME_MORE,        /* no whole frame is there */
    FRAME_E_TOO_LARGE, /* the length is over max_bytes; final */
    FRAME_E_PREFIX,    /* a length that is no uint32, or not in its shortest encoding; final */
};

/* max_bytes is 1 .. FRAME_LARGEST_MAX. */
void frame_decoder_init(struct frame_decoder *d, uint32_t max_bytes);
void frame_decoder_deinit(struct frame_decoder *d);

/* Adds bytes, copied. On -ENOMEM the decoder is unchanged. Take frames after each push: bytes that
 * are not taken are kept. Invalidates pointers from frame_decoder_take(). */
int frame_decoder_push(struct frame_decoder *d, const void *data, size_t n);

/* The next whole frame, without its length; valid until the next push, take or deinit. */
int frame_decoder_take(struct frame_decoder *d, const uint8_t **frame, size_t *n);

/* frame_decoder_take() would not return FRAME_MORE. */
bool frame_decoder_ready(const struct frame_decoder *d);

/* Part of a frame has been received. */
bool frame_decoder_partial(const struct frame_decoder *d);

/* ---- from messages to bytes */

void frame_buffer_deinit(struct frame_buffer *b);

/* Appends length and message. On -ENOMEM, or -EMSGSIZE over FRAME_LARGEST_MAX, nothing changes. */
int frame_buffer_put(struct frame_buffer *b, const ProtobufCMessage *message);

/* Packs the last fields of a message ahead, on any thread: *body is malloc'd. -ENOMEM, or -EMSGSIZE
 * for more than max_bytes. */
int frame_body_pack(void **body, size_t *bytes, const ProtobufCMessage *message, size_t max_bytes);

/* As frame_buffer_put(), with a packed body (NULL: none) behind the fields of message, which the
 * buffer owns on success, and -EMSGSIZE for a frame over max_bytes. */
int frame_buffer_put_body(struct frame_buffer *b, const ProtobufCMessage *message, void *body,
                          size_t n_body, size_t max_bytes);

static inline size_t frame_buffer_bytes(const struct frame_buffer *b)
{
    return b->end - b->start;
}

/* Removes n bytes, at most frame_buffer_bytes(), that have been written. */
void frame_buffer_consume(struct frame_buffer *b, size_t n);

#endif
