/* sim_fair.c - see sim_world_impl.h: what fair.c guarantees, seen from outside: how long a step may
 * take, what each user is charged, where a newcomer starts, how often a request is passed, and the
 * share of the time that a client with one request at a time gets among others' many. */
#include <math.h>
#include <string.h>

#include "tests/sim/sim_world_impl.h"

enum { LIGHT = 1 }; /* the client with one request at a time */

enum { PRECISION = 16, MAX_PASSED = 64 }; /* as fair.c has them */

/* Any cost of a step by itself, and any of a row. */
void sim_fair_choose_cost(struct world *w)
{
    struct rng *r = &w->rng;
    const double base = rng_one_in(r, 2) ? 0 : rng_range(r, 0, 3000), row = rng_range(r, 1, 300);

    memset(&w->cost, 0, sizeof(w->cost));
    for (int k = 0; k < STEP_COST_POINTS; k++) {
        if (rng_one_in(r, 3))
            continue;
        w->cost.decodes[k].n = 1 << k;
        w->cost.decodes[k].us = base + row * (1 << k);
    }
    w->cost.row_us = rng_one_in(r, 8) ? 0 : row * rng_range(r, 1, 20) / 10;
    w->cost.max_step_us = rng_one_in(r, 2) ? 0 : row * rng_range(r, 1, 300);
}

void sim_fair_choose_light(struct world *w)
{
    const int32_t n_seqs = rng_range(&w->rng, 2, 12);

    w->options.max_seqs = w->backend_options.max_seqs = n_seqs;
    w->options.max_seq_len = 160;
    w->options.block_len = w->backend_options.block_len = 16;
    w->options.n_blocks = w->backend_options.n_blocks[TIER_DEVICE] = n_seqs * (160 / 16 + 1);
    w->options.max_batch_tokens = w->backend_options.max_batch_tokens = rng_range(&w->rng, 16, 96);
    w->backend_options.numerics_one_in = 0;
    w->n_clients = rng_range(&w->rng, 2, 4);
    w->max_n = 1;
    w->max_prompt = 40;
    w->max_tokens = 80;
    do /* the share is promised for estimates that are right: rows are not free */
        sim_fair_choose_cost(w);
    while (step_cost_us(&w->cost, 1, 0) <= 0 || w->cost.row_us <= 0);
}

struct oracle_request *sim_find(const struct world *w, uint64_t id)
{
    for (int32_t i = 0; i < w->n_alive; i++)
        if (w->alive[i]->id == id)
            return w->alive[i];
    return NULL;
}

/* ---- one step */

/* What one client has in a step, and could have. */
struct rows {
    int32_t decodes, rows;         /* that it has */
    int32_t all_decodes, all_rows; /* that it could have */
    int32_t new_decodes, new_rows; /* that were never computed before */
    double mask_us, all_mask_us;   /* of the masks of its rows */
    int32_t n_masked;              /* rows that have some */
    int32_t share, klass;          /* of what it could have */
};

enum { N_CLIENTS = 5 };

/* What the masks of its next token are expected to take. */
static double mask_us(const struct sequence *s)
{
    return s->request->masks ? s->request->user->mean_mask_us : 0;
}

static double own_us(const struct world *w, const struct rows *r)
{
    return fmax(step_cost_us(&w->cost, r->decodes, r->rows), r->mask_us);
}

static double masks_us(const struct rows rows[N_CLIENTS])
{
    double us = 0;

    for (int k = 0; k < N_CLIENTS; k++)
        us += rows[k].mask_us;
    return us;
}

/* Positions that the step is the first to compute for this sequence. */
static int32_t count_new(struct world *w, const struct step_entry *e)
{
    struct oracle_request *q = sim_find(w, e->sequence->request->id);
    int32_t *n = &q->choices[e->sequence->choice].n_computed;
    const int32_t from = *n > e->start ? *n : e->start, end = e->start + e->n;

    *n = *n > end ? *n : end;
    return end > from ? end - from : 0;
}

static void add_possible(struct rows rows[N_CLIENTS], const struct sequence *s, int32_t decodes,
                         int32_t n)
{
    struct rows *r = &rows[s->request->client_id];

    r->all_decodes += decodes;
    r->all_rows += n;
    r->all_mask_us += mask_us(s);
    r->share = s->request->user->share;
    if ((int32_t)s->request->priority > r->klass)
        r->klass = (int32_t)s->request->priority;
}

