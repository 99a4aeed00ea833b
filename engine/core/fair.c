/* fair.c - which user goes next: start-time fair queueing over the time that steps take.
 *
 * Each user has a virtual time: the microseconds it was charged, divided by its share (Goyal, Vin
 * and Cheng, "Start-time fair queueing", 1996). Each decode and each prompt row is charged to its
 * user when it is planned, once, at what it is estimated to add to the step; what a step takes by
 * itself is split by share among the users in it. The user with the least virtual time goes next:
 * for rows of a step, for slots and for blocks. A user that comes back starts at the least virtual
 * time of those that are active, or at its own if that is greater, so idleness is no credit; and a
 * user that gets all it wants never falls behind one that does not.
 *
 * A step is bounded too. Let alone(u) be what a step with only the rows of u would take, and
 * share(u) its part of the shares of all users with rows. The step takes at most
 *
 *     T = min over u of alone(u) / share(u)        (u of the highest class that has rows)
 *
 * but for the first row granted, with its masks, and at most PRECISION one-decode steps. So, with
 * estimates that are right, and but for the masks of one row:
 *
 * - each token of u, of that class, takes at most 1 / share(u) times as long as it would alone;
 * - of two users that want more than they get over some time, the microseconds charged, divided by
 *   the shares, differ by at most one grant of each: a row, a chunk, or, where slots are short,
 *   what the requests in the slots take;
 * - a newcomer waits for the steps in flight, each of at most PRECISION one-decode steps.
 *
 * The host makes the masks of a step's rows while the device computes the step behind it, so a step
 * takes as long as the longer of the two, and T bounds each. How long masks take is known only
 * afterwards; until then the user's average is used. If they take longer than that step, the
 * difference is charged to the users they were made for.
 *
 * Where steps are short of rows rather than of time, prompts get the rows that decodes leave.
 * One user alone is not bounded at all until a second one has ever sent a request. */
#include "engine/core/fair.h"

#include <math.h>
#include <string.h>

#include "engine/core/sequence.h"
#include "engine/util/min.h"
#include "engine/util/must.h"
#include "engine/util/plant.h"

/* Precision of all shares. A step costs at most one one-decode step by itself, so one that is 16
 * times as long wastes at most 1/16 of the time on that, and a newcomer waits 32 one-decode steps
 * at most. Slots and blocks change hands only where a user has more than 1/16 beyond its part:
 * otherwise users that ask alike would take from each other all the time. */
enum { PRECISION = 16 };

enum { MASKS_OF_MEAN = 16 }; /* the latest weigh most */

static const double LEAST_DECODE = 1e-6; /* of what a step of one takes */

/* Sequences admitted past one that does not fit, until the queue waits for it. While small requests
 * go on passing, a step is full; then blocks come free until the large one fits, which takes no
 * longer than the answers that are running. */
enum { MAX_PASSED = 64 };

/* ---- the queue */

static bool goes_first(const struct list *a, const struct list *b)
{
    const struct sequence *x = sequence_of(a), *y = sequence_of(b);
    const bool again = x->n_preempted > 0;

    return again != (y->n_preempted > 0) ? again : x->order < y->order;
}

void fair_push(struct sequence *s)
{
    struct request *q = s->request;

    list_insert(&q->user->waiting[q->priority], &s->link, goes_first);
    q->user->n_waiting++;
}

void fair_remove(struct sequence *s)
{
    list_remove(&s->link);
    s->request->user->n_waiting--;
}

/* With what the user has admitted and not computed yet. */
static double vtime_of(const struct fair *f, const struct fair_user *u)
{
    return u->vtime + fair_vtime_of(u, u->rows[0] * f->row_us);
}

/* Of two users' first sequences of one class. */
static bool is_next(const struct fair *f, const struct sequence *a, const struct sequence *b)
{
    const struct fair_user *u = a->request->user, *v = b->request->user;
    const double x = vtime_of(f, u), y = vtime_of(f, v);

    if (u->n_skipped != v->n_skipped)
        return u->n_skipped < v->n_skipped;
    return x != y ? x < y : a->order < b->order;
}

struct sequence *fair_top(const struct fair *f)
{
    struct sequence *best = NULL;

