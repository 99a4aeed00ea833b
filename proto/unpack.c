/* unpack.c - see unpack.h: an arena with a budget, as protobuf-c's allocator. */
#include "proto/unpack.h"

#include <stdalign.h>
#include <stdlib.h>
#include <string.h>

enum {
    ALIGN = alignof(max_align_t),
    FIRST_BYTES = 896, /* a token's event; with its head below 1,032 bytes, malloc's fast sizes */
    CHUNK_MAX_BYTES = 1 << 20,
};

struct chunk {
    struct chunk *next;
    size_t cap, used;
    alignas(max_align_t) uint8_t data[];
};

struct unpacked {
    ProtobufCMessage *message;
    struct chunk *chunks; /* newest first, ending with first; only the newest has room */
    size_t bytes;
    size_t budget; /* for bytes, while the message is unpacked */
    int error;     /* of an allocation: UNPACK_E_BUDGET or UNPACK_E_NOMEM */
    struct chunk first;
};

/* Rounds up to the alignment; false if n is absurd. */
static bool round_up(size_t *n)
{
    if (*n > SIZE_MAX / 4)
        return false;
    *n = *n ? (*n + ALIGN - 1) & ~(size_t)(ALIGN - 1) : ALIGN;
    return true;
}

/* n is rounded up. */
static void *arena_take(struct unpacked *u, size_t n)
{
    struct chunk *c = u->chunks;
    void *p;

    if (c->cap - c->used < n) {
        size_t cap = c->cap < CHUNK_MAX_BYTES / 2 ? 2 * c->cap : CHUNK_MAX_BYTES;

        if (cap < n)
            cap = n;
        c = malloc(sizeof(*c) + cap);
        if (!c)
            return NULL;
        *c = (struct chunk){.next = u->chunks, .cap = cap};
        u->chunks = c;
    }
    p = c->data + c->used;
    c->used += n;
    u->bytes += n;
    return p;
}

static void *budget_alloc(void *ctx, size_t n)
{
    struct unpacked *u = ctx;
    void *p;

    if (!round_up(&n) || n > u->budget - u->bytes) {
        u->error = UNPACK_E_BUDGET;
        return NULL;
    }
    p = arena_take(u, n);
    if (!p)
        u->error = UNPACK_E_NOMEM;
    return p;
}

/* The arena is freed as a whole. */
static void budget_free(void *ctx, void *p)
{
    (void)ctx;
    (void)p;
}

struct unpacked *unpacked_new(void)
{
    struct unpacked *u = malloc(sizeof(*u) + FIRST_BYTES);

    if (!u)
        return NULL;
    *u = (struct unpacked){.chunks = &u->first, .first.cap = FIRST_BYTES};
    return u;
}

int unpack_within(struct unpacked **out, const ProtobufCMessageDescriptor *type,
                  const uint8_t *data, size_t n, size_t budget)
{
    struct unpacked *u = unpacked_new();
    ProtobufCAllocator allocator = {budget_alloc, budget_free, u};
    int r;

    if (!u)
        return UNPACK_E_NOMEM;
    u->budget = budget;
    u->message = protobuf_c_message_unpack(type, &allocator, n, data);
    if (!u->message) {
        r = u->error ? u->error : UNPACK_E_INVALID;
        unpacked_free(u);
        return r;
    }
    *out = u;
    return UNPACK_OK;
}

int unpack(struct unpacked **out, const ProtobufCMessageDescriptor *type, const uint8_t *data,
           size_t n)
{
    if (n > (SIZE_MAX - UNPACK_BUDGET_BASE) / UNPACK_BUDGET_FACTOR)
        return UNPACK_E_BUDGET;
    return unpack_within(out, type, data, n, UNPACK_BUDGET_BASE + n * UNPACK_BUDGET_FACTOR);
}

/* ---- how much work a message is */

/* Memory per field, twice that of the largest message, and per number while its array grows. */
enum { FIELD_BYTES = 256, NUMBER_BYTES = 16 };

/* Average size of an encoded number: ids of the largest vocabularies have three bytes. Longer ones
 * count for more, since time depends on bytes. */
enum { NUMBER_WIRE_BYTES = 3 };

/* What a message may still contain. */
struct room {
    size_t fields, numbers;
};

/* Reads a varint; NULL if there is none. */
static const uint8_t *skip_varint(const uint8_t *p, const uint8_t *end, uint64_t *value)
{
    uint64_t v = 0;

    for (int shift = 0; p < end && shift < 70; shift += 7) {
        v |= (uint64_t)(*p & 0x7f) << (shift < 64 ? shift : 63);
        if (!(*p++ & 0x80)) {
            *value = v;
            return p;
        }
    }
    return NULL;
}

