/* option_values.c - see option_values.h. */
#include "daemon/option_values.h"

#include <errno.h>
#include <pwd.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>

/* A number and what follows it. */
static bool parse_digits(int64_t *out, const char *s, int base, char **end)
{
    if (*s < '0' || *s > '9')
        return false; /* no blanks, no signs */
    errno = 0;
    *out = strtoll(s, end, base);
    return errno == 0;
}

bool option_parse_whole(int64_t *out, const char *s, int base)
{
    char *end;

    return parse_digits(out, s, base, &end) && !*end;
}

bool option_parse_bytes(int64_t *out, const char *s)
{
    static const char units[] = "KMGT"; /* powers of 1024 */
    char *end;

    if (!parse_digits(out, s, 10, &end))
        return false;
    if (*end) {
        const char *u = strchr(units, *end & ~0x20); /* either case */

        if (!u || (end[1] && strcmp(end + 1, "iB") != 0))
            return false;
        for (long i = u - units; i >= 0; i--)
            if (__builtin_mul_overflow(*out, 1024, out))
                return false;
    }
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

/* By number or name. */
static bool parse_user(int64_t *out, const char *s)
{
    const struct passwd *p;

    if (option_parse_whole(out, s, 10) && *out < (uid_t)-1) /* (uid_t)-1 is nobody's */
        return true;
    p = getpwnam(s);
    if (!p)
        return false;
    *out = p->pw_uid;
    return true;
}

static int parse_share(struct shares *out, char *word, struct err *e)
{
    char *colon = strchr(word, ':');
    int64_t client, share;

    if (!colon)
        return err_set(e, -EINVAL, "scheduler.shares: \"%s\" is not USER:SHARE", word);
    *colon = '\0';
    if (!parse_user(&client, word))
        return err_set(e, -EINVAL, "scheduler.shares: there is no user \"%s\"", word);
    if (!option_parse_whole(&share, colon + 1, 10) || share < 1 || share > FAIR_MAX_SHARE)
        return err_set(e, -EINVAL, "scheduler.shares: \"%s\" is not a share from 1 to %d",
                       colon + 1, FAIR_MAX_SHARE);
    for (int32_t i = 0; i < out->n; i++)
        if (out->list[i].client == (uint64_t)client)
            return err_set(e, -EINVAL, "scheduler.shares: user \"%s\" is there twice", word);
    if (out->n == SHARES_MAX)
        return err_set(e, -EINVAL, "scheduler.shares: more than %d users", SHARES_MAX);
    out->list[out->n].client = (uint64_t)client;
    out->list[out->n++].share = (int32_t)share;
    return 0;
}

int option_parse_shares(struct shares *out, const char *text, struct err *e)
{
    char *copy = strdup(text), *at = copy, *word;
    struct shares shares;
    int r = 0;

    if (!copy)
        return err_set(e, -ENOMEM, "scheduler.shares: out of memory");
    memset(&shares, 0, sizeof(shares)); /* padding, too: options are compared as bytes */
    while (r == 0 && (word = strsep(&at, " \t")))
        if (*word)
            r = parse_share(&shares, word, e);
    free(copy);
    if (r == 0)
        *out = shares;
    return r;
}
