/* admit.c - admission: which waiting sequences take a slot for the next step, and what they find in
 * the prefix cache.
 *
 * Sequences are looked at in fair.h's order. One begins when there are a slot, rows in the step and
 * all the blocks that its known tokens and the next one need; where it lacks a slot or blocks that
 * are its user's part, others are preempted for it (preempt.c). One that does not fit lets others
 * pass, up to a bound. One whose prefix another sequence computes, or a lower tier has, waits for
 * that instead, outside the queue. */
#include <string.h>

#include "engine/core/core_impl.h"

enum {
    LOOK_AHEAD = 32,  /* waiting sequences that one step finds not to fit */
    RETRY_STEPS = 16, /* so many steps later such a sequence is looked up again at the latest */
};

/* ---- blocks */

/* Blocks that a sequence needs to get through its known tokens and begin to decode. */
static int32_t blocks_to_begin(const struct core *c, const struct sequence *s)
{
    return min_i32(core_blocks_for(c, sequence_n_tokens(s)) + 1,
                   core_blocks_at_most(c, s->request));
}

/* Blocks promised to running sequences: to those in prefill all that they begin with, to each
 * decode the one it needs in this step. */
static int32_t blocks_promised(const struct core *c)
{
    int32_t n = 0;

    SEQUENCE_EACH (s, &c->prefilling)
        n += core_is_offloaded(s) ? 0 : blocks_to_begin(c, s) - s->n_table;
    SEQUENCE_EACH (s, &c->decoding)
        n += !core_is_offloaded(s) && core_needs_block(c, s);
    return n;
}

/* Blocks that s may take now. A user with nothing that runs ignores the watermark: one sequence
 * of each user cannot cause thrashing. */
static int64_t blocks_for(const struct core *c, const struct sequence *s, int32_t promised)
{
    const struct blocks *b = core_blocks_of(c, s);
    int64_t n = (int64_t)b->n_free + b->n_cached;

    if (core_is_offloaded(s))
        return n;
    n -= promised;
    return s->request->user->n_running > 0 ? n - c->watermark : n;
}

void core_needs(struct core *c, const struct sequence *s, int32_t *needed, int32_t *available)
{
    int32_t len = c->options.block_len;
    int32_t max = core_n_findable(c, s), n_shared = 0;
    const struct node *node = &s->request->ns->root;
    int64_t left = blocks_for(c, s, blocks_promised(c));

    for (int32_t n = 0; n < max; n++) {
        node = prefix_cache_lookup(c->cache, prefix_cache_chain(c->cache, node),
                                   sequence_tokens(s, n * len, len, c->block_tokens));
        if (!node || node->location[s->request->home] < 0)
            break;
        /* Those that nobody holds are available, too. */
        n_shared += blocks_refs(core_blocks_of(c, s), node->location[s->request->home]) > 0;
    }
    *needed = blocks_to_begin(c, s) - n_shared;
    *available = left > 0 ? (int32_t)left : 0;
}

/* ---- prefixes that another sequence computes */

/* Of the first max blocks of s, how many a knows with the same tokens. chain: what s has found, and
 * a has not listed more; where a's is a part of it, that need not be compared. */
static int32_t equal_blocks(struct core *c, const struct sequence *a, const struct sequence *s,
                            uint64_t chain, int32_t max)
{
    const struct node *of_a = prefix_cache_node(c->cache, a->chain);
    const struct node *of_s = prefix_cache_node(c->cache, chain);
    const int32_t len = c->options.block_len;
    int32_t n = of_a->depth + 1;

    while (of_s->depth > of_a->depth)
        of_s = of_s->parent;
    if (of_s != of_a)
        return 0;
    while (n < max && memcmp(sequence_tokens(a, n * len, len, c->block_tokens),
                             sequence_tokens(s, n * len, len, c->block_tokens + len),
                             (size_t)len * sizeof(int32_t)) == 0)
        n++;
    return n;
}

/* The positions that a will list: all it computes in chunks, or only what is planned where it stops
 * there or ranks lower than s. */
static int32_t positions_to_come(const struct core *c, const struct sequence *a,
                                 const struct sequence *s)
{
    const int32_t n = core_n_chunked(c, a);

    if (a->state == SEQ_PREFILL && a->request->priority >= s->request->priority)
        return n;
    return min_i32(a->n_planned, n);
}

/* Where another sequence computes the block after the n that s found, s waits until that one has
 * written all that both begin with. max is how many blocks s can use. */
static bool wait_for_prefix(struct core *c, struct sequence *s, int32_t n, int32_t max,
                            uint64_t chain)
{
    const int64_t len = c->options.block_len;

    if (core_is_offloaded(s)) /* blocks of the device are not its own, and no other is offloaded */
        return false;
    for (int32_t i = 0; n < max && i < c->options.max_seqs; i++) {
        struct sequence *a = c->slots[i];
        int32_t end;

        if (!a || a->request->ns != s->request->ns || a->n_written >= (n + 1) * len ||
            !prefix_cache_node(c->cache, a->chain))
            continue;
        end = positions_to_come(c, a, s) / (int32_t)len;
        if (end <= n || (end = equal_blocks(c, a, s, chain, min_i32(end, max))) <= n)
            continue;
        core_hold_back(s, SEQ_WAITING_PREFIX, &a->waiters);
        s->prefix_blocks = end;
        c->n_prefix_waits++;
        return true;
    }
    return false;
}

/* ---- admission */

enum admission { ADMITTED, HELD_BACK, NO_ROOM };

