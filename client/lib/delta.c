/* delta.c - see delta.h. Fields come once each and in the order of their numbers, or this is not
 * the reader for them. */
#include "client/lib/delta.h"

#include <limits.h>

/* A field's number and wire type as one byte. */
enum {
    FRAME_ID = 1 << 3 | 0,
    FRAME_DELTA = 3 << 3 | 2,
    DELTA_CHOICE = 1 << 3 | 0,
    DELTA_TEXT = 2 << 3 | 2,
    DELTA_IDS = 3 << 3 | 2,
    DELTA_FINISH = 5 << 3 | 0,
};

struct cursor {
    const uint8_t *p, *end;
};

/* Longer ones are legal, and not read here. */
static bool read_varint(struct cursor *c, uint64_t *value, int max_bytes)
{
    uint64_t v = 0;

    for (int i = 0; i < max_bytes && c->p < c->end; i++) {
        uint8_t byte = *c->p++;

        v |= (uint64_t)(byte & 0x7f) << (7 * i);
        if (byte < 0x80) {
            *value = v;
            return true;
        }
    }
    return false;
}

static bool read_u32(struct cursor *c, uint32_t *value)
{
    uint64_t v;

    if (c->p < c->end && *c->p < 0x80) { /* choices, finish, most lengths */
        *value = *c->p++;
        return true;
    }
    if (!read_varint(c, &v, 5) || v > UINT32_MAX)
        return false;
    *value = (uint32_t)v;
    return true;
}

static bool at_field(struct cursor *c, uint8_t field)
{
    if (c->p == c->end || *c->p != field)
        return false;
    c->p++;
    return true;
}

/* A length and so many bytes. */
static bool read_bytes(struct cursor *c, struct cursor *bytes)
{
    uint32_t n;

    if (!read_u32(c, &n) || n > (size_t)(c->end - c->p))
        return false;
    bytes->p = c->p;
    c->p = bytes->end = c->p + n;
    return true;
}

static bool read_ids(struct cursor c, int32_t *ids, size_t *n)
{
    size_t count = 0;

    if (c.end - c.p > DELTA_MAX_IDS)
        return false;
    while (c.p < c.end) {
        uint32_t id;

        if (!read_u32(&c, &id) || id > INT32_MAX)
            return false;
        ids[count++] = (int32_t)id;
    }
    *n = count;
    return true;
}

bool delta_read(struct delta *out, int32_t *ids, const uint8_t *frame, size_t n)
{
    struct cursor c = {frame, frame + n}, part;
    struct delta d = {0};

    if (!at_field(&c, FRAME_ID) || !read_varint(&c, &d.id, 9) || !at_field(&c, FRAME_DELTA) ||
        !read_bytes(&c, &part) || c.p != c.end)
        return false;
    c = part;
    if (at_field(&c, DELTA_CHOICE) && !read_u32(&c, &d.choice))
        return false;
    if (at_field(&c, DELTA_TEXT)) {
        if (!read_bytes(&c, &part))
            return false;
        d.text = (const char *)part.p;
        d.text_len = (size_t)(part.end - part.p);
    }
    if (at_field(&c, DELTA_IDS)) {
        if (!read_bytes(&c, &part) || !read_ids(part, ids, &d.n_tokens))
            return false;
        d.token_ids = ids;
    }
    if (at_field(&c, DELTA_FINISH) && (!read_u32(&c, &d.finish) || d.finish > INT32_MAX))
        return false;
    if (c.p != c.end)
        return false;
    *out = d;
    return true;
}
