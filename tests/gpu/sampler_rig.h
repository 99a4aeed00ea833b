/* sampler_rig.h - the sampler's kernels with all that a call of them needs: rows of random logits,
 * a state each, and room for what they write; and what they are to choose from. */
#ifndef NVLLM_TESTS_GPU_SAMPLER_RIG_H
#define NVLLM_TESTS_GPU_SAMPLER_RIG_H

#include "tests/gpu/gpu_rig.h"

enum { RIG_MAX_ROWS = 512, RIG_HISTORY = 300, RIG_PROMPT = 200 };

struct rig {
    struct sampler_memory m;
    struct device_array logits, results, step, scans;
    struct device_array masks; /* [n_rows, mask_words] of which a row's mask names one, if any */
    int n_masks;
    int n_rows;
    struct sampling sampling[RIG_MAX_ROWS];
    struct batch_row rows[RIG_MAX_ROWS];
    struct batch_part_update updates[RIG_MAX_ROWS];
    struct device_array history; /* [RIG_HISTORY] ids */
    struct step_view view;       /* of the last run */
};

/* Normal logits with this spread, on both sides; sampling that filters nothing. */
void rig_init(struct rig *g, int vocab, int n_rows, float spread);

/* As if so many ranks had the row's logits, here all on one device; one where ids are too few. */
void rig_divide(struct rig *g, int n_ranks);
void rig_sample(struct rig *g);

/* Sets the states and samples; launched as for more rows than there are, as a graph does. Returns
 * the ids, the first n_rows of results.host. */
const int32_t *rig_run(struct rig *g);

/* The row's logits on the host, to be copied to the device. */
static inline float *rig_logits(const struct rig *g, int row)
{
    return (float *)g->logits.host + row * g->m.logits_stride;
}

/* An id after penalties, bias and banned ends. */
struct candidate {
    float z;
    int32_t id;
    double x;      /* z / temperature less the largest's */
    double weight; /* exp(x); 0: filtered out */
};

/* All ids of a row in the order of falling z, weighed and filtered as engine/sampling.h says, word
 * for word; n is those that top_k and top_p leave. At temperature 0 that is the first. */
struct candidate *rig_candidates(const struct rig *g, int row, int *n);

#endif
