/* frame.c - see frame.h. */
#include "proto/frame.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum {
    FIRST_CAP = 512,
    KEEP_CAP = 4 << 10, /* larger buffers are freed once empty: most connections are idle */
};

/* Makes room for n more bytes at the end. The contents move to the front, at most two bytes for
 * each byte that has been consumed: a buffer that is nearly full of contents grows instead. */
static int make_room(struct frame_buffer *b, size_t n)
{
    size_t bytes = frame_buffer_bytes(b), grown = b->cap ? b->cap : FIRST_CAP, want;
    uint8_t *p;

    if (n <= b->cap - b->end)
        return 0;
    if (__builtin_add_overflow(bytes, n, &want))
        return -ENOMEM;
    if (want <= b->cap && b->start < bytes / 2)
        want = b->cap + 1;
    if (b->start && bytes)
        memmove(b->data, b->data + b->start, bytes);
    b->start = 0;
    b->end = bytes;
    if (want <= b->cap)
        return 0;
    while (grown < want)
        if (__builtin_mul_overflow(grown, (size_t)2, &grown))
            return -ENOMEM;
    p = realloc(b->data, grown); /* the kernel moves a large one without a copy */
    if (!p)
        return -ENOMEM;
    b->data = p;
    b->cap = grown;
    return 0;
}

/* Resets an empty buffer to its front, and frees a large one. */
static void when_empty(struct frame_buffer *b)
{
    if (b->start != b->end)
        return;
    b->start = b->end = 0;
    if (b->cap > KEEP_CAP) {
        free(b->data);
        b->data = NULL;
        b->cap = 0;
    }
}

void frame_decoder_init(struct frame_decoder *d, uint32_t max_bytes)
{
    assert(max_bytes > 0 && max_bytes <= FRAME_LARGEST_MAX);
    memset(d, 0, sizeof(*d));
    d->max_bytes = max_bytes;
}

void frame_decoder_deinit(struct frame_decoder *d)
{
    frame_buffer_deinit(&d->held);
    d->broken = 0;
}

int frame_decoder_push(struct frame_decoder *d, const void *data, size_t n)
{
    if (d->broken || n == 0)
        return 0; /* the stream cannot be decoded any further */
    when_empty(&d->held);
    if (make_room(&d->held, n) < 0)
        return -ENOMEM;
    memcpy(d->held.data + d->held.end, data, n);
    d->held.end += n;
    return 0;
}

/* Reads the length at p: FRAME_OK with *length and *prefix, FRAME_MORE, or FRAME_E_…. */
static int read_prefix(const uint8_t *p, size_t n, uint32_t max_bytes, uint32_t *length,
                       size_t *prefix)
{
    uint64_t value = 0;

    for (size_t i = 0; i < n && i < FRAME_MAX_PREFIX; i++) {
        value |= (uint64_t)(p[i] & 0x7f) << (7 * i);
        if (value > UINT32_MAX)
            return FRAME_E_PREFIX;
        if (value > max_bytes)
            return FRAME_E_TOO_LARGE; /* further digits only increase it */
        if (p[i] & 0x80)
            continue;
        if (i > 0 && p[i] == 0)
            return FRAME_E_PREFIX; /* padded with zero digits */
        *length = (uint32_t)value;
        *prefix = i + 1;
        return FRAME_OK;
    }
    return n < FRAME_MAX_PREFIX ? FRAME_MORE : FRAME_E_PREFIX;
}

/* What frame_decoder_take() would return, and the frame. */
static int peek(const struct frame_decoder *d, const uint8_t **frame, size_t *n)
{
    size_t bytes = frame_buffer_bytes(&d->held), prefix;
    const uint8_t *p;
    uint32_t length;
    int r;

    if (d->broken || bytes == 0)
        return d->broken ? d->broken : FRAME_MORE;
    p = d->held.data + d->held.start;
    r = read_prefix(p, bytes, d->max_bytes, &length, &prefix);
    if (r != FRAME_OK)
        return r;
    *frame = p + prefix;
    *n = length;
    return bytes - prefix < length ? FRAME_MORE : FRAME_OK;
}

int frame_decoder_take(struct frame_decoder *d, const uint8_t **frame, size_t *n)
{
    const uint8_t *next;
    size_t length;
    int r = peek(d, &next, &length);

    if (r == FRAME_OK) {
        *frame = next;
        *n = length;
        d->held.start = (size_t)(next - d->held.data) + length;
    } else if (r == FRAME_MORE) {
        /* The last frame is done with: it must not take memory while its sender is silent. */
        when_empty(&d->held);
    } else {
        d->held.start = d->held.end;
        d->broken = r;
    }
    return r;
}

bool frame_decoder_ready(const struct frame_decoder *d)
{
    const uint8_t *frame;
    size_t n;

    return peek(d, &frame, &n) != FRAME_MORE;
}

bool frame_decoder_partial(const struct frame_decoder *d)
{
    return frame_buffer_bytes(&d->held) > 0;
}

void frame_buffer_deinit(struct frame_buffer *b)
{
    free(b->data);
    memset(b, 0, sizeof(*b));
}

static size_t write_prefix(uint8_t *p, uint32_t length)
{
    size_t n = 0;

    for (; length >= 0x80; length >>= 7)
        p[n++] = (uint8_t)(length | 0x80);
    p[n++] = (uint8_t)length;
    return n;
}

int frame_buffer_put(struct frame_buffer *b, const ProtobufCMessage *message)
{
    return frame_buffer_put_body(b, message, NULL, 0, FRAME_LARGEST_MAX);
}

int frame_body_pack(void **body, size_t *bytes, const ProtobufCMessage *message, size_t max_bytes)
{
    size_t length = protobuf_c_message_get_packed_size(message);

    if (length > max_bytes)
        return -EMSGSIZE;
    *body = malloc(length + 1); /* an empty one, too, is not NULL */
    if (!*body)
        return -ENOMEM;
    *bytes = protobuf_c_message_pack(message, *body);
    return 0;
}

int frame_buffer_put_body(struct frame_buffer *b, const ProtobufCMessage *message, void *body,
                          size_t n_body, size_t max_bytes)
{
    size_t n_head = protobuf_c_message_get_packed_size(message), length;

    if (__builtin_add_overflow(n_head, n_body, &length) || length > FRAME_LARGEST_MAX ||
        length > max_bytes)
        return -EMSGSIZE;
    if (make_room(b, FRAME_MAX_PREFIX + length) < 0)
        return -ENOMEM;
    b->end += write_prefix(b->data + b->end, (uint32_t)length);
    b->end += protobuf_c_message_pack(message, b->data + b->end);
    if (body)
        memcpy(b->data + b->end, body, n_body);
    b->end += n_body;
    free(body);
    return 0;
}

void frame_buffer_consume(struct frame_buffer *b, size_t n)
{
    assert(n <= frame_buffer_bytes(b));
    b->start += n;
    when_empty(b);
}
