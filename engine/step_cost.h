/* step_cost.h - what a step takes, by its decodes and prompt rows: learnt from steps as they end;
 * and what one of a draft model takes.
 *
 * A point for each power of two of decodes with a line between neighbours, and one cost for each
 * prompt row. Steps with drafts have points of their own, for they go one at a time; these fade
 * while there are none, so that a cost that kept drafts from being tried is looked at again. Plain
 * data: the engine thread learns and the schedule reads, so the schedule needs no clock. */
#ifndef NVLLM_ENGINE_STEP_COST_H
#define NVLLM_ENGINE_STEP_COST_H

#include <stdbool.h>
#include <stdint.h>

enum { STEP_COST_POINTS = 20 }; /* the last one stands for all larger steps */

struct step_cost {
    double max_step_us; /* what a step with prompts aims at; 0: unbounded */
    struct {
        double n, us; /* 0: no such step was seen */
    } decodes[STEP_COST_POINTS];
    double row_us;                /* of one more prompt row; 0: unknown */
    double rows_sum, rows_us_sum; /* what it is the ratio of, older steps counting less */
    struct {
        double us;
        bool seen;               /* the first step of a size is not learnt: it may load code */
    } drafted[STEP_COST_POINTS]; /* of at most 2, 4, 8, … rows, as graphs have; 0: unknown */
    double model_us;             /* of a step of the draft model */
    int32_t n_model;             /* looks at it */
    int32_t last_decodes;        /* of the last step, if it showed what decodes cost; else 0 */
    double last_us;              /* what they took */
    int32_t since_look;          /* steps since one that showed it */
};

/* A step of n_decodes decodes and n_rows prompt rows took us. */
void step_cost_learn(struct step_cost *c, int32_t n_decodes, int32_t n_rows, double us);

/* What such a step takes; 0: unknown. Never less for more. */
double step_cost_us(const struct step_cost *c, int32_t n_decodes, int32_t n_rows);

/* A step of n_rows rows of decodes and drafts, and of no prompt, ended us after the one before. */
void step_cost_learn_drafts(struct step_cost *c, int32_t n_rows, double us);

/* What a step of n_decodes with n_drafts more rows takes: as long as fewer rows did, or at least
 * the decodes do, where nothing else is known; 0: unknown. */
double step_cost_draft_us(const struct step_cost *c, int32_t n_decodes, int32_t n_drafts);

/* Steps of the draft model that took us each; and what one takes, 0: unknown, which it is until it
 * has been seen a few times: the first may load code, and what is too long would not be corrected,
 * for it keeps the model from being asked. */
void step_cost_learn_model(struct step_cost *c, double us);
double step_cost_model_us(const struct step_cost *c);

/* Prompt rows that a step may have beside so many decodes: what max_step_us leaves, or three times
 * the decodes' time where that is longer, and a few at least; INT32_MAX: any. */
int32_t step_cost_rows(const struct step_cost *c, int32_t n_decodes);

#endif
