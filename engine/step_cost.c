/* step_cost.c - see step_cost.h. */
#include "engine/step_cost.h"

#include <math.h>

#include "engine/util/must.h"

/* The share of itself by which one step changes a point, or the draft model's estimate, at most. So
 * these converge to the median of their steps, however long a few of them were delayed. */
static const double max_step_change = 0.125;
static const double row_cost_decay = 0.75; /* of older steps' weight, with each step with rows */
static const double draft_cost_decay = 0.015625; /* of steps with drafts, with each step without */
static const double max_row_share = 0.125;       /* of a step that shows what its decodes take */

enum {
    MIN_ROWS_BESIDE = 16, /* prompt rows beside decodes, whatever they cost: prompts go on */
    MIN_ROWS_ALONE = 128, /* without decodes: one row tile */
    INITIAL_ROWS = 512,   /* until the cost of a row is known */
    WARMUP_STEPS = 5,     /* of the draft model: the shortest but the first is the estimate then */
    PROBE_AFTER = 64,     /* steps: then one of a single row shows what decodes take */
};

static int point_of(int32_t n)
{
    int k = 0;

    while (k < STEP_COST_POINTS - 1 && n >> (k + 1))
        k++;
    return k;
}

static void learn_decodes(struct step_cost *c, int32_t n_decodes, double us)
{
    const int k = point_of(n_decodes);

    if (c->decodes[k].n <= 0) {
        c->decodes[k].n = n_decodes;
        c->decodes[k].us = us;
        return;
    }
    us *= c->decodes[k].n / n_decodes; /* of as many as the point stands for */
    us = fmax(us, (1 - max_step_change) * c->decodes[k].us);
    c->decodes[k].us = fmin(us, (1 + max_step_change) * c->decodes[k].us);
}

static double between(double n0, double us0, double n1, double us1, double n)
{
    return us0 + (us1 - us0) * (n - n0) / (n1 - n0);
}

/* Below the first point, and above one that is alone, cost is taken to be proportional. That
 * overestimates what decodes add, so few are planned, and what those take is seen next. More
 * decodes take no less, and no longer than if they ran in several steps: a point that says so is
 * wrong, and would stay wrong if it kept such steps from being planned. */
static double decodes_us(const struct step_cost *c, double n)
{
    double n0 = 0, us0 = 0, slope = 0;

    for (int k = 0; k < STEP_COST_POINTS; k++) {
        const double n1 = c->decodes[k].n;
        double us1 = fmax(c->decodes[k].us, us0);

        if (n1 <= 0)
            continue;
        if (n0 > 0)
            us1 = fmin(us1, us0 * n1 / n0);
        if (n <= n1)
            return between(n0, us0, n1, us1, n);
        slope = (us1 - us0) / (n1 - n0);
        n0 = n1;
        us0 = us1;
    }
    return us0 + slope * (n - n0);
}

double step_cost_us(const struct step_cost *c, int32_t n_decodes, int32_t n_rows)
{
    const double one = decodes_us(c, 1), decodes = n_decodes > 0 ? decodes_us(c, n_decodes) : 0;

    if (one <= 0 || n_rows == 0)
        return decodes;
    return fmax(decodes + n_rows * (c->row_us > 0 ? c->row_us : one), one);
}

/* What n decodes take at least: of more than were ever recorded, as long as of the most. In
 * proportion they would seem to account for all of a step with prompts, and rows to be free. */
static double known_us(const struct step_cost *c, int32_t n)
{
    double most = n;

    for (int k = 0; k < STEP_COST_POINTS; k++)
        if (c->decodes[k].n > 0)
            most = c->decodes[k].n;
    return n > 0 ? decodes_us(c, fmin(n, most)) : 0;
}

/* The rows' part of a step that took us: what decodes of such a step do not account for. A step
 * like those before raises the estimate by no larger share of itself than one raises a point. */