    for (int k = CORE_N_PRIORITIES - 1; k >= 0 && !best; k--)
        FAIR_EACH (u, f) {
            struct sequence *s = sequence_of(u->waiting[k].next);

            if (!list_empty(&u->waiting[k]) && !u->closed && (!best || is_next(f, s, best)))
                best = s;
        }
    return best;
}

/* ---- overtaking */

void fair_skip(struct fair *f, struct sequence *s)
{
    fair_remove(s);
    s->request->user->n_skipped++;
    list_append(&f->skipped, &s->link);
}

void fair_unskip(struct fair *f)
{
    SEQUENCE_EACH (s, &f->skipped) {
        list_remove(&s->link);
        s->request->user->n_skipped--;
        fair_push(s);
    }
}

/* Whether s takes from one that it passes what that one could have. */
static bool overtakes(const struct fair *f, const struct sequence *s, const struct sequence *passed,
                      int32_t pool)
{
    const struct request *q = s->request, *p = passed->request;

    return q->user == p->user || q->priority < p->priority ||
           p->user->n_blocks < fair_part(f, p->user, pool) ||
           q->user->n_blocks + s->n_lacking > fair_part(f, q->user, pool);
}

bool fair_may_pass(const struct fair *f, const struct sequence *s, int32_t pool)
{
    SEQUENCE_EACH (passed, &f->skipped)
        if (passed->n_passed >= MAX_PASSED && !PLANT(PLANT_NO_PASS_LIMIT) &&
            overtakes(f, s, passed, pool))
            return false;
    return true;
}

void fair_pass(struct fair *f, const struct sequence *s, int32_t pool)
{
    SEQUENCE_EACH (passed, &f->skipped)
        passed->n_passed += overtakes(f, s, passed, pool);
}

/* ---- slots and blocks */

int32_t fair_part(const struct fair *f, const struct fair_user *u, int32_t n)
{
    int64_t part;

    if (f->n_active < 2)
        return n;
    part = (int64_t)n * u->share / f->active_shares;
    return part > 1 ? (int32_t)part : 1;
}

int32_t fair_excess(const struct fair *f, const struct fair_user *u, int32_t has, int32_t n)
{
    const int32_t part = fair_part(f, u, n);

    return has > part + part / PRECISION ? has - part : 0;
}

bool fair_lacks(const struct fair *f, const struct fair_user *u, int32_t has, int32_t n)
{
    const int32_t part = fair_part(f, u, n);

    return has < part - part / PRECISION;
}

/* ---- a step */

void fair_add_mask_time(struct fair_user *u, double us)
{
    u->mean_mask_us += u->mean_mask_us > 0 ? (us - u->mean_mask_us) / MASKS_OF_MEAN : us;
    u->spent_mask_us += us;
}

/* For the masks made since the last step was planned, behind that step. */
static void charge_masks(struct fair *f)
{
    double spent = 0, excess;

    FAIR_EACH (u, f)
        spent += u->spent_mask_us;
    excess = spent - f->last_step_us;
    FAIR_EACH (u, f) {
        if (excess > 0 && !PLANT(PLANT_FREE_MASKS))
            u->vtime += fair_vtime_of(u, excess * u->spent_mask_us / spent);
        u->spent_mask_us = 0;
    }
}

void fair_step_begin(struct fair *f, const struct step_cost *cost)
{
    f->cost = cost;
    f->base_us = 0;
    f->decode_us = f->row_us = 1; /* until something is known */
    f->planned_masks_us = 0;
    charge_masks(f);
    if (cost->row_us > 0)
        f->row_us = cost->row_us;
    FAIR_EACH (u, f) {
        u->decodes = u->n_masked = u->n_planned = u->n_skipped = 0;
        memset(u->rows, 0, sizeof(u->rows));
        u->klass = -1;
        u->quota_us = INFINITY;
        u->planned_us = u->planned_masks_us = u->charged_us = 0;
        u->closed = u->held = u->has_masks = false;
    }
}

