/* must.h - assertions of what only a bug in this program can break; active in release builds too.
 *
 * Never for input, files or the environment: those are errors (err.h). */
#ifndef NVLLM_ENGINE_UTIL_MUST_H
#define NVLLM_ENGINE_UTIL_MUST_H

#include <stdio.h>
#include <stdlib.h>

/* Prints file, line and expression to stderr and aborts. */
#define must(cond) ((cond) ? (void)0 : must_fail(#cond, __FILE__, __LINE__, __func__))

__attribute__((cold)) _Noreturn static inline void must_fail(const char *expr, const char *file,
                                                             int line, const char *func)
{
    fprintf(stderr, "%s:%d: %s: must hold: %s\n", file, line, func, expr);
    abort();
}

#endif
