/* frame.h - protobuf's delimited format: a varint length, then one message. Bytes in, frames out;
 * no input or output of its own.
 *
 * A length is checked against the limit as soon as its digits say too much, and memory is taken
 * only for bytes that have really come. A length must be written as short as it can be; length 0
 * is a frame (an empty message), as every protobuf library writes it.
 *
 * Each object belongs to one thread. */
#ifndef NVLLM_PROTO_FRAME_H
#define NVLLM_PROTO_FRAME_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <protobuf-c/protobuf-c.h>

enum {
    FRAME_MAX_PREFIX = 5,          /* bytes of the longest length, of a uint32 */
    FRAME_DEFAULT_MAX = 4 << 20,   /* what the daemon takes unless told otherwise */
    FRAME_LARGEST_MAX = 512 << 20, /* what a decoder may be told to take */
};

/* ---- from bytes to frames */

struct frame_decoder {
    uint8_t *data;
    size_t start, end, cap; /* data[start .. end) has come and is not taken */
    uint32_t max_bytes;     /* of one frame, its length prefix not counted */
    int broken;             /* FRAME_E_… once the stream cannot be understood any more */
};

enum {
    FRAME_OK,
    FRAME_MORE,        /* no whole frame is there */
    FRAME_E_TOO_LARGE, /* the length is over max_bytes; the stream cannot go on */
    FRAME_E_PREFIX,    /* a length that is no uint32, or not written shortest; likewise */
};

/* max_bytes is 1 .. FRAME_LARGEST_MAX. */
void frame_decoder_init(struct frame_decoder *d, uint32_t max_bytes);
void frame_decoder_deinit(struct frame_decoder *d);

/* Adds bytes, copied. -ENOMEM leaves the decoder as it was. Frames should be taken after each
 * push: what is pushed and not taken is kept. Pointers from frame_decoder_take end here. */
int frame_decoder_push(struct frame_decoder *d, const void *data, size_t n);

/* The next whole frame, without its length; it holds until the next push, take or deinit. */
int frame_decoder_take(struct frame_decoder *d, const uint8_t **frame, size_t *n);

/* frame_decoder_take() would not say FRAME_MORE. */
bool frame_decoder_ready(const struct frame_decoder *d);

/* A frame has begun and not ended. */
bool frame_decoder_partial(const struct frame_decoder *d);

/* ---- from messages to bytes */

/* Bytes on their way out, oldest at data + start. Zero-initialise. */
struct frame_buffer {
    uint8_t *data;
    size_t start, end, cap;
};

void frame_buffer_deinit(struct frame_buffer *b);

/* Appends length and packed message. -ENOMEM, or -EMSGSIZE for a message over FRAME_LARGEST_MAX:
 * the buffer is then as it was. */
int frame_buffer_put(struct frame_buffer *b, const ProtobufCMessage *message);

/* Likewise, with -EMSGSIZE already for a message of more than max_bytes. */
int frame_buffer_put_within(struct frame_buffer *b, const ProtobufCMessage *message,
                            size_t max_bytes);

/* ---- frames of which all but the first fields is packed ahead, by another thread */

enum { FRAME_HEAD_ROOM = 32 };

/* Makes *body of a message, malloc'd: FRAME_HEAD_ROOM bytes that are free, then the packed message;
 * *bytes are those of both. -ENOMEM, or -EMSGSIZE for a message of more than max_bytes. */
int frame_body_pack(void **body, size_t *bytes, const ProtobufCMessage *message, size_t max_bytes);

/* Appends a frame: the few fields of head, then the body, which belongs to the buffer from then on
 * and is not copied where that was empty. Errors as of frame_buffer_put_within(), the body is then
 * still the caller's. */
int frame_buffer_put_body(struct frame_buffer *b, const ProtobufCMessage *head, void *body,
                          size_t bytes, size_t max_bytes);

static inline size_t frame_buffer_bytes(const struct frame_buffer *b)
{
    return b->end - b->start;
}

/* n bytes, at most frame_buffer_bytes(), have been written. */
void frame_buffer_consume(struct frame_buffer *b, size_t n);

#endif
