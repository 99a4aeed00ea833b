/* schedule.c - what the next step does: admission, decodes, prefill chunks, preemption.
 *
 * A step is planned in this order. Waiting sequences that fit take slots, by fair.h's order. The
 * time of the step is bounded and divided among the users. Then rows are granted one at a time, to
 * the user with the least virtual time: its decodes first, those that waited longest before others,
 * then its prefill chunks. Where a running sequence needs a block and none is left, another one is
 * preempted (preempt.c).
 *
 * The step before may still be in flight. A running decode is assumed to go on: its input is then
 * named by the row that samples it. */
#include <math.h>
#include <string.h>

#include "engine/core/core_impl.h"
#include "engine/util/must.h"
#include "engine/util/plant.h"

enum {
    PROMPT_PART = 8,  /* 1/8 of a step's rows, or of the steps, is for prompts before decodes */
    LOOK_AHEAD = 32,  /* waiting sequences that one step finds not to fit */
    RETRY_STEPS = 16, /* so many steps later such a sequence is looked up again at the latest */
};

/* Rows of a step that make good products of matrices: so many are computed at a time, and of many
 * rows so many are an even share for each of a GPU's multiprocessors. (Products of 8B's layers on
 * an H200: 17.7 us a row at 1,024, 18.6 at 1,152, 19.0 at 1,408.) They also make few sizes occur.
 */
static const int32_t row_tiles[] = {1024, 128};

/* The step being planned. */
struct plan {
    struct step *step;
    double limit_us;     /* it may take so long; INFINITY: any */
    int32_t n_rows;      /* prompt rows so far */
    int32_t max_rows;    /* of prompts */
    int32_t max_decodes; /* before prompts have had theirs */
    bool prompts_first;
    bool last; /* the second pass: what is left goes to whoever can use it */
    bool decodes_full, prompts_full;
};

static int32_t least(int32_t a, int32_t b)
{
    return a < b ? a : b;
}

/* ---- blocks */

/* Blocks that a sequence needs to get through its known tokens and begin to decode. */
static int32_t blocks_to_begin(const struct core *c, const struct sequence *s)
{
    int32_t n = core_blocks_for(c, sequence_n_tokens(s)) + 1;
    int32_t total = core_blocks_for(c, s->request->n_prompt + s->request->max_tokens - 1);

    return least(n, total);
}

static int32_t blocks_available(const struct core *c)
{
    return blocks_n_free(c->blocks) + blocks_n_cached(c->blocks);
}

static bool needs_block(const struct core *c, const struct sequence *s)
{
    return core_blocks_for(c, s->n_planned + 1) > s->n_table;
}

static bool take_block(struct core *c, struct sequence *s)
{
    must(s->n_table < c->max_blocks);
    if (prefix_cache_take(c->cache, TIER_DEVICE, &s->table[s->n_table]) != BLOCKS_OK)
        return false;
    s->n_table++;
    s->n_taken++;
    s->request->user->n_blocks++;
    return true;
}

/* As take_block, but preempts where there is none. False: none in this step, because the blocks
 * freed come back with a step in flight, or s itself was preempted.
 *
 * From a preemption on admission leaves each running sequence room to grow, less with each one that
 * ends: otherwise the one preempted would be back at once and push out the next. (256 requests of
 * about 1,100 tokens on 2,000 to 10,000 blocks of 16: a third of the preemptions, as many steps.)
 */
static bool take_block_or_preempt(struct core *c, struct sequence *s)
{
    while (!take_block(c, s)) {
        struct sequence *victim;

        if (c->n_short < c->n_returning) {
            c->n_short++;
            return false;
        }
        victim = core_victim(c);
        if (!victim) {
            must(c->n_draining > 0 || c->n_copies > 0);
            return false;
        }
        c->watermark = core_n_running(c) + c->options.n_blocks / 32;
        core_preempt(c, victim);
        if (!sequence_runs(s))
            return false;
    }
    return true;
}

