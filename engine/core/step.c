/* step.c - see step.h. */
#include "engine/core/step.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "engine/core/sequence.h"
#include "engine/util/must.h"
#include "engine/util/plant.h"

enum { MAX_BIAS = 4 * SAMPLING_MAX_BIAS }; /* of a step's updates */

int step_init(struct step *st, const struct step_limits *limits)
{
    const size_t n_seqs = (size_t)limits->max_seqs;
    struct batch most = {
        .n_tokens = limits->max_tokens,
        .n_seqs = limits->max_seqs,
        .n_rows = limits->max_seqs,
        .n_updates = limits->max_seqs,
        .max_blocks = limits->max_blocks,
        .n_history = limits->max_history,
        .n_bias = MAX_BIAS,
        .n_masks = limits->max_masks,
        .mask_words = limits->mask_words,
        .n_copies = limits->max_copies,
    };
    int r;

    if (__builtin_mul_overflow(limits->max_seqs, SAMPLING_MAX_STOP_IDS, &most.n_stop_ids))
        return -EOVERFLOW;
    r = batch_layout(&most);
    if (r < 0)
        return r;
    st->limits = *limits;
    st->max_bytes = most.bytes;
    st->batch = calloc(1, most.bytes);
    st->decodes = calloc(n_seqs, sizeof(*st->decodes));
    st->chunks = calloc(n_seqs, sizeof(*st->chunks));
    st->updates = calloc(n_seqs, sizeof(*st->updates));
    st->copies = calloc((size_t)limits->max_copies + 1, sizeof(*st->copies));
    return st->batch && st->decodes && st->chunks && st->updates && st->copies ? 0 : -ENOMEM;
}

void step_deinit(struct step *st)
{
    free(st->batch);
    free(st->decodes);
    free(st->chunks);
    free(st->updates);
    free(st->copies);
}

void step_begin(struct step *st, uint64_t number)
{
    st->number = number;
    st->n_decodes = st->n_chunks = st->n_updates = st->n_copies = 0;
    st->n_history = st->n_bias = st->n_stop_ids = st->n_masks = st->n_drafts = 0;
}

