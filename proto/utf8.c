/* utf8.c - see utf8.h. The table is that of Unicode's "well-formed byte sequences": only the second
 * byte's range depends on the first. */
#include "proto/utf8.h"

#include <stdint.h>
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

/* Most texts are long runs of ASCII, or of three-byte characters: those take no table. */
bool utf8_valid(const void *data, size_t n)
{
    const uint8_t *p = data;
    size_t i = 0;

    while (i < n) {
        uint64_t eight;
        int step;

        while (n - i >= sizeof(eight)) {
            memcpy(&eight, p + i, sizeof(eight));
            if (eight & UINT64_C(0x8080808080808080))
                break;
            i += sizeof(eight);
        }
        while (n - i >= 3 && p[i] > 0xe0 && p[i] < 0xed && (p[i + 1] & 0xc0) == 0x80 &&
               (p[i + 2] & 0xc0) == 0x80)
            i += 3;
        if (i == n)
            break;
        step = utf8_step(p + i, n - i);
        if (step < 0)
            return false;
        i += (size_t)step;
    }
    return true;
}

void utf8_clean(char *s)
{
    size_t n = strlen(s);
    int step;

    for (size_t i = 0; i < n; i += (size_t)step) {
        step = utf8_step(s + i, n - i);
        if (step < 0) {
            s[i] = '?';
            step = 1;
        }
    }
}
