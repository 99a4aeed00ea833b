/* step.c - see step.h. */
#include "engine/core/step.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "engine/core/sequence.h"
#include "engine/util/must.h"
#include "engine/util/plant.h"

enum { MAX_BIAS = 4 * SAMPLING_MAX_BIAS }; /* of a step's updates */

int step_init(struct step *st, const struct batch *max)
{
    int r;

    st->max = *max;
    st->max.n_rows = st->max.n_updates = max->n_seqs;
    st->max.n_bias = MAX_BIAS;
    if (__builtin_mul_overflow(max->n_seqs, SAMPLING_MAX_STOP_IDS, &st->max.n_stop_ids))
        return -EOVERFLOW;
    r = batch_layout(&st->max);
    if (r < 0)
        return r;
    st->batch = calloc(1, st->max.bytes);
    st->entries = calloc((size_t)max->n_seqs, sizeof(*st->entries));
    st->copies = calloc((size_t)max->n_copies + 1, sizeof(*st->copies));
    return st->batch && st->entries && st->copies ? 0 : -ENOMEM;
}

void step_deinit(struct step *st)
{
    free(st->batch);
    free(st->entries);
    free(st->copies);
}

void step_begin(struct step *st, uint64_t number)
{
    st->number = number;
    st->n_entries = st->n_decodes = st->n_updates = st->n_copies = 0;
    st->n_history = st->n_bias = st->n_stop_ids = st->n_masks = st->n_drafts = 0;
}

struct step_entry *step_add(struct step *st, struct sequence *s, bool decode)
{
    struct step_entry *e = &st->entries[st->n_entries];

    must(st->n_entries < st->max.n_seqs);
    *e = (struct step_entry){.sequence = s, .decode = decode};
    s->last_step = st->number;
    st->n_entries++;
    st->n_decodes += decode;
    return e;
}

static int32_t history_of(const struct sequence *s)
{
    return sampling_needs_history(&s->sampling) ? sequence_n_tokens(s) : 0;
}

bool step_has_room_for_update(const struct step *st, const struct sequence *s)
{
    return st->n_updates < st->max.n_seqs && history_of(s) <= st->max.n_history - st->n_history &&
           s->sampling.n_bias <= MAX_BIAS - st->n_bias;
}

void step_add_update(struct step *st, struct step_entry *e)
{
    struct sequence *s = e->sequence;

    must(step_has_room_for_update(st, s) && s->sampling.n_stop_ids <= SAMPLING_MAX_STOP_IDS);
    e->update = s->loaded = true;
    st->n_updates++;
    st->n_history += history_of(s);
    st->n_bias += s->sampling.n_bias;
    st->n_stop_ids += s->sampling.n_stop_ids;
}

static void copy(void *to, const void *from, int32_t n, size_t size)
{
    if (n > 0)
        memcpy(to, from, (size_t)n * size);
}

/* How much of the batch is filled. */
struct filled {
    int32_t n_seqs, n_tokens, n_rows, n_masks, n_updates, n_history, n_bias, n_stop_ids;
};

static void build_update(struct batch *b, const struct sequence *s, struct filled *f)
{
    const struct sampling *from = &s->sampling;
    struct sampler_update *u = (struct sampler_update *)batch_at(b, b->updates_at) + f->n_updates++;

    *u = (struct sampler_update){
        .state = s->slot,
        .n_prompt = history_of(s) ? s->request->n_prompt : 0,
        .n_history = history_of(s),
        .history_at = f->n_history,
        .bias_at = f->n_bias,
        .stop_ids_at = f->n_stop_ids,
        .sampling = *from,
    };
    u->sampling.bias = NULL;
    u->sampling.stop_ids = NULL;
    sequence_copy_tokens(s, 0, u->n_history, (int32_t *)batch_at(b, b->history_at) + f->n_history);
    copy((struct logit_bias *)batch_at(b, b->bias_at) + f->n_bias, from->bias, from->n_bias,
         sizeof(*from->bias));
    copy((int32_t *)batch_at(b, b->stop_ids_at) + f->n_stop_ids, from->stop_ids, from->n_stop_ids,
         sizeof(*from->stop_ids));
    f->n_history += u->n_history;
    f->n_bias += from->n_bias;
    f->n_stop_ids += from->n_stop_ids;
}

