/* speculation.c - which drafts the core proposes, and for whom they pay; see core.h.
 *
 * A prediction is what the prefix cache has behind the whole text so far, where the same prefix has
 * been computed before; else what followed the last tokens earlier in the text (lookup.h). Where
 * that gives no drafts, a draft model may be asked, if there is one.
 *
 * How many of it become drafts follows one rule: as many as give the most tokens a microsecond.
 * With k drafts, each of which is accepted with probability p if those before it are, a step gives
 * 1 + p + .. + p^k tokens of each sequence, and has (1 + k) rows of each; the others are taken to
 * do the same, for they judge alike. What such a step takes is learned (step_cost.h). So drafts get
 * longer while they are right and stop where they are not; they stop under load, where a row costs
 * what a token costs; and the loss of the second step in flight counts, because it lengthens the
 * steps that are measured. Where others keep two in flight, a sequence with drafts has a part in
 * every second step alone. What a response format forces says nothing of the others, and a draft's
 * mask keeps them waiting: there the rule counts the gain of one sequence among all. Beside a
 * prompt's chunks none are proposed: the time is the prompt's.
 *
 * A draft model is asked while no step is in flight, for all sequences at once. So the rule counts
 * what its steps take, and the tokens of the text that it has yet to read; and it is not asked
 * where a sequence decodes that would only wait for it, or its memory does not hold all their
 * texts. */
#include <string.h>

#include "engine/core/core_impl.h"

enum { MAX_CONTINUATIONS = 8 }; /* of a prefix, that are compared with the text */

static const double min_gain = 1.05; /* below, the estimate may be wrong */

/* The acceptance rate of a sequence's model drafts begins at that of all sequences, and with each
 * token returns to it by return_rate; that of all begins high, and returns there by an eighth of
 * that: so a model that was wrong is asked again. */
const double core_first_acceptance = 0.8;
static const double return_rate = 0.001953125;

/* Predicts what the prefix cache has behind the text, as far as the block goes. */
static bool predict_cached(struct core *c, struct sequence *s)
{
    const int32_t len = c->options.block_len, n = sequence_n_tokens(s);
    const struct node *node = prefix_cache_node(c->cache, s->chain);
    int32_t at = s->n_chained * len, n_left = MAX_CONTINUATIONS;
    struct lookup *l = s->lookup;
    const int32_t *tail;

    for (; node && n - at >= len; at += len) /* steps in flight have written more than is listed */
        node = prefix_cache_lookup(c->cache, prefix_cache_chain(c->cache, node),
                                   sequence_tokens(s, at, len, c->block_tokens));
    if (!node || list_empty(&node->children))
        return false;
    tail = sequence_tokens(s, at, n - at, c->block_tokens);
    for (struct list *k = node->children.prev; k != &node->children && n_left > 0;
         k = k->prev, n_left--) {
        const int32_t *there = prefix_cache_tokens(c->cache, CONTAINER_OF(k, struct node, sibling));

        if (memcmp(there, tail, (size_t)(n - at) * sizeof(*tail)) != 0)
            continue;
        l->n_predicted = min_i32(at + len - n, CORE_MAX_DRAFTS);
        memcpy(l->predicted, there + n - at, (size_t)l->n_predicted * sizeof(*there));
        return true;
    }
    return false;
}

/* Who makes drafts, and what that takes beside the step: each, and for each token of the answer. */
struct source {
    double acceptance, draft_us, token_us;
    bool holds_others; /* they have no second step in flight either */
};

/* How many drafts give the most tokens a microsecond. */
static int32_t best_length(const struct core *c, const struct sequence *s,
                           const struct source *from, int32_t most)
{
    const bool others_ahead = !from->holds_others && c->n_ahead > !s->waits;
    const int32_t n = c->n_decoding, n_alike = s->request->masks ? 1 : n;
    const double plain = step_cost_us(&c->cost, n, 0);
    double tokens = 1, part = 1, best_gain = min_gain;
    int32_t best = 0;

    for (int32_t k = 1; k <= most && n + n_alike * k <= c->steps[0].max.n_seqs; k++) {
        double us = step_cost_draft_us(&c->cost, n, n_alike * k), gain;

        part *= from->acceptance;
        tokens += part;
        us += k * from->draft_us + tokens * from->token_us;
        gain = (n - n_alike + n_alike * (others_ahead ? tokens / 2 : tokens)) / n;
        gain = us > plain ? gain * plain / us : gain;
        if (gain > best_gain) {
            best_gain = gain;
            best = k;
        }
    }
    return best;
}

static bool may_have_drafts(const struct core *c, const struct sequence *s)
{
    return c->n_prefilling == 0 && !core_is_offloaded(s) && s->state == SEQ_DECODE;
}

static int32_t tokens_left(const struct sequence *s)
{
    return s->request->max_tokens - s->n_generated - 1;
}

/* Predicts what comes next, and returns how much of it may be drafts, at most. */
static int32_t predict(struct core *c, struct sequence *s, int32_t most)
{
    struct lookup *l = s->lookup;

    if (!l)
        return 0;
    if (!predict_cached(c, s))
        lookup_predict(l, s);
    most = min_i32(most, min_i32(l->n_predicted, tokens_left(s)));
    return may_have_drafts(c, s)
               ? best_length(c, s, &(struct source){.acceptance = l->acceptance}, most)
               : 0;
}