static bool could_decode(const struct step *st, const struct sequence *s)
{
    return s->last_step != st->head.step && s->n_generated + s->n_sampling < s->request->max_tokens;
}

static void count_rows(struct world *w, const struct step *st, struct rows rows[N_CLIENTS])
{
    const struct core *c = w->core;

    for (int k = 0; k < N_CLIENTS; k++)
        rows[k] = (struct rows){.klass = -1};
    for (int32_t i = 0; i < st->head.n_seqs; i++) {
        const struct step_entry *e = &st->entries[i];
        struct rows *r = &rows[e->sequence->request->client_id];

        *(e->decode ? &r->decodes : &r->rows) += e->n;
        *(e->decode ? &r->new_decodes : &r->new_rows) += count_new(w, e);
        if (e->wanted) {
            r->mask_us += mask_us(e->sequence);
            r->n_masked += mask_us(e->sequence) > 0;
        }
        add_possible(rows, e->sequence, e->decode ? 1 : 0, e->decode ? 0 : e->n);
    }
    for (const struct list *l = c->prefilling.next; l != &c->prefilling; l = l->next) {
        const struct sequence *s = CONTAINER_OF(l, struct sequence, link);

        add_possible(rows, s, 0, core_n_chunked(c, s) - s->n_planned);
    }
    for (const struct list *l = c->decoding.next; l != &c->decoding; l = l->next) {
        const struct sequence *s = CONTAINER_OF(l, struct sequence, link);

        if (could_decode(st, s))
            add_possible(rows, s, 1, 0);
    }
}

/* No step takes longer than each user of the highest class has it alone, by its share. */
static const char *check_limit(const struct world *w, const struct rows rows[N_CLIENTS],
                               const struct batch *b)
{
    const double us = step_cost_us(&w->cost, b->n_decodes, b->n_tokens - b->n_decodes);
    double limit = PRECISION * step_cost_us(&w->cost, 1, 0), shares = 0;
    int32_t klass = -1, n = 0, n_masked = 0;

    if (limit <= 0 || w->core->fair.users.n < 2)
        return NULL;
    for (int k = 0; k < N_CLIENTS; k++) {
        shares += rows[k].klass >= 0 ? rows[k].share : 0;
        n += rows[k].klass >= 0;
        n_masked += rows[k].n_masked;
        klass = rows[k].klass > klass ? rows[k].klass : klass;
    }
    for (int k = 0; k < N_CLIENTS && n > 1; k++) {
        const int32_t max = w->options.max_batch_tokens;
        const int32_t decodes = min_i32(rows[k].all_decodes, max);
        const int32_t prompts =
            min_i32(min_i32(rows[k].all_rows, max - decodes), step_cost_rows(&w->cost, decodes));
        const double alone = fmax(step_cost_us(&w->cost, decodes, prompts), rows[k].all_mask_us);

        if (rows[k].klass == klass)
            limit = fmin(limit, alone * shares / rows[k].share);
    }
    return (us > limit * 1.001 && b->n_tokens > 1) ||
                   (masks_us(rows) > limit * 1.001 && n_masked > 1)
               ? "a step takes longer than a user's share of the time allows"
               : NULL;
}

/* Each position is charged once, by what it adds; the rest of the step by share. */
static const char *check_charges(struct world *w, const struct rows rows[N_CLIENTS])
{
    const double one = step_cost_us(&w->cost, 1, 0);
    const double row_us = w->cost.row_us > 0 ? w->cost.row_us : one > 0 ? one : 1;
    double decode_us = one > 0 ? one : 1, base_us, shares = 0;
    int32_t decodes = 0;

    for (int k = 0; k < N_CLIENTS; k++) {
        decodes += rows[k].all_decodes;
        shares += rows[k].new_decodes + rows[k].new_rows > 0 ? rows[k].share : 0;
    }
    if (decodes > 1 && one > 0)
        decode_us = fmax((step_cost_us(&w->cost, decodes, 0) - one) / (decodes - 1), 1e-6 * one);
    base_us = one > 0 ? one - decode_us : 0;
    w->last_step_us = base_us;
    for (int k = 0; k < N_CLIENTS; k++)
        w->last_step_us += rows[k].decodes * decode_us + rows[k].rows * row_us;
    FAIR_EACH (u, &w->core->fair) {
        const struct rows *r = &rows[u->id];
        const double own = r->new_decodes * decode_us + r->new_rows * row_us;
        const double us = own > 0 ? own + base_us * u->share / shares : 0;

        if (fabs(us - u->charged_us) > 1e-6 * (1 + us))
            return "a user is charged more or less than what is computed for it";
    }
    return NULL;
}

