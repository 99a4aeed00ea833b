/* editor.h - lines that somebody types: with editing and history on a terminal, else as they
 * come from a file or pipe. */
#ifndef NVLLM_CLIENT_CTL_EDITOR_H
#define NVLLM_CLIENT_CTL_EDITOR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct editor;

enum {
    EDITOR_OK,
    EDITOR_END,         /* of the input, or Ctrl-D */
    EDITOR_INTERRUPTED, /* what was typed so far is gone */
    EDITOR_LATE,        /* the deadline is over */
    EDITOR_E_READ,      /* errno says why */
    EDITOR_E_LONG,      /* a line over the limit of lines.h has been passed over */
};

/* Interrupts are to be caught already. Lines are waited for until the deadline (-1: none). Ends the
 * program when there is no memory. */
void editor_new(struct editor **out, bool terminal, int64_t deadline);
void editor_free(struct editor *e);

/* The next line, without its end; it holds until the next call. The prompt is for a terminal. */
int editor_read(struct editor *e, const char *prompt, const char **line, size_t *n);

/* Keeps a line for the arrow keys. */
void editor_remember(struct editor *e, const char *line);

#endif
