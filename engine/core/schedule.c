/* schedule.c - which rows the next step has: decodes, prefill chunks, preemption.
 *
 * A step is planned in this order. Waiting sequences that fit take slots (admit.c). The time of the
 * step is bounded and divided among the users (fair.c). Then rows are granted one at a time, to the
 * user with the least virtual time: its decodes first, those that waited longest before others,
 * then its prefill chunks. Where a running sequence needs a block and none is left, another one is
 * preempted (preempt.c).
 *
 * The step before may still be in flight. A running decode is assumed to go on: its input is then
 * named by the row that samples it. */
#include <math.h>

#include "engine/core/core_impl.h"

enum { PROMPT_PART = 8 }; /* 1/8 of a step's rows, or of the steps, is for prompts before decodes */

/* Rows of a step that make good matrix products: 128 are computed at a time, and multiples of 1,024
 * divide evenly among a GPU's multiprocessors. (Products of 8B's layers on an H200: 17.7 us a row
 * at 1,024, 18.6 at 1,152, 19.0 at 1,408.) They also make few sizes occur. */
static const int32_t row_tiles[] = {1024, 128};

/* The step being planned. */
struct plan {
    struct step *step;
    double limit_us;     /* it may take so long; INFINITY: any */
    int32_t n_rows;      /* prompt rows so far */
    int32_t max_rows;    /* of prompts */
    int32_t max_decodes; /* before prompts have had theirs */
    bool prompts_first;
    bool no_chunks; /* an offloaded sequence has them */
    bool last;      /* the second pass: what is left goes to whoever can use it */
    bool decodes_full, prompts_full;
};

/* ---- blocks */

static bool take_block(struct core *c, struct sequence *s)
{
    const enum tier home = s->request->home;
    const int32_t within = home == TIER_HOST ? c->options.n_blocks + 1 : 1;

    must(s->n_table < c->max_blocks);
    if (!prefix_cache_take(c->cache, home, within, &s->table[s->n_table]))
        return false;
    s->n_table++;
    if (home == TIER_HOST)
        return true;
    s->n_taken++;
    s->request->user->n_blocks++;
    return true;
}

/* As take_block, but preempts where there is none. False: none in this step, because the blocks
 * freed come back with a step in flight, or s itself was preempted.
 *
 * After a preemption admission keeps a reserve, the watermark, that shrinks as sequences end: else
 * the preempted sequence would be back at once and push out the next. (256 requests of about 1,100
 * tokens on 2,000 to 10,000 blocks of 16: a third of the preemptions in as many steps.) */
static bool take_block_or_preempt(struct core *c, struct sequence *s)
{
    while (!take_block(c, s)) {
        struct sequence *victim;

        if (core_is_offloaded(s)) { /* copies under way hold the others */
            c->host_short = true;
            return false;
        }
        if (c->n_short < c->n_returning) {
            c->n_short++;
            return false;
        }
        victim = core_victim(c);
        if (!victim) {
            must(!list_empty(&c->draining) || c->n_copies > 0);
            return false;
        }
        c->watermark = core_n_running(c) + c->options.n_blocks / 32;
        core_preempt(c, victim);
        if (!sequence_runs(s))
            return false;
    }
    return true;
}

void core_list_blocks(struct core *c, struct sequence *s, int32_t n_positions)
{
    const int32_t len = c->options.block_len;

    n_positions = min_i32(n_positions, core_n_chunked(c, s)) + PLANT(PLANT_OFF_BY_ONE_FULL);
    for (; n_positions - s->n_chained * len >= len; s->n_chained++)
        prefix_cache_insert(c->cache, &s->chain,
                            sequence_tokens(s, s->n_chained * len, len, c->block_tokens),
                            s->request->home, s->table[s->n_chained]);
}

/* ---- rows of one sequence */

/* Counts what was planned for s and charges it to its user: each position once, though it may be
 * computed again after a preemption, and none that was found in the cache. */
