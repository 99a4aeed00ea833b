/* sim_host.c - what the host says of a choice's next tokens: drafts, of which the oracle knows how
 * many are right, and masks, which follow from the prefix. */
#include <string.h>

#include "tests/sim/sim_world_impl.h"

static const struct sequence *sequence_in_core(const struct world *w,
                                               const struct oracle_request *q, int32_t choice)
{
    const struct request *r = id_map_get(&w->core->requests, q->id);

    return &r->choices[choice];
}

/* Drafts of which the first so many are right, where the text goes on that long, and a mask for the
 * next token and each after a draft. */
static void speak(struct world *w, struct oracle_request *q, int32_t choice)
{
    const struct sequence *s = sequence_in_core(w, q, choice);
    const bool has_masks = s->masks != NULL;
    struct oracle_choice *c = &q->choices[choice];
    uint32_t masks[(1 + CORE_MAX_DRAFTS) * ORACLE_MASK_WORDS];
    int32_t drafts[CORE_MAX_DRAFTS];
    int32_t n = q->drafts ? rng_range(&w->rng, 0, CORE_MAX_DRAFTS) : 0;
    int32_t n_right = rng_range(&w->rng, 0, n);
    uint64_t hash = c->hash;

    /* Mostly not in vain. */
    if ((q->masks ? has_masks : s->n_sampling > 0) && !rng_one_in(&w->rng, 20))
        return;
    oracle_mask(masks, hash, &w->backend_options);
    for (int32_t i = 0; i < n; i++) {
        int32_t id = oracle_next(q, choice, hash, c->n_told + i, &w->backend_options);

        if (id < 0 || i >= n_right)
            id = rng_range(&w->rng, 0, w->vocab);
        drafts[i] = id;
        hash = sim_hash(hash, id, q->n_prompt + c->n_told + i);
        oracle_mask(masks + (size_t)(i + 1) * ORACLE_MASK_WORDS, hash, &w->backend_options);
    }
    if (q->masks && core_set_mask(w->core, q->id, choice, c->masks, rng_range(&w->rng, 1, n + 1))) {
        memcpy(c->masks, masks, sizeof(masks));
        w->counts->masks++;
    }
    if (q->drafts)
        (void)core_draft(w->core, q->id, choice, drafts, n);
}

void sim_host(struct world *w)
{
    for (int32_t i = 0; i < w->n_alive; i++)
        for (int32_t k = 0; k < w->alive[i]->n; k++)
            if ((w->alive[i]->drafts || w->alive[i]->masks) && !w->alive[i]->choices[k].done)
                speak(w, w->alive[i], k);
}

const char *sim_host_masks(struct world *w)
{
    const uint32_t *const *masks;
    int32_t us;

    if (!sim_backend_lacks_masks(w->backend))
        return NULL;
    for (int32_t i = 0; i < w->n_alive; i++)
        for (int32_t k = 0; w->alive[i]->masks && k < w->alive[i]->n; k++) {
            struct oracle_choice *c = &w->alive[i]->choices[k];
            const struct sequence *s = c->done ? NULL : sequence_in_core(w, w->alive[i], k);

            if (!s || s->masks || s->n_sampling == 0)
                continue;
            oracle_mask(c->masks, c->hash, &w->backend_options);
            if (!core_set_mask(w->core, w->alive[i]->id, k, c->masks, 1))
                return "a mask that a row waits for is refused";
            us = w->timed ? w->max_mask_us : rng_range(&w->rng, 0, w->max_mask_us);
            core_add_mask_time(w->core, w->alive[i]->id, (uint64_t)us);
            w->spent_mask_us[w->alive[i]->client] += us;
            w->counts->late_masks++;
        }
    masks = core_masks(w->core);
    return masks ? sim_backend_mask(w->backend, masks) : "a step's masks are not there";
}

void sim_host_planned(struct world *w, uint64_t step)
{
    const struct step *st = &w->core->steps[step % BACKEND_IN_FLIGHT];

    for (int32_t i = 0; i < st->head.n_seqs; i++) {
        const struct step_entry *e = &st->entries[i];
        struct oracle_request *q = sim_find(w, e->sequence->request->id);
        struct oracle_choice *c = q ? &q->choices[e->sequence->choice] : NULL;
        uint64_t hash;

        if (!c || e->n_drafts == 0)
            continue;
        c->due_step = step;
        c->due = c->n_told + 1;
        hash = c->hash;
        for (int32_t k = 0; k < e->n_drafts; k++, c->due++) {
            int32_t place = c->n_told + k;

            if (e->sequence->drafts[k] !=
                oracle_next(q, e->sequence->choice, hash, place, &w->backend_options))
                break;
            hash = sim_hash(hash, e->sequence->drafts[k], q->n_prompt + place);
        }
    }
}

const char *sim_host_committed(struct world *w, uint64_t step)
{
    for (int32_t i = 0; i < w->n_alive; i++)
        for (int32_t k = 0; k < w->alive[i]->n; k++) {
            const struct oracle_choice *c = &w->alive[i]->choices[k];

            if (c->due_step == step && !c->done && c->n_told != c->due)
                return "not as many drafts are accepted as were right";
        }
    return NULL;
}
