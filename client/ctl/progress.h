/* progress.h - the progress of a batch, on one line of a terminal. */
#ifndef NVLLM_CLIENT_CTL_PROGRESS_H
#define NVLLM_CLIENT_CTL_PROGRESS_H

#include <stdbool.h>
#include <stdint.h>

struct progress {
    bool shown;         /* stderr is a terminal */
    uint64_t total;     /* bytes of input; 0: unknown */
    int64_t started_ms; /* of the monotonic clock */
    int64_t last_ms;    /* when the line was last drawn */
    uint64_t last_tokens;
    double tokens_a_second; /* smoothed */
};

void progress_init(struct progress *p, int input_fd);

/* Draws at most a few times a second. bytes: of the input, up to the last answer written. */
void progress_show(struct progress *p, uint64_t bytes, uint64_t n_done, uint64_t n_failed,
                   uint64_t n_tokens);

/* Takes the line away. */
void progress_end(struct progress *p);

#endif
