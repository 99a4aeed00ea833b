/* text_buffer.c - see text_buffer.h. */
#include "client/ctl/text_buffer.h"

#include <stdlib.h>
#include <string.h>

#include "client/ctl/ctl.h"

void text_buffer_add(struct text_buffer *b, const char *data, size_t n)
{
    if (n > b->cap - b->len) {
        b->cap = b->cap ? b->cap : 256;
        while (b->cap - b->len < n)
            if (__builtin_mul_overflow(b->cap, (size_t)2, &b->cap))
                ctl_no_memory();
        b->data = ctl_grow(b->data, b->cap, 1);
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
