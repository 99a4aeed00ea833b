/* pace.c - see pace.h. */
#include "engine/pace.h"

#include <math.h>

#include "engine/util/must.h"

enum {
    FEWEST_ROWS = 16, /* a prompt goes on whatever a step takes */
    FIRST_ROWS = 512, /* until there is something to go by */
    MANY_ROWS = 128,  /* a step of fewer shows its other costs, not theirs; alone no fewer */
    LOOK_AFTER = 64,  /* long steps, until one of one row shows what decodes take by themselves */
};

/* Where steps of decodes alone are long, a mixed one may take so many times as long. */
static const double stretch = 3.0;
static const double alone_stretch = 2.0; /* of max_step_us, that prompts alone may take */
static const double forget = 0.95;       /* what a step is worth when the next one comes */
static const double outlier = 2.0; /* a step so many times as long as foreseen tells no more */
static const double least_n = 4.0; /* steps' worth to foresee by */
static const double hysteresis = 0.15;
static const double least_share = 0.7; /* of what a row costs in steps of prompts alone */
static const double few_rows = 0.125;  /* of a step's time, where what is left is the decodes' */

void pace_init(struct pace *p, double max_step_us, int32_t max_rows)
{
    must(max_step_us >= 0 && max_rows >= 1);
    *p = (struct pace){.max_step_us = max_step_us, .max_rows = max_rows, .rows = max_rows};
    if (max_step_us > 0 && max_rows > FIRST_ROWS)
        p->rows = FIRST_ROWS;
    p->alone_rows = p->rows;
}

/* A step of the present decodes with no prompt row. */
static double decode_us(const struct pace *p)
{
    const double us = p->y / p->n - p->row_us * p->x / p->n;

    return us > 0.1 * p->y / p->n ? us : 0.1 * p->y / p->n;
}

/* Steps with hardly any prompt rows show what decodes take without a guess of what those cost. What
 * the other steps leave for decodes is such a guess: too much where rows are thought too cheap, and
 * a bound that grew with it would let steps grow that confirm it. */
static void learn_decodes(struct pace *p, int32_t n_rows, double us)
{
    double own;

    if (n_rows <= 1)
        p->since_look = 0;
    else if (p->since_look < LOOK_AFTER)
        p->since_look++;
    if (n_rows > FEWEST_ROWS)
        return;
    own = fmax(us - p->row_us * n_rows, 0.1 * us);
    p->few_us = p->few_us > 0 ? 0.5 * (p->few_us + own) : own;
}

/* What a step with prompts may take. */
static double bound_us(const struct pace *p)
{
    return fmax(p->max_step_us, stretch * fmin(p->few_us, decode_us(p)));
}

/* Steps that are long, or thought to be so for their decodes, must show it now and then. */
static bool must_look(struct pace *p)
{
    const double longest = fmax(p->y / p->n, stretch * fmax(p->few_us, decode_us(p)));

    if (p->since_look < LOOK_AFTER || longest <= p->max_step_us)
        return false;
    p->since_look = 0;
    return true;
}

/* Steps with decodes show what a prompt row costs where they had more and fewer of them. */
static double line_us(const struct pace *p)
{
    const double mean = p->x / p->n, spread = p->xx / p->n - mean * mean;

    if (p->n < least_n || spread < 0.01 * mean * mean + FEWEST_ROWS * FEWEST_ROWS)
        return 0;
    return (p->xy / p->n - mean * p->y / p->n) / spread;
}

/* Where all had the fewest, the next step shows it if it has hardly any. */
static bool shows_difference(const struct pace *p, int32_t n_rows)
{
    return p->n >= least_n && p->x / p->n - n_rows >= 0.5 * FEWEST_ROWS;
}

/* It is never more than the whole step's time for each, so a wrong idea of it does not last. */
static void learn_row(struct pace *p, int32_t n_rows, double us)
{
    const double least = least_share * p->alone_us;
    const bool differs = shows_difference(p, n_rows);
    const double difference =
        differs ? (p->y / p->n - us) / (p->x / p->n - n_rows) : 0; /* before it counts itself */
    double row_us;

    p->n = p->n * forget + 1;
    p->x = p->x * forget + n_rows;
    p->y = p->y * forget + us;
    p->xx = p->xx * forget + (double)n_rows * n_rows;
    p->xy = p->xy * forget + n_rows * us;
    row_us = line_us(p);
    if (row_us > 0)
        p->row_us = fmax(row_us, least);
    else if (differs && row_us == 0)
        p->row_us = 0.5 * (p->row_us + fmax(difference, least));
    if (n_rows > 0 && (p->row_us <= 0 || p->row_us > us / n_rows))
        p->row_us = us / n_rows;
}

/* Steps of prompts alone show it, with a little too much. */
static void learn_alone(struct pace *p, int32_t n_rows, double us)
{
    if (n_rows < MANY_ROWS && n_rows < p->max_rows)
        return;
    p->alone_us = p->alone_us > 0 ? 0.5 * (p->alone_us + us / n_rows) : us / n_rows;
    if (p->n < least_n || p->x < 1)
        p->row_us = p->alone_us;
    if (p->max_step_us > 0)
        p->alone_rows = (int32_t)fmin(fmax(alone_stretch * p->max_step_us / p->alone_us, MANY_ROWS),
                                      p->max_rows);
}

/* One step that something held up tells nothing; after two, nothing is as it was: then all of it
 * counts as the rows', until fewer of them have shown what they cost. */
static bool is_outlier(struct pace *p, int32_t n_rows, double us)
{
    const bool again = p->surprised;

    p->surprised =
        p->n >= least_n && us > p->y / p->n && us > outlier * (decode_us(p) + p->row_us * n_rows);
    if (!p->surprised || !again)
        return p->surprised;
    p->n = p->x = p->y = p->xx = p->xy = p->few_us = 0;
    if (n_rows > 0)
        p->row_us = us / n_rows;
    p->surprised = false;
    return false;
}

/* Steps with hardly a prompt row show it. Who looks late at one step finds the next one over sooner
 * than it was: the mean of two alike is right. */
static void learn_cost(struct pace *p, int32_t n_decodes, int32_t n_rows, double us)
{
    const double rows_us = p->row_us * n_rows, own = fmax(us - rows_us, 0.5 * us);
    const bool alike = n_decodes == p->last_decodes;

    p->cost.row_us = p->row_us;
    p->last_decodes = 0;
    if (n_decodes == 0 || (n_rows > 1 && rows_us > few_rows * us))
        return;
    step_cost_learn(&p->cost, n_decodes, alike ? 0.5 * (own + p->last_us) : own);
    p->last_decodes = n_decodes;
    p->last_us = own;
}

void pace_learn(struct pace *p, int32_t n_decodes, int32_t n_rows, double us)
{
    double rows;

    if (n_decodes + n_rows <= 0 || us <= 0)
        return;
    if (n_decodes == 0) {
        learn_alone(p, n_rows, us);
    } else if (!is_outlier(p, n_rows, us)) {
        learn_row(p, n_rows, us);
        learn_decodes(p, n_rows, us);
    }
    learn_cost(p, n_decodes, n_rows, us);
    if (p->max_step_us <= 0 || p->row_us <= 0 || p->n <= 0)
        return;
    if (must_look(p)) {
        p->rows = 1;
        return;
    }
    rows = (bound_us(p) - decode_us(p)) / p->row_us;
    rows = fmin(fmax(rows, fmin(FEWEST_ROWS, p->max_rows)), p->max_rows);
    if (fabs(rows - p->rows) > hysteresis * p->rows)
        p->rows = (int32_t)rows;
}