/* What the step takes without what others compute again after a preemption: that is not charged. */
static double charged_us(const struct world *w, const struct rows rows[N_CLIENTS],
                         const struct batch *b)
{
    int32_t decodes = b->n_decodes, n = b->n_tokens - b->n_decodes;

    for (int k = 0; k < N_CLIENTS; k++) {
        decodes -= k == LIGHT ? 0 : rows[k].decodes - rows[k].new_decodes;
        n -= k == LIGHT ? 0 : rows[k].rows - rows[k].new_rows;
    }
    return fmax(step_cost_us(&w->cost, decodes, n), masks_us(rows));
}

/* From the step after the first with its rows up to one with its rows, a client with one request
 * at a time waits no longer than its share of the time asks for, but for one grant of each other
 * client and what it was ahead; and but for steps without a row to spare, where its prompt gets the
 * rows that decodes leave. */
static const char *check_light(struct world *w, const struct rows rows[N_CLIENTS],
                               const struct batch *batch)
{
    const double one = step_cost_us(&w->cost, 1, 0), own = own_us(w, &rows[LIGHT]);
    const int32_t n = rows[LIGHT].decodes + rows[LIGHT].rows;
    const struct fair_user *user = NULL;
    const bool is_full =
        batch->n_tokens == w->options.max_batch_tokens && rows[LIGHT].all_rows > rows[LIGHT].rows;
    double shares = 0, share, at_once;
    uint64_t id = 0;

    for (int32_t i = 0; i < w->n_alive; i++)
        if (w->alive[i]->client == LIGHT)
            id = w->alive[i]->id;
    if (id != w->light_id) {
        w->light_id = id;
        w->light_us = w->light_own_us = w->light_most_us = 0;
        w->light_share = 1;
    }
    FAIR_EACH (u, &w->core->fair) {
        shares += u->share;
        user = u->id == LIGHT ? u : user;
    }
    if (!user || (w->light_us <= 0 && n == 0))
        return NULL;
    w->light_share = fmin(w->light_share, user->share / shares);
    share = w->light_share;
    w->light_us += w->light_us <= 0 ? own
                   : is_full        ? fmin(charged_us(w, rows, batch), own / share)
                                    : charged_us(w, rows, batch);
    w->light_own_us += own;
    w->light_most_us = fmax(w->light_most_us, fmax(own, w->cost.row_us));
    at_once =
        (2 * w->light_most_us + PRECISION * one) / share + (w->n_clients - 1) * w->max_mask_us;
    return n > 0 && w->light_us > w->light_own_us / share + at_once
               ? "a light client gets less than its share of the time"
               : NULL;
}

/* Clients that always wait are charged alike for their shares, but for the requests in the slots
 * and one. */
static const char *check_served(struct world *w)
{
    const double one = fmax(step_cost_us(&w->cost, 1, 0), 1);
    const double most_us = w->max_tokens * (one + w->max_mask_us) +
                           2 * w->max_prompt * (w->cost.row_us > 0 ? w->cost.row_us : one);
    const int32_t n_blocks = (2 * w->max_prompt + w->max_tokens) / w->options.block_len + 2;
    const int32_t n = w->options.max_seqs + 1 +
                      (w->options.n_blocks < w->options.max_seqs * n_blocks ? MAX_PASSED : 0);
    double least = INFINITY, most = 0, share = INFINITY;

    FAIR_EACH (u, &w->core->fair) {
        w->served_us[u->id] += fair_vtime_of(u, u->charged_us);
        share = fmin(share, u->share);
    }
    for (int32_t i = 1; i <= w->n_clients; i++) {
        least = fmin(least, w->served_us[i]);
        most = fmax(most, w->served_us[i]);
    }
    return most - least > n * most_us * FAIR_USUAL_SHARE / share
               ? "clients that wait alike are not served alike"
               : NULL;
}

