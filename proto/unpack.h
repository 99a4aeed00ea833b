/* unpack.h - unpacks a message into memory that is bounded by the size of its frame.
 *
 * A few bytes of a frame can stand for a structure of a hundred (an empty repeated message), so the
 * budget depends on the frame: UNPACK_BUDGET_BASE, and UNPACK_BUDGET_FACTOR bytes per byte of the
 * frame. The most demanding legitimate frame, a chat of two-letter messages, takes 18 bytes per
 * byte; unpacked ids, which the schema forbids, 42.
 *
 * Strings are not checked here: see utf8.h. An unpacked message belongs to whoever holds it, and
 * any thread may free it. */
#ifndef NVLLM_PROTO_UNPACK_H
#define NVLLM_PROTO_UNPACK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <protobuf-c/protobuf-c.h>

enum {
    UNPACK_BUDGET_BASE = 64 << 10,
    UNPACK_BUDGET_FACTOR = 32,
    UNPACK_MAX_FIELDS = 1 << 14,  /* a chat of five thousand messages */
    UNPACK_MAX_NUMBERS = 1 << 20, /* in packed fields, of up to three bytes on average */
};

enum {
    UNPACK_OK,
    UNPACK_E_INVALID, /* the bytes are not such a message */
    UNPACK_E_BUDGET,  /* it would exceed the budget */
    UNPACK_E_FIELDS,  /* it has too many fields or numbers; only of unpack_request() */
    UNPACK_E_NOMEM,
};

/* A message and its memory. */
struct unpacked;

int unpack(struct unpacked **out, const ProtobufCMessageDescriptor *type, const uint8_t *data,
           size_t n);

/* As unpack(), for untrusted input of a loop that serves others: the time to unpack many tiny
 * fields does not follow from the size of their frame, so fields and packed numbers are counted and
 * limited before anything is allocated. Within the limits a frame unpacks in a few milliseconds.
 * The budget depends on the counts, so that a long text does not raise it. */
int unpack_request(struct unpacked **out, const ProtobufCMessageDescriptor *type,
                   const uint8_t *data, size_t n);

/* Whether unpack_request() accepts the counts: for the sender. */
bool unpack_fits(const ProtobufCMessageDescriptor *type, const uint8_t *data, size_t n);

/* As unpack(), with the caller's budget. */
int unpack_within(struct unpacked **out, const ProtobufCMessageDescriptor *type,
                  const uint8_t *data, size_t n, size_t budget);

/* Memory for unpacked_alloc() alone, without a message. NULL: out of memory. */
struct unpacked *unpacked_new(void);

/* Frees the message and memory of unpacked_alloc(). Takes NULL. */
void unpacked_free(struct unpacked *u);

/* The message, of the requested type; not for protobuf_c_message_free_unpacked(). */
ProtobufCMessage *unpacked_message(const struct unpacked *u);

/* Memory that is freed with the message, zeroed and aligned for any type, outside the budget; NULL
 * if there is none, n * size overflows or u is NULL. */
void *unpacked_alloc(struct unpacked *u, size_t n, size_t size);

/* n zeroed elements of a size and, in the pointer at pointers, an array of pointers to them. */
void *unpacked_list(struct unpacked *u, void *pointers, size_t n, size_t size);

size_t unpacked_bytes(const struct unpacked *u); /* allocated so far, unpacked_alloc() included */

#endif