/* Prices decodes on the line between one decode and all of them; the rest is base_us. */
static void set_price(struct fair *f, int32_t decodes)
{
    const double one = step_cost_us(f->cost, 1, 0);

    if (one <= 0)
        return;
    f->row_us = f->cost->row_us > 0 ? f->cost->row_us : one;
    f->decode_us = one;
    if (decodes > 1) /* never nothing: who is charged nothing does not get on */
        f->decode_us =
            fmax((step_cost_us(f->cost, decodes, 0) - one) / (decodes - 1), LEAST_DECODE * one);
    f->base_us = one - f->decode_us;
}

static double alone_us(const struct fair *f, const struct fair_user *u, int32_t max_rows)
{
    const int32_t decodes = min_i32(u->decodes, max_rows);
    const int32_t rows = min_i32(u->rows[0], max_rows - decodes);
    const double us =
        step_cost_us(f->cost, decodes, min_i32(rows, step_cost_rows(f->cost, decodes)));

    return fmax(us, u->n_masked * u->mean_mask_us);
}

double fair_step_limit(struct fair *f, int32_t max_rows)
{
    const double one = step_cost_us(f->cost, 1, 0);
    double limit = INFINITY, shares = 0, masks = 0;
    int32_t klass = -1, n = 0, decodes = 0, rows = 0;

    FAIR_EACH (u, f) {
        if (u->klass < 0)
            continue;
        n++;
        decodes += u->decodes;
        rows = min_i32(rows + u->rows[0], max_rows);
        shares += u->share;
        klass = u->klass > klass ? u->klass : klass;
    }
    set_price(f, decodes);
    if (one <= 0 || f->users.n < 2 || PLANT(PLANT_NO_STEP_LIMIT))
        return INFINITY;
    limit = PRECISION * one;
    FAIR_EACH (u, f) {
        masks += u->n_masked * u->mean_mask_us;
        if (n > 1 && u->klass == klass && u->decodes + u->rows[0] > 0)
            limit = fmin(limit, alone_us(f, u, max_rows) * shares / u->share);
    }
    if (fmax(step_cost_us(f->cost, min_i32(decodes, max_rows), rows), masks) <= limit)
        return INFINITY;
    FAIR_EACH (u, f)
        u->quota_us = limit * u->share / shares;
    return limit * (1 + 1e-9); /* sums round */
}

void fair_charge(struct fair *f, struct fair_user *u, int32_t decodes, int32_t rows)
{
    const double us = decodes * f->decode_us + rows * f->row_us;

    must(u->n_joined > 0);
    if (PLANT(PLANT_NO_FAIRNESS))
        return;
    u->charged_us += us;
    u->vtime += fair_vtime_of(u, us);
}

/* What the step takes by itself is split by share: so it moves all virtual times alike. */
static void charge_base(struct fair *f)
{
    double shares = 0;

    FAIR_EACH (u, f)
        shares += u->charged_us > 0 ? u->share : 0;
    FAIR_EACH (u, f) {
        const double us = f->base_us * u->share / shares;

        if (u->charged_us <= 0)
            continue;
        u->charged_us += us;
        u->vtime += fair_vtime_of(u, us);
    }
}

static bool wants_more(const struct fair_user *u)
{
    return u->n_waiting > 0 || u->n_planned < u->decodes + u->rows[0];
}

void fair_step_end(struct fair *f)
{
    const double credit = PRECISION * fmax(step_cost_us(f->cost, 1, 0), 1);
    double least = INFINITY, greatest = 0, planned = 0, longest_mask = 0;

    charge_base(f);
    FAIR_EACH (u, f) {
        planned += u->planned_us;
        greatest = fmax(greatest, u->vtime);
        if (u->has_masks)
            longest_mask = fmax(longest_mask, fair_vtime_of(u, u->mean_mask_us));
        if (wants_more(u))
            least = fmin(least, u->vtime);
    }
    f->last_step_us = planned > 0 ? fmax(f->base_us + planned, 0) : 0;
    if (isinf(least))
        least = greatest;
    least -= longest_mask; /* which a row may have that is granted whatever it takes */
    FAIR_EACH (u, f) {
        if (!wants_more(u))
            u->vtime = fmax(u->vtime, least - fair_vtime_of(u, credit));
        list_clear(&u->decoding);
        list_clear(&u->prompts);
    }
}
