/* checked.h - overflow-checked arithmetic on sizes that come from outside, true if it fits, and
 * growth of malloc'ed arrays. */
#ifndef NVLLM_ENGINE_UTIL_CHECKED_H
#define NVLLM_ENGINE_UTIL_CHECKED_H

#include <stdbool.h>
#include <stddef.h>
#include <stdlib.h>

static inline bool size_mul(size_t *out, size_t a, size_t b)
{
    return !__builtin_mul_overflow(a, b, out);
}

static inline bool size_add(size_t *out, size_t a, size_t b)
{
    return !__builtin_add_overflow(a, b, out);
}

/* Makes room for n elements of size bytes in the array to which *array, a pointer of any type,
 * points; by half as much again at least, so that appending takes constant time. False: no memory,
 * and nothing has changed. */
static inline bool array_reserve(void *array, size_t *cap, size_t n, size_t size)
{
    void **at = array, *grown;
    size_t bytes, more;

    if (n <= *cap)
        return true;
    if (!size_add(&more, n, n / 2 + 16) || !size_mul(&bytes, more, size))
        return false;
    grown = realloc(*at, bytes);
    if (!grown)
        return false;
    *at = grown;
    *cap = more;
    return true;
}

#endif
