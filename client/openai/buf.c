/* buf.c - see buf.h. */
#include "client/openai/buf.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto/utf8.h"

enum { FIRST_BYTES = 1024 };

static size_t held;

size_t buf_held(void)
{
    return held;
}

void buf_deinit(struct buf *b)
{
    held -= b->cap;
    free(b->data);
    *b = (struct buf){0};
}

void buf_consume(struct buf *b, size_t n)
{
    if (n == b->len) {
        buf_deinit(b);
        return;
    }
    memmove(b->data, b->data + n, b->len - n);
    b->len -= n;
}

char *buf_room(struct buf *b, size_t n)
{
    size_t cap = b->cap ? b->cap : FIRST_BYTES;
    char *data;

    if (b->failed)
        return NULL;
    if (n <= b->cap - b->len)
        return b->data + b->len;
    while (cap - b->len < n && cap <= SIZE_MAX / 2)
        cap *= 2;
    data = cap - b->len < n ? NULL : realloc(b->data, cap);
    if (!data) {
        b->failed = true;
        return NULL;
    }
    held += cap - b->cap;
    b->data = data;
    b->cap = cap;
    return data + b->len;
}

void buf_add(struct buf *b, const void *data, size_t n)
{
    char *room = buf_room(b, n);

    if (!room || n == 0)
        return;
    memcpy(room, data, n);
    b->len += n;
}

void buf_str(struct buf *b, const char *s)
{
    buf_add(b, s, strlen(s));
}

void buf_uint(struct buf *b, uint64_t n)
{
    char digits[20], *p = digits + sizeof(digits);

    do
        *--p = (char)('0' + n % 10);
    while ((n /= 10) > 0);
    buf_add(b, p, (size_t)(digits + sizeof(digits) - p));
}

void buf_printf(struct buf *b, const char *fmt, ...)
{
    va_list args, again;
    char *room;
    int n;

    va_start(args, fmt);
    va_copy(again, args);
    n = vsnprintf(NULL, 0, fmt, args);
    room = buf_room(b, (size_t)n + 1);
    if (room) {
        vsnprintf(room, (size_t)n + 1, fmt, again);
        b->len += (size_t)n;
    }
    va_end(again);
    va_end(args);
}

/* ---- JSON */

static void escape(struct buf *b, unsigned char c)
{
    static const char letters[] = "btn\0fr"; /* of 8, 9, 10, 12 and 13 */

    if (c == '"' || c == '\\')
        buf_printf(b, "\\%c", c);
    else if (c >= 8 && c <= 13 && letters[c - 8])
        buf_printf(b, "\\%c", letters[c - 8]);
    else
        buf_printf(b, "\\u%04x", c);
}

void buf_json(struct buf *b, const char *data, size_t n)
{
    size_t from = 0, i = 0;

    while (i < n) {
        unsigned char c = (unsigned char)data[i];
        int step;

        if (c >= 0x20 && c < 0x7f && c != '"' && c != '\\') {
            i++;
            continue;
        }
        step = c < 0x7f ? 0 : utf8_step(data + i, n - i); /* 0: to be escaped */
        if (step > 0) {
            i += (size_t)step;
            continue;
        }
        buf_add(b, data + from, i - from);
        if (step == 0)
            escape(b, c);
        else
            buf_lit(b, "\xef\xbf\xbd");
        i += step == 0 ? 1 : (size_t)-step;
        from = i;
    }
    buf_add(b, data + from, n - from);
}

void buf_json_string(struct buf *b, const char *data, size_t n)
{
    buf_lit(b, "\"");
    buf_json(b, data, n);
    buf_lit(b, "\"");
}

void buf_json_real(struct buf *b, double x)
{
    buf_printf(b, "%.7g", isfinite(x) ? x : -9999.0);
}