/* Gives the full blocks within the first n_positions their place in the chain. */
static void chain_blocks(struct core *c, struct sequence *s, int32_t n_positions, int32_t owner)
{
    int32_t block_len = c->options.block_len;

    if (n_positions > core_n_chunked(c, s))
        n_positions = core_n_chunked(c, s);
    if (PLANT(PLANT_OFF_BY_ONE_FULL) && owner == PREFIX_CACHE_READY)
        n_positions++;
    for (; n_positions - s->n_chained * block_len >= block_len; s->n_chained++) {
        const int32_t *tokens =
            sequence_tokens(s, s->n_chained * block_len, block_len, c->block_tokens);

        prefix_cache_insert(c->cache, &s->chain, s->table[s->n_chained], tokens, owner);
    }
}

void core_chain_written(struct core *c, struct sequence *s)
{
    chain_blocks(c, s, s->n_written, PREFIX_CACHE_READY);
}

/* ---- rows of one sequence */

/* Counts what was planned for s and charges it to its user: each position once, though it may be
 * computed again after a preemption, and none that was found in the cache. */
static void count_planned(struct core *c, struct sequence *s, int32_t decodes, int32_t rows)
{

    struct fair_user *u = s->request->user;
    int32_t n_new = least(s->n_planned - s->n_charged, decodes + rows);

    u->n_planned += decodes + rows;
    u->planned_us += decodes * c->fair.decode_us + rows * c->fair.row_us;
    if (PLANT(PLANT_CHARGE_TWICE) && s->n_preempted > 0)
        n_new++;
    if (n_new <= 0)
        return;
    fair_charge(&c->fair, u, decodes ? n_new : 0, decodes ? 0 : n_new);
    s->n_charged = s->n_planned;
}

/* What comes after its next input is known already: it is computed again and not sampled. */
static bool replays(const struct sequence *s)
{
    return s->n_planned < sequence_n_tokens(s) - 1;
}

static bool may_decode(const struct core *c, const struct step *st, const struct sequence *s)
{
    return s->state == SEQ_DECODE && s->last_step != st->number &&
           s->n_generated + s->n_sampling < s->request->max_tokens &&
           (replays(s) || core_may_sample(c, st, s));
}

/* Takes blocks for at most max drafts of s, as far as there are free or cached ones; returns for
 * how many. */
static int32_t take_draft_blocks(struct core *c, const struct step *st, struct sequence *s,
                                 int32_t max)
{
    int32_t n = least(core_n_drafts(c, st, s), max);

    while (n > 0 && s->n_table < core_blocks_for(c, s->n_planned + 1 + n) && take_block(c, s))
        ;
    return least(n, s->n_table * c->options.block_len - s->n_planned - 1);
}

/* Plans the next token of s, with at most max_drafts behind it: a decode or, with drafts, a chunk.
 * Returns the rows of the chunk. */
static int32_t plan_decode(struct core *c, struct step *st, struct sequence *s, int32_t max_drafts)
{
    bool sampling = s->n_sampling > 0; /* its input is in flight */
    int32_t n_drafts;
    struct step_entry *e;

    must(!sampling || s->last_step == st->number - 1);
    must(replays(s) ? c->options.replay : s->n_planned == sequence_n_tokens(s) - !sampling);
    if (needs_block(c, s) && !take_block_or_preempt(c, s))
        return 0;
    n_drafts = replays(s) ? 0 : take_draft_blocks(c, st, s, max_drafts);
    e = n_drafts > 0 ? step_add_chunk(st, s) : step_add_decode(st, s);
    e->n = 1 + n_drafts;
    e->token = sampling || PLANT(PLANT_STALE_ROW)
                   ? ~s->last_row
                   : s->generated[s->n_planned - s->request->n_prompt];
    e->start = s->n_planned;
    if (!replays(s))
        core_want_rows(st, e, n_drafts);
    s->n_planned += e->n;
    c->n_drafts += (uint64_t)n_drafts;
    if (!PLANT(PLANT_NO_TURNS)) {
        list_remove(&s->link);
        list_append(&c->decoding, &s->link);
    }
    if (n_drafts == 0) {
        count_planned(c, s, 1, 0);
        return 0;
    }
    count_planned(c, s, 0, e->n);
    return e->n;
}

