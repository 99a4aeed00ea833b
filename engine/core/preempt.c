/* preempt.c - which running sequence gives up its slot and blocks: when blocks run out, and when a
 * user has more than its part of them while another waits for its own.
 *
 * A user's part of max_seqs and of the pool follows its share among the active users. What is
 * preempted goes to the front of its queue and finds its blocks again unless they were needed. */
#include "engine/core/core_impl.h"
#include "engine/util/plant.h"

static int32_t block_excess(const struct core *c, const struct fair_user *u)
{
    return fair_excess(&c->fair, u, u->n_blocks, core_pool(c));
}

typedef bool compare_fn(const struct core *c, const struct sequence *a, const struct sequence *b);

/* Of the running sequences v but the one spared, for which may(c, v, s) holds, the one that comes
 * before all others. */
static struct sequence *find(const struct core *c, const struct sequence *spared,
                             compare_fn *before, compare_fn *may, const struct sequence *s)
{
    const struct list *lists[] = {&c->prefilling, &c->decoding};
    struct sequence *best = NULL;

    for (int k = 0; k < 2; k++) {
        for (struct list *l = lists[k]->next; l != lists[k]; l = l->next) {
            struct sequence *v = CONTAINER_OF(l, struct sequence, link);

            if (v != spared && (!may || may(c, v, s)) && (!best || before(c, v, best)))
                best = v;
        }
    }
    return best;
}

static bool is_older(const struct core *c, const struct sequence *a, const struct sequence *b)
{
    (void)c;
    if (a->request->priority != b->request->priority)
        return a->request->priority > b->request->priority;
    return a->order < b->order;
}

/* The oldest of the highest class is never preempted: so it ends, and every request does. */
static const struct sequence *find_oldest(const struct core *c)
{
    return find(c, NULL, is_older, NULL, NULL);
}

/* When blocks run out: the lowest class; those not preempted max_preemptions times; the user
 * furthest over its part of the blocks; the newest. */
static bool goes_before(const struct core *c, const struct sequence *a, const struct sequence *b)
{
    const bool a_fresh = a->n_preempted < c->options.max_preemptions;
    const bool b_fresh = b->n_preempted < c->options.max_preemptions;
    const int32_t a_over = block_excess(c, a->request->user);
    const int32_t b_over = block_excess(c, b->request->user);

    if (a->request->priority != b->request->priority)
        return a->request->priority < b->request->priority;
    if (a_fresh != b_fresh)
        return a_fresh;
    if (a_over != b_over)
        return a_over > b_over;
    return a->order > b->order;
}

struct sequence *core_victim(const struct core *c)
{
    return find(c, find_oldest(c), goes_before, NULL, NULL);
}

void core_preempt(struct core *c, struct sequence *s)
{
    s->n_preempted++;
    s->request->usage.preemptions++;
    c->stats.preemptions++;
    core_halt(c, s, SEQ_PREEMPTED);
}

/* ---- a user's part */

/* Whether the user of v may have to yield to s, as far as class and time go. */
static bool ranks_below(const struct sequence *v, const struct sequence *s)
{
    return v->request->user != s->request->user && v->request->priority <= s->request->priority &&
           v->request->user->vtime >= s->request->user->vtime;
}

static int32_t slot_excess(const struct core *c, const struct fair_user *u)
{
    return fair_excess(&c->fair, u, u->n_running, c->options.max_seqs);
}

static bool may_yield_slot(const struct core *c, const struct sequence *v, const struct sequence *s)
{
    return ranks_below(v, s) && slot_excess(c, v->request->user) > 0;
}

static bool may_yield_blocks(const struct core *c, const struct sequence *v,
                             const struct sequence *s)
{
    return ranks_below(v, s) && v->n_taken > 0 && block_excess(c, v->request->user) > 0;
}

/* Of one user: the lowest class; who was preempted least often; who is in no step in flight, for
 * its blocks come back at once; the newest. */
static bool yields_before(const struct core *c, const struct sequence *a, const struct sequence *b)
{
    const bool a_rests = a->last_step <= c->committed, b_rests = b->last_step <= c->committed;

    if (a->request->priority != b->request->priority)
        return a->request->priority < b->request->priority;
    if (a->n_preempted != b->n_preempted)
        return a->n_preempted < b->n_preempted;
    return a_rests != b_rests ? a_rests : a->order > b->order;
}

static bool yields_slot_before(const struct core *c, const struct sequence *a,
                               const struct sequence *b)
{
    const int32_t a_over = slot_excess(c, a->request->user);
    const int32_t b_over = slot_excess(c, b->request->user);

    return a_over != b_over ? a_over > b_over : yields_before(c, a, b);
}

static bool yields_blocks_before(const struct core *c, const struct sequence *a,
                                 const struct sequence *b)
{
    const int32_t a_over = block_excess(c, a->request->user);
    const int32_t b_over = block_excess(c, b->request->user);

    return a_over != b_over ? a_over > b_over : yields_before(c, a, b);
}

struct sequence *core_slot_victim(const struct core *c, const struct sequence *s)
{
    if (!fair_lacks(&c->fair, s->request->user, s->request->user->n_running, c->options.max_seqs))
        return NULL;
    return find(c, find_oldest(c), yields_slot_before, may_yield_slot, s);
}

void core_claim_slot(struct core *c, const struct sequence *s)
{
    struct sequence *v = c->n_draining == 0 ? core_slot_victim(c, s) : NULL;

    if (!v || PLANT(PLANT_NO_YIELD))
        return;
    c->n_yields++;
    core_preempt(c, v);
}

/* What all users that s may claim from have over their parts. */
static int64_t total_excess(const struct core *c, const struct fair_user *u)
{
    int64_t total = 0;

    FAIR_EACH (v, &c->fair) {
        if (v != u && v->vtime >= u->vtime)
            total += block_excess(c, v);
    }
    return total;
}

void core_claim_blocks(struct core *c, const struct sequence *s, int64_t n)
{
    const struct fair_user *u = s->request->user;
    struct sequence *v;

    /* A user with nothing that runs has a claim to more than its part, too: else a request that
     * needs more would never run. */
    if (u->n_running > 0 && u->n_blocks + n > fair_part(&c->fair, u, core_pool(c)))
        return;
    if (n <= 0 || total_excess(c, u) < n || PLANT(PLANT_NO_YIELD))
        return;
    while (n > 0 && (v = find(c, find_oldest(c), yields_blocks_before, may_yield_blocks, s))) {
        const int32_t before = blocks_n_used(c->blocks) - c->n_returning;

        c->n_yields++;
        core_preempt(c, v);
        n -= before - (blocks_n_used(c->blocks) - c->n_returning);
    }
}