/* Reads a field's tag and the length of its value; NULL if it is malformed. */
static const uint8_t *read_field(const uint8_t *p, const uint8_t *end, uint64_t *tag, uint64_t *len)
{
    const uint8_t *value_end;
    uint64_t value;

    p = skip_varint(p, end, tag);
    if (!p)
        return NULL;
    switch (*tag & 7) {
    case PROTOBUF_C_WIRE_TYPE_VARINT:
        value_end = skip_varint(p, end, &value);
        *len = value_end ? (uint64_t)(value_end - p) : UINT64_MAX;
        break;
    case PROTOBUF_C_WIRE_TYPE_64BIT:
        *len = 8;
        break;
    case PROTOBUF_C_WIRE_TYPE_32BIT:
        *len = 4;
        break;
    case PROTOBUF_C_WIRE_TYPE_LENGTH_PREFIXED:
        p = skip_varint(p, end, len);
        break;
    default:
        return NULL;
    }
    return p && *len <= (uint64_t)(end - p) ? p : NULL;
}

/* Subtracts a message's fields and numbers from the room; false if it is exhausted. Malformed input
 * is left to unpacking. Types do not nest in themselves, so the recursion is shallow. */
static bool count_fields(const ProtobufCMessageDescriptor *type, const uint8_t *p, size_t n,
                         struct room *room)
{
    const uint8_t *end = p + n;
    uint64_t tag, len;

    for (; p < end; p += len) {
        const ProtobufCFieldDescriptor *f = NULL;

        if (room->fields == 0)
            return false;
        room->fields--;
        p = read_field(p, end, &tag, &len);
        if (!p)
            return true;
        if ((tag & 7) == PROTOBUF_C_WIRE_TYPE_LENGTH_PREFIXED && tag >> 3 <= UINT32_MAX)
            f = protobuf_c_message_descriptor_get_field(type, (unsigned)(tag >> 3));
        if (!f || f->type == PROTOBUF_C_TYPE_BYTES || f->type == PROTOBUF_C_TYPE_STRING)
            continue;
        if (f->type == PROTOBUF_C_TYPE_MESSAGE) {
            if (!count_fields(f->descriptor, p, (size_t)len, room))
                return false;
        } else {
            size_t least = (size_t)len / NUMBER_WIRE_BYTES, numbers = 0;

            for (size_t i = 0; i < len; i++)
                numbers += p[i] < 0x80; /* the last byte of a number */
            if (numbers < least)
                numbers = least;
            if (numbers > room->numbers)
                return false;
            room->numbers -= numbers;
        }
    }
    return true;
}

bool unpack_fits(const ProtobufCMessageDescriptor *type, const uint8_t *data, size_t n)
{
    struct room room = {UNPACK_MAX_FIELDS, UNPACK_MAX_NUMBERS};

    return count_fields(type, data, n, &room);
}

int unpack_request(struct unpacked **out, const ProtobufCMessageDescriptor *type,
                   const uint8_t *data, size_t n)
{
    struct room room = {UNPACK_MAX_FIELDS, UNPACK_MAX_NUMBERS};

    if (!count_fields(type, data, n, &room))
        return UNPACK_E_FIELDS;
    return unpack_within(out, type, data, n,
                         UNPACK_BUDGET_BASE + 2 * n +
                             (UNPACK_MAX_FIELDS - room.fields) * FIELD_BYTES +
                             (UNPACK_MAX_NUMBERS - room.numbers) * NUMBER_BYTES);
}

void unpacked_free(struct unpacked *u)
{
    struct chunk *next;

    if (!u)
        return;
    for (struct chunk *c = u->chunks; c != &u->first; c = next) {
        next = c->next;
        free(c);
    }
    free(u);
}

ProtobufCMessage *unpacked_message(const struct unpacked *u)
{
    return u->message;
}

void *unpacked_alloc(struct unpacked *u, size_t n, size_t size)
{
    size_t bytes;
    void *p;

    if (!u || __builtin_mul_overflow(n, size, &bytes) || !round_up(&bytes))
        return NULL;
    p = arena_take(u, bytes);
    return p ? memset(p, 0, bytes) : NULL;
}

void *unpacked_list(struct unpacked *u, void *pointers, size_t n, size_t size)
{
    char *elements = unpacked_alloc(u, n, size);
    void **p = unpacked_alloc(u, n, sizeof(*p));

    if (!elements || !p)
        return NULL;
    for (size_t i = 0; i < n; i++)
        p[i] = elements + i * size;
    memcpy(pointers, &p, sizeof(p));
    return elements;
}

size_t unpacked_bytes(const struct unpacked *u)
{
    return u->bytes;
}
