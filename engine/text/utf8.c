/* utf8.c - see utf8.h. */
#include "engine/text/utf8.h"

#include <string.h>

bool utf8_is_valid(struct text text)
{
    uint32_t cp = 0;

    for (size_t i = 0; i < text.len && cp != UTF8_BROKEN;)
        i += utf8_read(text.data + i, text.len - i, &cp);
    return cp != UTF8_BROKEN;
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
