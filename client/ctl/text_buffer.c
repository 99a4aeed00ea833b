/* text_buffer.c - see text_buffer.h. */
#include "client/ctl/text_buffer.h"

#include <stdlib.h>
#include <string.h>

#include "client/ctl/ctl.h"

static void no_memory(void)
{
    ctl_message("out of memory");
    exit(EXIT_ERROR);
}

void text_buffer_add(struct text_buffer *b, const char *data, size_t n)
{
    if (n > b->cap - b->len) {
        size_t cap = b->cap ? b->cap : 256;
        char *longer;

        while (cap - b->len < n)
            if (__builtin_mul_overflow(cap, (size_t)2, &cap))
                no_memory();
        longer = realloc(b->data, cap);
        if (!longer)
            no_memory();
        b->data = longer;
        b->cap = cap;
    }
    if (n)
        memcpy(b->data + b->len, data, n);
    b->len += n;
}

void text_buffer_deinit(struct text_buffer *b)
{
    free(b->data);
    *b = (struct text_buffer){0};
}
