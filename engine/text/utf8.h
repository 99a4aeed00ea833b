/* utf8.h - reads and writes UTF-8 one character at a time. Invalid bytes are delimited as Unicode
 * recommends, one U+FFFD for each maximal subpart. No tables, no allocation. */
#ifndef NVLLM_ENGINE_TEXT_UTF8_H
#define NVLLM_ENGINE_TEXT_UTF8_H

#include <stddef.h>
#include <stdint.h>
#include <utf8proc.h>

enum { UTF8_REPLACEMENT = 0xfffd, UTF8_BROKEN = 0x110000 };

#define UTF8_REPLACEMENT_BYTES "\xef\xbf\xbd"

/* Reads the character at p[0..n), n > 0. Returns its length and sets *cp; for invalid bytes *cp is
 * UTF8_BROKEN and the length that of the maximal subpart. Returns 0 if the n bytes are only the
 * beginning of a character. */
static inline size_t utf8_read(const char *p, size_t n, uint32_t *cp)
{
    unsigned char c = (unsigned char)p[0];
    unsigned char low = 0x80, high = 0xbf; /* bounds of the second byte */
    size_t len;

    if (c < 0x80) {
        *cp = c;
        return 1;
    }
    *cp = UTF8_BROKEN;
    if (c < 0xc2 || c > 0xf4)
        return 1;
    len = c < 0xe0 ? 2 : c < 0xf0 ? 3 : 4;
    if (c == 0xe0)
        low = 0xa0; /* overlong */
    else if (c == 0xed)
        high = 0x9f; /* surrogates */
    else if (c == 0xf0)
        low = 0x90;
    else if (c == 0xf4)
        high = 0x8f; /* beyond U+10FFFF */

    uint32_t value = c & (0x7fu >> len);
    for (size_t i = 1; i < len; i++) {
        if (i >= n)
            return 0;
        unsigned char d = (unsigned char)p[i];
        if (d < low || d > high)
            return i;
        low = 0x80;
        high = 0xbf;
        value = value << 6 | (d & 0x3fu);
    }
    *cp = value;
    return len;
}

/* The length of the last character of p[0..n), n > 0, which is valid. */
static inline size_t utf8_last(const char *p, size_t n)
{
    size_t len = 1;

    while (len < n && ((unsigned char)p[n - len] & 0xc0) == 0x80)
        len++;
    return len;
}

/* The same as utf8_read() for text that is known to be valid. */
static inline size_t utf8_read_valid(const char *p, uint32_t *cp)
{
    return utf8_read(p, 4, cp);
}

/* Writes cp, a valid scalar value; returns its length, at most 4. */
static inline size_t utf8_write(char *p, uint32_t cp)
{
    return (size_t)utf8proc_encode_char((utf8proc_int32_t)cp, (utf8proc_uint8_t *)p);
}

#endif
