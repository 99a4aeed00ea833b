/* problems.c - see problems.h. */
#include "engine/util/problems.h"

#include <stdarg.h>

int problems_add(struct problems *p, int code, const char *fmt, ...)
{
    char text[sizeof(p->first.text)];
    struct err line;
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    err_set(&line, code, "%s", text); /* takes control characters out */
    if (p->n++ == 0) {
        p->code = code;
        p->first = line;
    }
    if (p->out)
        fprintf(p->out, "%s%s\n", p->lead ? p->lead : "", line.text);
    return code;
}