static void count_planned(struct core *c, struct sequence *s, const struct step_entry *e)
{
    struct fair_user *u = s->request->user;
    int32_t n_new = min_i32(s->n_planned - s->n_charged, e->n);

    u->n_planned += e->n;
    u->planned_us += e->n * (e->decode ? c->fair.decode_us : c->fair.row_us);
    if (e->wanted && s->request->masks) {
        u->planned_masks_us += u->mean_mask_us;
        c->fair.planned_masks_us += u->mean_mask_us;
    }
    if (PLANT(PLANT_CHARGE_TWICE) && s->n_preempted > 0)
        n_new++;
    if (n_new <= 0)
        return;
    fair_charge(&c->fair, u, e->decode ? n_new : 0, e->decode ? 0 : n_new);
    s->n_charged = s->n_planned;
}

/* What comes after its next input is known already: it is computed again and not sampled. */
static bool replays(const struct sequence *s)
{
    return s->n_planned < sequence_n_tokens(s) - 1;
}

static bool may_decode(const struct step *st, const struct sequence *s)
{
    return s->state == SEQ_DECODE && s->last_step != st->head.step &&
           s->n_generated + s->n_sampling < s->request->max_tokens &&
           (replays(s) || core_may_sample(s));
}

/* Takes blocks for at most max drafts of s, as far as there are free or cached ones; returns for
 * how many. */
static int32_t take_draft_blocks(struct core *c, const struct step *st, struct sequence *s,
                                 int32_t max)
{
    int32_t n = min_i32(core_n_drafts(st, s), max);

    while (n > 0 && s->n_table < core_blocks_for(c, s->n_planned + 1 + n) && take_block(c, s))
        ;
    return min_i32(n, s->n_table * c->options.block_len - s->n_planned - 1);
}

/* Plans the next token of s, with at most max_drafts behind it: a decode or, with drafts, a chunk.
 * Returns the rows of the chunk. */
static int32_t plan_decode(struct core *c, struct step *st, struct sequence *s, int32_t max_drafts)
{
    bool sampling = s->n_sampling > 0; /* its input is in flight */
    int32_t n_drafts;
    struct step_entry *e;

    must(!sampling || s->last_step == st->head.step - 1);
    must(replays(s) ? c->options.replay : s->n_planned == sequence_n_tokens(s) - !sampling);
    if (core_needs_block(c, s) && !take_block_or_preempt(c, s))
        return 0;
    n_drafts = replays(s) ? 0 : take_draft_blocks(c, st, s, max_drafts);
    e = step_add(st, s, n_drafts == 0);
    e->n = 1 + n_drafts;
    e->token = sampling || PLANT(PLANT_STALE_ROW)
                   ? ~s->last_row
                   : s->generated[s->n_planned - s->request->n_prompt];
    e->start = s->n_planned;
    if (!replays(s))
        core_want_rows(st, e, n_drafts);
    s->n_planned += e->n;
    s->request->usage.draft_tokens += n_drafts;
    c->stats.draft_tokens += (uint64_t)n_drafts;
    if (e->by_model) {
        s->request->usage.model_draft_tokens += n_drafts;
        c->stats.model_draft_tokens += (uint64_t)n_drafts;
    }
    if (!PLANT(PLANT_NO_TURNS)) {
        list_remove(&s->link);
        list_append(&c->decoding, &s->link);
    }
    count_planned(c, s, e);
    return e->decode ? 0 : e->n;
}

/* Known tokens of s that are left to be computed in chunks. */
static int32_t chunk_left(const struct core *c, const struct sequence *s)
{
    return core_n_chunked(c, s) - s->n_planned;
}

/* Whether a chunk of n rows ends with one that is sampled from. */
static bool ends_sampled(const struct core *c, const struct sequence *s, int32_t n)
{
    return chunk_left(c, s) <= n && core_n_chunked(c, s) == sequence_n_tokens(s);
}

/* What of a planned chunk is wanted. Nothing follows a prompt whose hidden states are summed: it
 * counts as if its one token were being sampled. */
static void want(struct step *st, struct step_entry *e)
{
    struct sequence *s = e->sequence;
    const bool ends = s->n_planned == sequence_n_tokens(s); /* else it goes on with what is known */

    if (s->request->pooling == CORE_POOL_ALL)
        e->n_summed = e->n;
    else if (s->request->pooling == CORE_POOL_LAST)
        e->n_summed = ends;
    else if (ends)
        core_want_rows(st, e, 0);
    if (s->request->pooling != CORE_POOL_NONE && ends)
        s->n_sampling++;
}

