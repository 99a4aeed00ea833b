/* sim_backend.c - see sim_backend.h. */
#include "tests/sim/sim_backend.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "engine/backend.h"
#include "tests/sim/rng.h"

enum { MAX_COPIES = 4096 }; /* under way */

struct slot {
    int32_t token;
    int32_t position;
    uint64_t hash; /* of the prefix up to and with this token */
    uint64_t written_step, read_step;
    int32_t writer; /* sequence of written_step */
    bool decoded;   /* by a decode, not in a chunk */
};

struct state {
    bool set;
    struct sampling sampling; /* without bias */
    int32_t stop_ids[SAMPLING_MAX_STOP_IDS];
    uint64_t hash; /* of the tokens known, where the sampling needs them */
    int32_t n_known;
};

/* Copies marked `after` under way that read or write a block. */
struct place {
    int32_t n_from, n_to;
};

struct copy {
    struct batch_copy copy;
    uint64_t step;
    bool ended, ok;
};

/* A step submitted and not waited for. */
struct pending {
    const struct batch *batch;
    uint64_t checksum;
    bool masked; /* it has the masks that it needs */
};

struct result {
    int32_t n, n_sums;
    float *sums;         /* [max_seqs, SIM_SUM_DIM] */
    int32_t *ids;        /* [max_seqs] */
    float *logprobs;     /* [max_seqs] */
    int32_t *top_ids;    /* [max_seqs, SAMPLING_MAX_LOGPROBS] */
    float *top_logprobs; /* the same */
};

struct sim_backend {
    struct sim_backend_options o;
    struct rng rng;
    struct slot *slots[N_TIERS];   /* [n_blocks * block_len] */
    struct place *places[N_TIERS]; /* [n_blocks] */
    struct state *states;          /* [max_seqs] */
    uint32_t *masks;               /* [max_seqs, mask_words] of one step */
    size_t mask_words;
    struct pending pending[BACKEND_IN_FLIGHT]; /* step n at n % BACKEND_IN_FLIGHT */
    uint64_t submitted, computed, waited;
    struct result results[BACKEND_IN_FLIGHT + 1]; /* the step before must outlive two more */
    int32_t n_offloaded, n_chunks;                /* of the batch being checked */
    int32_t n_alone;                              /* chunks of offloaded sequences */
    int32_t n_copies;
    struct copy *copies;       /* [MAX_COPIES] submitted and not yet reported */
    struct copy_result *ended; /* [MAX_COPIES] of the last wait */
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

static const int32_t *table_of(const struct batch *t, int32_t seq)
{
    return batch_block_table(t) + (size_t)seq * (size_t)t->max_blocks;
}

static int32_t slot_of(const struct sim_backend *b, const struct batch *t, int32_t seq,
                       int32_t position)
{
    const int shift = __builtin_ctz((unsigned)b->o.block_len); /* division is slow */

    return (table_of(t, seq)[position >> shift] << shift) + (position & (b->o.block_len - 1));
}

/* The tier of a block that a table names, and its id there. */
static int tier_of(const struct sim_backend *b, int32_t *id)
{
    if (*id < b->o.n_blocks[TIER_DEVICE])
        return TIER_DEVICE;
    *id -= b->o.n_blocks[TIER_DEVICE];
    return TIER_HOST;
}

static struct slot *slot_at(const struct sim_backend *b, int32_t slot)
{
    const int32_t n = b->o.n_blocks[TIER_DEVICE] * b->o.block_len;

