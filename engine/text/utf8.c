/* utf8.c - see utf8.h. */
#include "engine/text/utf8.h"

#include <string.h>

bool utf8_is_valid(struct text text)
{
    const uint64_t high_bits = 0x8080808080808080;
    size_t i = 0;

    while (i < text.len) {
        uint64_t eight;
        uint32_t cp;
        size_t len;

        if (text.len - i >= sizeof(eight)) {
            memcpy(&eight, text.data + i, sizeof(eight));
            if (!(eight & high_bits)) {
                i += sizeof(eight);
                continue;
            }
        }
        len = utf8_read(text.data + i, text.len - i, &cp);
        if (!len || cp == UTF8_BROKEN)
            return false;
        i += len;
    }
    return true;
}

size_t utf8_repair(char *out, struct text text)
{
    size_t n = 0;

    for (size_t i = 0; i < text.len;) {
        uint32_t cp;
        size_t len = utf8_read(text.data + i, text.len - i, &cp);

        if (!len)
            len = text.len - i; /* incomplete at the end */
        if (cp == UTF8_BROKEN) {
            memcpy(out + n, UTF8_REPLACEMENT_BYTES, 3);
            n += 3;
        } else {
            memcpy(out + n, text.data + i, len);
            n += len;
        }
        i += len;
    }
    return n;
}
