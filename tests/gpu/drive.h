/* drive.h - runs sequences through a backend by its contract alone: packs batches, keeps two steps
 * in flight, feeds sampled ids back by their rows. A small stand-in for the engine's core. */
#ifndef NVLLM_TESTS_GPU_DRIVE_H
#define NVLLM_TESTS_GPU_DRIVE_H

#include "engine/backend.h"
#include "engine/model/model.h"
#include "tests/gpu/common.h"

struct drive_seq {
    const int32_t *prompt;
    int32_t n_prompt;
    int32_t max_tokens;
    int32_t end_id; /* -1: none */
    struct sampling sampling;
    int32_t restart_at; /* 0, or: once so many are there it loses its blocks' content and is
                         * computed again, the prompt in chunks and what was sampled in decodes */

    int32_t *out;    /* [max_tokens] given by the caller */
    float *logprobs; /* [max_tokens] or NULL */
    int32_t n_out;

    /* the driver's */
    int32_t n_fed;      /* tokens submitted: prompt, then what was sampled */
    int32_t n_sampled;  /* rows submitted that sample */
    int32_t *blocks;    /* ids, enough for all of it */
    int32_t row_before; /* its row in the step before, or -1 */
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

/* Runs all to their ends; n <= o->max_seqs and their blocks must fit the pool. */
int drive(const struct backend_ops *ops, struct backend *b, const struct backend_options *o,
          struct drive_seq *seqs, int n, struct drive_times *times, struct err *e);

double now_seconds(void);

/* The bundled model: below a folder of test data, or the tree's where that is NULL. */
struct model *open_tiny_model(const char *data_folder);

#endif
