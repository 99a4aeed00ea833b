/* cpu_experts.h - which rows go to which experts of a mixture, and in which order they are
 * computed.
 *
 * Pure functions; any thread. */
#ifndef NVLLM_ENGINE_CPU_CPU_EXPERTS_H
#define NVLLM_ENGINE_CPU_CPU_EXPERTS_H

#include <stdbool.h>

#include "engine/cpu/cpu_ops.h"

/* An expert of a row. */
struct pick {
    int expert;
    float weight; /* of what it gives in the row's sum */
    int at;       /* the row's place among the picked rows, those of one expert side by side */
};

/* Rows that are multiplied by the same weights. */
struct row_group {
    int expert; /* 0 where there are none */
    int row, n_rows;
};

struct row_groups {
    struct row_group *all; /* [n] */
    int n;
    int n_experts; /* whose weights are stacked; 1 where there are none */
};

/* Chooses the n_picks experts with the largest scores [n_experts] of a router, of equal ones the
 * first, in ascending order. Their weights are the softmax over all experts, or with norm_topk over
 * the chosen ones; NaN if a score is NaN or Inf. `at` is left alone. */
void route(struct pick *picks, int n_picks, const float *scores, int n_experts, bool norm_topk,
           const struct cpu_ops *ops);

/* Cuts rows row .. row + n - 1 into groups of at most max_rows. Returns how many. */
int row_groups_cut(struct row_group *groups, int max_rows, int expert, int row, int n);

/* Sets `at` of the n_picks picks of all rows, and cuts the picked rows into groups, of which there
 * are at most n_experts + n_picks / max_rows. scratch: [n_experts]. */
void row_groups_of_picks(struct row_groups *groups, int max_rows, struct pick *picks, int n_picks,
                         int *scratch);

#endif
