/* backend_driver.h - sequences driven through a backend's contract without a core: what tests and
 * benchmarks of backends use. Blocks are dealt out in a shuffled order, steps are filled with
 * decodes first and prompt chunks behind them.
 *
 * One thread. Ends the program on errors. */
#ifndef NVLLM_TESTS_TOOLS_BACKEND_DRIVER_H
#define NVLLM_TESTS_TOOLS_BACKEND_DRIVER_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/backend.h"

struct driver {
    const struct backend_ops *ops;
    struct backend *backend;
    int block_len;
    int max_rows;         /* of a step, at most */
    int max_seqs;         /* running at a time */
    bool two_in_flight;   /* decode rows name what the step before sampled */
    uint32_t scatter;     /* seed of the order of blocks */
    uint64_t step;        /* of the last step; starts at 0 */
    int n_blocks;         /* of the pool */
    int32_t *free_blocks; /* [n_free], of driver_init */
    int n_free;
};

struct drive_seq {
    const int32_t *prompt;
    int n_prompt;
    int max_tokens;
    int32_t stop; /* an id that ends it, or -1 */
    struct sampling sampling;
    /* answers, of max_tokens each; freed by drive_seq_deinit */
    int n_ids;
    bool numerics;
    int32_t *ids;
    float *logprobs;
    int32_t *top_ids; /* [max_tokens, SAMPLING_MAX_LOGPROBS] */
    float *top_logprobs;
    /* the driver's */
    int32_t *blocks;
    int n_blocks, n_fed, n_sampled, state, last_row;
    bool over;
};

void driver_init(struct driver *d); /* after the fields before step are set */
void driver_deinit(struct driver *d);

/* Greedy, with n_logprobs; prompt must outlive it. */
void drive_seq_init(struct drive_seq *s, const int32_t *prompt, int n_prompt, int max_tokens,
                    int n_logprobs);
void drive_seq_deinit(struct drive_seq *s);

/* Runs all to their ends, as many at a time as there is room for. Blocks come back. */
void drive(struct driver *d, struct drive_seq *seqs, int n);

#endif
