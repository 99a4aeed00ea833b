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
    int32_t start;         /* first position */
    int32_t n;             /* positions */
    int32_t token;         /* a decode's input: an id or ~row */
    int32_t n_drafts;      /* a chunk's last positions hold these, not known tokens */
    const int32_t *drafts; /* [n_drafts] */
    int32_t wanted;        /* its last rows, so many, are sampled from */
    uint32_t counter;      /* of the token that the first of them samples */
    const uint32_t *masks; /* [wanted, mask_words], or NULL */
    int32_t listed[2];     /* blocks [from, to) of the table that were listed as pending */
};

/* What a step has room for. */
struct step_limits {
    int32_t max_tokens, max_seqs;
    int32_t max_blocks;  /* of a sequence */
    int32_t max_history; /* tokens of a sequence's history */
    int32_t max_masks, mask_words;
    int32_t max_copies;
};

struct step {
    uint64_t number;
    struct step_limits limits;
    struct batch *batch; /* once built */
    int32_t n_decodes, n_chunks;
    double cost_us;             /* what it is thought to take; 0: not known */
    struct step_entry *decodes; /* [max_seqs] */
    struct step_entry *chunks;  /* [max_seqs] */
    int32_t n_updates, n_history, n_bias, n_stop_ids;
    int32_t n_masks, n_drafts; /* of the entries */
    struct step_update {
        const struct sequence *sequence;
        int32_t state;
    } * updates; /* [max_seqs] */
    int32_t n_copies;
    struct batch_copy *copies; /* [max_copies] */
    size_t max_bytes;          /* of the batch */
};

int step_init(struct step *st, const struct step_limits *limits); /* -ENOMEM, -EOVERFLOW */
void step_deinit(struct step *st);

void step_begin(struct step *st, uint64_t number);
struct step_entry *step_add_decode(struct step *st, struct sequence *s);
struct step_entry *step_add_chunk(struct step *st, struct sequence *s);

/* True when there is room for what the update of s brings; always for the first. */
bool step_has_room_for_update(const struct step *st, const struct sequence *s);
void step_add_update(struct step *st, struct sequence *s);

const struct batch *step_build(struct step *st, int32_t block_len);

#endif