/* Plans at most max of the next known tokens of s; returns how many, 0 where it gets no block. */
static int32_t plan_chunk(struct core *c, struct step *st, struct sequence *s, int32_t max)
{
    int32_t n = min_i32(chunk_left(c, s), max);
    int32_t n_blocks = core_blocks_for(c, s->n_planned + n);
    struct step_entry *e;

    if (n == 0 || (core_needs_block(c, s) && !take_block_or_preempt(c, s)))
        return 0;
    while (s->n_table < n_blocks && take_block(c, s))
        ;
    n = min_i32(n, s->n_table * c->options.block_len - s->n_planned);
    e = step_add(st, s, false);
    if (!s->loaded)
        step_add_update(st, e);
    e->start = s->n_planned;
    e->n = n;
    s->n_planned += n;
    if (PLANT(PLANT_EARLY_VISIBLE))
        core_list_blocks(c, s, s->n_planned);
    want(st, e);
    if (s->n_planned == core_n_chunked(c, s)) {
        s->state = SEQ_DECODE;
        list_remove(&s->link);
        list_append(&c->decoding, &s->link);
        c->n_prefilling--;
        c->n_decoding++;
    }
    count_planned(c, s, e);
    return n;
}

/* ---- rows of the step */

/* Rows that prompts may take beside n_decodes; where that is less than there are, all rows together
 * are whole tiles, the largest that do not take more than half of them away. */
static int32_t prompt_budget(const struct core *c, int32_t n_decodes)
{
    int32_t left = c->options.max_batch_tokens - n_decodes;
    int32_t n = step_cost_rows(&c->cost, n_decodes);

    if (n >= left)
        return left;
    for (size_t i = 0; i < sizeof(row_tiles) / sizeof(*row_tiles); i++) {
        int32_t whole = (n_decodes + n) / row_tiles[i] * row_tiles[i] - n_decodes;

        if (whole >= n - n / 2)
            return whole;
    }
    return n;
}

/* Rows that decodes may take before the prompts have had theirs. Where a step has one row, every
 * second step is for prompts. */
static int32_t decode_budget(const struct core *c, uint64_t step)
{
    int32_t max = c->options.max_batch_tokens;

    if (c->n_prefilling == 0 || PLANT(PLANT_NO_RESERVE))
        return max;
    if (max == 1)
        return (int32_t)(~step & 1);
    return max - (max / PROMPT_PART > 1 ? max / PROMPT_PART : 1);
}

/* The first of a user's sequences that rows may be granted to. */
static struct sequence *pop(struct list *l)
{
    struct sequence *s = CONTAINER_OF(l->next, struct sequence, in_plan);

    list_remove(&s->in_plan);
    return s;
}

/* Lines up prompts of one class by user; false: there are none. */
static bool line_up_prompts(struct core *c, const struct step *st, int32_t klass)
{
    bool any = false;

    FAIR_EACH (u, &c->fair)
        list_clear(&u->prompts);
    SEQUENCE_EACH (s, &c->prefilling) {
        struct fair_user *u = s->request->user;

        if ((int32_t)s->request->priority != klass || s->last_step == st->head.step ||
            core_is_offloaded(s))
            continue;
        list_append(&u->prompts, &s->in_plan);
        any = true;
    }
    return any;
}

static bool is_empty(const struct plan *p)
{
    return p->step->head.n_decodes + p->n_rows == 0;
}

static bool may_have_decode(const struct core *c, const struct plan *p, const struct fair_user *u)
{
    int32_t max = p->last ? c->options.max_batch_tokens - p->n_rows : p->max_decodes;

    return !list_empty(&u->decoding) && !p->decodes_full &&
           p->step->head.n_decodes < min_i32(max, c->options.max_batch_tokens - p->n_rows);
}

static int32_t prompt_rows_left(const struct core *c, const struct plan *p)
{
    return min_i32(p->max_rows, c->options.max_batch_tokens - p->step->head.n_decodes) - p->n_rows;
}

static bool may_have_prompt(const struct core *c, const struct plan *p, const struct fair_user *u)
{
    return !list_empty(&u->prompts) && !p->prompts_full && !p->no_chunks &&
           prompt_rows_left(c, p) > 0;
}

