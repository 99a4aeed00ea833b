/* utf8.c - see utf8.h, after Unicode's table of well-formed byte sequences: only the range of the
 * second byte depends on the first. */
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

/* ---- whole texts
 *
 * A state machine whose state is a shift: the row of a byte holds the next state at the bit
 * position of the current one. A step is a load, which does not depend on the previous step, and a
 * shift, so that any text takes about a cycle per byte. */
enum state {
    BROKEN = 0, /* and stays so */
    WHOLE = 6,
    ONE = 12, /* more bytes to come */
    TWO = 18,
    THREE = 24,
    AFTER_E0 = 30, /* the range of the second byte is narrower */
    AFTER_ED = 36,
    AFTER_F0 = 42,
    AFTER_F4 = 48,
};

#define NEXT(from, to) ((uint64_t)(to) << (from))
#define TAIL           (NEXT(ONE, WHOLE) | NEXT(TWO, ONE) | NEXT(THREE, TWO))

static const uint64_t rows[256] = {
    [0x00 ... 0x7f] = NEXT(WHOLE, WHOLE),
    [0x80 ... 0x8f] = TAIL | NEXT(AFTER_ED, ONE) | NEXT(AFTER_F4, TWO),
    [0x90 ... 0x9f] = TAIL | NEXT(AFTER_ED, ONE) | NEXT(AFTER_F0, TWO),
    [0xa0 ... 0xbf] = TAIL | NEXT(AFTER_E0, ONE) | NEXT(AFTER_F0, TWO),
    [0xc2 ... 0xdf] = NEXT(WHOLE, ONE),
    [0xe0] = NEXT(WHOLE, AFTER_E0),
    [0xe1 ... 0xec] = NEXT(WHOLE, TWO),
    [0xed] = NEXT(WHOLE, AFTER_ED),
    [0xee ... 0xef] = NEXT(WHOLE, TWO),
    [0xf0] = NEXT(WHOLE, AFTER_F0),
    [0xf1 ... 0xf3] = NEXT(WHOLE, THREE),
    [0xf4] = NEXT(WHOLE, AFTER_F4),
};

bool utf8_steers(const void *p, int step)
{
    const unsigned char *c = p;

    return step < 1 || (step == 1 && (*c < 0x20 || *c == 0x7f)) ||
           (step == 2 && *c == 0xc2 && c[1] < 0xa0);
}

bool utf8_valid(const void *data, size_t n)
{
    const uint8_t *p = data;       /* may be NULL if n is 0 */
    uint64_t state = WHOLE, eight; /* its low six bits are the state */
    size_t i = 0;

    for (; n - i >= sizeof(eight); i += sizeof(eight)) {
        memcpy(&eight, p + i, sizeof(eight));
        if ((eight & UINT64_C(0x8080808080808080)) || (state & 63) != WHOLE)
            for (size_t k = 0; k < sizeof(eight); k++)
                state = rows[p[i + k]] >> (state & 63);
        if ((state & 63) == BROKEN)
            return false;
    }
    for (; i < n; i++)
        state = rows[p[i]] >> (state & 63);
    return (state & 63) == WHOLE;
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
