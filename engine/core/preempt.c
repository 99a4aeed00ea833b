/* preempt.c - which running sequence gives up its slot and blocks: when blocks run out, and when a
 * user has more than its part of them while another waits for its own.
 *
 * A user's part of max_seqs and of the pool follows its share among the active users. What is
 * preempted goes to the front of its queue and finds its blocks again unless they were needed. */
#include "engine/core/core_impl.h"

/* What users divide. */
enum resource { SLOTS, BLOCKS };

static int32_t excess(const struct core *c, const struct fair_user *u, enum resource what)
{
    return what == SLOTS ? fair_excess(&c->fair, u, u->n_running, c->options.max_seqs)
                         : fair_excess(&c->fair, u, u->n_blocks, core_pool(c));
}

/* An offloaded one has no device block, and its history would be read again. */
static bool may_give(const struct sequence *s)
{
    return s && sequence_runs(s) && !core_is_offloaded(s);
}

/* The oldest sequence of the highest class is never preempted: so it ends, and so all do. */
static const struct sequence *find_oldest(const struct core *c)
{
    const struct sequence *oldest = NULL;

    for (int32_t i = 0; i < c->options.max_seqs; i++) {
        const struct sequence *s = c->slots[i];

        if (may_give(s) &&
            (!oldest || s->request->priority > oldest->request->priority ||
             (s->request->priority == oldest->request->priority && s->order < oldest->order)))
            oldest = s;
    }
    return oldest;
}

/* Whether v may have to yield to s, which waits: its user has more than its part, and s goes first
 * by class and virtual time. */
static bool may_yield(const struct core *c, const struct sequence *v, const struct sequence *s,
                      enum resource what)
{
    const struct fair_user *u = v->request->user, *claims = s->request->user;

    return u != claims && v->request->priority <= s->request->priority &&
           u->vtime >= claims->vtime && (what == SLOTS || v->n_taken > 0) && excess(c, u, what) > 0;
}

/* Order of preemption: the lowest class first; then sequences not yet preempted max_preemptions
 * times; then the user furthest over its part; then the newest. */
static bool goes_before(const struct core *c, const struct sequence *a, const struct sequence *b,
                        enum resource what)
{
    const bool a_fresh = a->n_preempted < c->options.max_preemptions;
    const bool b_fresh = b->n_preempted < c->options.max_preemptions;
    const int32_t a_over = excess(c, a->request->user, what);
    const int32_t b_over = excess(c, b->request->user, what);

    if (a->request->priority != b->request->priority)
        return a->request->priority < b->request->priority;
    if (a_fresh != b_fresh)
        return a_fresh;
    return a_over != b_over ? a_over > b_over : a->order > b->order;
}

/* Of all that run, or of those that may have to yield to s. */
static struct sequence *find_victim(const struct core *c, const struct sequence *s,
                                    enum resource what)
{
    const struct sequence *oldest = find_oldest(c);
    struct sequence *best = NULL;

    for (int32_t i = 0; i < c->options.max_seqs; i++) {
        struct sequence *v = c->slots[i];

        if (may_give(v) && v != oldest && (!s || may_yield(c, v, s, what)) &&
            (!best || goes_before(c, v, best, what)))
            best = v;
    }
    return best;
}

struct sequence *core_victim(const struct core *c)
{
    return find_victim(c, NULL, BLOCKS);
}

void core_preempt(struct core *c, struct sequence *s)
{
    s->n_preempted++;
    s->request->usage.preemptions++;
    c->stats.preemptions++;
    trace_add(c->trace, &(struct trace_record){.kind = TRACE_PREEMPTED,
                                               .request = s->request->id,
                                               .choice = s->choice,
                                               .at_us = c->cache->now_us});
    core_halt(c, s, SEQ_PREEMPTED);
}

struct sequence *core_slot_victim(const struct core *c, const struct sequence *s)
{
    const struct fair_user *u = s->request->user;

    return fair_lacks(&c->fair, u, u->n_running, c->options.max_seqs) ? find_victim(c, s, SLOTS)
                                                                      : NULL;
}

void core_claim_slot(struct core *c, const struct sequence *s)
{
    struct sequence *v = list_empty(&c->draining) ? core_slot_victim(c, s) : NULL;

    if (!v || PLANT(PLANT_NO_YIELD))
        return;
    c->n_yields++;
    core_preempt(c, v);
}

void core_claim_blocks(struct core *c, const struct sequence *s, int64_t n)
{
    const struct fair_user *u = s->request->user;
    struct sequence *v;
    int64_t to_have = 0;

    /* A user with nothing that runs has a claim to more than its part, too: else a request that
     * needs more would never run. */
    if (core_is_offloaded(s) ||
        (u->n_running > 0 && u->n_blocks + n > fair_part(&c->fair, u, core_pool(c))))
        return;
    FAIR_EACH (other, &c->fair)
        if (other != u && other->vtime >= u->vtime)
            to_have += excess(c, other, BLOCKS);
    if (n <= 0 || to_have < n || PLANT(PLANT_NO_YIELD))
        return;
    while (n > 0 && (v = find_victim(c, s, BLOCKS))) {
        const int32_t before = blocks_n_used(c->blocks) - c->n_returning;

        c->n_yields++;
        core_preempt(c, v);
        n -= before - (blocks_n_used(c->blocks) - c->n_returning);
    }
}
