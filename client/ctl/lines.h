/* lines.h - lines of input, one at a time, with a limit on their length: of a file or pipe, or from
 * a terminal with editing and history. */
#ifndef NVLLM_CLIENT_CTL_LINES_H
#define NVLLM_CLIENT_CTL_LINES_H

#include "client/ctl/ctl.h"

struct lines {
    int fd;
    struct text_buffer in; /* what was read */
    size_t start;          /* what was taken of it */
    size_t searched;       /* bytes after that which are known to hold no newline */
    bool ended;            /* end of file */
    bool too_long;         /* the beginning of the next line was dropped */
    char *line;            /* [n] taken last, with a NUL in place of its newline */
    size_t n;
    uint64_t number; /* of that line, starting at 1 */
    uint64_t bytes;  /* taken so far */
};

enum { LINES_MAX_BYTES = 64 << 20 };

enum {
    LINES_OK,
    LINES_END,
    LINES_LATER,       /* no complete line is available */
    LINES_E_LONG,      /* a line over the limit was skipped */
    LINES_E_READ,      /* errno says why */
    LINES_INTERRUPTED, /* of an editor: what was typed is discarded */
    LINES_TIMEOUT,     /* of an editor: its deadline is over */
};

void lines_init(struct lines *l, int fd);
void lines_deinit(struct lines *l); /* does not close fd */

/* Takes the next line, valid until the next call. Waits for it if `wait`. */
int lines_next(struct lines *l, bool wait);

/* Whether the line holds anything but blanks. */
bool lines_has_text(const struct lines *l);

/* ---- the lines of stdin: edited on a terminal, or plain from a file or pipe */

struct editor;

/* ctl_catch_interrupts() must have been called. The deadline is for input. keep_history: with the
 * lines of earlier runs, from a file that only the user can read. */
struct editor *editor_new(bool terminal, bool keep_history, int64_t deadline);
void editor_free(struct editor *e);

/* The next line as lines_next() gives it, but never LINES_LATER. The prompt is for a terminal. */
int editor_read(struct editor *e, const char *prompt, const char **line, size_t *n);

/* The last line begins with what was pasted. */
bool editor_begins_pasted(const struct editor *e);

/* Adds a line to the history. */
void editor_remember(struct editor *e, const char *line);

#endif