/* Known tokens of s that may be computed in chunks: without the last one, if it would be sampled
 * from and may not. */
static int32_t chunk_left(const struct core *c, const struct step *st, const struct sequence *s)
{
    int32_t n = core_n_chunked(c, s);

    return n - s->n_planned - (n == sequence_n_tokens(s) && !core_may_sample(c, st, s));
}

/* Plans at most max of the next known tokens of s; returns how many, 0 where it gets no block. */
static int32_t plan_chunk(struct core *c, struct step *st, struct sequence *s, int32_t max)
{
    int32_t n = least(chunk_left(c, st, s), max);
    int32_t n_blocks = core_blocks_for(c, s->n_planned + n);
    struct step_entry *e;

    if (n == 0 || (needs_block(c, s) && !take_block_or_preempt(c, s)))
        return 0;
    while (s->n_table < n_blocks && take_block(c, s))
        ;
    n = least(n, s->n_table * c->options.block_len - s->n_planned);
    e = step_add_chunk(st, s);
    if (!s->loaded)
        step_add_update(st, s);
    e->start = s->n_planned;
    e->n = n;
    s->n_planned += n;
    e->listed[0] = s->n_chained;
    chain_blocks(c, s, s->n_planned, s->slot);
    e->listed[1] = s->n_chained;
    if (s->n_planned == core_n_chunked(c, s)) {
        if (s->n_planned == sequence_n_tokens(s)) /* else it goes on with what is known */
            core_want_rows(st, e, 0);
        s->state = SEQ_DECODE;
        list_remove(&s->link);
        list_append(&c->decoding, &s->link);
        c->n_prefilling--;
        c->n_decoding++;
    }
    count_planned(c, s, 0, n);
    return n;
}

/* ---- what a sequence that waits needs */

/* Counts what s, which runs, could have in this step for its user. */
static void count_runnable(const struct core *c, const struct step *st, const struct sequence *s)
{
    struct fair_user *u = s->request->user;
    const int32_t klass = (int32_t)s->request->priority, max = c->options.max_batch_tokens;
    const int32_t n = chunk_left(c, st, s);

    if (s->state == SEQ_DECODE)
        u->decodes++;
    for (int32_t k = 0; s->state == SEQ_PREFILL && k <= klass; k++)
        u->rows[k] += least(n, max - u->rows[k]);
    if (klass > u->klass)
        u->klass = klass;
}

static void begin(struct core *c, const struct step *st, struct sequence *s, int32_t n_found,
                  uint64_t chain, uint64_t now_us)
{
    struct request *q = s->request;

    fair_remove(&s->item);
    c->n_waiting--;
    c->n_queued_tokens -= sequence_n_tokens(s);
    s->slot = c->free_slots[--c->n_free_slots];
    c->slots[s->slot] = s;
    s->table = c->tables + (size_t)s->slot * (size_t)c->max_blocks;
    s->n_table = s->n_chained = n_found;
    s->n_planned = s->n_written = n_found * c->options.block_len;
    s->chain = chain;
    must(s->n_sampling == 0);
    s->state = SEQ_PREFILL;
    list_append(&c->prefilling, &s->link);
    c->n_prefilling++;
    if (q->n_running++ == 0)
        c->n_requests_running++;
    q->user->n_running++;
    count_runnable(c, st, s);
    s->loaded = s->tried_load = false;
    if (n_found > 0)
        prefix_cache_count_hit(c->cache, s->table[n_found - 1]);
    if (s->ran)
        return;
    s->ran = true;
    c->stats.queried_tokens += (uint64_t)q->n_prompt;
    c->stats.hit_tokens += (uint64_t)s->n_written;
    if (s->choice == 0)
        q->usage.cached_tokens = s->n_written;
    if (!q->usage.start_us)
        q->usage.start_us = now_us;
}

