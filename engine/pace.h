/* pace.h - how many rows of prompts a step may take, beside decodes and alone, so that it takes no
 * longer than it may, and what steps cost: learnt from how long they took.
 *
 * A step of decodes takes a while that changes slowly; each prompt row adds to it. The device stays
 * full, for what is left of the prompts goes into the next step. Where long decodes allow for
 * longer steps, one in many has a single prompt row, to see what the decodes take. Where nobody
 * decodes a step may take twice as long: it holds up only who comes while it is under way. No
 * clock, no allocation; owned by the engine thread. */
#ifndef NVLLM_ENGINE_PACE_H
#define NVLLM_ENGINE_PACE_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/core/step_cost.h"

struct pace {
    double max_step_us; /* 0: no bound */
    int32_t max_rows;   /* of a step */
    int32_t rows;       /* the answer, beside decodes */
    int32_t alone_rows; /* and where there are none */
    struct step_cost cost;
    int32_t last_decodes; /* of the last step, if it showed what decodes cost; else 0 */
    double last_us;       /* what they took */
    double row_us;        /* of one prompt row more; 0: not known */
    double alone_us;      /* the same where there were prompts alone */
    double few_us;        /* of decodes in steps with hardly a prompt row; 0: not known */
    int32_t since_look;   /* steps with decodes since one with one prompt row or none */
    bool surprised;       /* the last step took far longer than foreseen */
    /* Sums over steps with decodes, the older the lighter: steps, prompt rows, microseconds. */
    double n, x, y, xx, xy;
};

void pace_init(struct pace *p, double max_step_us, int32_t max_rows);

/* A step of n_decodes decodes and n_rows rows of prompts took us. */
void pace_learn(struct pace *p, int32_t n_decodes, int32_t n_rows, double us);

#endif
