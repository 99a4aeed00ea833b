/* ask.c - see ask.h. */
#include "client/ctl/ask.h"

#include <errno.h>
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *ctl_user_name(char *out, size_t n, uint32_t uid)
{
    const struct passwd *user = getpwuid(uid);

    if (user)
        snprintf(out, n, "%s", user->pw_name);
    else
        snprintf(out, n, "%u", uid);
    return out;
}

double ctl_percent(uint64_t part, uint64_t whole)
{
    return whole ? 100.0 * (double)part / (double)whole : 0;
}

const char *ctl_duration(char *out, size_t n, uint64_t us)
{
    double s = (double)us / 1e6;

    if (s < 1)
        snprintf(out, n, "%.0f ms", s * 1000);
    else if (s < 60)
        snprintf(out, n, "%.1f s", s);
    else if (s < 3600)
        snprintf(out, n, "%.0f min", s / 60);
    else if (s < 2 * 86400)
        snprintf(out, n, "%.0f h", s / 3600);
    else
        snprintf(out, n, "%.0f d", s / 86400);
    return out;
}

json_t *ctl_json_count(uint64_t n)
{
    return json_integer(n <= INT64_MAX ? (json_int_t)n : INT64_MAX);
}

uint64_t ctl_request_number(const struct ctl *ctl, const char *text)
{
    unsigned long long number;
    char *end;

    errno = 0;
    number = strtoull(text, &end, 10);
    if (text[0] < '0' || text[0] > '9' || *end || errno || number == 0)
        ctl_usage(ctl, "“%s” is not the number of a request: see “nvllmctl requests”", text);
    return number;
}