/* Blocks promised to running sequences: to those in prefill all that they begin with, to each
 * decode the one it needs in this step. */
static int32_t blocks_promised(const struct core *c)
{
    int32_t n = 0;

    for (struct list *l = c->prefilling.next; l != &c->prefilling; l = l->next) {
        const struct sequence *s = CONTAINER_OF(l, struct sequence, link);

        n += blocks_to_begin(c, s) - s->n_table;
    }
    for (struct list *l = c->decoding.next; l != &c->decoding; l = l->next)
        n += needs_block(c, CONTAINER_OF(l, struct sequence, link));
    return n;
}

/* Blocks that s may take now, of those free. A user with nothing that runs need not heed the
 * watermark: its first sequence pushes nobody out again and again. */
static int64_t blocks_for(const struct core *c, const struct sequence *s, int32_t promised)
{
    int64_t n = (int64_t)blocks_available(c) - promised;

    return s->request->user->n_running > 0 ? n - c->watermark : n;
}

void core_needs(struct core *c, const struct sequence *s, int32_t *needed, int32_t *available)
{
    int32_t len = c->options.block_len;
    int32_t max = (core_n_chunked(c, s) - 1) / len, n = 0, n_shared = 0, id;
    uint64_t chain = prefix_cache_root(s->request->ns);
    int64_t left = blocks_for(c, s, blocks_promised(c));

    while (n < max && prefix_cache_peek(c->cache, &chain,
                                        sequence_tokens(s, n * len, len, c->block_tokens), &id)) {
        n_shared += blocks_refs(c->blocks, id) > 0; /* the other cached ones are available, too */
        n++;
    }
    *needed = blocks_to_begin(c, s) - n_shared;
    *available = left > 0 ? (int32_t)left : 0;
}

/* ---- prefixes that another sequence is computing */

/* True when a and b know the same tokens in block i. */
static bool equal_blocks(struct core *c, const struct sequence *a, const struct sequence *b,
                         int32_t i)
{
    int32_t len = c->options.block_len;
    const int32_t *x = sequence_tokens(a, i * len, len, c->block_tokens);
    const int32_t *y = sequence_tokens(b, i * len, len, c->block_tokens + len);

    return memcmp(x, y, (size_t)len * sizeof(*x)) == 0;
}

/* The sequence that computes block i of s, or is about to; chain is the block before. */
static struct sequence *find_writer(struct core *c, const struct sequence *s, int32_t i,
                                    uint64_t chain)
{
    int32_t len = c->options.block_len;
    int32_t owner =
        prefix_cache_pending(c->cache, chain, sequence_tokens(s, i * len, len, c->block_tokens));

    if (owner >= 0)
        return c->slots[owner];
    for (struct list *l = c->prefilling.next; l != &c->prefilling; l = l->next) {
        struct sequence *a = CONTAINER_OF(l, struct sequence, link);

        if (a->n_chained == i && a->chain == chain && core_n_chunked(c, a) / len > i &&
            a->request->priority >= s->request->priority && equal_blocks(c, a, s, i))
            return a;
    }
    return NULL;
}

/* Where another sequence computes the block after the n that s found, s waits until that one has
 * written all that both begin with. max is how many blocks s can use. */
static bool wait_for_prefix(struct core *c, struct sequence *s, int32_t n, int32_t max,
                            uint64_t chain)
{
    struct sequence *a = n < max ? find_writer(c, s, n, chain) : NULL;
    int32_t end;

    if (!a)
        return false;
    /* What a will compute; only what is in flight, if it stops there or ranks lower than s. */
    end = core_n_chunked(c, a);
    if ((!sequence_runs(a) || a->request->priority < s->request->priority) && a->n_planned < end)
        end = a->n_planned;
    end /= c->options.block_len;
    if (end > max)
        end = max;
    for (s->prefix_blocks = n + 1; s->prefix_blocks < end; s->prefix_blocks++)
        if (!equal_blocks(c, a, s, s->prefix_blocks))
            break;
    must((int64_t)s->prefix_blocks * c->options.block_len > a->n_written);
    fair_remove(&s->item);
    c->n_waiting--;
    c->n_waiting_prefix++;
    c->n_prefix_waits++;
    s->state = SEQ_WAITING_PREFIX;
    s->writer = a;
    list_append(&a->waiters, &s->link);
    return true;
}

