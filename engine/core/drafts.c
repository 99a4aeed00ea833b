/* drafts.c - what the host says of a choice's next tokens: drafts and masks; see core.h.
 *
 * Both are for one place in the text, so a sequence that waits for them is planned only when all
 * that it sampled is committed. */
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
    s->n_drafts = least(n, CORE_MAX_DRAFTS);
    for (int32_t i = 0; i < s->n_drafts; i++) {
        must(tokens[i] >= 0);
        s->drafts[i] = tokens[i];
    }
    return s->n_drafts;
}

int32_t core_draft(struct core *c, uint64_t id, int32_t choice, const int32_t *tokens, int32_t n)
{
    struct sequence *s = core_choice(c, id, choice);

    return s ? core_set_drafts(s, tokens, n) : 0;
}

bool core_set_mask(struct core *c, uint64_t id, int32_t choice, const uint32_t *masks, int32_t n)
{
    struct sequence *s = core_choice(c, id, choice);

    if (!s || !s->request->masks || s->n_sampling > 0)
        return false;
    s->masks = n > 0 ? masks : NULL;
    s->n_masks = n;
    return true;
}

bool core_may_sample(const struct core *c, const struct step *st, const struct sequence *s)
{
    const struct request *q = s->request;

    if ((s->waits || q->masks) && s->n_sampling > 0 && !PLANT(PLANT_HOST_IN_FLIGHT))
        return false;
    return !q->masks || PLANT(PLANT_MASK_PENDING) ||
           (s->masks && st->head.n_masks < c->options.max_masks);
}

int32_t core_n_drafts(const struct core *c, const struct step *st, const struct sequence *s)
{
    int32_t n = least(s->n_drafts, s->request->max_tokens - s->n_generated - 1);

    /* Each sequence that runs, or was preempted with a row in the step, may want a row. */
    n = least(n, st->max.n_seqs - st->n_drafts - st->n_running);
    if (s->request->masks)
        n = least(n, least(s->n_masks, c->options.max_masks - st->head.n_masks) - 1);
    return n > 0 && !core_is_offloaded(s) ? n : 0;
}

void core_want_rows(struct step *st, struct step_entry *e, int32_t n_drafts)
{
    struct sequence *s = e->sequence;

    e->wanted = 1 + n_drafts;
    e->n_drafts = n_drafts;
    e->counter = (uint32_t)(s->n_generated + s->n_sampling++);
    e->masks = s->masks;
    st->n_drafts += n_drafts;
    st->head.n_masks += s->masks ? e->wanted : 0;
    s->masks = NULL;
    s->n_masks = s->n_drafts = 0;
}
