/* drafts.c - what the host says of a choice's next tokens: drafts and masks; see core.h.
 *
 * Both are for one place in the text. Drafts are rows of a step, so a sequence that waits for them
 * is planned only when all that it sampled is committed. A row's mask can come later: when its step
 * is the oldest in flight, so that all before it has been committed. */
#include "engine/core/core_impl.h"

int32_t core_set_drafts(struct sequence *s, const int32_t *tokens, int32_t n)
{
    if (sampling_needs_history(&s->sampling))
        return 0;
    if (s->n_sampling > 0) {
        s->waits |= n > 0;
        return 0;
    }
    s->waits = n > 0;
    s->n_drafts = min_i32(n, CORE_MAX_DRAFTS);
    for (int32_t i = 0; i < s->n_drafts; i++) {
        must(tokens[i] >= 0);
        s->drafts[i] = tokens[i];
    }
    return s->n_drafts;
}

int32_t core_draft(struct core *c, uint64_t id, int32_t choice, const int32_t *tokens, int32_t n)
{
    struct sequence *s = core_choice(c, id, choice);

    if (!s)
        return 0;
    s->by_model = false;
    return core_set_drafts(s, tokens, n);
}

bool core_set_mask(struct core *c, uint64_t id, int32_t choice, const uint32_t *masks, int32_t n)
{
    struct sequence *s = core_choice(c, id, choice);

    if (!s || !s->request->masks || (s->n_sampling > 0 && s->masks))
        return false;
    s->masks = n > 0 ? masks : NULL;
    s->n_masks = n;
    return true;
}

void core_add_mask_time(struct core *c, uint64_t id, uint64_t us)
{
    const struct request *q = id_map_get(&c->requests, id);

    if (q)
        fair_add_mask_time(q->user, (double)us);
}

bool core_may_sample(const struct sequence *s)
{
    return !s->waits || s->n_sampling == 0 || PLANT(PLANT_HOST_IN_FLIGHT);
}

int32_t core_n_drafts(const struct step *st, const struct sequence *s)
{
    int32_t n = min_i32(s->n_drafts, s->request->max_tokens - s->n_generated - 1);

    /* Each sequence that runs, or was preempted with a row in the step, may want a row. */
    n = min_i32(n, st->max.n_seqs - st->n_drafts - st->n_running);
    if (s->request->masks)
        n = min_i32(n, s->n_masks - 1);
    return n > 0 && !core_is_offloaded(s) ? n : 0;
}

void core_want_rows(struct step *st, struct step_entry *e, int32_t n_drafts)
{
    struct sequence *s = e->sequence;

    e->wanted = 1 + n_drafts;
    e->n_drafts = n_drafts;
    e->by_model = n_drafts > 0 && s->by_model;
    e->counter = (uint32_t)(s->n_generated + s->n_sampling++);
    st->n_drafts += n_drafts;
    st->head.n_masks += s->request->masks ? e->wanted : 0;
    s->n_drafts = 0;
}

const uint32_t *const *core_masks(struct core *c)
{
    struct step *st = &c->steps[(c->committed + 1) % BACKEND_IN_FLIGHT];

    if (core_in_flight(c) == 0 || st->head.n_masks == 0)
        return NULL;
    for (int32_t i = 0; i < st->head.n_seqs; i++) {
        const struct step_entry *e = &st->entries[i];
        const struct sequence *s = e->sequence;
        const bool ended = s->state == SEQ_ENDED; /* what is sampled is discarded */

        for (int32_t k = 0; s->request->masks && k < e->wanted; k++) {
            const int32_t of = k - (PLANT(PLANT_MASK_ROW) && k > 0);
            const int32_t mask = batch_rows(st->batch)[e->first_row + k].mask;

            must(ended || k < s->n_masks);
            st->masks[mask] = ended ? NULL : s->masks + (size_t)of * (size_t)c->options.mask_words;
        }
    }
    return st->masks;
}