/* ---- admission */

enum admission { ADMITTED, WAITS_FOR_PREFIX, NO_ROOM };

/* Choices of a request begin with the first: the others find what it computed. */
static bool passes_sibling(const struct sequence *s)
{
    const struct sequence *first = &s->request->choices[0];

    return s != first && !first->ran && first->state != SEQ_ENDED;
}

/* Blocks that are promised are counted up where s is admitted. */
static enum admission admit(struct core *c, struct step *st, struct sequence *s, int32_t *promised,
                            uint64_t now_us)
{
    int32_t len = c->options.block_len;
    int32_t max = (core_n_chunked(c, s) - 1) / len; /* one token at least is computed */
    int32_t *table = c->tables + (size_t)c->free_slots[c->n_free_slots - 1] * (size_t)c->max_blocks;
    uint64_t chain = prefix_cache_root(s->request->ns);
    bool alone = core_n_running(c) == 0 && c->n_draining == 0;
    enum admission result = WAITS_FOR_PREFIX;
    int32_t n = 0;

    if (!alone && (passes_sibling(s) ||
                   (s->n_lacking > blocks_for(c, s, *promised) && c->planned < s->retry_step)))
        return NO_ROOM;
    while (n < max &&
           prefix_cache_hold(c->cache, &chain, sequence_tokens(s, n * len, len, c->block_tokens),
                             &table[n]))
        n++;
    if (!wait_for_prefix(c, s, n, max, chain)) {
        s->n_lacking = blocks_to_begin(c, s) - n;
        if (alone || (s->n_lacking <= blocks_for(c, s, *promised) &&
                      fair_may_pass(&c->fair, &s->item, s->n_lacking, core_pool(c)))) {
            if (!core_load(c, st, s, n, max, chain)) {
                fair_pass(&c->fair, &s->item, s->n_lacking, core_pool(c));
                *promised += s->n_lacking;
                s->n_lacking = s->item.n_passed = 0;
                begin(c, st, s, n, chain, now_us);
                return ADMITTED;
            }
        } else {
            s->retry_step = c->planned + RETRY_STEPS;
            result = NO_ROOM;
        }
    }
    while (n > 0)
        blocks_unref(c->blocks, table[--n]);
    return result;
}

/* Whether s has a slot, and rows to compute in this step. It claims none while it is known to lack
 * blocks. */
static bool may_begin(struct core *c, const struct sequence *s, int32_t promised)
{
    const int32_t rows =
        least(c->options.max_batch_tokens, step_cost_rows(&c->cost, c->n_decoding));

    if (s->request->user->rows[s->request->priority] >= rows)
        return false;
    if (c->n_free_slots == 0 && (s->n_lacking == 0 || s->n_lacking <= blocks_for(c, s, promised)))
        core_claim_slot(c, s);
    return c->n_free_slots > 0;
}

