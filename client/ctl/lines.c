/* lines.c - see lines.h. */
#include "client/ctl/lines.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "client/ctl/ctl.h"

enum { FIRST_CAP = 64 << 10 };

void lines_init(struct lines *l, int fd)
{
    *l = (struct lines){.fd = fd};
}

void lines_deinit(struct lines *l)
{
    free(l->data);
    l->data = NULL;
}

/* Reads more input. LINES_OK also at the end of the file. */
static int fill(struct lines *l, bool wait)
{
    struct pollfd p = {.fd = l->fd, .events = POLLIN};
    ssize_t k;

    if (!wait && poll(&p, 1, 0) == 0)
        return LINES_LATER;
    if (l->start > 0 && l->end == l->cap) {
        memmove(l->data, l->data + l->start, l->end - l->start);
        l->end -= l->start;
        l->start = 0;
    }
    if (l->end == l->cap) {
        size_t cap = l->cap ? l->cap * 2 : FIRST_CAP;

        l->data = ctl_grow(l->data, cap, 1);
        l->cap = cap;
    }
    do {
        k = read(l->fd, l->data + l->end, l->cap - l->end);
    } while (k < 0 && errno == EINTR);
    if (k < 0 && errno == EAGAIN)
        return LINES_LATER; /* the descriptor is non-blocking */
    if (k < 0)
        return LINES_E_READ;
    l->ended = k == 0;
    l->end += (size_t)k;
    return LINES_OK;
}

/* The next newline after what was searched, or NULL. */
static char *find_end(struct lines *l)
{
    char *from = l->data + l->start + l->searched;
    char *at = l->data ? memchr(from, '\n', l->end - l->start - l->searched) : NULL;

    if (!at)
        l->searched = l->end - l->start;
    return at;
}

int lines_next(struct lines *l, char **line, size_t *n, bool wait)
{
    char *at;
    int rc;

    for (;;) {
        at = l->end > l->start ? find_end(l) : NULL;
        if (at || (l->ended && l->end > l->start))
            break;
        if (l->ended && !l->too_long)
            return LINES_END;
        if (l->ended)
            break;
        if (l->end - l->start > LINES_MAX_BYTES) { /* such a line is not kept */
            l->too_long = true;
            l->bytes += l->end - l->start;
            l->start = l->end = l->searched = 0;
        }
        rc = fill(l, wait);
        if (rc != LINES_OK)
            return rc;
    }
    *line = l->data + l->start;
    *n = (size_t)((at ? at : l->data + l->end) - *line);
    l->start += *n + (at != NULL);
    l->bytes += *n + (at != NULL);
    l->searched = 0;
    l->number++;
    rc = l->too_long || *n > LINES_MAX_BYTES ? LINES_E_LONG : LINES_OK;
    l->too_long = false;
    return rc;
}