static void learn_rows(struct step_cost *c, int32_t n_decodes, int32_t n_rows, double us)
{
    double row_us = (us - known_us(c, n_decodes)) / n_rows;

    if (c->row_us > 0)
        row_us = fmin(fmax(row_us, c->row_us / 4),
                      c->row_us * (1 + max_step_change / (1 - row_cost_decay)));
    else if (row_us <= 0)
        return;
    c->rows_sum = c->rows_sum * row_cost_decay + n_rows;
    c->rows_us_sum = c->rows_us_sum * row_cost_decay + row_us * n_rows;
    c->row_us = c->rows_us_sum / c->rows_sum;
}

void step_cost_learn(struct step_cost *c, int32_t n_decodes, int32_t n_rows, double us)
{
    const double rows_us = c->row_us * n_rows;
    const int32_t last = c->last_decodes;

    c->last_decodes = 0;
    if (n_decodes + n_rows <= 0 || us <= 0)
        return;
    for (int k = 0; k < STEP_COST_POINTS; k++)
        c->drafted[k].us *= 1 - draft_cost_decay;
    if (n_decodes > 0 && (n_rows <= 1 || (n_rows <= MIN_ROWS_BESIDE && c->row_us > 0 &&
                                          rows_us <= max_row_share * us))) {
        const double own = fmax(us - rows_us, us / 2);

        /* A step committed late makes the next one seem short: of two alike the mean is right. */
        learn_decodes(c, n_decodes, n_decodes == last ? (own + c->last_us) / 2 : own);
        c->last_decodes = n_decodes;
        c->last_us = own;
        c->steps_since_probe = 0;
    } else {
        learn_rows(c, n_decodes, n_rows, us);
        c->steps_since_probe++;
    }
}

void step_cost_skip(struct step_cost *c)
{
    c->last_decodes = 0;
    if (c->steps_since_probe >= PROBE_AFTER)
        c->steps_since_probe = 0;
}

/* A device computes few rows as the next power of two. */
static int point_of_drafted(int32_t n_rows)
{
    return point_of(n_rows - 1);
}

void step_cost_learn_drafts(struct step_cost *c, int32_t n_rows, double us)
{
    const int k = point_of_drafted(n_rows);
    double *at = &c->drafted[k].us;

    c->last_decodes = 0;
    if (us <= 0 || n_rows <= 0)
        return;
    if (c->drafted[k].seen)
        *at = *at <= 0 ? us : fmin(fmax(us, *at / 2), (1 + max_step_change) * *at);
    c->drafted[k].seen = true;
}

double step_cost_draft_us(const struct step_cost *c, int32_t n_decodes, int32_t n_drafts)
{
    int k = point_of_drafted(n_decodes + n_drafts);

    while (k > 0 && c->drafted[k].us <= 0)
        k--;
    return fmax(c->drafted[k].us, step_cost_us(c, n_decodes, 0));
}

void step_cost_learn_model(struct step_cost *c, double us)
{
    const double at = c->model_us;

    if (us <= 0)
        return;
    if (c->n_model >= WARMUP_STEPS)
        us = fmin(fmax(us, (1 - max_step_change) * at), (1 + max_step_change) * at);
    else if (c->n_model++ > 1)
        us = fmin(us, at);
    c->model_us = us;
}

double step_cost_model_us(const struct step_cost *c)
{
    return c->n_model >= WARMUP_STEPS ? c->model_us : 0;
}

int32_t step_cost_rows(const struct step_cost *c, int32_t n_decodes)
{
    const int32_t fewest = n_decodes > 0 ? MIN_ROWS_BESIDE : MIN_ROWS_ALONE;
    double us, rows;

    if (c->max_step_us <= 0)
        return INT32_MAX;
    if (c->row_us <= 0)
        return INITIAL_ROWS;
    if (n_decodes > 0 && c->steps_since_probe >= PROBE_AFTER)
        return 1;
    /* A step without decodes delays only who comes meanwhile. Where decodes alone take long, a
     * bound of max_step_us would stop prompts altogether. */
    us = known_us(c, n_decodes);
    rows = (fmax(n_decodes > 0 ? c->max_step_us : 2 * c->max_step_us, 3 * us) - us) / c->row_us;
    return rows < fewest ? fewest : rows < INT32_MAX ? (int32_t)rows : INT32_MAX;
}