/* How many of a step's first rows are of choices that go behind s: they have passed it. */
static int32_t count_passes(const struct world *w, const struct batch *batch,
                            const struct sequence *s)
{
    int32_t n = 0;

    for (int32_t i = 0; i < batch->n_updates; i++) {
        const struct sequence *b = w->core->slots[batch_updates(batch)[i].state];

        n += b && b->n_preempted == 0 && b->request->user == s->request->user &&
             b->request->priority == s->request->priority && s->order < b->order;
    }
    return n;
}

/* A request that does not fit is passed by others of its client and class up to a bound; those that
 * were preempted go before it anyway, and while it waits for another's prefix, outside the queue,
 * others may go. What is seen is their first rows, which come a little later. */
static const char *check_passed(struct world *w, const struct batch *batch)
{
    for (int32_t k = 0; k < w->n_alive; k++) {
        const struct request *q = id_map_get(&w->core->requests, w->alive[k]->id);

        for (int32_t j = 0; q && j < q->n; j++) {
            struct oracle_choice *o = &w->alive[k]->choices[j];

            if (q->choices[j].state == SEQ_WAITING)
                o->n_passed += count_passes(w, batch, &q->choices[j]);
            else
                o->n_passed = 0;
            if (o->n_passed > MAX_PASSED + w->options.max_seqs)
                return "a request that waits is passed too often";
        }
    }
    return NULL;
}

void sim_fair_plan(struct world *w)
{
    double spent = 0, over;

    if (core_in_flight(w->core) == BACKEND_IN_FLIGHT || w->core->n_requests == 0)
        return;
    FAIR_EACH (u, &w->core->fair)
        spent += w->spent_mask_us[u->id];
    over = fmax(spent - w->last_step_us, 0);
    FAIR_EACH (u, &w->core->fair) {
        const double us = spent > 0 ? fair_vtime_of(u, over * w->spent_mask_us[u->id] / spent) : 0;

        w->least_vtime[u->id] = u->vtime + us;
        w->served_us[u->id] += us;
    }
    memset(w->spent_mask_us, 0, sizeof(w->spent_mask_us)); /* who has left was charged */
    w->last_step_us = 0;
}

/* Users are charged for the time that their masks took beyond the step. */
static const char *check_masks(const struct world *w)
{
    FAIR_EACH (u, &w->core->fair) {
        const double vtime = w->least_vtime[u->id] + fair_vtime_of(u, u->charged_us);

        if (u->vtime < vtime * (1 - 1e-9))
            return "a user is not charged for its masks";
    }
    return NULL;
}

const char *sim_fair_check(struct world *w, const struct batch *batch, uint64_t n_preempted)
{
    const struct step *st = &w->core->steps[batch->step % BACKEND_IN_FLIGHT];
    const char *wrong = check_passed(w, batch);
    struct rows rows[N_CLIENTS];

    if (!w->timed && !w->fair)
        return wrong;
    count_rows(w, st, rows);
    if (!wrong && n_preempted == 0) /* what those preempted could have had is not to be seen */
        wrong = check_limit(w, rows, batch);
    w->last_step_us = w->core->fair.last_step_us;
    if (!wrong && n_preempted == 0)
        wrong = check_charges(w, rows);
    if (!wrong && fabs(w->last_step_us - w->core->fair.last_step_us) > 1e-6 * w->last_step_us)
        wrong = "the step is said to take more or less than its rows do";
    if (!wrong)
        wrong = check_masks(w);
    if (!wrong && w->fair)
        wrong = check_served(w);
    if (!wrong && w->timed)
        wrong = check_light(w, rows, batch);
    return wrong;
}

/* ---- arrivals */

double sim_fair_start(const struct world *w, uint64_t client)
{
    const struct fair *f = &w->core->fair;
    const struct fair_user *account = id_map_get(&f->users, client);
    double system = INFINITY;

    if (account && account->n_joined > 0)
        return -1;
    FAIR_EACH (u, f)
        system = fmin(system, u->vtime);
    if (isinf(system))
        system = f->vtime;
    return fmax(system, account ? account->vtime : 0);
}

const char *sim_fair_joined(const struct world *w, uint64_t client, double vtime)
{
    const struct fair_user *u = id_map_get(&w->core->fair.users, client);

    return vtime >= 0 && fabs(u->vtime - vtime) > 1e-6 * (1 + vtime)
               ? "a newcomer does not start at the virtual time of the system"
               : NULL;
}