/* The user whose row is granted next; NULL: there is none. */
static struct fair_user *next_user(const struct core *c, const struct plan *p)
{
    struct fair_user *next = NULL;

    FAIR_EACH (u, &c->fair) {
        if (u->held || (!p->last && fmax(u->planned_us, u->planned_masks_us) >= u->quota_us) ||
            (!may_have_decode(c, p, u) && !may_have_prompt(c, p, u)))
            continue;
        if (!next || u->vtime < next->vtime)
            next = u;
    }
    return next;
}

/* Whether the step has time for the masks of s behind a row that is sampled from. Once those of its
 * first row exceed it, only rows fit that are expected to have none. */
static bool masks_fit(const struct core *c, const struct plan *p, const struct sequence *s)
{
    return !s->request->masks || is_empty(p) || PLANT(PLANT_NO_MASK_LIMIT) ||
           s->request->user->mean_mask_us <= fmax(p->limit_us - c->fair.planned_masks_us, 0);
}

/* A decode, with drafts as far as rows, the step and at first the user's quota have room. */
static void grant_decode(struct core *c, struct plan *p, struct fair_user *u)
{
    const int32_t left = c->options.max_batch_tokens - p->step->head.n_decodes - p->n_rows - 1;
    double us = p->limit_us - step_cost_us(&c->cost, p->step->head.n_decodes + 1, p->n_rows),
           drafts;
    struct sequence *s;

    if (us < 0 && !is_empty(p)) {
        p->decodes_full = true;
        return;
    }
    if (!p->last)
        us = fmin(us, u->quota_us - u->planned_us - c->fair.decode_us);
    drafts = p->no_chunks ? 0 : fmax(us / c->fair.row_us, 0); /* they are a chunk */
    s = pop(&u->decoding);
    if (!replays(s) && !masks_fit(c, p, s)) {
        u->held = true;
        return;
    }
    if (may_decode(p->step, s)) /* not preempted since */
        p->n_rows += plan_decode(c, p->step, s, drafts < left ? (int32_t)drafts : left);
}

/* A chunk takes no more than what is left of the step, and in the first pass of the user's quota,
 * rounded up; but a row at least. */
static void grant_chunk(struct core *c, struct plan *p, struct fair_user *u)
{
    const double row_us = c->fair.row_us;
    const int32_t left = prompt_rows_left(c, p);
    double us = p->limit_us - step_cost_us(&c->cost, p->step->head.n_decodes, p->n_rows), rows;
    struct sequence *s;

    if (us < row_us && !is_empty(p)) {
        p->prompts_full = true;
        return;
    }
    rows = floor(us / row_us);
    if (!p->last)
        rows = fmin(rows, ceil((u->quota_us - u->planned_us) / row_us));
    rows = fmax(rows, 1);
    rows = fmin(rows, left);
    s = pop(&u->prompts);
    u->prompt_waits = ends_sampled(c, s, (int32_t)rows) && !masks_fit(c, p, s);
    if (u->prompt_waits) {
        u->held = true;
        return;
    }
    if (s->state == SEQ_PREFILL && (s->loaded || step_has_room_for_update(p->step, s)))
        p->n_rows += plan_chunk(c, p->step, s, (int32_t)rows);
}

/* Prompts go by class; decodes of all classes go beside those of the highest. */
static void plan_pass(struct core *c, struct plan *p)
{
    struct fair_user *u;

    for (int32_t klass = CORE_N_PRIORITIES - 1; klass >= 0; klass--) {
        if (!line_up_prompts(c, p->step, klass) && klass > 0)
            continue;
        while ((u = next_user(c, p))) {
            if (may_have_decode(c, p, u) &&
                !((p->prompts_first || u->prompt_waits) && may_have_prompt(c, p, u)))
                grant_decode(c, p, u);
            else
                grant_chunk(c, p, u);
        }
    }
}

