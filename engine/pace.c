/* pace.c - see pace.h. */
#include "engine/pace.h"

#include <math.h>

#include "engine/must.h"

enum {
    FEWEST_ROWS = 16, /* a prompt goes on whatever a step takes */
    FIRST_ROWS = 512, /* until there is something to go by */
    MANY_ROWS = 128,  /* a step of fewer shows its other costs, not theirs */
};

/* Where steps of decodes alone are long, a mixed one may take so many times as long. */
static const double stretch = 3.0;
static const double forget = 0.95; /* what a step is worth when the next one comes */
static const double outlier = 2.0; /* a step so many times as long as foreseen tells no more */
static const double least_n = 4.0; /* steps' worth to foresee by */
static const double hysteresis = 0.15;
static const double least_share = 0.25; /* of what a row costs in steps of prompts alone */

void pace_init(struct pace *p, double max_step_us, int32_t max_rows)
{
    must(max_step_us >= 0 && max_rows >= 1);
    *p = (struct pace){.max_step_us = max_step_us, .max_rows = max_rows, .rows = max_rows};
    if (max_step_us > 0 && max_rows > FIRST_ROWS)
        p->rows = FIRST_ROWS;
}

/* A step of the present decodes with no prompt row. */
static double decode_us(const struct pace *p)
{
    const double us = p->y / p->n - p->row_us * p->x / p->n;

    return us > 0.1 * p->y / p->n ? us : 0.1 * p->y / p->n;
}

/* Steps with decodes show what a prompt row costs where they had more and fewer of them. It is
 * never more than the whole step's time for each, so a wrong idea of it does not last. */
static void learn_row(struct pace *p, int32_t n_rows, double us)
{
    const double mean = p->x / p->n, spread = p->xx / p->n - mean * mean;
    double row_us;

    if (p->n >= least_n && spread >= 0.01 * mean * mean + FEWEST_ROWS * FEWEST_ROWS) {
        row_us = (p->xy / p->n - mean * p->y / p->n) / spread;
        if (row_us > least_share * p->alone_us)
            p->row_us = row_us;
    }
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
}

/* One step that something held up tells nothing; after two, nothing is as it was: then all of it
 * counts as the rows', until fewer of them have shown what they cost. */
static bool is_outlier(struct pace *p, int32_t n_rows, double us)
{
    const bool again = p->surprised;

    p->surprised = p->n >= least_n && us > outlier * (decode_us(p) + p->row_us * n_rows);
    if (!p->surprised || !again)
        return p->surprised;
    p->n = p->x = p->y = p->xx = p->xy = 0;
    if (n_rows > 0)
        p->row_us = us / n_rows;
    p->surprised = false;
    return false;
}

void pace_learn(struct pace *p, int32_t n_decodes, int32_t n_rows, double us)
{
    double bound, rows;

    if (p->max_step_us <= 0 || n_decodes + n_rows <= 0 || us <= 0)
        return;
    if (n_decodes == 0) {
        learn_alone(p, n_rows, us);
    } else if (!is_outlier(p, n_rows, us)) {
        p->n = p->n * forget + 1;
        p->x = p->x * forget + n_rows;
        p->y = p->y * forget + us;
        p->xx = p->xx * forget + (double)n_rows * n_rows;
        p->xy = p->xy * forget + n_rows * us;
        learn_row(p, n_rows, us);
    }
    if (p->row_us <= 0 || p->n <= 0)
        return;
    bound = fmax(p->max_step_us, stretch * decode_us(p));
    rows = (bound - decode_us(p)) / p->row_us;
    rows = fmin(fmax(rows, fmin(FEWEST_ROWS, p->max_rows)), p->max_rows);
    if (fabs(rows - p->rows) > hysteresis * p->rows)
        p->rows = (int32_t)rows;
}
