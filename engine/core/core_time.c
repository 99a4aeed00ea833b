/* core_time.c - who stands back in a step, so that each client has its share of the machine's time.
 *
 * Where rows cost time, what one client adds to a step makes another's rows come later. The light
 * client is the one with nothing waiting that has the least left to do for its share. A client with
 * a longer round, all its next rows and nothing else, or with something waiting, may add so much to
 * the light one's steps that these together take no longer than its share of the time allows; what
 * that waited for before it began is taken off first. They add it in bursts of a few of its rounds,
 * in turns, and stand back in between. Where they add little, nobody stands back; nor where the
 * light one gets no row itself.
 *
 * A newcomer may have its first step for itself; but after that as much time passes as it took,
 * until the next may: else those that come one after another would have all steps.
 *
 * Times are foreseen, by what the engine says steps cost: without that all run. */
#include <math.h>

#include "engine/core/core_impl.h"
#include "engine/util/must.h"
#include "engine/util/plant.h"

/* Of the time that is the share of a client at least: the rest is for what is not foreseen. */
static const double margin = 0.25;
static const double least_part = 0.5; /* of the light client's time, that is left to each other */
/* Where there are several clients, a step takes no longer for decodes than so many of one decode,
 * nor with prompts: what a step costs by itself is a small part then, and newcomers, who wait for
 * two, do not wait long. */
static const double long_decodes = 16, long_prompts = 48;
static const uint64_t several_us = 600000000; /* there are, so long after there were */
static const double no_time = 0.001;          /* steps of one decode that a row takes at least */
static const double burst = 4;                /* rounds of the light client at a time */
static const double most_owed = 64; /* steps of one decode: what it waited counts no more */

enum {
    FEWEST_ROWS = 16, /* a prompt goes on so much in a step that it has for itself */
    FORESEEN = 256,   /* tokens of an answer: many are allowed more than they come to */
    LOOK_AFTER = 32,  /* steps with others' rows, until one shows what the light one's take */
    KEPT_SHARE = 8,   /* 1/8 of what a client may add is kept from its decodes while prompts wait */
};

static struct fair_use *use_of(const struct sequence *s)
{
    return fair_client_use(s->request->client);
}

void core_set_cost(struct core *c, const struct step_cost *cost)
{
    c->cost = *cost;
    c->one_us = step_cost_us(cost, 1, 0);
    c->row_us = cost->row_us > 0 ? cost->row_us : c->one_us;
}

void core_time_admitted(struct core *c, uint64_t client, uint64_t now_us)
{
    if (c->last_order > 0 && client != c->last_client)
        c->several_until_us = now_us + several_us;
    c->last_client = client;
}

/* What bounds a step; 0: nothing. */
static double step_us(const struct core *c, double decodes, uint64_t now_us)
{
    const bool seen = c->cost.decodes[0].n > 0 || c->cost.decodes[1].n > 0;

    return c->options.fair_time && seen && now_us < c->several_until_us ? decodes * c->one_us : 0;
}

int32_t core_time_decodes(const struct core *c, uint64_t now_us)
{
    const double us = step_us(c, long_decodes, now_us);

    return us > 0 ? step_cost_decodes(&c->cost, us, c->options.max_seqs) : INT32_MAX;
}

int32_t core_time_prompt_rows(const struct core *c, int32_t n_decodes, uint64_t now_us)
{
    const double us = step_us(c, long_prompts, now_us);
    double n;

    if (us <= 0 || c->cost.row_us <= 0)
        return INT32_MAX;
    n = (us - step_cost_us(&c->cost, n_decodes, 0)) / c->cost.row_us;
    return n < FEWEST_ROWS ? FEWEST_ROWS : n < INT32_MAX ? (int32_t)n : INT32_MAX;
}

/* ---- before a plan */

/* Who begins beside the newcomer and asks for no more than that. */
static bool begins_too(const struct core *c, const struct fair_use *use)
{
    return c->time.newcomer && c->time.light == c->time.newcomer && use->n_running == 0 &&
           use->n_waiting <= c->time.newcomer->n_waiting;
}

/* Of this plan; one that none of these sequences is of is taken for a heavy one. */
static struct fair_use *use_in_plan(const struct core *c, const struct sequence *s)
{
    struct fair_use *use = use_of(s);

