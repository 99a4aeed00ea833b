/* must.c - see must.h. */
#include "engine/util/must.h"

#include <stdio.h>
#include <stdlib.h>

void must_fail(const char *expr, const char *file, int line, const char *func)
{
    fprintf(stderr, "%s:%d: %s: must hold: %s\n", file, line, func, expr);
    abort();
}
