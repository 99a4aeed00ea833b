/* sim_backend.c - see sim_backend.h: keeps slots, states and copies, and computes. */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "tests/sim/sim_backend_impl.h"

uint64_t sim_hash(uint64_t prefix, int32_t token, int32_t position)
{
    return rng_mix(prefix + 0x9e3779b97f4a7c15u * ((uint64_t)(uint32_t)token + 1)) +
           (uint64_t)(uint32_t)position;
}

static bool is_stop(const struct sampling *s, int32_t id)
{
    for (int32_t i = 0; i < s->n_stop_ids; i++)
        if (s->stop_ids[i] == id)
            return true;
    return false;
}

int32_t sim_sample(const struct sim_backend_options *o, const struct sampling *s, uint64_t prefix,
                   uint32_t counter, const uint32_t *mask)
{
    bool ban = o->never_stop || (int64_t)counter < s->min_tokens;
    uint64_t h = rng_mix(prefix ^ rng_mix(s->seed + counter));

    if (o->numerics_one_in && h % (uint64_t)o->numerics_one_in == 0)
        return BATCH_NUMERICS;
    h = rng_mix(h + 1) % (uint64_t)o->n_ids;
    for (int32_t i = 0; i < o->n_ids; i++, h = h + 1 < (uint64_t)o->n_ids ? h + 1 : 0) {
        int32_t id = o->first_id + (int32_t)h;

        if ((!ban || !is_stop(s, id)) && (!mask || mask[id / 32] >> id % 32 & 1))
            return id;
    }
    return mask ? BATCH_NUMERICS : o->first_id; /* all ids are stop ids */
}

void sim_hidden(float out[SIM_SUM_DIM], const struct sim_backend_options *o, uint64_t prefix,
                int32_t position)
{
    const uint64_t h = rng_mix(prefix + 2);

    out[0] = (float)(h & 0xfff);
    out[1] = (float)(position + 1);
    if (o->numerics_one_in && h % (uint64_t)o->numerics_one_in == 0)
        out[0] = NAN;
}

float sim_logprob(uint64_t prefix, int32_t id)
{
    return -(float)(rng_mix(prefix + (uint64_t)(uint32_t)id) & 0xffff) / 4096.0f;
}

int sim_backend_new(struct sim_backend **out, const struct sim_backend_options *options)
{
    struct sim_backend *b = calloc(1, sizeof(*b));
    size_t n_seqs = (size_t)options->max_seqs;

    if (!b)
        return -ENOMEM;
    b->o = *options;
    b->rng.state = options->seed;
    for (int t = 0; t < N_TIERS; t++) {
        size_t n = (size_t)options->n_blocks[t];

        b->slots[t] = calloc(n + 1, (size_t)options->block_len * sizeof(*b->slots[t]));
        b->places[t] = calloc(n + 1, sizeof(*b->places[t]));
        if (!b->slots[t] || !b->places[t])
            goto fail;
    }
    b->states = calloc(n_seqs, sizeof(*b->states));
    b->mask_words = ((size_t)options->first_id + (size_t)options->n_ids + 31) / 32;
    b->masks = calloc(n_seqs * b->mask_words, sizeof(*b->masks));
    b->copies = calloc(MAX_COPIES, sizeof(*b->copies));
    b->ended = calloc(MAX_COPIES, sizeof(*b->ended));
    if (!b->states || !b->masks || !b->copies || !b->ended)
        goto fail;
    for (size_t i = 0; i < sizeof(b->results) / sizeof(b->results[0]); i++) {
        struct result *r = &b->results[i];

        r->ids = calloc(n_seqs, sizeof(int32_t));
        r->sums = calloc(n_seqs, SIM_SUM_DIM * sizeof(float));
        r->logprobs = calloc(n_seqs, sizeof(float));
        r->top_ids = calloc(n_seqs, SAMPLING_MAX_LOGPROBS * sizeof(int32_t));
        r->top_logprobs = calloc(n_seqs, SAMPLING_MAX_LOGPROBS * sizeof(float));
        if (!r->ids || !r->sums || !r->logprobs || !r->top_ids || !r->top_logprobs)
            goto fail;
    }
    *out = b;
    return 0;
fail:
    sim_backend_free(b);
    return -ENOMEM;
}

