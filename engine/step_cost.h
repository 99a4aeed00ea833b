/* step_cost.h - estimates how long a step takes from its numbers of decodes and prompt rows,
 * learned from completed steps; and how long a step of the draft model takes.
 *
 * A point for each power of two of decodes, with a line between neighbours, and one cost for each
 * prompt row. Steps with prompts tell what rows take; what decodes take is shown by steps that have
 * hardly any rows, and there is such a step now and then. Steps with drafts have points of their
 * own, because two of them are never in flight; these decay while there are no such steps, so that
 * drafts are tried again after an estimate that was too high. Plain data: the engine thread records
 * and the schedule reads, so the schedule needs no clock. */
#ifndef NVLLM_ENGINE_STEP_COST_H
#define NVLLM_ENGINE_STEP_COST_H

#include <stdbool.h>
#include <stdint.h>

enum { STEP_COST_POINTS = 20 }; /* the last one stands for all larger steps */

struct step_cost {
    double max_step_us; /* target for a step with prompts; 0: unbounded */
    struct {
        double n, us; /* 0: no such step was recorded */
    } decodes[STEP_COST_POINTS];
    double row_us;                /* of one more prompt row; 0: unknown */
    double rows_sum, rows_us_sum; /* row_us is their ratio; older steps count less */
    struct {
        double us;
        bool seen;               /* false: the first step may load code and is not recorded */
    } drafted[STEP_COST_POINTS]; /* of at most 2, 4, 8, … rows, as graphs have; 0: unknown */
    double model_us;             /* of a step of the draft model */
    int32_t n_model;             /* of these that were recorded, up to WARMUP_STEPS */
    int32_t last_decodes;        /* of the last step, if it showed what decodes cost; else 0 */
    double last_us;              /* what they took */
    int32_t steps_since_probe;   /* steps since one that showed it */
};

/* Records that a step of n_decodes decodes and n_rows prompt rows took us. */
void step_cost_learn(struct step_cost *c, int32_t n_decodes, int32_t n_rows, double us);

/* Records a step whose time shows nothing, as it waited for something else. If it was to show what
 * decodes take, that is put off, so that prompts do not wait for a step that does. */
void step_cost_skip(struct step_cost *c);

/* The estimate for such a step; 0: unknown. More decodes or rows never make it less. */
double step_cost_us(const struct step_cost *c, int32_t n_decodes, int32_t n_rows);

/* Records that a step of n_rows rows, all of decodes and drafts, ended us after the one before. */
void step_cost_learn_drafts(struct step_cost *c, int32_t n_rows, double us);

/* The estimate for a step of n_decodes decodes and n_drafts drafts; 0: unknown. Where no step of
 * that size was recorded, that of the next smaller one, but never less than for the decodes alone.
 */
double step_cost_draft_us(const struct step_cost *c, int32_t n_decodes, int32_t n_drafts);

/* Records that steps of the draft model took us each; and the estimate, 0 until five were recorded.
 * The first may load code, and too high an estimate would never be corrected, because it stops the
 * model from being asked. */
void step_cost_learn_model(struct step_cost *c, double us);
double step_cost_model_us(const struct step_cost *c);

/* Prompt rows that a step may have beside n_decodes decodes: as many as end within max_step_us, or
 * within three times the decodes' own time if that is longer, but a few always, and one where the
 * step is to show what decodes take; INT32_MAX: any. */
int32_t step_cost_rows(const struct step_cost *c, int32_t n_decodes);

#endif
