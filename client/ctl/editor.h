/* editor.h - lines of input: with editing and history on a terminal, or plain from a file or pipe.
 */
#ifndef NVLLM_CLIENT_CTL_EDITOR_H
#define NVLLM_CLIENT_CTL_EDITOR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct editor;

enum {
    EDITOR_OK,
    EDITOR_END,         /* end of input, or Ctrl-D */
    EDITOR_INTERRUPTED, /* what was typed is discarded */
    EDITOR_LATE,        /* the deadline is over */
    EDITOR_E_READ,      /* errno says why */
    EDITOR_E_LONG,      /* a line over the limit of lines.h was skipped */
};

/* ctl_catch_interrupts() must have been called. The deadline (-1: none) is for input. Ends the
 * program if there is no memory. */
void editor_new(struct editor **out, bool terminal, int64_t deadline);
void editor_free(struct editor *e);

/* The next line, without its newline; valid until the next call. The prompt is for a terminal. */
int editor_read(struct editor *e, const char *prompt, const char **line, size_t *n);

/* Adds a line to the history. */
void editor_remember(struct editor *e, const char *line);

#endif
