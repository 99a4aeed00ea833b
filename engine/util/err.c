/* err.c - see err.h. */
#include "engine/util/err.h"

int err_set_va(struct err *e, int code, const char *fmt, va_list ap)
{
    vsnprintf(e->text, sizeof(e->text), fmt, ap);
    for (char *c = e->text; *c; c++)
        if ((unsigned char)*c < 0x20 || *c == 0x7f)
            *c = '?';
    return code;
}

int err_set(struct err *e, int code, const char *fmt, ...)
{
    va_list ap;

    if (!e)
        return code;
    va_start(ap, fmt);
    err_set_va(e, code, fmt, ap);
    va_end(ap);
    return code;
}

int problems_add(struct problems *p, int code, const char *fmt, ...)
{
    struct err line;
    va_list ap;

    va_start(ap, fmt);
    err_set_va(&line, code, fmt, ap);
    va_end(ap);
    if (p->n++ == 0) {
        p->code = code;
        p->first = line;
    }
    if (p->line)
        p->line(p->arg, "wrong", line.text);
    return code;
}

void problems_say(const struct problems *p, const char *level, const char *fmt, ...)
{
    struct err line;
    va_list ap;

    va_start(ap, fmt);
    err_set_va(&line, 0, fmt, ap);
    va_end(ap);
    if (p->line)
        p->line(p->arg, level, line.text);
}
