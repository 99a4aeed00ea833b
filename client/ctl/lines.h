/* lines.h - the lines of a file or pipe, one at a time, none longer than a limit. */
#ifndef NVLLM_CLIENT_CTL_LINES_H
#define NVLLM_CLIENT_CTL_LINES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct lines {
    int fd;
    char *data;
    size_t start, end, cap; /* data[start .. end) has been read and not taken */
    size_t searched;        /* of it, without a line's end */
    bool ended;             /* nothing more comes from fd */
    bool too_long;          /* the beginning of the next line has been passed over */
    uint64_t number;        /* of the line taken last, from 1 */
    uint64_t bytes;         /* taken so far */
};

enum { LINES_MAX_BYTES = 64 << 20 };

enum {
    LINES_OK,
    LINES_END,
    LINES_LATER,  /* no whole line is here now */
    LINES_E_LONG, /* a line over the limit has been passed over */
    LINES_E_READ, /* errno says why */
    LINES_E_NOMEM,
};

void lines_init(struct lines *l, int fd);
void lines_deinit(struct lines *l); /* does not close fd */

/* The next line, without its end; it holds until the next call. Waits for it if told to. */
int lines_next(struct lines *l, char **line, size_t *n, bool wait);

#endif
