/* utf8.c - see utf8.h, after Unicode's table of well-formed byte sequences: only the range of the
 * second byte depends on the first. */
#include "proto/utf8.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

int utf8_step(const void *data, size_t n)
{
    const uint8_t *p = data;
    uint8_t lo = 0x80, hi = 0xbf;
    int len;

    if (p[0] < 0x80)
        return 1;
    if (p[0] < 0xc2 || p[0] > 0xf4)
        return -1;
    len = p[0] < 0xe0 ? 2 : p[0] < 0xf0 ? 3 : 4;
    if (p[0] == 0xe0)
        lo = 0xa0;
    else if (p[0] == 0xed)
        hi = 0x9f;
    else if (p[0] == 0xf0)
        lo = 0x90;
    else if (p[0] == 0xf4)
        hi = 0x8f;
    for (int i = 1; i < len; i++) {
        if ((size_t)i >= n || p[i] < lo || p[i] > hi)
            return -i;
        lo = 0x80;
        hi = 0xbf;
    }
    return len;
}

bool utf8_steers(const void *p, int step)
{
    const unsigned char *c = p;

    return step < 1 || (step == 1 && (*c < 0x20 || *c == 0x7f)) ||
           (step == 2 && *c == 0xc2 && c[1] < 0xa0);
}

bool utf8_valid(const void *data, size_t n)
{
    const uint8_t *p = data; /* may be NULL if n is 0 */
    uint64_t eight;
    int step;

    for (size_t i = 0; i < n; i += (size_t)step) {
        step = sizeof(eight);
        if (n - i >= sizeof(eight)) { /* most texts are mostly ASCII */
            memcpy(&eight, p + i, sizeof(eight));
            if (!(eight & UINT64_C(0x8080808080808080)))
                continue;
        }
        step = utf8_step(p + i, n - i);
        if (step < 0)
            return false;
    }
    return true;
}

void utf8_clean(char *s)
{
    for (size_t n = strlen(s); n > 0;) {
        int step = utf8_step(s, n);
        size_t length = (size_t)abs(step);

        if (utf8_steers(s, step))
            memset(s, '?', length);
        s += length;
        n -= length;
    }
}