/* Waiting sequences take slots. One that does not fit lets others pass, up to a bound. */
static void admit_waiting(struct core *c, struct step *st, uint64_t now_us)
{
    int32_t n_vain = 0, promised = blocks_promised(c);
    struct fair_item *item;

    while (n_vain < LOOK_AHEAD && (item = fair_top(&c->fair))) {
        struct sequence *s = CONTAINER_OF(item, struct sequence, item);
        enum admission result;

        if (!may_begin(c, s, promised)) {
            item->user->closed = true;
            continue;
        }
        result = admit(c, st, s, &promised, now_us);
        n_vain += result != ADMITTED;
        if (result != NO_ROOM)
            continue;
        if (item->user->n_skipped == 0)
            core_claim_blocks(c, s, s->n_lacking - blocks_for(c, s, promised) - c->n_returning);
        fair_skip(&c->fair, item);
    }
    fair_unskip(&c->fair);
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

static struct sequence *pop(struct sequence **first)
{
    struct sequence *s = *first;

    *first = s->next;
    return s;
}

/* Lines up prompts of one class by user; false: there are none. */
static bool line_up_prompts(struct core *c, const struct step *st, int32_t klass)
{
    bool any = false;

    FAIR_EACH (u, &c->fair) {
        u->prompt = NULL;
        u->prompt_end = &u->prompt;
    }
    for (struct list *l = c->prefilling.next; l != &c->prefilling; l = l->next) {
        struct sequence *s = CONTAINER_OF(l, struct sequence, link);
        struct fair_user *u = s->request->user;

        if ((int32_t)s->request->priority != klass || s->last_step == st->number ||
            chunk_left(c, st, s) == 0)
            continue;
        s->next = NULL;
        *u->prompt_end = s;
        u->prompt_end = &s->next;
        any = true;
    }
    return any;
}

static void line_up_decodes(struct core *c, const struct step *st)
{
    for (struct list *l = c->decoding.next; l != &c->decoding; l = l->next) {
        struct sequence *s = CONTAINER_OF(l, struct sequence, link);
        struct fair_user *u = s->request->user;

        if (!may_decode(c, st, s))
            continue;
        s->next = NULL;
        *u->decode_end = s;
        u->decode_end = &s->next;
    }
}

static bool is_empty(const struct plan *p)
{
    return p->step->n_decodes + p->n_rows == 0;
}

static bool may_have_decode(const struct core *c, const struct plan *p, const struct fair_user *u)
{
    int32_t max = p->last ? c->options.max_batch_tokens - p->n_rows : p->max_decodes;

    return u->decode && !p->decodes_full &&
           p->step->n_decodes < least(max, c->options.max_batch_tokens - p->n_rows);
}

static int32_t prompt_rows_left(const struct core *c, const struct plan *p)
{
    return least(p->max_rows, c->options.max_batch_tokens - p->step->n_decodes) - p->n_rows;
}

static bool may_have_prompt(const struct core *c, const struct plan *p, const struct fair_user *u)
{
    return u->prompt && !p->prompts_full && prompt_rows_left(c, p) > 0;
}

/* The user whose row is granted next; NULL: there is none. */
static struct fair_user *next_user(const struct core *c, const struct plan *p)
{
    struct fair_user *next = NULL;

    FAIR_EACH (u, &c->fair) {
        if ((!p->last && u->planned_us >= u->quota_us) ||
            (!may_have_decode(c, p, u) && !may_have_prompt(c, p, u)))
            continue;
        if (!next || u->vtime < next->vtime)
            next = u;
    }
    return next;
}

/* A decode, with drafts as far as rows, the step and at first the user's quota have room. */
static void grant_decode(struct core *c, struct plan *p, struct fair_user *u)
{
    const int32_t left = c->options.max_batch_tokens - p->step->n_decodes - p->n_rows - 1;
    double us = p->limit_us - step_cost_us(&c->cost, p->step->n_decodes + 1, p->n_rows), drafts;
    struct sequence *s;

    if (us < 0 && !is_empty(p)) {
        p->decodes_full = true;
        return;
    }
    if (!p->last)
        us = fmin(us, u->quota_us - u->planned_us - c->fair.decode_us);
    drafts = fmax(us / c->fair.row_us, 0);
    s = pop(&u->decode);
    if (may_decode(c, p->step, s)) /* not preempted meanwhile */
        p->n_rows += plan_decode(c, p->step, s, drafts < left ? (int32_t)drafts : left);
}

/* A chunk takes no more than what is left of the step, and at first of the user's quota, rounded up
 * as for decodes; but a row at least. */
static void grant_chunk(struct core *c, struct plan *p, struct fair_user *u)
{
    const double row_us = c->fair.row_us;
    const int32_t left = prompt_rows_left(c, p);
    double us = p->limit_us - step_cost_us(&c->cost, p->step->n_decodes, p->n_rows), rows;
    struct sequence *s;

    if (us < row_us && !is_empty(p)) {
        p->prompts_full = true;
        return;
    }
    rows = floor(us / row_us);
    if (!p->last)
        rows = fmin(rows, ceil((u->quota_us - u->planned_us) / row_us));
    rows = fmax(rows, 1);
    s = pop(&u->prompt);
    if (s->state == SEQ_PREFILL && (s->loaded || step_has_room_for_update(p->step, s)))
        p->n_rows += plan_chunk(c, p->step, s, rows < left ? (int32_t)rows : left);
}

/* Prompts go by class; decodes of all classes go beside those of the highest. */
static void plan_pass(struct core *c, struct plan *p)
{
    struct fair_user *u;

    for (int32_t klass = CORE_N_PRIORITIES - 1; klass >= 0; klass--) {
        if (!line_up_prompts(c, p->step, klass) && klass > 0)
            continue;
        while ((u = next_user(c, p))) {
            if (may_have_decode(c, p, u) && !(p->prompts_first && may_have_prompt(c, p, u)))
                grant_decode(c, p, u);
            else
                grant_chunk(c, p, u);
        }
    }
}

static void count_all_runnable(struct core *c, const struct step *st)
{
    for (struct list *l = c->prefilling.next; l != &c->prefilling; l = l->next)
        count_runnable(c, st, CONTAINER_OF(l, struct sequence, link));
    for (struct list *l = c->decoding.next; l != &c->decoding; l = l->next)
        if (may_decode(c, st, CONTAINER_OF(l, struct sequence, link)))
            count_runnable(c, st, CONTAINER_OF(l, struct sequence, link));
}

static void schedule(struct core *c, struct step *st, uint64_t now_us)
{
    struct plan p = {.step = st};

    c->n_short = 0;
    fair_step_begin(&c->fair, &c->cost);
    count_all_runnable(c, st);
    admit_waiting(c, st, now_us);
    p.limit_us = fair_step_limit(&c->fair, c->options.max_batch_tokens);
    p.max_decodes = decode_budget(c, st->number);
    p.max_rows = prompt_budget(c, least(c->n_decoding, p.max_decodes));
    p.prompts_first = !isinf(p.limit_us) && st->number % PROMPT_PART == 0;
    line_up_decodes(c, st);
    if (isinf(p.limit_us) && c->n_decoding <= p.max_decodes) /* all go: in any order */
        FAIR_EACH (u, &c->fair)
            while (u->decode)
                grant_decode(c, &p, u);
    plan_pass(c, &p);
    p.last = true;
    p.max_rows = prompt_budget(c, st->n_decodes);
    plan_pass(c, &p);
    fair_step_end(&c->fair);
}

int core_next(struct core *c, const struct batch **batch, uint64_t now_us)
{
    struct step *st = &c->steps[(c->planned + 1) % BACKEND_IN_FLIGHT];

    if (c->n_requests == 0 && c->max_copies == 0)
        return CORE_IDLE;
    if (core_in_flight(c) == BACKEND_IN_FLIGHT)
        return CORE_WAIT;
    prefix_cache_set_time(c->cache, now_us);
    step_begin(st, c->planned + 1);
    if (c->n_requests > 0)
        schedule(c, st, now_us);
    core_copy_down(c, st);
    if (st->n_decodes + st->n_chunks + st->n_copies == 0) {
        if (c->n_requests == 0 && c->n_copies == 0)
            return CORE_IDLE;
        if (core_in_flight(c) > 0)
            return CORE_WAIT;
        if (c->n_copies == 0) {
            must(core_waits_for_masks(c)); /* if something fits, something runs */
            return CORE_WAIT;
        } /* else it is a step without rows, which ends with a copy */
    }
    *batch = step_build(st, c->options.block_len);
    c->planned++;
    return CORE_OK;
}
