/* step_cost.h - what a step takes by what is in it: a point for each power of two of decodes, and a
 * line between neighbours; each row of a prompt adds the same.
 *
 * Plain data, learnt by the pace and asked by the schedule: so the schedule needs no clock. */
#ifndef NVLLM_ENGINE_CORE_STEP_COST_H
#define NVLLM_ENGINE_CORE_STEP_COST_H

#include <stdint.h>

enum { STEP_COST_POINTS = 20 }; /* the last one is of all that are more */

struct step_cost {
    struct {
        double n, us; /* 0: no such step was seen */
    } decodes[STEP_COST_POINTS];
    double row_us; /* of one prompt row more; 0: not known */
};

/* A step of decodes alone took us. */
void step_cost_learn(struct step_cost *c, int32_t n_decodes, double us);

/* What such a step takes; 0: not known. Never less for more. */
double step_cost_us(const struct step_cost *c, int32_t n_decodes, int32_t n_rows);

/* Of at most max, the most decodes that take no longer than us, but one at least. */
int32_t step_cost_decodes(const struct step_cost *c, double us, int32_t max);

#endif
