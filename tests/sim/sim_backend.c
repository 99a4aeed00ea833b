/* sim_backend.c - see sim_backend.h. */
#include "tests/sim/sim_backend.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "engine/backend.h"
#include "tests/sim/rng.h"

struct slot {
    int32_t token;
    int32_t position;
    uint64_t hash; /* of the prefix up to and with this token */
    uint64_t written_step, read_step;
    int32_t writer; /* sequence of written_step */
    bool decoded;   /* by a decode, not in a chunk */
};

struct state {
    const struct sampling *sampling; /* NULL: never loaded */
    uint64_t hash;                   /* of the tokens known, where the sampling needs them */
    int32_t n_known;
};

/* A step submitted and not waited for. */
struct pending {
    const struct batch *batch;
    uint64_t checksum;
};

struct sim_backend {
    struct sim_backend_options o;
    struct slot *slots;                        /* [n_blocks * block_len] */
    struct state *states;                      /* [max_seqs] */
    struct pending pending[BACKEND_IN_FLIGHT]; /* step n at n % BACKEND_IN_FLIGHT */
    uint64_t submitted, computed, waited;
    struct {
        int32_t n;
        int32_t *ids;                 /* [max_seqs] */
        float *logprobs;              /* [max_seqs] */
        int32_t *top_ids;             /* [max_seqs, SAMPLING_MAX_LOGPROBS] */
        float *top_logprobs;          /* the same */
    } results[BACKEND_IN_FLIGHT + 1]; /* the step before must outlive two more */
};

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
                   uint32_t counter)
{
    bool ban = o->never_stop || (int64_t)counter < s->min_tokens;
    uint64_t h = rng_mix(prefix ^ rng_mix(s->seed + counter));
    int32_t id;

    if (o->numerics_one_in && h % (uint64_t)o->numerics_one_in == 0)
        return BATCH_NUMERICS;
    for (int tries = 0; tries < 64; tries++) {
        h = rng_mix(h + 1);
        id = o->first_id + (int32_t)(h % (uint64_t)o->n_ids);
        if (!ban || !is_stop(s, id))
            return id;
    }
    return o->first_id; /* as good as never: nearly all ids are stop ids */
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
    b->slots = calloc((size_t)options->n_blocks, (size_t)options->block_len * sizeof(*b->slots));
    b->states = calloc(n_seqs, sizeof(*b->states));
    if (!b->slots || !b->states)
        goto fail;
    for (size_t i = 0; i < sizeof(b->results) / sizeof(b->results[0]); i++) {
        b->results[i].ids = calloc(n_seqs, sizeof(int32_t));
        b->results[i].logprobs = calloc(n_seqs, sizeof(float));
        b->results[i].top_ids = calloc(n_seqs, SAMPLING_MAX_LOGPROBS * sizeof(int32_t));
        b->results[i].top_logprobs = calloc(n_seqs, SAMPLING_MAX_LOGPROBS * sizeof(float));
        if (!b->results[i].ids || !b->results[i].logprobs || !b->results[i].top_ids ||
            !b->results[i].top_logprobs)
            goto fail;
    }
    *out = b;
    return 0;
fail:
    sim_backend_free(b);
    return -ENOMEM;
}

void sim_backend_free(struct sim_backend *b)
{
    if (!b)
        return;
    for (size_t i = 0; i < sizeof(b->results) / sizeof(b->results[0]); i++) {
        free(b->results[i].ids);
        free(b->results[i].logprobs);
        free(b->results[i].top_ids);
        free(b->results[i].top_logprobs);
    }
    free(b->slots);
    free(b->states);
    free(b);
}

static int32_t slot_of(const struct sim_backend *b, const struct batch *t, int32_t seq,
                       int32_t position)
{
    int32_t len = b->o.block_len;
    int32_t block = t->block_table[(size_t)seq * (size_t)t->max_blocks + (size_t)(position / len)];

    return block * len + position % len;
}

static uint64_t checksum(const struct batch *t)
{
    size_t n = (size_t)t->n_tokens * sizeof(int32_t), m = (size_t)t->n_seqs;
    uint64_t h = XXH3_64bits_withSeed(t->tokens, n, t->step);

    h = XXH3_64bits_withSeed(t->positions, n, h);
    h = XXH3_64bits_withSeed(t->slots, n, h);
    h = XXH3_64bits_withSeed(t->q_start, (m + 1) * sizeof(int32_t), h);
    h = XXH3_64bits_withSeed(t->kv_len, m * sizeof(int32_t), h);
    h = XXH3_64bits_withSeed(t->block_table, m * (size_t)t->max_blocks * sizeof(int32_t), h);
    for (int32_t i = 0; i < t->n_rows; i++)
        h = rng_mix(h ^ ((uint64_t)(uint32_t)t->rows[i].row << 32 | t->rows[i].counter));
    for (int32_t i = 0; i < t->n_loads; i++)
        if (t->loads[i].n_tokens)
            h = XXH3_64bits_withSeed(t->loads[i].tokens,
                                     (size_t)t->loads[i].n_tokens * sizeof(int32_t), h);
    return h;
}

