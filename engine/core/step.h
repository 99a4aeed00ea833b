/* step.h - one step between plan and commit: which sequences take part with which positions, and
 * the flat arrays of its batch.
 *
 * The schedule adds entries, step_build() lays them out. All memory is taken at the start and
 * belongs to the step, so that nothing which a backend reads can move under it. */
#ifndef NVLLM_ENGINE_CORE_STEP_H
#define NVLLM_ENGINE_CORE_STEP_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/batch.h"

struct sequence;

struct step_entry {
    struct sequence *sequence;
    int32_t start;     /* first position */
    int32_t n;         /* positions */
    int32_t token;     /* a decode's input: an id or ~row */
    bool wanted;       /* its last row is sampled from */
    uint32_t counter;  /* of the token sampled */
    int32_t listed[2]; /* blocks [from, to) of the table that were listed as pending */
};

struct step {
    struct batch batch;
    int32_t max_tokens, max_seqs, max_blocks;
    int32_t n_decodes, n_chunks;
    double cost_us;             /* what it is thought to take; 0: not known */
    struct step_entry *decodes; /* [max_seqs] */
    struct step_entry *chunks;  /* [max_seqs] */
    int32_t *tokens;            /* the batch's arrays, writable */
    int32_t *positions;
    int32_t *slots;
    int32_t *q_start;
    int32_t *kv_len;
    int32_t *block_table;
    struct batch_row *rows;
    struct batch_load *loads;
    int32_t n_history, max_history;
    int32_t *history; /* [max_history] what the loads' tokens point to */
};

/* max_seqs sequences of at most max_blocks blocks; a history of max_history tokens. -ENOMEM. */
int step_init(struct step *st, int32_t max_tokens, int32_t max_seqs, int32_t max_blocks,
              int32_t max_history);
void step_deinit(struct step *st);

void step_begin(struct step *st, uint64_t number);
struct step_entry *step_add_decode(struct step *st, struct sequence *s);
struct step_entry *step_add_chunk(struct step *st, struct sequence *s);

/* True when the history of s can be copied beside what is there already; always for the first. */
bool step_has_room_for_load(const struct step *st, const struct sequence *s);
void step_add_load(struct step *st, struct sequence *s);

void step_build(struct step *st, int32_t block_len);

#endif
