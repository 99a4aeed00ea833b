/* unpack.h - a packed message becomes a structure, in memory that is bounded by the bytes it came
 * in.
 *
 * A few bytes of a frame can stand for a structure of a hundred (a repeated message, empty), so
 * what unpacking may take is tied to the frame: UNPACK_BUDGET_BASE and UNPACK_BUDGET_FACTOR bytes
 * for each of the frame's. The hungriest honest frame, a chat of two-letter messages, takes 18 for
 * one; ids not packed, which the schema forbids, 42.
 *
 * Text of type string is not checked here: utf8.h does that. An unpacked message belongs to
 * whoever holds it and may be freed by any one thread. */
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
    UNPACK_MAX_NUMBERS = 1 << 19, /* in packed fields, of three bytes on average at most */
};

enum {
    UNPACK_OK,
    UNPACK_E_INVALID, /* the bytes are no such message */
    UNPACK_E_BUDGET,  /* it would take more memory than a frame of its size may */
    UNPACK_E_FIELDS,  /* it has more of them than a frame may: unpack_request() alone says so */
    UNPACK_E_NOMEM,
};

/* A message and all the memory it lives in. */
struct unpacked;

int unpack(struct unpacked **out, const ProtobufCMessageDescriptor *type, const uint8_t *data,
           size_t n);

/* As unpack(), for what strangers send to a loop that others wait for: a frame of many tiny fields
 * takes a time that its size does not tell, so there is a limit to them too, and one to packed
 * numbers, counted before anything is taken: within both a frame is unpacked in a few milliseconds.
 * The budget is tied to what was counted: a long text gives the fields beside it nothing to spend.
 */
int unpack_request(struct unpacked **out, const ProtobufCMessageDescriptor *type,
                   const uint8_t *data, size_t n);

/* unpack_request() does not say UNPACK_E_FIELDS of it: for who is about to send it. */
bool unpack_fits(const ProtobufCMessageDescriptor *type, const uint8_t *data, size_t n);

/* As unpack(), with a budget of the caller's. */
int unpack_within(struct unpacked **out, const ProtobufCMessageDescriptor *type,
                  const uint8_t *data, size_t n, size_t budget);

/* Frees the message and what unpacked_alloc gave, at once. Takes NULL. */
void unpacked_free(struct unpacked *u);

/* The message, of the type that was asked for; never for protobuf_c_message_free_unpacked(). */
ProtobufCMessage *unpacked_message(const struct unpacked *u);

/* Further memory with the message's life, zeroed and aligned for anything, outside the budget;
 * NULL when there is none or n * size is too large. */
void *unpacked_alloc(struct unpacked *u, size_t n, size_t size);

size_t unpacked_bytes(const struct unpacked *u); /* taken so far, unpacked_alloc included */

#endif
