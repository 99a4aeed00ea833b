/* lines.h - the lines of a file or pipe, one at a time, with a limit on their length. */
#ifndef NVLLM_CLIENT_CTL_LINES_H
#define NVLLM_CLIENT_CTL_LINES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct lines {
    int fd;
    char *data;
    size_t start, end, cap; /* data[start .. end) was read and not taken */
    size_t searched;        /* bytes of it that are known to hold no newline */
    bool ended;             /* end of file */
    bool too_long;          /* the beginning of the next line was dropped */
    uint64_t number;        /* of the line taken last, starting at 1 */
    uint64_t bytes;         /* taken so far */
};

enum { LINES_MAX_BYTES = 64 << 20 };

enum {
    LINES_OK,
    LINES_END,
    LINES_LATER,  /* no complete line is available */
    LINES_E_LONG, /* a line over the limit was skipped */
    LINES_E_READ, /* errno says why */
};

void lines_init(struct lines *l, int fd);
void lines_deinit(struct lines *l); /* does not close fd */

/* The next line, without its newline; valid until the next call. Waits for it if `wait`. */
int lines_next(struct lines *l, char **line, size_t *n, bool wait);

#endif
