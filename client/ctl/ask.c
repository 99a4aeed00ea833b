/* ask.c - see ask.h. */
#include "client/ctl/ask.h"

#include <errno.h>
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto/utf8.h"

enum { ANSWER_MS = 10000 };

int ctl_ask_ms(const struct ctl *ctl)
{
    return ctl->deadline < 0 ? ANSWER_MS : ctl_left_ms(ctl);
}

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

void ctl_put_line(FILE *to, const char *text, int max)
{
    size_t n = strlen(text);

    for (size_t i = 0; i < n;) {
        int step = utf8_step(text + i, n - i);
        bool steers = utf8_steers(text + i, step);

        step = step < 1 ? -step : step;
        if (max > 0 && i + (size_t)step > (size_t)max)
            break;
        if (steers)
            fputc(text[i] == '\n' || text[i] == '\t' || text[i] == '\r' ? ' ' : '?', to);
        else
            fwrite(text + i, 1, (size_t)step, to);
        i += (size_t)step;
    }
}

double ctl_percent(uint64_t part, uint64_t whole)
{
    return whole ? 100.0 * (double)part / (double)whole : 0;
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
        ctl_usage(ctl, "“%s” is no request's number: “nvllmctl requests” shows them", text);
    return number;
}
