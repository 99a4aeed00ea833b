/* core_share.c - who gives way: when blocks run out, when one client has more than its share of
 * slots or blocks while another waits for its own.
 *
 * The share is a part of max_seqs and of the pool for each client that has requests. A client with
 * clearly more gives way to one that has clearly less and was served no more; so nobody takes back
 * what was just taken, and at most one yields its slot for each that begins. What gives way finds
 * its blocks again unless they were needed. */
#include "engine/core/core_impl.h"
#include "engine/util/plant.h"

static struct fair_use *use_of(const struct sequence *s)
{
    return fair_client_use(s->request->client);
}

/* So much more or less than the share is as good as the share: clients that ask alike would take
 * from each other all the time. */
static int32_t slack(int32_t share)
{
    return share / 8;
}

int32_t core_slot_share(const struct core *c, const struct sequence *s)
{
    return fair_client_part(c->queue, s->request->client, c->options.max_seqs);
}

static int32_t block_share(const struct core *c, const struct sequence *s)
{
    return fair_client_part(c->queue, s->request->client,
                            c->options.n_blocks - prefix_cache_n_pinned(c->cache));
}

/* Of all that run the oldest of the highest class. It never gives way: so it ends, and every
 * request does. */
static const struct sequence *find_first(const struct core *c)
{
    const struct list *lists[] = {&c->prefilling, &c->decoding};
    const struct sequence *first = NULL;

    for (int k = 0; k < 2; k++) {
        for (const struct list *l = lists[k]->next; l != lists[k]; l = l->next) {
            const struct sequence *s = CONTAINER_OF(l, struct sequence, link);

            if (!first || s->request->priority > first->request->priority ||
                (s->request->priority == first->request->priority && s->order < first->order))
                first = s;
        }
    }
    return first;
}

/* Lower class; then those not preempted too often yet; then whose client has more than its share of
 * the blocks; then the newest. */
static bool goes_before(const struct core *c, const struct sequence *a, const struct sequence *b)
{
    bool a_fresh = a->n_preempted < c->options.max_preemptions;
    bool b_fresh = b->n_preempted < c->options.max_preemptions;
    bool a_over = use_of(a)->n_blocks > block_share(c, a);
    bool b_over = use_of(b)->n_blocks > block_share(c, b);

    if (a->request->priority != b->request->priority)
        return a->request->priority < b->request->priority;
    if (a_fresh != b_fresh)
        return a_fresh;
    if (a_over != b_over)
        return a_over;
    return a->order > b->order;
}

struct sequence *core_victim(const struct core *c)
{
    const struct list *lists[] = {&c->prefilling, &c->decoding};
    const struct sequence *first = find_first(c);
    struct sequence *victim = NULL;

    for (int k = 0; k < 2; k++) {
        for (struct list *l = lists[k]->next; l != lists[k]; l = l->next) {
            struct sequence *s = CONTAINER_OF(l, struct sequence, link);

            if (s != first && (!victim || goes_before(c, s, victim)))
                victim = s;
        }
    }
    return victim;
}

/* How much more than its share the client of v has, of what s may claim; 0: nothing. */
static int32_t excess(const struct core *c, const struct sequence *v, const struct sequence *s,
                      bool blocks)
{
    int32_t share = blocks ? block_share(c, v) : core_slot_share(c, v);
    int32_t has = blocks ? use_of(v)->n_blocks : use_of(v)->n_running;

    if (v->request->client == s->request->client || v->request->priority > s->request->priority ||
        has <= share + slack(share) ||
        fair_client_time(v->request->client) < fair_client_time(s->request->client))
        return 0;
    return has - share;
}

/* Of one client: the lowest class; who was preempted least often; who is in no step in flight, for
 * what it has comes at once; the newest. */
static bool yields_before(const struct core *c, const struct sequence *a, const struct sequence *b)
{
    bool a_rests = a->last_step <= c->committed, b_rests = b->last_step <= c->committed;

    if (a->request->priority != b->request->priority)
        return a->request->priority < b->request->priority;
    if (a->n_preempted != b->n_preempted)
        return a->n_preempted < b->n_preempted;
    return a_rests != b_rests ? a_rests : a->order > b->order;
}

/* Who has to yield to s, of the client that has most. */
static struct sequence *find_yielding(const struct core *c, const struct sequence *s, bool blocks)
{
    const struct list *lists[] = {&c->prefilling, &c->decoding};
    const struct sequence *first = find_first(c);
    struct sequence *best = NULL;
    int32_t most = 0;

    for (int k = 0; k < 2; k++) {
        for (struct list *l = lists[k]->next; l != lists[k]; l = l->next) {
            struct sequence *v = CONTAINER_OF(l, struct sequence, link);
            int32_t over = v == first ? 0 : excess(c, v, s, blocks);

            if (over == 0 || over < most || (blocks && v->n_taken == 0))
                continue;
            if (over > most || yields_before(c, v, best))
                best = v;
            most = over;
        }
    }
    return best;
}

static void yield(struct core *c, struct sequence *v)
{
    v->n_preempted++;
    v->request->usage.preemptions++;
    c->stats.preemptions++;
    c->n_yields++;
    core_halt(c, v, SEQ_PREEMPTED);
}

struct sequence *core_slot_victim(const struct core *c, const struct sequence *s)
{
    int32_t share = core_slot_share(c, s);

    return use_of(s)->n_running < share - slack(share) ? find_yielding(c, s, false) : NULL;
}

void core_claim_slot(struct core *c, const struct sequence *s)
{
    struct sequence *v = core_slot_victim(c, s);

    if (v && c->n_draining == 0 && !PLANT(PLANT_NO_YIELD))
        yield(c, v);
}

/* What all clients together have over their shares, of what s may claim. */
static int64_t total_excess(struct core *c, const struct sequence *s)
{
    const struct list *lists[] = {&c->prefilling, &c->decoding};
    int64_t total = 0;

    for (int k = 0; k < 2; k++) {
        for (struct list *l = lists[k]->next; l != lists[k]; l = l->next) {
            const struct sequence *v = CONTAINER_OF(l, struct sequence, link);

            if (use_of(v)->seen == c->n_plans)
                continue;
            use_of(v)->seen = c->n_plans;
            total += excess(c, v, s, true);
        }
    }
    return total;
}

void core_claim_blocks(struct core *c, const struct sequence *s, int64_t n)
{
    struct sequence *v;

    /* A client with nothing that runs has a claim even to more than its share. */
    if (use_of(s)->n_running > 0 && use_of(s)->n_blocks + n > block_share(c, s))
        return;
    if (n <= 0 || total_excess(c, s) < n || PLANT(PLANT_NO_YIELD))
        return;
    while (n > 0 && (v = find_yielding(c, s, true))) {
        int32_t before = blocks_n_used(c->blocks) - c->n_returning;

        yield(c, v);
        n -= before - (blocks_n_used(c->blocks) - c->n_returning);
    }
}
