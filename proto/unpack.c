/* unpack.c - see unpack.h: an arena that counts, behind protobuf-c's allocator. */
#include "proto/unpack.h"

#include <stdalign.h>
#include <stdlib.h>
#include <string.h>

enum {
    ALIGN = alignof(max_align_t),
    CHUNK_BYTES = 2048, /* one ordinary request */
    CHUNK_MAX_BYTES = 1 << 20,
};

struct chunk {
    struct chunk *next;
    size_t cap, used;
    alignas(max_align_t) uint8_t data[];
};

struct unpacked {
    ProtobufCMessage *message;
    struct chunk *chunks; /* the newest first; only it has room */
    size_t bytes;
    size_t left; /* of the budget */
    size_t next; /* size of the next chunk */
    bool over;   /* a request was refused for the budget */
    bool no_memory;
};

static void *arena_take(struct unpacked *u, size_t n)
{
    struct chunk *c = u->chunks;
    size_t cap;
    void *p;

    if (!c || c->cap - c->used < n) {
        cap = n > u->next ? n : u->next;
        c = malloc(sizeof(*c) + cap);
        if (!c)
            return NULL;
        c->next = u->chunks;
        c->cap = cap;
        c->used = 0;
        u->chunks = c;
        if (u->next < CHUNK_MAX_BYTES)
            u->next *= 2;
    }
    p = c->data + c->used;
    c->used += n;
    u->bytes += n;
    return p;
}

/* Rounds up so that what follows is aligned; false when n is absurd. */
static bool round_up(size_t *n)
{
    if (*n > SIZE_MAX / 4)
        return false;
    *n = *n ? (*n + ALIGN - 1) & ~(size_t)(ALIGN - 1) : ALIGN;
    return true;
}

static void *budget_alloc(void *ctx, size_t n)
{
    struct unpacked *u = ctx;
    void *p;

    if (!round_up(&n) || n > u->left) {
        u->over = true;
        return NULL;
    }
    p = arena_take(u, n);
    if (!p) {
        u->no_memory = true;
        return NULL;
    }
    u->left -= n;
    return p;
}

/* All goes at once, with the arena. */
static void budget_free(void *ctx, void *p)
{
    (void)ctx;
    (void)p;
}

int unpack_within(struct unpacked **out, const ProtobufCMessageDescriptor *type,
                  const uint8_t *data, size_t n, size_t budget)
{
    ProtobufCAllocator allocator = {.alloc = budget_alloc, .free = budget_free};
    struct unpacked *u = calloc(1, sizeof(*u));
    int r;

    if (!u)
        return UNPACK_E_NOMEM;
    u->left = budget;
    u->next = CHUNK_BYTES;
    allocator.allocator_data = u;
    u->message = protobuf_c_message_unpack(type, &allocator, n, data);
    if (!u->message) {
        r = u->no_memory ? UNPACK_E_NOMEM : u->over ? UNPACK_E_BUDGET : UNPACK_E_INVALID;
        unpacked_free(u);
        return r;
    }
    *out = u;
    return UNPACK_OK;
}

int unpack(struct unpacked **out, const ProtobufCMessageDescriptor *type, const uint8_t *data,
           size_t n)
{
    size_t budget;

    if (__builtin_mul_overflow(n, (size_t)UNPACK_BUDGET_FACTOR, &budget) ||
        __builtin_add_overflow(budget, (size_t)UNPACK_BUDGET_BASE, &budget))
        return UNPACK_E_BUDGET;
    return unpack_within(out, type, data, n, budget);
}

void unpacked_free(struct unpacked *u)
{
    struct chunk *next;

    if (!u)
        return;
    for (struct chunk *c = u->chunks; c; c = next) {
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

    if (__builtin_mul_overflow(n, size, &bytes) || !round_up(&bytes))
        return NULL;
    p = arena_take(u, bytes);
    return p ? memset(p, 0, bytes) : NULL;
}

size_t unpacked_bytes(const struct unpacked *u)
{
    return u->bytes;
}
