/* batch.h - one step of work as flat arrays: all that a backend is ever told; and what it answers.
 *
 * Sequences with one row that continue a generation (decodes) come first, prefill chunks after
 * them. A decode whose next token is known already, computed again after a preemption, is not
 * sampled from. Two steps are in flight: step n + 1 is submitted before step n has been read back,
 * so a decode row may name what an earlier step sampled instead of a token id. A sequence that
 * turns out to have ended costs one discarded row.
 *
 * Owner: the core. A batch and all it points to stays unchanged until the backend's wait() has
 * returned that step; the result belongs to the backend and holds until its next wait(). */
#ifndef NVLLM_ENGINE_BATCH_H
#define NVLLM_ENGINE_BATCH_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/sampling.h"

/* Where the bytes of a KV block may lie. A block id names a place within one tier. */
enum tier { TIER_DEVICE, TIER_HOST, TIER_DISK, N_TIERS };

/* One row whose logits are wanted and sampled from. */
struct batch_row {
    int32_t row;      /* 0 .. n_tokens - 1 */
    int32_t state;    /* sampler state, 0 .. max_seqs - 1, loaded by this or an earlier step */
    uint32_t counter; /* index of the token to sample among the sequence's generated ones: Philox */
    bool ban_stops;   /* counter < min_tokens: stop ids are not to be sampled */
};

/* A sampler state to be set before the rows of this step are sampled: a sequence begins, or begins
 * again after preemption. Afterwards the backend itself counts each token that it samples for the
 * state (for the penalties). */
struct batch_load {
    int32_t state;
    int32_t n_prompt;      /* leading tokens that are prompt; 0 with n_tokens 0 */
    int32_t n_tokens;      /* 0 unless sampling_needs_history() */
    const int32_t *tokens; /* [n_tokens] prompt, then what was generated so far */
    const struct sampling
        *sampling; /* valid until the last step with a row of this state is over */
};

struct batch {
    uint64_t step;              /* 1, 2, 3, …: the order of submission */
    int32_t n_tokens;           /* rows of this step */
    int32_t n_seqs;             /* sequences with rows in this step */
    int32_t n_decodes;          /* the first n_decodes sequences have one row each */
    int32_t n_rows;             /* rows that are sampled from, at most one a sequence */
    int32_t n_loads;            /* sampler states to set first */
    int32_t max_blocks;         /* width of block_table */
    const int32_t *tokens;      /* [n_tokens] an id, or ~i: what rows[i] of step - 1 sampled */
    const int32_t *positions;   /* [n_tokens] 0-based place in the sequence */
    const int32_t *slots;       /* [n_tokens] block_id * block_len + offset: where K and V go */
    const int32_t *q_start;     /* [n_seqs + 1] rows of sequence i: q_start[i] .. q_start[i + 1] */
    const int32_t *kv_len;      /* [n_seqs] tokens attended over, this step's included */
    const int32_t *block_table; /* [n_seqs, max_blocks]; unused entries are -1 */
    const struct batch_row *rows;   /* [n_rows] in order of row */
    const struct batch_load *loads; /* [n_loads] */
};

enum {
    BATCH_NUMERICS = -1
}; /* in ids: the row's logits held NaN or Inf; ends that request alone */

struct step_result {
    uint64_t step;
    int32_t n_rows;
    const int32_t *ids;    /* [n_rows] sampled id or BATCH_NUMERICS */
    const float *logprobs; /* [n_rows] of the sampled id, natural log; 0 where not asked for */
    const int32_t
        *top_ids; /* [n_rows, SAMPLING_MAX_LOGPROBS] best first; the first n_logprobs hold */
    const float *top_logprobs; /* [n_rows, SAMPLING_MAX_LOGPROBS] */
};

#endif