void sim_backend_copy_disk(struct sim_backend *to, const struct sim_backend *from)
{
    const size_t n = (size_t)from->o.n_blocks[TIER_DISK] * (size_t)from->o.block_len;

    memcpy(to->slots[TIER_DISK], from->slots[TIER_DISK], n * sizeof(*to->slots[TIER_DISK]));
    for (size_t i = 0; i < n; i++)
        to->slots[TIER_DISK][i].written_step = to->slots[TIER_DISK][i].read_step = 0;
}

void sim_backend_empty_device(struct sim_backend *b)
{
    const size_t n = (size_t)b->o.n_blocks[TIER_DEVICE] * (size_t)b->o.block_len;

    memset(b->slots[TIER_DEVICE], 0, n * sizeof(*b->slots[TIER_DEVICE]));
}

void sim_backend_free(struct sim_backend *b)
{
    if (!b)
        return;
    for (size_t i = 0; i < sizeof(b->results) / sizeof(b->results[0]); i++) {
        free(b->results[i].ids);
        free(b->results[i].sums);
        free(b->results[i].logprobs);
        free(b->results[i].top_ids);
        free(b->results[i].top_logprobs);
    }
    for (int t = 0; t < N_TIERS; t++) {
        free(b->slots[t]);
        free(b->places[t]);
    }
    free(b->states);
    free(b->masks);
    free(b->copies);
    free(b->ended);
    free(b);
}

static uint64_t checksum(const struct batch *t)
{
    return XXH3_64bits_withSeed(t, t->bytes, 1);
}

static const char *set_states(struct sim_backend *b, const struct batch *t)
{
    for (int32_t i = 0; i < t->n_updates; i++) {
        const struct sampler_update *u = &batch_updates(t)[i];
        const struct sampling from = batch_sampling(t, u);
        const int32_t *history = batch_history(t, u);
        struct state *state;

        if (u->state < 0 || u->state >= b->o.max_seqs || from.n_stop_ids > SAMPLING_MAX_STOP_IDS)
            return "sampler update: the state is out of range";
        if (!sampling_needs_history(&from) && (u->n_history || u->n_prompt))
            return "sampler update: a history that nobody needs";
        if (sampling_needs_history(&from) && (u->n_prompt < 1 || u->n_history < u->n_prompt))
            return "sampler update: no history, or one shorter than the prompt";
        state = &b->states[u->state];
        state->set = true;
        state->sampling = from;
        state->sampling.stop_ids = state->stop_ids;
        memcpy(state->stop_ids, from.stop_ids, (size_t)from.n_stop_ids * sizeof(int32_t));
        state->hash = 0;
        state->n_known = u->n_history;
        for (int32_t k = 0; k < u->n_history; k++)
            state->hash = sim_hash(state->hash, history[k], k);
    }
    return NULL;
}

const char *sim_backend_submit(struct sim_backend *b, const struct batch *batch)
{
    struct pending *pending = &b->pending[batch->step % BACKEND_IN_FLIGHT];
    const char *wrong;

    if (b->submitted - b->waited >= BACKEND_IN_FLIGHT)
        return "more steps are submitted than may be in flight";
    if (sim_backend_lacks_masks(b))
        return "a step is submitted while the oldest lacks masks";
    wrong = sim_backend_check(b, batch);
    if (wrong)
        return wrong;
    b->submitted++;
    result_of(b, b->submitted)->n = batch->n_rows;
    result_of(b, b->submitted)->n_sums = batch->n_sums;
    *pending = (struct pending){.batch = batch,
                                .checksum = checksum(batch),
                                .masked = batch->n_masks == 0};
    return NULL;
}

bool sim_backend_lacks_masks(const struct sim_backend *b)
{
    return b->waited < b->submitted && !b->pending[(b->waited + 1) % BACKEND_IN_FLIGHT].masked;
}

