/* step_cost.c - see step_cost.h. */
#include "engine/core/step_cost.h"

#include <math.h>

#include "engine/util/must.h"

/* Of itself, that a point moves at most for one step: so it comes to what half of the steps take,
 * however long what held up the others. */
static const double moves = 0.125;

void step_cost_learn(struct step_cost *c, int32_t n_decodes, double us)
{
    int k = 0;

    must(n_decodes > 0 && us > 0);
    while (k < STEP_COST_POINTS - 1 && n_decodes >> (k + 1))
        k++;
    if (c->decodes[k].n <= 0) {
        c->decodes[k].n = n_decodes;
        c->decodes[k].us = us;
        return;
    }
    us *= c->decodes[k].n / n_decodes; /* of as many as the point stands for */
    us = fmax(us, (1 - moves) * c->decodes[k].us);
    c->decodes[k].us = fmin(us, (1 + moves) * c->decodes[k].us);
}

static double between(double n0, double us0, double n1, double us1, double n)
{
    return us0 + (us1 - us0) * (n - n0) / (n1 - n0);
}

/* Below what was seen, and above where one point alone was, it is thought to grow with the rows:
 * then little is planned, and what that takes is seen next. */
static double line_us(const struct step_cost *c, double n)
{
    double n0 = 0, us0 = 0, slope = 0;

    for (int k = 0; k < STEP_COST_POINTS; k++) {
        const double n1 = c->decodes[k].n, us1 = fmax(c->decodes[k].us, us0);

        if (n1 <= 0)
            continue;
        if (n <= n1)
            return between(n0, us0, n1, us1, n);
        slope = (us1 - us0) / (n1 - n0);
        n0 = n1;
        us0 = us1;
    }
    return us0 + slope * (n - n0);
}

/* Together they take no longer than one by one: a point that says so is wrong, and would stay so
 * where it keeps others from being seen. */
static double decodes_us(const struct step_cost *c, double n)
{
    const double us = line_us(c, n);

    return c->decodes[0].n > 0 ? fmin(us, n * c->decodes[0].us) : us;
}

double step_cost_us(const struct step_cost *c, int32_t n_decodes, int32_t n_rows)
{
    const double one = decodes_us(c, 1), decodes = n_decodes > 0 ? decodes_us(c, n_decodes) : 0;

    if (one <= 0 || n_rows == 0)
        return decodes;
    return fmax(decodes + n_rows * (c->row_us > 0 ? c->row_us : one), one);
}

int32_t step_cost_decodes(const struct step_cost *c, double us, int32_t max)
{
    int32_t from = 1, to = max > 1 ? max : 1;

    while (from < to) {
        const int32_t n = from + (to - from + 1) / 2;

        if (decodes_us(c, n) <= us)
            from = n;
        else
            to = n - 1;
    }
    return from;
}
