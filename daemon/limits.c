/* limits.c - see limits.h. */
#include "daemon/limits.h"

#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

enum {
    SOON_MS = 100,   /* requests end all the time */
    LATER_MS = 1000, /* connections last longer */
};

#define LIMIT_ROW(name, key, member, kind, min, max, fallback, code, retry_ms, unit, help)         \
    [LIMIT_##name] = {"limits." #key, offsetof(struct options, member), CODE(code), retry_ms, unit},

static const struct row {
    const char *option;
    size_t offset;
    Nvllm__V1__ErrorCode code;
    uint32_t retry_after_ms;
    const char *unit;
} table[N_LIMITS] = {LIMITS(LIMIT_ROW)};

const char *limit_option(enum limit l)
{
    return table[l].option;
}

uint64_t limit_value(const struct options *o, enum limit l)
{
    int64_t value;

    memcpy(&value, (const char *)o + table[l].offset, sizeof(value));
    return (uint64_t)value;
}

int limit_refuse_text(struct refusal *e, const struct options *o, enum limit l, const char *fmt,
                      ...)
{
    char text[sizeof(e->message.text) / 2];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    *e = (struct refusal){
        .code = table[l].code,
        .limit = table[l].option,
        .limit_value = limit_value(o, l),
        .retry_after_ms = table[l].retry_after_ms,
    };
    return err_set(&e->message, -EINVAL, "%s (%s)", text, e->limit);
}

int limit_refuse(struct refusal *e, const struct options *o, enum limit l, const char *field,
                 uint64_t amount)
{
    limit_refuse_text(e, o, l, "%s%s%" PRIu64 " %s exceed the limit of %" PRIu64, field,
                      *field ? ": " : "", amount, table[l].unit, limit_value(o, l));
    snprintf(e->field, sizeof(e->field), "%s", field);
    return -EINVAL;
}

int refusal_of_field(struct refusal *e, Nvllm__V1__ErrorCode code, const char *field,
                     const char *fmt, ...)
{
    char text[sizeof(e->message.text)];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    *e = (struct refusal){.code = code};
    snprintf(e->field, sizeof(e->field), "%s", field);
    return err_set(&e->message, -EINVAL, "%s%s%s", field, *field ? ": " : "", text);
}