const char *sim_backend_mask(struct sim_backend *b, const uint32_t *const *masks)
{
    struct pending *p = &b->pending[(b->waited + 1) % BACKEND_IN_FLIGHT];

    if (!sim_backend_lacks_masks(b))
        return "masks are given to a step that needs none";
    batch_join_masks(b->masks, masks, p->batch->n_masks, b->mask_words);
    p->masked = true;
    return NULL;
}

/* Moves the bytes, or spoils the target. */
static void end_copy(struct sim_backend *b, struct copy *k)
{
    const size_t len = (size_t)b->o.block_len;
    const struct slot *from = b->slots[k->copy.from_tier] + (size_t)k->copy.from * len;
    struct slot *to = b->slots[k->copy.to_tier] + (size_t)k->copy.to * len;

    k->ended = true;
    k->ok = b->o.copy_fail_one_in == 0 || !rng_one_in(&b->rng, b->o.copy_fail_one_in);
    for (size_t i = 0; i < len; i++) {
        to[i].token = from[i].token;
        to[i].position = k->ok ? from[i].position : -1;
        to[i].hash = from[i].hash;
        to[i].decoded = from[i].decoded;
    }
}

static void sample_row(struct sim_backend *b, const struct batch *t, int32_t row, uint64_t hash)
{
    const struct batch_row *r = &batch_rows(t)[row];
    struct state *state = &b->states[r->state];
    struct result *result = result_of(b, t->step);
    size_t top = (size_t)row * SAMPLING_MAX_LOGPROBS;
    int32_t id = sim_sample(&b->o, &state->sampling, hash, r->counter,
                            r->mask >= 0 ? b->masks + (size_t)r->mask * b->mask_words : NULL);

    result->ids[row] = id;
    result->logprobs[row] = 0;
    state->hash = sim_hash(state->hash, id, state->n_known++);
    if (state->sampling.n_logprobs < 0)
        return;
    result->logprobs[row] = sim_logprob(hash, id);
    for (int32_t i = 0; i < state->sampling.n_logprobs; i++) {
        result->top_ids[top + (size_t)i] = i;
        result->top_logprobs[top + (size_t)i] = sim_logprob(hash, i);
    }
}

/* Adds the row to the sum that it is in, if any. */
static void sum_row(struct sim_backend *b, const struct batch *t, int32_t row, uint64_t hash)
{
    float *sums = result_of(b, t->step)->sums, hidden[SIM_SUM_DIM];

    sim_hidden(hidden, &b->o, hash, batch_positions(t)[row]);
    for (int32_t i = 0; i < t->n_sums; i++) {
        const struct batch_sum *s = &batch_sums(t)[i];

        for (int k = 0; row >= s->row && row < s->row + s->n_rows && k < SIM_SUM_DIM; k++)
            sums[i * SIM_SUM_DIM + k] = hidden[k] + (row > s->row ? sums[i * SIM_SUM_DIM + k] : 0);
    }
}

static const char *compute_sequence(struct sim_backend *b, const struct batch *t, int32_t i,
                                    int32_t *row)
{
    const int32_t from = batch_q_start(t)[i], to = batch_q_start(t)[i + 1];
    const struct batch_row *rows = batch_rows(t);
    int32_t first = batch_positions(t)[from];
    uint64_t hash = 0;

    for (int32_t p = 0; p < first; p++) {
        const struct slot *s = slot_at(b, slot_of(b, t, i, p));

        hash = sim_hash(hash, s->token, p);
        if (s->position != p || s->hash != hash)
            return "a slot holds something else than the prefix before it";
        if (b->o.replay && s->decoded && i >= t->n_decodes + t->n_drafted)
            return "a prompt goes on behind what was sampled";
    }
    for (int32_t r = from; r < to; r++) {
        struct slot *s = slot_at(b, batch_slots(t)[r]);

        s->token = batch_tokens(t)[r];
        if (s->token < 0)
            s->token = result_of(b, t->step - 1)->ids[~s->token];
        s->position = batch_positions(t)[r];
        s->hash = hash = sim_hash(hash, s->token, s->position);
        s->decoded = i < t->n_decodes + t->n_drafted;
        sum_row(b, t, r, hash);
        if (*row == t->n_rows || rows[*row].row != r)
            continue;
        if (sampling_needs_history(&b->states[rows[*row].state].sampling) &&
            (b->states[rows[*row].state].n_known != s->position + 1 ||
             b->states[rows[*row].state].hash != hash))
            return "a sampler state knows other tokens than its sequence";
        sample_row(b, t, (*row)++, hash);
    }
    return NULL;
}

