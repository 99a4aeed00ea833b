/* commit.c - takes a step's result: reports tokens, lists blocks, lets sequences go. */
#include <math.h>
#include <string.h>

#include "engine/core/core_impl.h"

static bool is_stop_id(const struct sampling *s, int32_t id)
{
    for (int32_t i = 0; i < s->n_stop_ids; i++)
        if (s->stop_ids[i] == id)
            return true;
    return false;
}

/* The sequence's numbers are broken: nothing of what it holds or still writes may be found, for
 * whoever shared it would break as well. */
static void forget_blocks(struct core *c, struct sequence *s)
{
    const struct blocks *b = core_blocks_of(c, s);

    for (int32_t i = 0; i < s->n_table; i++)
        if (blocks_node(b, s->table[i]))
            prefix_cache_remove(c->cache, blocks_node(b, s->table[i]));
    s->chain = 0;
}

static void emit_token(struct core *c, const struct sequence *s, const struct step_result *r,
                       int32_t row, enum core_reason reason)
{
    struct core_event e = {
        .request = s->request->id,
        .type = CORE_TOKEN,
        .choice = s->choice,
        .token = r->ids[row],
        .last_us = s->committed_us,
        .reason = reason,
    };

    if (s->sampling.n_logprobs >= 0) {
        size_t first = (size_t)row * SAMPLING_MAX_LOGPROBS;
        size_t n = (size_t)s->sampling.n_logprobs;

        must(n <= SAMPLING_MAX_LOGPROBS);
        e.logprobs.logprob = r->logprobs[row];
        e.logprobs.n_top = s->sampling.n_logprobs;
        memcpy(e.logprobs.top_ids, r->top_ids + first, n * sizeof(*r->top_ids));
        memcpy(e.logprobs.top_logprobs, r->top_logprobs + first, n * sizeof(*r->top_logprobs));
    }
    core_emit(c, &e);
}

/* The sequence is alive: running, or preempted with this row in flight. */
static void commit_token(struct core *c, struct sequence *s, const struct step_result *r,
                         int32_t row, uint64_t now_us)
{
    struct request *q = s->request;
    enum core_reason reason = CORE_REASON_NONE;
    int32_t id = r->ids[row];

    if (id == BATCH_NUMERICS) {
        forget_blocks(c, s);
        core_end_request(c, q, CORE_REASON_NUMERICS, now_us);
        return;
    }
    if (!sequence_append(s, id)) {
        core_end_request(c, q, CORE_REASON_NO_MEMORY, now_us);
        return;
    }
    if (!PLANT(PLANT_MASK_STALE)) { /* they were for this token */
        s->masks = NULL;
        s->n_masks = 0;
    }
    core_learn(c, s);
    q->usage.completion_tokens++;
    c->stats.output_tokens++;
    if (!q->usage.first_us) {
        q->usage.first_us = now_us;
        trace_request(c->trace, TRACE_FIRST_TOKEN, q->id, now_us);
    }
    if (is_stop_id(&s->sampling, id))
        reason = CORE_REASON_STOP;
    else if (s->n_generated == q->max_tokens)
        reason = CORE_REASON_LENGTH;
    emit_token(c, s, r, row, reason);
    s->committed_us = now_us;
    if (PLANT(PLANT_PREEMPT_LOSES) && s->state == SEQ_PREEMPTED)
        s->n_generated--;
    if (reason != CORE_REASON_NONE)
        core_end_choice(c, s, reason, now_us);
}

/* Tells the tokens sampled from an entry's rows: the next one, then each behind a draft that equals
 * what was sampled in its place. What the other drafts wrote does not count. */