void core_count_runnable(const struct core *c, const struct sequence *s)
{
    struct fair_user *u = s->request->user;
    const int32_t klass = (int32_t)s->request->priority, max = c->options.max_batch_tokens;
    const int32_t n = chunk_left(c, s);

    u->decodes += s->state == SEQ_DECODE;
    u->has_masks |= s->request->masks;
    if (s->request->masks &&
        (s->state == SEQ_DECODE ? !replays(s) : ends_sampled(c, s, max - u->rows[klass])))
        u->n_masked++;
    for (int32_t k = 0; s->state == SEQ_PREFILL && !core_is_offloaded(s) && k <= klass; k++)
        u->rows[k] += min_i32(n, max - u->rows[k]);
    if (klass > u->klass)
        u->klass = klass;
}

/* Counts what each user's running sequences could have, and lines up its decodes. */
static void count_running(struct core *c, const struct step *st)
{
    SEQUENCE_EACH (s, &c->prefilling)
        core_count_runnable(c, s);
    c->n_ahead = c->n_alone = c->n_model_blocks = 0;
    SEQUENCE_EACH (s, &c->decoding) {
        s->request->user->has_masks |= s->request->masks; /* also with its row in flight */
        c->n_ahead += !s->waits;
        c->n_alone += !core_may_ask_model(c, s);
        c->n_model_blocks += core_model_blocks(c, s);
        if (!may_decode(st, s))
            continue;
        core_count_runnable(c, s);
        list_append(&s->request->user->decoding, &s->in_plan);
    }
}

/* The offloaded sequence that gets all prefill rows of this step, or NULL. Each chunk reads its
 * whole history from host memory; while other prompts are in prefill it gets two steps of every
 * four. */
static struct sequence *alone_in_step(const struct core *c, const struct step *st)
{
    struct sequence *alone = NULL;
    bool others = false;

    if (c->n_offloaded == 0)
        return NULL;
    SEQUENCE_EACH (s, &c->prefilling) {
        if (core_is_offloaded(s) && (s->loaded || step_has_room_for_update(st, s)))
            alone = s;
        others |= !core_is_offloaded(s);
    }
    return others && st->head.step / 2 % 2 ? NULL : alone;
}

static void schedule(struct core *c, struct step *st, uint64_t now_us)
{
    struct plan p = {.step = st};
    struct sequence *alone;

    c->n_short = 0;
    fair_step_begin(&c->fair, &c->cost);
    count_running(c, st);
    core_admit_waiting(c, st, now_us);
    st->n_running = core_n_running(c);
    alone = alone_in_step(c, st);
    p.no_chunks = alone && !PLANT(PLANT_OFFLOAD_CHUNKS);
    p.limit_us = fair_step_limit(&c->fair, c->options.max_batch_tokens);
    p.max_decodes = decode_budget(c, st->head.step);
    p.max_rows = prompt_budget(c, min_i32(c->n_decoding, p.max_decodes));
    p.prompts_first = !isinf(p.limit_us) && st->head.step % PROMPT_PART == 0;
    if (isinf(p.limit_us) && c->n_decoding <= p.max_decodes) /* all go: in any order */
        FAIR_EACH (u, &c->fair)
            while (!list_empty(&u->decoding))
                grant_decode(c, &p, u);
    plan_pass(c, &p);
    if (alone)
        p.n_rows += plan_chunk(c, st, alone, c->options.max_batch_tokens - st->head.n_decodes);
    p.last = true;
    p.max_rows = prompt_budget(c, st->head.n_decodes);
    plan_pass(c, &p);
    fair_step_end(&c->fair);
}

int core_next(struct core *c, const struct batch **batch, uint64_t now_us)
{
    struct step *st = &c->steps[(c->planned + 1) % BACKEND_IN_FLIGHT];

    if (core_in_flight(c) == BACKEND_IN_FLIGHT)
        return CORE_WAIT;
    c->cache->now_us = now_us;
    st->head = (struct batch){.step = c->planned + 1};
    st->n_drafts = 0;
    c->host_short = false;
    if (c->n_requests > 0)
        schedule(c, st, now_us);
    if (!c->host_short)
        core_copy_down(c, st);
    /* An empty step is for copies alone: with the last one, what waits for them can go on. */
    if (st->head.n_seqs + st->head.n_copies == 0 && (core_in_flight(c) > 0 || c->n_copies == 0))
        return c->n_requests + c->n_copies == 0 ? CORE_IDLE : CORE_WAIT;
    *batch = step_build(st, c->options.block_len, c->options.n_blocks);
    c->planned++;
    return CORE_OK;
}