const char *sim_backend_run(struct sim_backend *b)
{
    const struct batch *t;
    const char *wrong;
    int32_t row = 0;

    if (b->computed == b->submitted || !b->pending[(b->computed + 1) % BACKEND_IN_FLIGHT].masked)
        return NULL;
    b->computed++;
    t = b->pending[b->computed % BACKEND_IN_FLIGHT].batch;
    if (checksum(t) != b->pending[b->computed % BACKEND_IN_FLIGHT].checksum)
        return "a batch was changed while its step was in flight";
    for (int32_t i = 0; i < b->n_copies; i++)
        if (b->copies[i].step == t->step && b->copies[i].copy.when == COPY_BEFORE)
            end_copy(b, &b->copies[i]);
    wrong = set_states(b, t);
    if (!wrong)
        wrong = sim_backend_check_rows(b, t);
    for (int32_t i = 0; !wrong && i < t->n_seqs; i++)
        wrong = compute_sequence(b, t, i, &row);
    return wrong;
}

/* Ends some copies, in any order, and reports those that have; a step without rows waits for one.
 */
static int32_t report_copies(struct sim_backend *b, bool wait_for_one)
{
    int32_t n = 0, n_left = 0, first = b->n_copies ? rng_range(&b->rng, 0, b->n_copies - 1) : 0;

    for (int32_t i = 0; i < b->n_copies; i++) {
        struct copy *k = &b->copies[(first + i) % b->n_copies];

        if (!k->ended && k->copy.when == COPY_AFTER && k->step <= b->waited &&
            (wait_for_one || b->o.copy_steps == 0 || rng_one_in(&b->rng, b->o.copy_steps))) {
            end_copy(b, k);
            wait_for_one = false;
        }
    }
    for (int32_t i = 0; i < b->n_copies; i++) {
        const struct copy *k = &b->copies[i];

        if (!k->ended || k->step > b->waited) {
            b->copies[n_left++] = *k;
            continue;
        }
        b->ended[n++] = (struct copy_result){k->copy.id, k->ok};
        if (k->copy.when == COPY_AFTER) {
            b->places[k->copy.from_tier][k->copy.from].n_from--;
            b->places[k->copy.to_tier][k->copy.to].n_to--;
        }
    }
    b->n_copies = n_left;
    return n;
}

const char *sim_backend_wait(struct sim_backend *b, struct step_result *out)
{
    const struct result *r;

    if (b->waited == b->submitted)
        return "a step is waited for that was never submitted";
    if (sim_backend_lacks_masks(b))
        return "a step is waited for that lacks masks";
    b->waited++;
    while (b->computed < b->waited) {
        const char *wrong = sim_backend_run(b);

        if (wrong)
            return wrong;
    }
    r = result_of(b, b->waited);
    *out = (struct step_result){
        .step = b->waited,
        .n_rows = r->n,
        .ids = r->ids,
        .logprobs = r->logprobs,
        .top_ids = r->top_ids,
        .top_logprobs = r->top_logprobs,
        .n_sums = r->n_sums,
        .sum_dim = SIM_SUM_DIM,
        .sums = r->sums,
        .n_copies = report_copies(b, b->pending[b->waited % BACKEND_IN_FLIGHT].batch->n_seqs == 0 &&
                                         rng_one_in(&b->rng, 2)),
        .copies = b->ended,
    };
    return NULL;
}
