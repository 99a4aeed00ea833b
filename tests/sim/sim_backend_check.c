/* sim_backend_check.c - checks a batch against all that batch.h promises, and against the steps and
 * copies under way: nobody may write what they read, or read what they have not written. */
#include "tests/sim/sim_backend_impl.h"

/* The tier of a block that a table names, and its id there. */
static int tier_of(const struct sim_backend *b, int32_t *id)
{
    if (*id < b->o.n_blocks[TIER_DEVICE])
        return TIER_DEVICE;
    *id -= b->o.n_blocks[TIER_DEVICE];
    return TIER_HOST;
}

static const struct place *place_at(const struct sim_backend *b, int32_t id)
{
    const int tier = tier_of(b, &id);

    return &b->places[tier][id];
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

const char *sim_backend_check_rows(const struct sim_backend *b, const struct batch *t)
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

const char *sim_backend_check(struct sim_backend *b, const struct batch *t)
{
    const char *wrong = check_form(b, t);

    for (int32_t i = 0; !wrong && i < t->n_copies; i++)
        wrong = check_copy(b, &batch_copies(t)[i]);
    for (int32_t i = 0; !wrong && i < t->n_seqs; i++)
        wrong = check_reads(b, t, i);
    for (int32_t i = 0; !wrong && i < t->n_seqs; i++)
        wrong = check_writes(b, t, i);
    for (int32_t i = 0; !wrong && i < t->n_copies; i++)
        wrong = take_copy(b, t, &batch_copies(t)[i]);
    return wrong;
}