static const char *check_sequence(const struct sim_backend *b, const struct batch *t, int32_t i)
{
    int32_t from = t->q_start[i], to = t->q_start[i + 1], len = b->o.block_len;
    int32_t n_blocks = (t->kv_len[i] + len - 1) / len;

    if (to <= from || to > t->n_tokens || (i < t->n_decodes && to != from + 1))
        return "batch: a sequence has no rows, or a decode more than one";
    if (n_blocks > t->max_blocks)
        return "batch: a block table is too short";
    for (int32_t k = 0; k < t->max_blocks; k++) {
        int32_t id = t->block_table[(size_t)i * (size_t)t->max_blocks + (size_t)k];

        if (id < -1 || id >= b->o.n_blocks || (id == -1 && k < n_blocks))
            return "batch: a block id is out of range";
    }
    for (int32_t r = from; r < to; r++) {
        int32_t position = t->kv_len[i] - (to - r);

        if (t->positions[r] != position || position < 0 ||
            t->slots[r] != slot_of(b, t, i, position))
            return "batch: positions and slots are not those of the table";
        if (t->tokens[r] < 0) {
            int32_t named = ~t->tokens[r];

            if (i >= t->n_decodes || b->submitted == 0 ||
                named >= b->results[b->submitted % (BACKEND_IN_FLIGHT + 1)].n)
                return "batch: a token names a row that the step before does not have";
            if (b->submitted == b->waited)
                return "batch: a token names a row that has been read back already";
        }
    }
    return NULL;
}

static const char *check_rows(const struct sim_backend *b, const struct batch *t)
{
    int32_t seq = 0;

    for (int32_t i = 0; i < t->n_rows; i++) {
        const struct batch_row *row = &t->rows[i];
        const struct sampling *s;

        while (seq < t->n_seqs && t->q_start[seq + 1] - 1 != row->row)
            seq++;
        if (seq == t->n_seqs)
            return "batch: rows are not the last ones of sequences, in order";
        if (row->state < 0 || row->state >= b->o.max_seqs)
            return "batch: a sampler state is out of range";
        s = b->states[row->state].sampling;
        if (!s)
            return "batch: a sampler state was never loaded";
        if (row->ban_stops != ((int64_t)row->counter < s->min_tokens))
            return "batch: ban_stops is not what min_tokens wants";
    }
    for (int32_t i = 0; i < t->n_decodes && !b->o.replay; i++)
        if (i >= t->n_rows || t->rows[i].row != i)
            return "batch: a decode's row is not wanted";
    for (int32_t i = 0; i < t->n_rows && b->o.replay; i++)
        if (t->rows[i].row >= t->n_decodes && t->rows[i].counter > 0)
            return "batch: what was sampled is computed again in a chunk";
    return NULL;
}

static const char *check_form(const struct sim_backend *b, const struct batch *t)
{
    if (t->step != b->submitted + 1)
        return "batch: steps are not numbered one by one";
    if (t->n_tokens < 1 || t->n_tokens > b->o.max_batch_tokens || t->n_seqs < 1 ||
        t->n_seqs > b->o.max_seqs || t->n_decodes > t->n_seqs || t->q_start[0] != 0 ||
        t->q_start[t->n_seqs] != t->n_tokens)
        return "batch: sizes are out of range";
    for (int32_t i = 0; i < t->n_seqs; i++) {
        const char *wrong = check_sequence(b, t, i);

        if (wrong)
            return wrong;
    }
    return NULL;
}

/* What one sequence reads must have been written by steps that are over, or by its own rows in the
 * step in flight. */
static const char *check_reads(struct sim_backend *b, const struct batch *t, int32_t i)
{
    int32_t first = t->positions[t->q_start[i]];
    const struct batch *before = b->pending[(t->step - 1) % BACKEND_IN_FLIGHT].batch;

    for (int32_t p = 0; p < first; p++) {
        struct slot *s = &b->slots[slot_of(b, t, i, p)];

        s->read_step = t->step;
        if (s->written_step <= b->waited)
            continue;
        if (before->kv_len[s->writer] != first ||
            slot_of(b, before, s->writer, first - 1) != slot_of(b, t, i, first - 1))
            return "a block is read before the step that writes it is over";
    }
    return NULL;
}

static const char *check_writes(struct sim_backend *b, const struct batch *t, int32_t i)
{
    for (int32_t r = t->q_start[i]; r < t->q_start[i + 1]; r++) {
        struct slot *s = &b->slots[t->slots[r]];

        if (s->read_step > b->waited)
            return "a slot is written that a step in flight reads";
        if (s->written_step > b->waited)
            return "a slot is written twice by steps in flight";
        s->written_step = t->step;
        s->writer = i;
    }
    return NULL;
}

