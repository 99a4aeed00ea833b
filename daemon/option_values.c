/* option_values.c - see option_values.h. */
#include "daemon/option_values.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

bool option_parse_whole(int64_t *out, const char *s, int base)
{
    char *end;
    long long v;

    if (*s < '0' || *s > '9')
        return false; /* no blanks, no signs */
    errno = 0;
    v = strtoll(s, &end, base);
    if (errno || *end)
        return false;
    *out = v;
    return true;
}

/* A whole number with K, M, G or T (powers of 1024), as "16M" or "16MiB". */
bool option_parse_bytes(int64_t *out, const char *s)
{
    static const char units[] = "KMGT";
    char *end;
    long long v;

    if (*s < '0' || *s > '9')
        return false;
    errno = 0;
    v = strtoll(s, &end, 10);
    if (errno)
        return false;
    if (*end) {
        const char *u = strchr(units, *end & ~0x20); /* either case */

        if (!u || (end[1] && strcmp(end + 1, "iB") != 0))
            return false;
        for (long i = u - units; i >= 0; i--)
            if (__builtin_mul_overflow(v, 1024LL, &v))
                return false;
    }
    *out = v;
    return true;
}

bool option_parse_memory(struct option_memory *out, const char *s)
{
    struct option_memory m = {0};
    size_t n = strlen(s);
    int64_t bytes;
    char *end;

    if (strcmp(s, "auto") == 0) {
        *out = m;
        return true;
    }
    if (*s < '0' || *s > '9')
        return false;
    if (strchr(s, '.') || s[n - 1] == '%') {
        m.fraction = strtod(s, &end);
        if (*end == '%') {
            m.fraction /= 100;
            end++;
        }
        if (*end || !(m.fraction > 0 && m.fraction <= 1))
            return false;
    } else {
        if (!option_parse_bytes(&bytes, s) || bytes <= 1)
            return false; /* 0 and 1: a fraction was meant, or nothing useful */
        m.bytes = (uint64_t)bytes;
    }
    *out = m;
    return true;
}

bool option_parse_choice(int64_t *out, const char *s, const char *names)
{
    size_t n = strlen(s);
    int64_t i = 0;

    for (const char *p = names;; i++) {
        const char *bar = strchrnul(p, '|');

        if ((size_t)(bar - p) == n && memcmp(p, s, n) == 0) {
            *out = i;
            return true;
        }
        if (!*bar)
            return false;
        p = bar + 1;
    }
}