static struct step_entry *add(struct step *st, struct step_entry *entries, int32_t *n,
                              struct sequence *s)
{
    must(st->n_decodes + st->n_chunks < st->limits.max_seqs);
    entries[*n] = (struct step_entry){.sequence = s};
    s->last_step = st->number;
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

static int32_t history_of(const struct sequence *s)
{
    return sampling_needs_history(&s->sampling) ? sequence_n_tokens(s) : 0;
}

bool step_has_room_for_update(const struct step *st, const struct sequence *s)
{
    return st->n_updates < st->limits.max_seqs &&
           history_of(s) <= st->limits.max_history - st->n_history &&
           s->sampling.n_bias <= MAX_BIAS - st->n_bias;
}

void step_add_update(struct step *st, struct sequence *s)
{
    must(step_has_room_for_update(st, s) && s->sampling.n_stop_ids <= SAMPLING_MAX_STOP_IDS);
    st->updates[st->n_updates++] = (struct step_update){s, s->slot};
    s->loaded = true;
    st->n_history += history_of(s);
    st->n_bias += s->sampling.n_bias;
    st->n_stop_ids += s->sampling.n_stop_ids;
}

static void copy(void *to, const void *from, int32_t n, size_t size)
{
    if (n > 0)
        memcpy(to, from, (size_t)n * size);
}

static void build_updates(const struct step *st)
{
    struct batch *b = st->batch;
    struct sampler_update *u = batch_at(b, b->updates_at);
    int32_t *history = batch_at(b, b->history_at), *stop_ids = batch_at(b, b->stop_ids_at);
    struct logit_bias *bias = batch_at(b, b->bias_at);
    int32_t n_history = 0, n_bias = 0, n_stop_ids = 0;

    for (int32_t i = 0; i < st->n_updates; i++) {
        const struct sequence *s = st->updates[i].sequence;

        u[i] = (struct sampler_update){
            .state = st->updates[i].state,
            .n_prompt = history_of(s) ? s->request->n_prompt : 0,
            .n_history = history_of(s),
            .history_at = n_history,
            .bias_at = n_bias,
            .stop_ids_at = n_stop_ids,
            .sampling = s->sampling,
        };
        u[i].sampling.bias = NULL;
        u[i].sampling.stop_ids = NULL;
        sequence_copy_tokens(s, 0, u[i].n_history, history + n_history);
        copy(bias + n_bias, s->sampling.bias, s->sampling.n_bias, sizeof(*bias));
        copy(stop_ids + n_stop_ids, s->sampling.stop_ids, s->sampling.n_stop_ids,
             sizeof(*stop_ids));
        n_history += u[i].n_history;
        n_bias += s->sampling.n_bias;
        n_stop_ids += s->sampling.n_stop_ids;
    }
}

/* How much of the batch is filled. */
struct filled {
    int32_t n_seqs, n_tokens, n_rows, n_masks;
};

static void build_rows(const struct step *st, struct step_entry *e, struct filled *f)
{
    struct batch *b = st->batch;
    struct batch_row *rows = batch_at(b, b->rows_at);
    const size_t words = (size_t)b->mask_words;
    uint32_t *masks = batch_at(b, b->masks_at);
    const struct sequence *s = e->sequence;

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
static void build_entry(const struct step *st, struct step_entry *e, bool decode, int shift,
                        struct filled *f)
{
    struct batch *b = st->batch;
    struct sequence *s = e->sequence;
    int32_t *tokens = (int32_t *)batch_at(b, b->tokens_at) + f->n_tokens;
    int32_t *positions = (int32_t *)batch_at(b, b->positions_at) + f->n_tokens;
    int32_t *slots = (int32_t *)batch_at(b, b->slots_at) + f->n_tokens;
    int32_t *table =
        (int32_t *)batch_at(b, b->block_table_at) + (size_t)f->n_seqs * (size_t)b->max_blocks;
    const int32_t n_known = e->n - e->n_drafts, mask = (1 << shift) - 1;

    must(e->n_drafts == 0 || !sampling_needs_history(&s->sampling));
    if (decode)
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
    if (e->wanted)
        s->last_row = f->n_rows;
    build_rows(st, e, f);
}

static void count_entries(struct batch *b, const struct step_entry *e, int32_t n)
{
    for (int32_t i = 0; i < n; i++) {
        b->n_tokens += e[i].n;
        b->n_rows += e[i].wanted;
        b->n_masks += e[i].masks ? e[i].wanted : 0;
        if (e[i].sequence->n_table > b->max_blocks)
            b->max_blocks = e[i].sequence->n_table;
    }
}

const struct batch *step_build(struct step *st, int32_t block_len)
{
    struct batch *b = st->batch;
    struct filled f = {0};
    const int shift = __builtin_ctz((unsigned)block_len);

    *b = (struct batch){
        .step = st->number,
        .n_seqs = st->n_decodes + st->n_chunks,
        .n_decodes = st->n_decodes,
        .n_updates = st->n_updates,
        .n_history = st->n_history,
        .n_bias = st->n_bias,
        .n_stop_ids = st->n_stop_ids,
        .n_copies = st->n_copies,
    };
    count_entries(b, st->decodes, st->n_decodes);
    count_entries(b, st->chunks, st->n_chunks);
    b->mask_words = b->n_masks ? st->limits.mask_words : 0;
    must(b->n_tokens <= st->limits.max_tokens && b->n_rows <= st->limits.max_seqs &&
         b->n_masks <= st->limits.max_masks);
    must(batch_layout(b) == 0 && b->bytes <= st->max_bytes);
    ((int32_t *)batch_at(b, b->q_start_at))[0] = 0;
    for (int32_t i = 0; i < st->n_decodes; i++)
        build_entry(st, &st->decodes[i], true, shift, &f);
    for (int32_t i = 0; i < st->n_chunks; i++)
        build_entry(st, &st->chunks[i], false, shift, &f);
    build_updates(st);
    copy(batch_at(b, b->copies_at), st->copies, st->n_copies, sizeof(*st->copies));
    batch_seal(b);
    return b;
}
