/* text_buffer.h - a growing text. */
#ifndef NVLLM_CLIENT_CTL_TEXT_BUFFER_H
#define NVLLM_CLIENT_CTL_TEXT_BUFFER_H

#include <stddef.h>

struct text_buffer {
    char *data;
    size_t len, cap;
};

/* Ends the program if there is no memory. */
void text_buffer_add(struct text_buffer *b, const char *data, size_t n);
void text_buffer_deinit(struct text_buffer *b);

#endif
