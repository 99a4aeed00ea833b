/* wrap.h - breaks text for a terminal between words, while it comes.
 *
 * A word is shown once it is complete. Lines of a fenced code block stay as they are. */
#ifndef NVLLM_CLIENT_CTL_WRAP_H
#define NVLLM_CLIENT_CTL_WRAP_H

#include "client/ctl/ctl.h"

struct wrap {
    int columns;   /* of the terminal */
    int column;    /* of the cursor, but for what waits: */
    int n_spaces;  /* between the text and the word */
    int n_columns; /* of the word */
    int n_ticks;   /* with which the line begins; -1: something else is in front */
    bool is_code;
    struct text_buffer word, out;
};

void wrap_init(struct wrap *w, int columns);
void wrap_deinit(struct wrap *w);

/* The text to show now, valid until the next call. */
struct nvllm_text wrap_add(struct wrap *w, struct nvllm_text text);
struct nvllm_text wrap_flush(struct wrap *w); /* with what waits */

#endif
