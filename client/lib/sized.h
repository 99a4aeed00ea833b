/* sized.h - public structs that begin with their size: a program built with an older or newer
 * library may pass a shorter or longer one. */
#ifndef NVLLM_CLIENT_LIB_SIZED_H
#define NVLLM_CLIENT_LIB_SIZED_H

#include <stdbool.h>
#include <stddef.h>
#include <string.h>

/* Writes our defaults into a program's struct of size bytes. */
static inline void sized_give(void *theirs, size_t size, const void *ours, size_t our_size)
{
    memset(theirs, 0, size);
    memcpy(theirs, ours, size < our_size ? size : our_size);
    memcpy(theirs, &size, sizeof(size));
}

/* Copies a program's struct, unless it is NULL, over our defaults. False if it was never
 * initialised. */
static inline bool sized_take(void *ours, size_t our_size, const void *theirs)
{
    size_t size;

    if (!theirs)
        return true;
    memcpy(&size, theirs, sizeof(size));
    if (size < 2 * sizeof(size))
        return false;
    memcpy(ours, theirs, size < our_size ? size : our_size);
    memcpy(ours, &our_size, sizeof(our_size));
    return true;
}

#endif
