/* checked.h - overflow-checked arithmetic on sizes that come from outside: true if it fits. */
#ifndef NVLLM_ENGINE_UTIL_CHECKED_H
#define NVLLM_ENGINE_UTIL_CHECKED_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

static inline bool size_mul(size_t *out, size_t a, size_t b)
{
    return !__builtin_mul_overflow(a, b, out);
}

static inline bool size_add(size_t *out, size_t a, size_t b)
{
    return !__builtin_add_overflow(a, b, out);
}

static inline bool u64_mul(uint64_t *out, uint64_t a, uint64_t b)
{
    return !__builtin_mul_overflow(a, b, out);
}

#endif