static void commit_rows(struct core *c, const struct step_entry *e, const struct step_result *r,
                        uint64_t now_us)
{
    struct sequence *s = e->sequence;
    const int32_t row = e->first_row;
    int32_t i = 0; /* drafts that were right */

    for (;; i++) {
        bool accepted = i < e->n_drafts && (r->ids[row + i] == s->drafts[i] ||
                                            (PLANT(PLANT_DRAFT_AFTER_MISMATCH) && i > 0));

        commit_token(c, s, r, row + i, now_us);
        if (s->state == SEQ_ENDED || (!accepted && !(PLANT(PLANT_DRAFT_TOO_MANY) && i == 0)) ||
            i == e->n_drafts)
            break;
        s->n_written++;
        s->request->usage.accepted_tokens++;
        s->request->usage.model_accepted_tokens += e->by_model;
        c->stats.accepted_tokens++;
        c->stats.model_accepted_tokens += e->by_model;
        core_list_blocks(c, s, s->n_written);
    }
    if (e->n_drafts > 0) {
        s->n_planned = s->n_written; /* the others' positions are computed and charged again */
        s->n_charged = min_i32(s->n_charged, s->n_planned);
    }
    if (e->by_model)
        core_update_acceptance(c, s, i, e->n_drafts);
    if (s->state != SEQ_ENDED)
        core_speculate(c, s);
}

static bool all_finite(const float *x, int32_t n)
{
    for (int32_t i = 0; i < n; i++)
        if (!isfinite(x[i]))
            return false;
    return true;
}

/* Reports the sum of an entry's hidden states, of a sequence that is alive. */
static void commit_sum(struct core *c, const struct step_entry *e, const struct step_result *r,
                       uint64_t now_us)
{
    struct sequence *s = e->sequence;
    struct request *q = s->request;
    const float *sum = r->sums + (size_t)e->sum * (size_t)r->sum_dim;
    const int32_t end = e->start + e->n;
    const bool ends = end == sequence_n_tokens(s);

    if (!all_finite(sum, r->sum_dim)) {
        forget_blocks(c, s);
        core_end_request(c, q, CORE_REASON_NUMERICS, now_us);
        return;
    }
    core_emit(c, &(struct core_event){.request = q->id,
                                      .type = CORE_SUM,
                                      .position = end - e->n_summed,
                                      .sum = sum,
                                      .sum_dim = r->sum_dim,
                                      .reason = ends ? CORE_REASON_LENGTH : CORE_REASON_NONE});
    if (ends)
        core_end_choice(c, s, CORE_REASON_LENGTH, now_us);
}

static void commit_entry(struct core *c, const struct step_entry *e, const struct step_result *r,
                         uint64_t now_us)
{
    struct sequence *s = e->sequence;

    s->n_written = e->start + e->n - (PLANT(PLANT_DRAFT_PUBLISHED) ? 0 : e->n_drafts);
    core_list_blocks(c, s, s->n_written);
    core_wake(c, s, false);
    if (!e->decode && e->n_drafts == 0)
        c->stats.prompt_tokens += (uint64_t)e->n;
    if (!e->wanted && e->n_summed == 0)
        return;
    s->n_sampling -= e->wanted || e->start + e->n == sequence_n_tokens(s);
    if (s->state == SEQ_ENDED && !PLANT(PLANT_KEEP_DISCARDED))
        return; /* the discarded row of one that turned out to have ended */
    if (e->wanted)
        commit_rows(c, e, r, now_us);
    else
        commit_sum(c, e, r, now_us);
}

void core_commit(struct core *c, const struct step_result *result, uint64_t now_us)
{
    struct step *st = &c->steps[(c->committed + 1) % BACKEND_IN_FLIGHT];

    c->cache->now_us = now_us;
    must(core_in_flight(c) > 0);
    must(result->step == st->head.step && result->n_rows == st->batch->n_rows &&
         result->n_sums == st->batch->n_sums);
    for (int32_t i = 0; i < st->head.n_seqs; i++)
        commit_entry(c, &st->entries[i], result, now_us);
    core_commit_copies(c, result);
    c->committed++; /* only now: until here each of this step's sequences must keep its blocks */
    SEQUENCE_EACH (s, &c->draining)
        if (s->last_step <= c->committed)
            core_drained(c, s);
}
