/* step.h - one step between plan and commit: which sequences take part with which positions, and
 * the batch that says so.
 *
 * The schedule adds entries, sampler updates and copies; step_build() lays the batch out. All
 * memory is taken at start and belongs to the step, so nothing that a backend reads moves. */
#ifndef NVLLM_ENGINE_CORE_STEP_H
#define NVLLM_ENGINE_CORE_STEP_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/batch.h"

struct sequence;

struct step_entry {
    struct sequence *sequence;
    bool decode;           /* else a prefill chunk, or drafts */
    bool update;           /* sets the sequence's sampler state */
    int32_t start;         /* first position */
    int32_t n;             /* positions */
    int32_t token;         /* a decode's input: an id or ~row */
    int32_t n_drafts;      /* a chunk's last positions hold these, not known tokens */
    const int32_t *drafts; /* [n_drafts] */
    int32_t wanted;        /* its last rows, so many, are sampled from */
    int32_t first_row;     /* of these in batch.rows, once built */
    uint32_t counter;      /* of the token that the first of them samples */
    const uint32_t *masks; /* [wanted, mask_words], or NULL */
};

struct step {
    struct batch max;           /* sizes that a batch of this memory can have */
    struct batch head;          /* number of the step, and counts of what is planned so far */
    struct batch *batch;        /* once built */
    struct step_entry *entries; /* [max.n_seqs] head.n_seqs, in the order of planning */
    int32_t n_drafts;           /* of the entries */
    struct batch_copy *copies;  /* [max.n_copies] head.n_copies */
};

/* max: n_tokens, n_seqs, max_blocks, n_history (tokens of one sequence), n_masks, mask_words and
 * n_copies of the largest batch. -ENOMEM, -EOVERFLOW. */
int step_init(struct step *st, const struct batch *max);
void step_deinit(struct step *st);

void step_begin(struct step *st, uint64_t number);
struct step_entry *step_add(struct step *st, struct sequence *s, bool decode);

/* True when there is room for what the update of s brings; always for the first. */
bool step_has_room_for_update(const struct step *st, const struct sequence *s);
void step_add_update(struct step *st, struct step_entry *e);

const struct batch *step_build(struct step *st, int32_t block_len);

#endif