/* One sequence runs offloaded at a time: each uses all the bandwidth to host memory. The next one
 * waits for its end. */
static bool wait_for_offloaded(struct core *c, struct sequence *s)
{
    for (int32_t i = 0; c->n_offloaded > 0 && i < c->options.max_seqs; i++) {
        struct sequence *a = c->slots[i];

        if (!a || !core_is_offloaded(a) || !sequence_runs(a) || PLANT(PLANT_OFFLOAD_TWO))
            continue;
        core_hold_back(s, SEQ_WAITING_PREFIX, &a->waiters);
        s->prefix_blocks = ALL_BLOCKS;
        return true;
    }
    return false;
}

/* The sequence takes a slot, with n_found blocks of its prefix. */
static void begin(struct core *c, struct sequence *s, int32_t n_found, uint64_t chain,
                  uint64_t now_us)
{
    struct request *q = s->request;

    core_unqueue(s);
    c->n_queued_tokens -= sequence_n_tokens(s);
    s->slot = c->free_slots[--c->n_free_slots];
    c->slots[s->slot] = s;
    c->n_offloaded += core_is_offloaded(s);
    c->n_offloads += core_is_offloaded(s);
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
    s->loaded = false;
    s->n_loads = 0;
    s->n_lacking = s->n_passed = 0;
    if (n_found > 0)
        prefix_cache_first(prefix_cache_node(c->cache, chain))->hits++;
    if (s->n_preempted > 0)
        return;
    if (q->pooling != CORE_POOL_ALL) /* of which nothing is looked up */
        c->stats.queried_tokens += (uint64_t)q->n_prompt;
    c->stats.hit_tokens += (uint64_t)s->n_written;
    if (q->usage.start_us) /* another choice has begun, and this one may find what it computed */
        return;
    q->usage.start_us = now_us;
    trace_request(c->trace, TRACE_STARTED, q->id, now_us);
    q->usage.cached_tokens = s->n_written;
}

/* *promised grows when s is admitted. */
static enum admission admit(struct core *c, struct step *st, struct sequence *s, int32_t *promised,
                            uint64_t now_us)
{
    int32_t len = c->options.block_len;
    int32_t max = core_n_findable(c, s);
    int32_t *table = c->tables + (size_t)c->free_slots[c->n_free_slots - 1] * (size_t)c->max_blocks;
    uint64_t chain = prefix_cache_chain(c->cache, &s->request->ns->root);
    bool alone = core_n_running(c) == 0 && list_empty(&c->draining);
    enum admission result = HELD_BACK;
    int32_t n = 0;

    if (core_is_offloaded(s) && c->n_offloaded > 0 && !PLANT(PLANT_OFFLOAD_TWO))
        return NO_ROOM; /* the one before drains */
    if (!alone && (sequence_waits_for_first(s) ||
                   (s->n_lacking > blocks_for(c, s, *promised) && c->planned < s->retry_step)))
        return NO_ROOM;
    while (n < max &&
           prefix_cache_hold(c->cache, &chain, sequence_tokens(s, n * len, len, c->block_tokens),
                             s->request->home, &table[n]))
        n++;
    if (!wait_for_prefix(c, s, n, max, chain)) {
        s->n_lacking = blocks_to_begin(c, s) - n;
        if (!alone && (s->n_lacking > blocks_for(c, s, *promised) ||
                       !fair_may_pass(&c->fair, s, core_pool(c)))) {
            s->retry_step = c->planned + RETRY_STEPS;
            result = NO_ROOM;
        } else if (!core_load(c, st, s, n, max, chain)) {
            fair_pass(&c->fair, s, core_pool(c));
            *promised += core_is_offloaded(s) ? 0 : s->n_lacking;
            begin(c, s, n, chain, now_us);
            core_count_runnable(c, s);
            return ADMITTED;
        }
    }
    while (n > 0)
        blocks_unref(core_blocks_of(c, s), table[--n]);
    return result;
}

/* Whether s has a slot, and rows to compute in this step. It claims none while it is known to lack
 * blocks, or waits for its request's first choice. */
static bool may_begin(struct core *c, const struct sequence *s, int32_t promised)
{
    const int32_t rows = step_cost_rows(&c->cost, c->n_decoding);
    const int32_t n = s->request->user->rows[s->request->priority];

    if (n >= rows || n >= c->options.max_batch_tokens)
        return false;
    if (c->n_free_slots == 0 && !sequence_waits_for_first(s) &&
        (s->n_lacking == 0 || s->n_lacking <= blocks_for(c, s, promised)))
        core_claim_slot(c, s);
    return c->n_free_slots > 0;
}

void core_admit_waiting(struct core *c, struct step *st, uint64_t now_us)
{
    int32_t n_vain = 0, promised = blocks_promised(c);
    struct sequence *s;

    while (n_vain < LOOK_AHEAD && (s = fair_top(&c->fair))) {
        enum admission result;

        /* Before it claims anything from others, and all choices of a request. */
        if (core_is_offloaded(s) && wait_for_offloaded(c, s)) {
            n_vain++;
            continue;
        }
        if (!may_begin(c, s, promised)) {
            s->request->user->closed = true;
            continue;
        }
        result = admit(c, st, s, &promised, now_us);
        n_vain += result != ADMITTED;
        if (result != NO_ROOM)
            continue;
        if (s->request->user->n_skipped == 0)
            core_claim_blocks(c, s, s->n_lacking - blocks_for(c, s, promised) - c->n_returning);
        fair_skip(&c->fair, s);
    }
    fair_unskip(&c->fair);
}
