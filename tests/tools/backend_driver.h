/* backend_driver.h - runs sequences through a backend by its contract alone: packs batches with
 * decodes first, keeps two steps in flight, feeds sampled ids back by their rows. A small stand-in
 * for the engine's core. One thread. */
#ifndef NVLLM_TESTS_TOOLS_BACKEND_DRIVER_H
#define NVLLM_TESTS_TOOLS_BACKEND_DRIVER_H

#include "engine/backend.h"

struct drive_seq {
    const int32_t *prompt;
    int32_t n_prompt;
    int32_t max_tokens;
    int32_t end_id; /* -1: none */
    struct sampling sampling;
    int32_t restart_at; /* 0, or: once so many are there it loses its blocks' content and is
                         * computed again, the prompt in chunks and what was sampled in decodes */

    int32_t *out;     /* [max_tokens] given by the caller; BATCH_NUMERICS may be the last */
    float *logprobs;  /* [max_tokens] or NULL */
    int32_t *top_ids; /* [max_tokens, SAMPLING_MAX_LOGPROBS] or NULL, with top_logprobs */
    float *top_logprobs;
    int32_t n_out;

    /* the driver's */
    int32_t n_fed;     /* tokens submitted: prompt, then what was sampled */
    int32_t n_sampled; /* rows submitted that sample */
    int32_t *blocks;   /* [n_blocks] ids, enough for all of it; NULL: waits */
    int32_t n_blocks;
    int32_t state;      /* of the sampler */
    int32_t row_before; /* its row in the step before, or -1 */
    uint64_t last_step; /* that it is in */
    bool loaded, ended, restarted;
    int32_t *history; /* [n_prompt + max_tokens] where it restarts */
};

struct drive_times {
    double seconds; /* from the first submit to the last wait */
    uint64_t steps;
    uint64_t prompt_tokens, output_tokens;
    double first_seconds; /* until the first id */
    double begun_seconds; /* until every sequence has one: from then on all steps are decodes */
    uint64_t begun_steps, begun_tokens;
    double longest_gap; /* seconds between the ends of two steps, at most */
};

struct driver {
    const struct backend_ops *ops;
    struct backend *backend;
    const struct backend_options *options;
    bool one_in_flight;
    uint32_t scatter; /* seed of the order in which blocks are taken */
    uint64_t step;    /* the last one's number: backends may want them without gaps */
    int n_copies[2];  /* of blocks that no sequence has, kept under way: up from the host tier, down
                       */
    uint64_t n_copied;
};

/* Greedy, with n_logprobs, and memory for all answers; the prompt must outlive it. */
void drive_seq_init(struct drive_seq *s, const int32_t *prompt, int n_prompt, int max_tokens,
                    int n_logprobs);
void drive_seq_deinit(struct drive_seq *s);

/* Runs all to their ends, as many at a time as there are sampler states and blocks for. */
int drive(struct driver *d, struct drive_seq *seqs, int n, struct drive_times *times,
          struct err *e);

double now_seconds(void);

#endif
