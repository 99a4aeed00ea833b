/* step.c - collects what takes part in a step, and lays out the batch that says so. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "engine/core/core_impl.h"

enum { MAX_BIAS = 4 * SAMPLING_MAX_BIAS }; /* of a step's updates */

int step_init(struct step *st, const struct batch *max)
{
    st->max = *max;
    st->max.n_rows = st->max.n_masks = st->max.n_updates = st->max.n_sums = max->n_seqs;
    st->max.n_bias = MAX_BIAS;
    if (__builtin_mul_overflow(max->n_seqs, SAMPLING_MAX_STOP_IDS, &st->max.n_stop_ids) ||
        batch_layout(&st->max) < 0)
        return -EOVERFLOW;
    st->batch = calloc(1, st->max.bytes);
    st->entries = calloc((size_t)max->n_seqs, sizeof(*st->entries));
    st->copies = calloc((size_t)max->n_copies + 1, sizeof(*st->copies));
    st->masks = calloc((size_t)max->n_seqs, sizeof(*st->masks));
    return st->batch && st->entries && st->copies && st->masks ? 0 : -ENOMEM;
}

void step_deinit(struct step *st)
{
    free(st->batch);
    free(st->entries);
    free(st->copies);
    free(st->masks);
}

struct step_entry *step_add(struct step *st, struct sequence *s, bool decode)
{
    struct step_entry *e = &st->entries[st->head.n_seqs];

    must(st->head.n_seqs < st->max.n_seqs);
    *e = (struct step_entry){.sequence = s, .decode = decode};
    s->last_step = st->head.step;
    st->head.n_seqs++;
    st->head.n_decodes += decode;
    return e;
}

static int32_t history_of(const struct sequence *s)
{
    return sampling_needs_history(&s->sampling) ? sequence_n_tokens(s) : 0;
}

bool step_has_room_for_update(const struct step *st, const struct sequence *s)
{
    return st->head.n_updates < st->max.n_seqs &&
           history_of(s) <= st->max.n_history - st->head.n_history &&
           s->sampling.n_bias <= MAX_BIAS - st->head.n_bias;
}

void step_add_update(struct step *st, struct step_entry *e)
{
    struct sequence *s = e->sequence;

    must(step_has_room_for_update(st, s) && s->sampling.n_stop_ids <= SAMPLING_MAX_STOP_IDS);
    e->update = s->loaded = true;
    st->head.n_updates++;
    st->head.n_history += history_of(s);
    st->head.n_bias += s->sampling.n_bias;
    st->head.n_stop_ids += s->sampling.n_stop_ids;
}

/* Appends n entries to an array that has *filled; returns where they begin. */
static int32_t append(void *array, int32_t *filled, const void *from, int32_t n, size_t size)
{
    const int32_t at = *filled;

    if (n > 0)
        memcpy((char *)array + (size_t)at * size, from, (size_t)n * size);
    *filled += n;
    return at;
}

/* f counts what the arrays of b hold so far. */
static void build_update(struct batch *b, const struct sequence *s, struct batch *f)
{
    const struct sampling *from = &s->sampling;
    struct sampler_update *u = batch_updates_mut(b) + f->n_updates++;

    *u = (struct sampler_update){
        .state = s->slot,
        .n_prompt = history_of(s) ? s->request->n_prompt : 0,
        .n_history = history_of(s),
        .history_at = f->n_history,
        .bias_at = append(batch_at(b, b->bias_at), &f->n_bias, from->bias, from->n_bias,
                          sizeof(*from->bias)),
        .stop_ids_at = append(batch_at(b, b->stop_ids_at), &f->n_stop_ids, from->stop_ids,
                              from->n_stop_ids, sizeof(*from->stop_ids)),
        .sampling = *from,
    };
    u->sampling.bias = NULL;
    u->sampling.stop_ids = NULL;
    sequence_copy_tokens(s, 0, u->n_history, (int32_t *)batch_at(b, b->history_at) + f->n_history);
    f->n_history += u->n_history;
}

static void build_rows(struct batch *b, struct step_entry *e, struct batch *f)
{
    struct batch_row *rows = batch_rows_mut(b);
    struct sequence *s = e->sequence;

    if (e->wanted)
        s->last_row = e->first_row = f->n_rows;
    for (int32_t i = 0; i < e->wanted; i++) {
        const uint32_t counter = e->counter + (PLANT(PLANT_DRAFT_COUNTER) ? 0 : (uint32_t)i);

        rows[f->n_rows++] = (struct batch_row){
            .row = f->n_tokens - e->wanted + i,
            .state = s->slot,
            .counter = counter,
            .mask = s->request->masks ? f->n_masks++ : -1,
            .ban_stops = (int64_t)counter < s->sampling.min_tokens,
        };
    }
}

