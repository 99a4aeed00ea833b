/* step.c - see step.h. */
#include "engine/core/step.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "engine/util/must.h"
#include "engine/core/sequence.h"

int step_init(struct step *st, int32_t max_tokens, int32_t max_seqs, int32_t max_blocks,
              int32_t max_history)
{
    size_t n_tokens = (size_t)max_tokens, n_seqs = (size_t)max_seqs;

    st->max_tokens = max_tokens;
    st->max_seqs = max_seqs;
    st->max_blocks = max_blocks;
    st->max_history = max_history;
    st->decodes = calloc(n_seqs, sizeof(*st->decodes));
    st->chunks = calloc(n_seqs, sizeof(*st->chunks));
    st->tokens = calloc(n_tokens, sizeof(*st->tokens));
    st->positions = calloc(n_tokens, sizeof(*st->positions));
    st->slots = calloc(n_tokens, sizeof(*st->slots));
    st->q_start = calloc(n_seqs + 1, sizeof(*st->q_start));
    st->kv_len = calloc(n_seqs, sizeof(*st->kv_len));
    st->block_table = calloc(n_seqs, (size_t)max_blocks * sizeof(*st->block_table));
    st->rows = calloc(n_seqs, sizeof(*st->rows));
    st->loads = calloc(n_seqs, sizeof(*st->loads));
    st->history = calloc((size_t)max_history, sizeof(*st->history));
    if (!st->decodes || !st->chunks || !st->tokens || !st->positions || !st->slots ||
        !st->q_start || !st->kv_len || !st->block_table || !st->rows || !st->loads || !st->history)
        return -ENOMEM;
    return 0;
}

void step_deinit(struct step *st)
{
    free(st->decodes);
    free(st->chunks);
    free(st->tokens);
    free(st->positions);
    free(st->slots);
    free(st->q_start);
    free(st->kv_len);
    free(st->block_table);
    free(st->rows);
    free(st->loads);
    free(st->history);
}

void step_begin(struct step *st, uint64_t number)
{
    st->n_decodes = st->n_chunks = st->n_history = 0;
    st->batch = (struct batch){
        .step = number,
        .tokens = st->tokens,
        .positions = st->positions,
        .slots = st->slots,
        .q_start = st->q_start,
        .kv_len = st->kv_len,
        .block_table = st->block_table,
        .rows = st->rows,
        .loads = st->loads,
    };
}

static struct step_entry *add(struct step *st, struct step_entry *entries, int32_t *n,
                              struct sequence *s)
{
    must(st->n_decodes + st->n_chunks < st->max_seqs);
    entries[*n] = (struct step_entry){.sequence = s};
    s->last_step = st->batch.step;
    return &entries[(*n)++];
}

struct step_entry *step_add_decode(struct step *st, struct sequence *s)
{
    return add(st, st->decodes, &st->n_decodes, s);
}

struct step_entry *step_add_chunk(struct step *st, struct sequence *s)
{
    return add(st, st->chunks, &st->n_chunks, s);
}

bool step_has_room_for_load(const struct step *st, const struct sequence *s)
{
    return !sampling_needs_history(&s->sampling) ||
           sequence_n_tokens(s) <= st->max_history - st->n_history;
}

void step_add_load(struct step *st, struct sequence *s)
{
    struct batch_load *l = &st->loads[st->batch.n_loads++];

    *l = (struct batch_load){.state = s->slot, .sampling = &s->sampling};
    s->loaded = true;
    if (!sampling_needs_history(&s->sampling))
        return;
    l->n_prompt = s->request->n_prompt;
    l->n_tokens = sequence_n_tokens(s);
    l->tokens = st->history + st->n_history;
    sequence_copy_tokens(s, 0, l->n_tokens, st->history + st->n_history);
    st->n_history += l->n_tokens;
}

/* Appends one entry to the arrays as sequence i. */
static void build_entry(struct step *st, const struct step_entry *e, int32_t i, int32_t block_len)
{
    struct sequence *s = e->sequence;
    int32_t row = st->batch.n_tokens;
    int32_t *table = st->block_table + (size_t)i * (size_t)st->batch.max_blocks;
    int shift = __builtin_ctz((unsigned)block_len);

    must(row + e->n <= st->max_tokens);
    for (int32_t j = 0; j < e->n; j++) {
        int32_t pos = e->start + j;

        st->positions[row + j] = pos;
        st->slots[row + j] = (s->table[pos >> shift] << shift) + (pos & (block_len - 1));
    }
    memcpy(table, s->table, (size_t)s->n_table * sizeof(*table));
    for (int32_t b = s->n_table; b < st->batch.max_blocks; b++)
        table[b] = -1;
    st->batch.n_tokens += e->n;
    st->q_start[i + 1] = st->batch.n_tokens;
    st->kv_len[i] = e->start + e->n;
    if (e->wanted) {
        s->last_row = st->batch.n_rows;
        st->rows[st->batch.n_rows++] = (struct batch_row){
            .row = row + e->n - 1,
            .state = s->slot,
            .counter = e->counter,
            .ban_stops = (int64_t)e->counter < s->sampling.min_tokens,
        };
    }
}

void step_build(struct step *st, int32_t block_len)
{
    int32_t i = 0;

    st->batch.n_decodes = st->n_decodes;
    st->batch.n_seqs = st->n_decodes + st->n_chunks;
    for (int32_t k = 0; k < st->n_decodes; k++)
        if (st->decodes[k].sequence->n_table > st->batch.max_blocks)
            st->batch.max_blocks = st->decodes[k].sequence->n_table;
    for (int32_t k = 0; k < st->n_chunks; k++)
        if (st->chunks[k].sequence->n_table > st->batch.max_blocks)
            st->batch.max_blocks = st->chunks[k].sequence->n_table;
    st->q_start[0] = 0;
    for (int32_t k = 0; k < st->n_decodes; k++, i++) {
        st->tokens[st->batch.n_tokens] = st->decodes[k].token;
        build_entry(st, &st->decodes[k], i, block_len);
    }
    for (int32_t k = 0; k < st->n_chunks; k++, i++) {
        const struct step_entry *e = &st->chunks[k];

        sequence_copy_tokens(e->sequence, e->start, e->n, st->tokens + st->batch.n_tokens);
        build_entry(st, e, i, block_len);
    }
}
