/* failing_malloc.h - an allocator for one test program that fails once where it is told to, and
 * counts what is not freed. Threads must not allocate at the same time. Not for builds with
 * sanitizers, which have an allocator of their own. */
#ifndef NVLLM_TESTS_UNIT_FAILING_MALLOC_H
#define NVLLM_TESTS_UNIT_FAILING_MALLOC_H

#include <errno.h>
#include <stdbool.h>
#include <stddef.h>

/* glibc's own, behind the names below. */
extern void *__libc_malloc(size_t n);
extern void *__libc_calloc(size_t n, size_t size);
extern void *__libc_realloc(void *p, size_t n);
extern void __libc_free(void *p);
/* Visible, so that libraries find these. */
#define EVERYWHERE __attribute__((visibility("default")))
EVERYWHERE void *malloc(size_t n);
EVERYWHERE void *calloc(size_t n, size_t size);
EVERYWHERE void *realloc(void *p, size_t n);
EVERYWHERE void free(void *p);

static int fails_in = -1; /* allocations until one fails; -1: none does */
static int n_failed_now;
static int n_live; /* allocations that have not been freed */

static bool fails(void)
{
    if (fails_in < 0 || fails_in-- > 0)
        return false;
    n_failed_now++;
    errno = ENOMEM;
    return true;
}

static void *counted(void *p)
{
    n_live += p != NULL;
    return p;
}

void *malloc(size_t n)
{
    return fails() ? NULL : counted(__libc_malloc(n));
}

void *calloc(size_t n, size_t size)
{
    return fails() ? NULL : counted(__libc_calloc(n, size));
}

void *realloc(void *p, size_t n)
{
    if (fails())
        return NULL;
    return p ? __libc_realloc(p, n) : counted(__libc_malloc(n));
}

void free(void *p)
{
    n_live -= p != NULL;
    __libc_free(p);
}

#endif