static void build_sum(struct batch *b, struct step_entry *e, struct batch *f)
{
    struct batch_sum *sums = batch_sums_mut(b);

    if (e->n_summed == 0)
        return;
    e->sum = f->n_sums - (PLANT(PLANT_SUM_ROW) && f->n_sums > 0);
    sums[f->n_sums++] = (struct batch_sum){f->n_tokens - e->n_summed, e->n_summed};
}

/* Appends one entry to the arrays. */
static void build_entry(struct batch *b, struct step_entry *e, int shift, int32_t n_blocks,
                        struct batch *f)
{
    struct sequence *s = e->sequence;
    const int32_t first = core_is_offloaded(s) && !PLANT(PLANT_OFFLOAD_IDS) ? n_blocks : 0;
    int32_t *tokens = batch_tokens_mut(b) + f->n_tokens;
    int32_t *positions = batch_positions_mut(b) + f->n_tokens;
    int32_t *slots = batch_slots_mut(b) + f->n_tokens;
    int32_t *table = batch_block_table_mut(b) + (size_t)f->n_seqs * (size_t)b->max_blocks;
    const int32_t n_known = e->n - e->n_drafts, mask = (1 << shift) - 1;

    must(e->n_drafts == 0 || !sampling_needs_history(&s->sampling));
    if (e->decode)
        tokens[0] = e->token;
    else
        sequence_copy_tokens(s, e->start, n_known, tokens);
    for (int32_t i = 0; i < e->n_drafts; i++)
        tokens[n_known + i] = s->drafts[i];
    for (int32_t i = 0, pos = e->start; i < e->n; i++, pos++) {
        positions[i] = pos;
        slots[i] = ((first + s->table[pos >> shift]) << shift) + (pos & mask);
    }
    memcpy(table, s->table, (size_t)s->n_table * sizeof(*table));
    for (int32_t i = 0; first > 0 && i < s->n_table; i++)
        table[i] += first;
    for (int32_t i = s->n_table; i < b->max_blocks; i++)
        table[i] = -1;
    f->n_tokens += e->n;
    batch_kv_len_mut(b)[f->n_seqs] = e->start + e->n;
    batch_q_start_mut(b)[++f->n_seqs] = f->n_tokens;
    build_rows(b, e, f);
    build_sum(b, e, f);
    if (e->update)
        build_update(b, s, f);
}

static enum batch_kind kind_of(const struct step_entry *e)
{
    return e->decode                                      ? BATCH_DECODE
           : e->n_drafts > 0 && !PLANT(PLANT_DRAFT_ORDER) ? BATCH_DRAFTED
                                                          : BATCH_CHUNK;
}

const struct batch *step_build(struct step *st, int32_t block_len, int32_t n_blocks)
{
    struct batch *b = st->batch;
    struct batch filled = {0};
    const int shift = __builtin_ctz((unsigned)block_len);

    *b = st->head;
    for (int32_t i = 0; i < st->head.n_seqs; i++) {
        const struct step_entry *e = &st->entries[i];

        b->n_tokens += e->n;
        b->n_rows += e->wanted;
        b->n_sums += e->n_summed > 0;
        b->n_drafted += e->n_drafts > 0;
        b->n_offloaded += core_is_offloaded(e->sequence);
        if (e->sequence->n_table > b->max_blocks)
            b->max_blocks = e->sequence->n_table;
    }
    must(b->n_tokens <= st->max.n_tokens && b->n_rows <= st->max.n_rows &&
         b->n_masks <= st->max.n_masks);
    must(batch_layout(b) == 0 && b->bytes <= st->max.bytes);
    batch_q_start_mut(b)[0] = 0;
    for (enum batch_kind kind = BATCH_DECODE; kind <= BATCH_CHUNK; kind++)
        for (int32_t i = 0; i < st->head.n_seqs; i++)
            if (kind_of(&st->entries[i]) == kind)
                build_entry(b, &st->entries[i], shift, n_blocks, &filled);
    append(batch_copies_mut(b), &filled.n_copies, st->copies, st->head.n_copies,
           sizeof(*st->copies));
    batch_seal(b);
    return b;
}
