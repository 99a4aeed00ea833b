/* experts.h - the FFN of a mixture of experts on a rank: a router chooses the experts of each row,
 * the rows of an expert are multiplied together, and what a row's experts give is summed in their
 * order. Every rank has its FFN columns of all experts, and all ranks choose alike.
 *
 * Launches do not depend on what the router chooses, so they may be captured. Nothing here waits
 * for the device. One thread a rank. */
#ifndef NVLLM_CUDA_EXPERTS_H
#define NVLLM_CUDA_EXPERTS_H

#include "cuda/device.h"
#include "cuda/kernels/kernels.h"
#include "engine/model/weights.h"

struct experts {
    struct expert_picks picks; /* of the layer being computed; n_experts 0: there are none */
    bool norm_topk;
    int hidden, ffn; /* of the rank */
    float *scores;   /* [rows, n_experts] of the router */
    uint16_t *act;   /* [rows * n_picks, ffn] */
    uint16_t *out;   /* [rows * n_picks, hidden] */
};

/* Takes memory for so many rows of a step from an arena. c: the rank's configuration. */
void experts_lay(struct experts *x, struct arena *a, const struct model_config *c, size_t rows);

/* Which kernels make the products. A row's result depends on that alone, not on the rows beside
 * it. */
enum experts_path {
    EXPERTS_BY_ROWS, /* by the kernels that are best for so many rows */
    EXPERTS_FEW,     /* always by the few-row kernels */
    EXPERTS_MANY,    /* always by the many-row kernels */
};

/* Rows of a step. */
struct experts_rows {
    const uint16_t *x; /* [n, hidden] normed */
    void *y;           /* [n, hidden] */
    enum expert_sum_out out;
    int first, n;
    const struct step_counts *counts;
    enum experts_path path;
    bool in_halves; /* y += the sums over the first half of the FFN, then over the second */
};
int experts_run(const struct experts *x, const struct launch *l, const struct layer_weights *w,
                const struct experts_rows *r, struct err *e);

#endif