    if (use->plan != c->n_plans) {
        use->plan = c->n_plans;
        use->next = NULL;
        use->decodes = use->rows = use->n_decodes = use->n_rows = 0;
        use->klass = -1;
        use->back = !begins_too(c, use);
        use->share = fair_client_share(c->queue, s->request->client);
        use->served = fair_client_time(s->request->client);
        use->round_us = use->work_us = INFINITY;
        use->allowed_us = use->spent_us = 0;
    }
    return use;
}

static int32_t rows_at_most(const struct core *c, int64_t n)
{
    return n < c->options.max_batch_tokens ? (int32_t)n : c->options.max_batch_tokens;
}

/* Work is what it has yet to compute, as far as it can be foreseen. */
static void add_rows(const struct core *c, struct fair_use *use, const struct sequence *s)
{
    const int32_t n = s->request->max_tokens - s->n_generated;
    const int32_t rows = s->state == SEQ_DECODE ? 0 : core_n_chunked(c, s) - s->n_planned;

    use->decodes += s->state == SEQ_DECODE;
    use->rows = rows_at_most(c, (int64_t)use->rows + rows);
    if (use->klass < 0)
        use->work_us = 0;
    use->work_us += rows * c->row_us + (n < FORESEEN ? n : FORESEEN) * c->one_us;
    if ((int32_t)s->request->priority > use->klass)
        use->klass = (int32_t)s->request->priority;
}

/* All clients with something to run, one behind the other. */
static struct fair_use *count_rows(const struct core *c)
{
    const struct list *lists[] = {&c->prefilling, &c->decoding};
    struct fair_use *first = NULL;

    for (int k = 0; k < 2; k++) {
        for (struct list *l = lists[k]->next; l != lists[k]; l = l->next) {
            const struct sequence *s = CONTAINER_OF(l, struct sequence, link);
            const struct request *q = s->request;
            struct fair_use *use = use_in_plan(c, s);

            if (s->state == SEQ_DECODE && s->n_generated + s->n_sampling >= q->max_tokens)
                continue; /* its end is in flight */
            if (use->klass < 0) {
                use->next = first;
                first = use;
            }
            add_rows(c, use, s);
        }
    }
    return first;
}

/* The next in the queue, if its client has nothing that runs and it can begin now. */
static struct fair_use *find_newcomer(struct core *c)
{
    const struct fair_item *item = fair_queue_top(c->queue);
    const struct sequence *s = item ? CONTAINER_OF(item, struct sequence, item) : NULL;
    struct fair_use *use;

    if (!s || use_of(s)->n_running > 0)
        return NULL;
    if (c->n_free_slots == 0 && c->newcomers_us <= 0)
        core_claim_slot(c, s);
    if (c->n_free_slots == 0)
        return NULL;
    use = use_in_plan(c, s);
    add_rows(c, use, s);
    use->work_us *= use->n_waiting; /* the others are like it */
    return use;
}

/* For its share. */
static bool has_less_work(const struct fair_use *a, const struct fair_use *b)
{
    return a->work_us * b->share < b->work_us * a->share;
}

static bool is_lighter(const struct fair_use *a, const struct fair_use *b)
{
    return a->klass != b->klass ? a->klass > b->klass : has_less_work(a, b);
}

/* Whom others stand back for. A newcomer with a long prompt takes no step from one with short
 * rounds. */
static void find_light(struct core *c)
{
    struct core_time *t = &c->time;
    struct fair_use *new = t->newcomer;

    for (struct fair_use *u = t->first; u; u = u->next) {
        u->round_us = step_cost_us(&c->cost, u->decodes, u->rows);
        if (u->n_waiting == 0 && (!t->light || is_lighter(u, t->light)))
            t->light = u;
    }
    if (new && c->newcomers_us <= 0 &&
        (!t->light ||
         (is_lighter(new, t->light) && (new->round_us <= long_decodes * c->one_us ||
                                        t->light->round_us > long_decodes * c->one_us))))
        t->light = new;
}

/* Who has something waiting asks for more than its round. */
static void find_back(struct core *c)
{
    const struct fair_use *light = c->time.light;

    for (struct fair_use *u = c->time.first; u; u = u->next) {
        u->back = u != light && u->klass <= light->klass &&
                  (u->n_waiting > 0 || (u->round_us * light->share > light->round_us * u->share &&
                                        has_less_work(light, u)));
        c->time.any_back |= u->back;
    }
}

