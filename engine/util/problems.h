/* problems.h - collects what a check of a model folder finds: opening a model needs the first
 * problem, a report all of them.
 *
 * Plain data on the caller's stack, zero-initialised; one thread. */
#ifndef NVLLM_ENGINE_UTIL_PROBLEMS_H
#define NVLLM_ENGINE_UTIL_PROBLEMS_H

#include <stdint.h>
#include <stdio.h>

#include "engine/util/err.h"

struct problems {
    FILE *out;        /* where each is printed as a line, or NULL */
    const char *lead; /* the beginning of such a line */
    int code;         /* negative errno of the first; 0: none */
    uint32_t n;
    struct err first;
};

/* Notes a problem and returns code. */
__attribute__((format(printf, 3, 4))) int problems_add(struct problems *p, int code,
                                                       const char *fmt, ...);

#endif
