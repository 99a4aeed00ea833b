/* sampler_rig.h - the sampler's kernels with all that a call of them needs: rows of random logits,
 * a state each, and room for what they write. */
#ifndef NVLLM_TESTS_GPU_SAMPLER_RIG_H
#define NVLLM_TESTS_GPU_SAMPLER_RIG_H

#include "cuda/device.h"
#include "cuda/step.h"
#include "engine/batch.h"
#include "tests/gpu/device_array.h"
#include "tests/tools/make_batch.h"

enum { RIG_MAX_ROWS = 512, RIG_HISTORY = 300, RIG_PROMPT = 200 };

struct rig {
    struct sampler_memory m;
    struct device_array logits, memory, results, step, scans;
    int n_rows;
    struct sampling sampling[RIG_MAX_ROWS];
    struct batch_row rows[RIG_MAX_ROWS];
    struct batch_part_update updates[RIG_MAX_ROWS];
    uint32_t *masks; /* [n_masks, mask_words] or NULL */
    int n_masks;
    int32_t history[RIG_HISTORY];
    struct step_view view; /* of the last run */
};

/* Normal logits with this spread, on both sides; sampling that filters nothing. */
void rig_init(struct rig *g, int vocab, int n_rows, float spread);
void rig_free(struct rig *g);

/* Sets the states and samples; launched as for more rows than there are, as a graph does. The ids
 * are the first n_rows of results.host. */
void rig_run(struct rig *g, const struct device *device);

#endif