/* All that stand back, or all others. */
struct side {
    double us, shares;
    int32_t decodes;
};

static struct side sum(const struct core *c, bool back)
{
    struct side all = {.us = 0};
    int64_t rows = 0;

    for (const struct fair_use *u = c->time.first; u; u = u->next) {
        if (u->back != back)
            continue;
        all.decodes += u->decodes;
        all.shares += u->share;
        rows += u->rows;
    }
    all.us = step_cost_us(&c->cost, all.decodes, rows_at_most(c, rows));
    return all;
}

/* What one decode more takes where as many are added as there is time for. */
static double decode_us(const struct core *c, int32_t beside, int32_t n, double us)
{
    const double before = step_cost_us(&c->cost, beside, 0);

    if (n == 0)
        return 0;
    n = step_cost_decodes(&c->cost, before + us, beside + n) - beside;
    n = n > 1 ? n : 1;
    return fmax((step_cost_us(&c->cost, beside + n, 0) - before) / n, no_time * c->one_us);
}

static double wanted_us(const struct core *c, const struct fair_use *u)
{
    return u->decodes * c->time.decode_us + u->rows * c->row_us;
}

/* One row, of whichever it has. */
static double least_us(const struct core *c, const struct fair_use *u)
{
    return fmax(u->decodes > 0 ? c->time.decode_us : 0, u->rows > 0 ? c->row_us : 0);
}

/* Each has what it wants or its share of what is left by those that want less. */
static void divide(struct core *c, double us, double shares)
{
    bool more = true;

    for (struct fair_use *u = c->time.first; u; u = u->next)
        u->allowed_us = u->back ? -1 : 0;
    while (more) {
        const double each = us / shares;

        more = false;
        for (struct fair_use *u = c->time.first; u; u = u->next) {
            const double wanted = u->n_waiting > 0 ? INFINITY : wanted_us(c, u);

            if (u->allowed_us >= 0 || wanted > each * u->share)
                continue;
            u->allowed_us = wanted;
            us -= wanted;
            shares -= u->share;
            more = true;
        }
    }
    for (struct fair_use *u = c->time.first; u; u = u->next)
        if (u->allowed_us < 0)
            u->allowed_us = us * u->share / shares;
}

/* Where there are more of them than rows, who was served least has one. */
static void round_up(struct core *c)
{
    struct fair_use *least = NULL;

    for (struct fair_use *u = c->time.first; u; u = u->next)
        if (u->back && (!least || u->served < least->served))
            least = u;
    least->allowed_us = fmax(least->allowed_us, least_us(c, least));
}

void core_time_begin(struct core *c, uint64_t now_us)
{
    struct core_time *t = &c->time;
    double wanted = 0;
    struct side others, back;

    *t = (struct core_time){.light = NULL};
    if (!c->options.fair_time || fair_queue_n_active(c->queue) < 2 || c->one_us <= 0 ||
        PLANT(PLANT_NO_STAND_BACK))
        return;
    c->several_until_us = now_us + several_us;
    t->newcomer = find_newcomer(c);
    t->first = count_rows(c);
    if (t->newcomer) {
        t->newcomer->next = t->first;
        t->first = t->newcomer;
    }
    find_light(c);
    if (!t->light)
        return;
    find_back(c);
    if (t->light == t->newcomer)
        return; /* it has its first step for itself */
    others = sum(c, false);
    back = sum(c, true);
    t->looks = ++t->light->since_look > LOOK_AFTER;
    t->gain = fmax((1 - margin) / t->light->share - others.us / t->light->round_us,
                   least_part * back.shares / t->light->share);
    t->decode_us = decode_us(c, others.decodes, back.decodes, t->light->credit_us);
    t->burst_us = burst * fmin(t->light->round_us, long_decodes * c->one_us);
    for (const struct fair_use *u = t->first; u; u = u->next) {
        if (!u->back)
            continue;
        wanted += wanted_us(c, u);
        t->burst_us = fmax(t->burst_us, least_us(c, u));
    }
    if (wanted > 0 && t->light->credit_us >= fmin(wanted, t->burst_us)) {
        divide(c, t->light->credit_us, back.shares);
        round_up(c);
    }
}

