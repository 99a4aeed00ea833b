/* buf.h - a growing buffer of bytes, and JSON text written into it.
 *
 * Where memory runs out, `failed` is set and later additions are dropped: whoever uses the bytes
 * looks at it once, at the end. The bytes of all buffers are counted, for the program's limit. */
#ifndef NVLLM_CLIENT_OPENAI_BUF_H
#define NVLLM_CLIENT_OPENAI_BUF_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct buf { /* zeroed: empty */
    char *data;
    size_t len, cap;
    bool failed;
};

void buf_deinit(struct buf *b);            /* also empties it, for use again */
void buf_consume(struct buf *b, size_t n); /* drops the first n bytes */
char *buf_room(struct buf *b, size_t n);   /* where n bytes fit behind the last one; NULL: failed */
void buf_add(struct buf *b, const void *data, size_t n);
void buf_str(struct buf *b, const char *s);
void buf_uint(struct buf *b, uint64_t n);
__attribute__((format(printf, 2, 3))) void buf_printf(struct buf *b, const char *fmt, ...);

/* A string constant, whose length the compiler knows. */
#define buf_lit(b, s) buf_add((b), "" s, sizeof(s) - 1)

/* What stands between the quotes of a JSON string. Invalid UTF-8 becomes U+FFFD. */
void buf_json(struct buf *b, const char *data, size_t n);
/* With the quotes. */
void buf_json_string(struct buf *b, const char *data, size_t n);
/* A number; what JSON has no number for becomes the lowest that clients expect, -9999. */
void buf_json_real(struct buf *b, double x);

size_t buf_held(void); /* bytes of all buffers */

#endif