static void build_rows(struct batch *b, struct step_entry *e, struct filled *f)
{
    struct batch_row *rows = batch_at(b, b->rows_at);
    const size_t words = (size_t)b->mask_words;
    uint32_t *masks = batch_at(b, b->masks_at);
    struct sequence *s = e->sequence;

    if (e->wanted)
        s->last_row = e->first_row = f->n_rows;
    for (int32_t i = 0; i < e->wanted; i++) {
        const uint32_t counter = e->counter + (PLANT(PLANT_DRAFT_COUNTER) ? 0 : (uint32_t)i);
        const int32_t mask = i - (PLANT(PLANT_MASK_ROW) && i > 0);

        rows[f->n_rows++] = (struct batch_row){
            .row = f->n_tokens - e->wanted + i,
            .state = s->slot,
            .counter = counter,
            .mask = e->masks ? f->n_masks : -1,
            .ban_stops = (int64_t)counter < s->sampling.min_tokens,
        };
        if (e->masks)
            memcpy(masks + (size_t)f->n_masks++ * words, e->masks + (size_t)mask * words,
                   words * sizeof(*masks));
    }
}

/* Appends one entry to the arrays. */
static void build_entry(struct batch *b, struct step_entry *e, int shift, struct filled *f)
{
    struct sequence *s = e->sequence;
    int32_t *tokens = (int32_t *)batch_at(b, b->tokens_at) + f->n_tokens;
    int32_t *positions = (int32_t *)batch_at(b, b->positions_at) + f->n_tokens;
    int32_t *slots = (int32_t *)batch_at(b, b->slots_at) + f->n_tokens;
    int32_t *table =
        (int32_t *)batch_at(b, b->block_table_at) + (size_t)f->n_seqs * (size_t)b->max_blocks;
    const int32_t n_known = e->n - e->n_drafts, mask = (1 << shift) - 1;

    must(e->n_drafts == 0 || !sampling_needs_history(&s->sampling));
    if (e->decode)
        tokens[0] = e->token;
    else
        sequence_copy_tokens(s, e->start, n_known, tokens);
    copy(tokens + n_known, e->drafts, e->n_drafts, sizeof(*tokens));
    for (int32_t i = 0, pos = e->start; i < e->n; i++, pos++) {
        positions[i] = pos;
        slots[i] = (s->table[pos >> shift] << shift) + (pos & mask);
    }
    memcpy(table, s->table, (size_t)s->n_table * sizeof(*table));
    for (int32_t i = s->n_table; i < b->max_blocks; i++)
        table[i] = -1;
    f->n_tokens += e->n;
    ((int32_t *)batch_at(b, b->kv_len_at))[f->n_seqs] = e->start + e->n;
    ((int32_t *)batch_at(b, b->q_start_at))[++f->n_seqs] = f->n_tokens;
    build_rows(b, e, f);
    if (e->update)
        build_update(b, s, f);
}

const struct batch *step_build(struct step *st, int32_t block_len)
{
    struct batch *b = st->batch;
    struct filled f = {0};
    const int shift = __builtin_ctz((unsigned)block_len);

    *b = (struct batch){
        .step = st->number,
        .n_seqs = st->n_entries,
        .n_decodes = st->n_decodes,
        .n_updates = st->n_updates,
        .n_history = st->n_history,
        .n_bias = st->n_bias,
        .n_stop_ids = st->n_stop_ids,
        .n_masks = st->n_masks,
        .mask_words = st->n_masks ? st->max.mask_words : 0,
        .n_copies = st->n_copies,
    };
    for (int32_t i = 0; i < st->n_entries; i++) {
        const struct step_entry *e = &st->entries[i];

        b->n_tokens += e->n;
        b->n_rows += e->wanted;
        if (e->sequence->n_table > b->max_blocks)
            b->max_blocks = e->sequence->n_table;
    }
    must(b->n_tokens <= st->max.n_tokens && b->n_rows <= st->max.n_rows &&
         b->n_masks <= st->max.n_masks);
    must(batch_layout(b) == 0 && b->bytes <= st->max.bytes);
    ((int32_t *)batch_at(b, b->q_start_at))[0] = 0;
    for (int decode = 1; decode >= 0; decode--)
        for (int32_t i = 0; i < st->n_entries; i++)
            if (st->entries[i].decode == decode)
                build_entry(b, &st->entries[i], shift, &f);
    copy(batch_at(b, b->copies_at), st->copies, st->n_copies, sizeof(*st->copies));
    batch_seal(b);
    return b;
}