static const char *load_states(struct sim_backend *b, const struct batch *t)
{
    for (int32_t i = 0; i < t->n_loads; i++) {
        const struct batch_load *l = &t->loads[i];
        struct state *state;

        if (l->state < 0 || l->state >= b->o.max_seqs)
            return "load: the state is out of range";
        if (!sampling_needs_history(l->sampling) && (l->n_tokens || l->n_prompt))
            return "load: a history that nobody needs";
        if (sampling_needs_history(l->sampling) && (l->n_prompt < 1 || l->n_tokens < l->n_prompt))
            return "load: no history, or one shorter than the prompt";
        state = &b->states[l->state];
        *state = (struct state){.sampling = l->sampling, .n_known = l->n_tokens};
        for (int32_t k = 0; k < l->n_tokens; k++)
            state->hash = sim_hash(state->hash, l->tokens[k], k);
    }
    return NULL;
}

const char *sim_backend_submit(struct sim_backend *b, const struct batch *batch)
{
    struct pending *pending = &b->pending[batch->step % BACKEND_IN_FLIGHT];
    const char *wrong = check_form(b, batch);

    if (b->submitted - b->waited >= BACKEND_IN_FLIGHT)
        return "more steps are submitted than may be in flight";
    for (int32_t i = 0; !wrong && i < batch->n_seqs; i++)
        wrong = check_reads(b, batch, i);
    for (int32_t i = 0; !wrong && i < batch->n_seqs; i++)
        wrong = check_writes(b, batch, i);
    if (wrong)
        return wrong;
    b->submitted++;
    b->results[b->submitted % (BACKEND_IN_FLIGHT + 1)].n = batch->n_rows;
    *pending = (struct pending){.batch = batch, .checksum = checksum(batch)};
    return NULL;
}

static void sample_row(struct sim_backend *b, const struct batch *t, int32_t row, uint64_t hash)
{
    const struct batch_row *r = &t->rows[row];
    struct state *state = &b->states[r->state];
    size_t k = t->step % (BACKEND_IN_FLIGHT + 1);
    size_t top = (size_t)row * SAMPLING_MAX_LOGPROBS;
    int32_t id = sim_sample(&b->o, state->sampling, hash, r->counter);

    b->results[k].ids[row] = id;
    b->results[k].logprobs[row] = 0;
    state->hash = sim_hash(state->hash, id, state->n_known++);
    if (state->sampling->n_logprobs < 0)
        return;
    b->results[k].logprobs[row] = sim_logprob(hash, id);
    for (int32_t i = 0; i < state->sampling->n_logprobs; i++) {
        b->results[k].top_ids[top + (size_t)i] = i;
        b->results[k].top_logprobs[top + (size_t)i] = sim_logprob(hash, i);
    }
}

static const char *compute_sequence(struct sim_backend *b, const struct batch *t, int32_t i,
                                    int32_t *row)
{
    int32_t first = t->positions[t->q_start[i]];
    uint64_t hash = 0;

    for (int32_t p = 0; p < first; p++) {
        const struct slot *s = &b->slots[slot_of(b, t, i, p)];

        hash = sim_hash(hash, s->token, p);
        if (s->position != p || s->hash != hash)
            return "a slot holds something else than the prefix before it";
        if (b->o.replay && s->decoded && i >= t->n_decodes)
            return "a prompt goes on behind what was sampled";
    }
    for (int32_t r = t->q_start[i]; r < t->q_start[i + 1]; r++) {
        int32_t token = t->tokens[r];

        if (token < 0)
            token = b->results[(t->step - 1) % (BACKEND_IN_FLIGHT + 1)].ids[~token];
        hash = sim_hash(hash, token, t->positions[r]);
        b->slots[t->slots[r]].token = token;
        b->slots[t->slots[r]].position = t->positions[r];
        b->slots[t->slots[r]].hash = hash;
        b->slots[t->slots[r]].decoded = i < t->n_decodes;
    }
    if (*row < t->n_rows && t->rows[*row].row == t->q_start[i + 1] - 1) {
        const struct state *state = &b->states[t->rows[*row].state];

        if (sampling_needs_history(state->sampling) &&
            (state->n_known != t->kv_len[i] || state->hash != hash))
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

    if (b->computed == b->submitted)
        return NULL;
    b->computed++;
    t = b->pending[b->computed % BACKEND_IN_FLIGHT].batch;
    if (checksum(t) != b->pending[b->computed % BACKEND_IN_FLIGHT].checksum)
        return "a batch was changed while its step was in flight";
    wrong = load_states(b, t);
    if (!wrong)
        wrong = check_rows(b, t);
    for (int32_t i = 0; !wrong && i < t->n_seqs; i++)
        wrong = compute_sequence(b, t, i, &row);
    return wrong;
}

const char *sim_backend_wait(struct sim_backend *b, struct step_result *out)
{
    size_t k;

    if (b->waited == b->submitted)
        return "a step is waited for that was never submitted";
    b->waited++;
    while (b->computed < b->waited) {
        const char *wrong = sim_backend_run(b);

        if (wrong)
            return wrong;
    }
    k = b->waited % (BACKEND_IN_FLIGHT + 1);
    *out = (struct step_result){
        .step = b->waited,
        .n_rows = b->results[k].n,
        .ids = b->results[k].ids,
        .logprobs = b->results[k].logprobs,
        .top_ids = b->results[k].top_ids,
        .top_logprobs = b->results[k].top_logprobs,
    };
    return NULL;
}
