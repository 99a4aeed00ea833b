/* make_batch.h - batches written by hand: arrays as they are convenient in, one block out. */
#ifndef NVLLM_TESTS_TOOLS_MAKE_BATCH_H
#define NVLLM_TESTS_TOOLS_MAKE_BATCH_H

#include "engine/batch.h"

/* A sampler update with its pointers. */
struct batch_part_update {
    int32_t state;
    int32_t n_prompt, n_history;
    const int32_t *history;
    const struct sampling *sampling;
};

/* Counts and arrays as batch.h has them; an array of no entries may be NULL. */
struct batch_parts {
    uint64_t step;
    int32_t n_tokens, n_seqs, n_decodes, n_drafted, n_rows, n_updates, n_masks, n_copies, n_sums;
    int32_t max_blocks;
    const int32_t *tokens, *positions, *slots, *q_start, *kv_len, *block_table;
    const struct batch_row *rows;
    const struct batch_part_update *updates;
    const struct batch_copy *copies;
    const struct batch_sum *sums;
};

struct batch *make_batch(const struct batch_parts *p); /* free() it; never NULL */

#endif