    return slot < n ? &b->slots[TIER_DEVICE][slot] : &b->slots[TIER_HOST][slot - n];
}

static const struct place *place_at(const struct sim_backend *b, int32_t id)
{
    const int tier = tier_of(b, &id);

    return &b->places[tier][id];
}

static uint64_t checksum(const struct batch *t)
{
    return XXH3_64bits_withSeed(t, t->bytes, 1);
}

static struct result *result_of(struct sim_backend *b, uint64_t step)
{
    return &b->results[step % (BACKEND_IN_FLIGHT + 1)];
}

static const char *check_sequence(struct sim_backend *b, const struct batch *t, int32_t i)
{
    const int32_t *q_start = batch_q_start(t), *table = table_of(t, i);
    const int32_t *tokens = batch_tokens(t), kv_len = batch_kv_len(t)[i];
    int32_t from = q_start[i], to = q_start[i + 1], len = b->o.block_len;
    int32_t n_blocks = (kv_len + len - 1) / len, n_there = b->o.n_blocks[TIER_DEVICE], first = 0;

    if (b->o.offload && n_blocks > 0 && table[0] >= n_there) { /* all of them in the host tier */
        first = n_there;
        n_there += b->o.n_blocks[TIER_HOST];
        b->n_offloaded++;
        b->n_alone += i >= t->n_decodes;
    }
    b->n_chunks += i >= t->n_decodes + t->n_drafted;
    if (to <= from || to > t->n_tokens || (i < t->n_decodes && to != from + 1))
        return "batch: a sequence has no rows, or a decode more than one";
    if (n_blocks > t->max_blocks)
        return "batch: a block table is too short";
    for (int32_t k = 0; k < t->max_blocks; k++)
        if (table[k] < -1 || table[k] >= n_there || (table[k] == -1 && k < n_blocks) ||
            (table[k] >= 0 && table[k] < first))
            return "batch: a block id is out of range";
    for (int32_t r = from; r < to; r++) {
        int32_t position = kv_len - (to - r);

        if (batch_positions(t)[r] != position || position < 0 ||
            batch_slots(t)[r] != slot_of(b, t, i, position))
            return "batch: positions and slots are not those of the table";
        if (tokens[r] < 0) {
            if (i >= t->n_decodes || b->submitted == 0 ||
                ~tokens[r] >= result_of(b, b->submitted)->n)
                return "batch: a token names a row that the step before does not have";
            if (b->submitted == b->waited)
                return "batch: a token names a row that has been read back already";
        }
    }
    return NULL;
}

static bool is_drafted(const struct batch *t, int32_t seq)
{
    return seq >= t->n_decodes && seq < t->n_decodes + t->n_drafted;
}

/* The wanted rows of one sequence, of which the first is number *row: its last rows, one after
 * another, with counters one after another. */
static const char *check_wanted(const struct sim_backend *b, const struct batch *t, int32_t seq,
                                int32_t *row)
{
    const int32_t first = *row, end = batch_q_start(t)[seq + 1];
    const struct batch_row *rows = batch_rows(t);

    for (; *row < t->n_rows && rows[*row].row < end; ++*row) {
        const struct batch_row *r = &rows[*row];
        const struct state *state;

        if (r->row < batch_q_start(t)[seq] || r->row != rows[first].row + *row - first ||
            r->counter != rows[first].counter + (uint32_t)(*row - first) ||
            r->state != rows[first].state)
            return "batch: a sequence's wanted rows do not follow one another";
        if (r->state < 0 || r->state >= b->o.max_seqs)
            return "batch: a sampler state is out of range";
        if (r->mask < -1 || r->mask >= t->n_masks)
            return "batch: a mask is out of range";
        state = &b->states[r->state];
        if (!state->set)
            return "batch: a sampler state was never set";
        if (r->ban_stops != ((int64_t)r->counter < state->sampling.min_tokens))
            return "batch: ban_stops is not what min_tokens wants";
        if (*row > first && sampling_needs_history(&state->sampling))
            return "batch: drafts for a sequence that may have none";
    }
    if (*row > first && rows[*row - 1].row != end - 1)
        return "batch: wanted rows are not the last ones of their sequence";
    if (!b->o.replay && seq < t->n_decodes && *row == first)
        return "batch: a decode's row is not wanted";
    if (is_drafted(t, seq) ? *row - first < 2 || *row - first != end - batch_q_start(t)[seq]
                           : *row - first > 1)
        return "batch: sequences with drafts are not where they should be";
    if (b->o.replay && seq >= t->n_decodes + t->n_drafted && *row > first &&
        rows[first].counter > 0)
        return "batch: what was sampled is computed again in a chunk";
    return NULL;
}

static const char *check_rows(const struct sim_backend *b, const struct batch *t)
{
    const char *wrong = NULL;
    int32_t row = 0;

    for (int32_t i = 0; !wrong && i < t->n_seqs; i++)
        wrong = check_wanted(b, t, i, &row);
    return wrong || row == t->n_rows ? wrong : "batch: wanted rows are out of order";
}

/* Sums are of rows of one sequence each, one sum a sequence, and the last of its rows. */
static const char *check_sums(const struct sim_backend *b, const struct batch *t)
{
    const struct batch_sum *sums = batch_sums(t);
    int32_t seq = 0;

    if (t->n_sums > b->o.max_seqs)
        return "batch: too many sums";
    for (int32_t i = 0; i < t->n_sums; i++, seq++) {
        while (seq < t->n_seqs && batch_q_start(t)[seq + 1] <= sums[i].row)
            seq++;
        if (seq == t->n_seqs || sums[i].n_rows < 1 || sums[i].row < batch_q_start(t)[seq] ||
            sums[i].n_rows != batch_q_start(t)[seq + 1] - sums[i].row)
            return "batch: a sum is not of the last rows of one sequence";
    }
    return NULL;
}

static const char *check_form(struct sim_backend *b, const struct batch *t)
{
    const char *wrong = batch_check(t, t->bytes);

    if (wrong)
        return wrong;
    if (t->step != b->submitted + 1)
        return "batch: steps are not numbered one by one";
    if (t->n_tokens < 0 || t->n_tokens > b->o.max_batch_tokens || t->n_seqs < 0 ||
        (t->n_seqs == 0) != (t->n_tokens == 0) || t->n_seqs > b->o.max_seqs ||
        t->n_rows > b->o.max_seqs || t->n_decodes > t->n_seqs || batch_q_start(t)[0] != 0 ||
        batch_q_start(t)[t->n_seqs] != t->n_tokens)
        return "batch: sizes are out of range";
    b->n_offloaded = b->n_chunks = b->n_alone = 0;
    for (int32_t i = 0; !wrong && i < t->n_seqs; i++)
        wrong = check_sequence(b, t, i);
    if (!wrong && b->n_offloaded != t->n_offloaded)
        wrong = "batch: offloaded sequences are not counted";
    if (!wrong && b->n_alone > 0 && b->n_chunks > 1)
        wrong = "batch: an offloaded sequence's chunk is not alone";
    return wrong ? wrong : check_sums(b, t);
}

/* What one sequence reads must have been written by steps that are over, or by its own rows in the
 * step in flight; and no copy into it is under way. */
static const char *check_reads(struct sim_backend *b, const struct batch *t, int32_t i)
{
    int32_t first = batch_positions(t)[batch_q_start(t)[i]], len = b->o.block_len;
    const struct batch *before = b->pending[(t->step - 1) % BACKEND_IN_FLIGHT].batch;

    for (int32_t k = 0; k * len < first; k++)
        if (place_at(b, table_of(t, i)[k])->n_to > 0)
            return "a block is read before the copy into it is done";
    for (int32_t p = 0; p < first; p++) {
        struct slot *s = slot_at(b, slot_of(b, t, i, p));

        s->read_step = t->step;
        if (s->written_step <= b->waited)
            continue;
        if (batch_kv_len(before)[s->writer] != first ||
            slot_of(b, before, s->writer, first - 1) != slot_of(b, t, i, first - 1))
            return "a block is read before the step that writes it is over";
    }
    return NULL;
}

static const char *check_writes(struct sim_backend *b, const struct batch *t, int32_t i)
{
    for (int32_t r = batch_q_start(t)[i]; r < batch_q_start(t)[i + 1]; r++) {
        struct slot *s = slot_at(b, batch_slots(t)[r]);
        const struct place *p = place_at(b, batch_slots(t)[r] / b->o.block_len);

        if (p->n_from > 0 || p->n_to > 0)
            return "a block is written while a copy of it is under way";
        if (s->read_step > b->waited)
            return "a slot is written that a step in flight reads";
        if (s->written_step > b->waited)
            return "a slot is written twice by steps in flight";
        s->written_step = t->step;
        s->writer = i;
    }
    return NULL;
}

/* True when a step in flight reads, or writes, a slot of a block. */
static bool is_in_flight(const struct sim_backend *b, int tier, int32_t block, bool written)
{
    const struct slot *s = b->slots[tier] + (size_t)block * (size_t)b->o.block_len;

    for (int32_t i = 0; i < b->o.block_len; i++)
        if ((written ? s[i].written_step : s[i].read_step) > b->waited)
            return true;
    return false;
}

/* Before the step's own rows are looked at: what the steps before it forbid. */
static const char *check_copy(const struct sim_backend *b, const struct batch_copy *c)
{
    if (c->from_tier >= N_TIERS || c->to_tier >= N_TIERS || c->from_tier == c->to_tier ||
        c->when > COPY_AFTER || c->unused || c->from < 0 ||
        c->from >= b->o.n_blocks[c->from_tier] || c->to < 0 || c->to >= b->o.n_blocks[c->to_tier])
        return "copy: a tier or block is out of range";
    if (is_in_flight(b, c->to_tier, c->to, false) || is_in_flight(b, c->to_tier, c->to, true))
        return "copy: a step in flight uses its target";
    if (c->when == COPY_BEFORE && is_in_flight(b, c->from_tier, c->from, true))
        return "copy: a step in flight writes its source";
    return NULL;
}

/* A copy that is over by when the step computes binds nobody; one marked `after` does until a wait
 * has reported it. */
static const char *take_copy(struct sim_backend *b, const struct batch *t,
                             const struct batch_copy *c)
{
    struct place *from = &b->places[c->from_tier][c->from], *to = &b->places[c->to_tier][c->to];

    for (int32_t i = 0; i < b->n_copies; i++)
        if (b->copies[i].copy.id == c->id)
            return "copy: another with its id is under way";
    if (b->n_copies == MAX_COPIES)
        return "copy: too many are under way";
    if (from->n_to > 0)
        return "copy: its source is the target of another under way";
    if (to->n_from > 0 || to->n_to > 0)
        return "copy: its target is in use by another under way";
    if (c->when == COPY_AFTER &&
        (is_in_flight(b, c->to_tier, c->to, false) || is_in_flight(b, c->to_tier, c->to, true)))
        return "copy: its own step uses its target";
    if (c->when == COPY_AFTER) {
        from->n_from++;
        to->n_to++;
    }
    b->copies[b->n_copies++] = (struct copy){.copy = *c, .step = t->step};
    return NULL;
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
    const char *wrong = check_form(b, batch);

    if (b->submitted - b->waited >= BACKEND_IN_FLIGHT)
        return "more steps are submitted than may be in flight";
    if (sim_backend_lacks_masks(b))
        return "a step is submitted while the oldest lacks masks";
    for (int32_t i = 0; !wrong && i < batch->n_copies; i++)
        wrong = check_copy(b, &batch_copies(batch)[i]);
    for (int32_t i = 0; !wrong && i < batch->n_seqs; i++)
        wrong = check_reads(b, batch, i);
    for (int32_t i = 0; !wrong && i < batch->n_seqs; i++)
        wrong = check_writes(b, batch, i);
    for (int32_t i = 0; !wrong && i < batch->n_copies; i++)
        wrong = take_copy(b, batch, &batch_copies(batch)[i]);
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
        wrong = check_rows(b, t);
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