/* ---- the draft model */

bool core_may_ask_model(const struct core *c, const struct sequence *s)
{
    return s->lookup && !s->request->masks && !core_is_offloaded(s) &&
           sequence_n_tokens(s) < c->options.draft_len;
}

int32_t core_model_blocks(const struct core *c, const struct sequence *s)
{
    return core_blocks_for(c,
                           min_i32(sequence_n_tokens(s) + CORE_MAX_DRAFTS, c->options.draft_len));
}

/* How many drafts of the model pay. What it has to read first is divided among the tokens that may
 * still come; a row of it takes as much less than one of the model as a step does. */
static int32_t model_length(const struct core *c, const struct sequence *s)
{
    const double draft_us = step_cost_model_us(&c->cost), one_us = step_cost_us(&c->cost, 1, 0);
    const int32_t n = sequence_n_tokens(s), left = tokens_left(s);
    struct source model = {.acceptance = s->model_acceptance,
                           .draft_us = draft_us,
                           .holds_others = true};

    if (c->n_decoding > c->options.draft_seqs || c->n_alone > 0 || !core_may_ask_model(c, s) ||
        c->n_model_blocks > core_blocks_for(c, c->options.draft_len) || !may_have_drafts(c, s) ||
        left <= 0)
        return 0;
    if (one_us > 0)
        model.token_us = c->cost.row_us * (draft_us / one_us) * (n - s->n_modelled) / left;
    return best_length(c, s, &model,
                       min_i32(CORE_MAX_DRAFTS, min_i32(left, c->options.draft_len - n)));
}

int32_t core_draft_requests(const struct core *c, struct core_draft_request *out)
{
    int32_t n = 0;

    SEQUENCE_EACH (s, &c->decoding)
        if (!core_may_ask_model(c, s)) /* since the last step was planned */
            return 0;
    SEQUENCE_EACH (s, &c->decoding) {
        const int32_t n_drafts =
            s->wants_model_drafts && s->n_sampling == 0 ? model_length(c, s) : 0;

        if (n_drafts > 0)
            out[n++] = (struct core_draft_request){.request = s->request->id,
                                                   .choice = s->choice,
                                                   .n_drafts = n_drafts,
                                                   .n_tokens = sequence_n_tokens(s),
                                                   .counter = (uint32_t)s->n_generated,
                                                   .sampling = &s->sampling,
                                                   .sequence = s};
    }
    return n;
}

void core_draft_request_tokens(const struct core_draft_request *r, int32_t from, int32_t *out)
{
    sequence_copy_tokens(r->sequence, from, r->n_tokens - from, out);
}

int32_t core_set_model_drafts(struct core *c, uint64_t id, int32_t choice, const int32_t *tokens,
                              int32_t n, int32_t n_read)
{
    struct sequence *s = core_choice(c, id, choice);

    if (!s || !s->wants_model_drafts)
        return 0;
    if (n_read < 0)
        s->model_acceptance = 0;
    else
        s->n_modelled = n_read;
    s->wants_model_drafts = false;
    s->by_model = true;
    return core_set_drafts(s, tokens, n);
}

void core_update_acceptance(struct core *c, struct sequence *s, int32_t n_right, int32_t n)
{
    for (int32_t i = 0; i < n && i <= n_right; i++) {
        acceptance_update(&s->model_acceptance, i < n_right);
        acceptance_update(&c->model_acceptance, i < n_right);
    }
}

/* ---- what the core calls */

void core_learn(struct core *c, struct sequence *s)
{
    if (!s->lookup && c->options.speculate && sequence_runs(s) &&
        !sampling_needs_history(&s->sampling))
        s->lookup = lookup_new(s->request->n_prompt, s->request->max_tokens);
    if (s->lookup)
        lookup_add_token(s->lookup, s);
    if (s->n_generated == 1)
        s->model_acceptance = c->model_acceptance;
    s->model_acceptance += return_rate * (c->model_acceptance - s->model_acceptance);
    c->model_acceptance += return_rate / 8 * (core_first_acceptance - c->model_acceptance);
}

void core_speculate(struct core *c, struct sequence *s)
{
    int32_t n;

    if (!s->lookup || s->request->masks)
        return;
    n = predict(c, s, CORE_MAX_DRAFTS);
    (void)core_set_drafts(s, s->lookup->predicted, n);
    s->by_model = false;
    s->wants_model_drafts = n == 0 && model_length(c, s) > 0;
    s->waits |= s->wants_model_drafts;
}

/* With a row in flight it matters only whether there would be any: none is kept. */
static int32_t in_time(const struct sequence *s, int32_t n)
{
    return s && s->n_sampling > 0 ? min_i32(n, 1) : n;
}

int32_t core_propose(struct core *c, uint64_t id, int32_t choice, int32_t *tokens, int32_t most)
{
    struct sequence *s = core_choice(c, id, choice);
    const int32_t n = s ? predict(c, s, most) : 0;

    if (n > 0)
        memcpy(tokens, s->lookup->predicted, (size_t)n * sizeof(*tokens));
    return in_time(s, n);
}

int32_t core_n_forced_drafts(struct core *c, uint64_t id, int32_t choice, int32_t most)
{
    const struct sequence *s = core_choice(c, id, choice);

    return s && may_have_drafts(c, s)
               ? in_time(s, best_length(c, s, &(struct source){.acceptance = 1}, most))
               : 0;
}
