/* text.h - bytes with their length, for prompts may contain NUL. */
#ifndef NVLLM_ENGINE_UTIL_TEXT_H
#define NVLLM_ENGINE_UTIL_TEXT_H

#include <stddef.h>

struct text {
    const char *data; /* not NUL-terminated; may be NULL when len is 0 */
    size_t len;       /* bytes */
};

/* Bytes [start, end) of a text. */
struct text_range {
    size_t start, end;
};

#endif