/* ---- in a plan */

bool core_time_divides(const struct core *c)
{
    return c->time.light && c->time.any_back;
}

bool core_time_stands_back(const struct core *c, const struct sequence *s)
{
    return use_in_plan(c, s)->back;
}

int32_t core_rows_left(const struct core *c, const struct sequence *s, bool decode)
{
    const struct core_time *t = &c->time;
    const struct fair_use *u = t->light ? use_in_plan(c, s) : NULL;
    double left, each;

    if (!u || !u->back || (int32_t)s->request->priority > t->light->klass)
        return INT32_MAX;
    left = u->allowed_us - u->spent_us;
    if (decode && (u->rows > 0 || u->n_waiting > 0))
        left -= u->allowed_us / KEPT_SHARE;
    each = s->state == SEQ_DECODE ? t->decode_us : c->row_us;
    if (t->light == t->newcomer || t->looks)
        return 0;
    if (left <= 0)
        return 0;
    return left < each * INT32_MAX ? (int32_t)(left / each + 1e-6) : INT32_MAX;
}

void core_rows_planned(struct core *c, const struct sequence *s, int32_t n, bool decode)
{
    struct fair_use *u = c->time.light ? use_in_plan(c, s) : NULL;

    if (!u)
        return;
    u->n_decodes += decode ? n : 0;
    u->n_rows += decode ? 0 : n;
    if (!u->back)
        return;
    u->spent_us += n * (decode ? c->time.decode_us : c->row_us);
    c->time.n_decodes += decode ? n : 0;
    c->time.n_rows += decode ? 0 : n;
}

bool core_time_lift(struct core *c)
{
    const struct fair_use *light = c->time.light;

    if (!light || light->n_decodes + light->n_rows > 0)
        return false;
    c->time.light = NULL;
    return true;
}

/* ---- after it */

/* As long as a newcomer had for itself, steps are planned as if it were none. */
static void count_newcomers(struct core *c, const struct step *st)
{
    const struct core_time *t = &c->time;

    if (t->light && t->light == t->newcomer) {
        if (t->any_back)
            c->newcomers_us = fmin(st->cost_us, most_owed * c->one_us);
    } else {
        c->newcomers_us = fmax(c->newcomers_us - st->cost_us, 0);
    }
}

/* What others had beside the first rows of a client counts as if it had waited for it. */
static void charge_beginners(struct core *c, const struct step *st)
{
    for (int32_t i = 0; i < st->n_chunks; i++) {
        struct fair_use *use = use_of(st->chunks[i].sequence);

        if (use->began != c->n_plans || use == c->time.light)
            continue;
        use->began = 0;
        use->credit_us -= st->cost_us - step_cost_us(&c->cost, 0, st->chunks[i].n);
    }
}

void core_time_end(struct core *c, struct step *st)
{
    struct core_time *t = &c->time;
    struct fair_use *light = t->light;
    int32_t rows = 0;

    for (int32_t i = 0; i < st->n_chunks; i++)
        rows += st->chunks[i].n;
    st->cost_us = step_cost_us(&c->cost, st->n_decodes, rows);
    charge_beginners(c, st);
    count_newcomers(c, st);
    if (!light || light == t->newcomer)
        return;
    if (t->n_decodes + t->n_rows == 0)
        light->since_look = 0;
    light->credit_us += t->gain * step_cost_us(&c->cost, light->n_decodes, light->n_rows);
    light->credit_us -=
        st->cost_us - step_cost_us(&c->cost, st->n_decodes - t->n_decodes, rows - t->n_rows);
    light->credit_us = fmin(light->credit_us, t->burst_us);
    light->credit_us = fmax(light->credit_us, -most_owed * c->one_us);
}

void core_time_newcomer(struct core *c, const struct sequence *s, uint64_t now_us)
{
    const double most_us = most_owed * c->one_us;
    double us = s->ran ? 0 : (double)(now_us - s->request->usage.arrival_us);

    for (uint64_t n = c->committed + 1; n <= c->planned; n++)
        us += c->steps[n % BACKEND_IN_FLIGHT].cost_us;
    use_of(s)->credit_us = -fmin(us, most_us);
    use_of(s)->began = c->n_plans;
    use_of(s)->since_look = LOOK_AFTER;
}
