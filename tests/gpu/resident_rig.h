/* resident_rig.h - a model of any shape with random weights on the device, sequences with random
 * keys and values, and one decode step of them by the resident kernel or by the chain of kernels
 * that it stands for. For its test and its benchmark. */
#ifndef NVLLM_TESTS_GPU_RESIDENT_RIG_H
#define NVLLM_TESTS_GPU_RESIDENT_RIG_H

#include "cuda/rank.h"
#include "engine/model/quantization.h"
#include "tests/gpu/gpu_rig.h"

enum { RIG_ROWS = 16 };

/* Of all projections; with zeros scales are f16, else bf16. */
struct quantization rig_quantization(enum dtype dtype, int scale_rows, int scale_cols, bool zeros);

struct rig {
    struct model_config config;
    struct weights weights;
    struct forward forward;
    struct step_limits limits;
    int block_len, n_blocks;
    int64_t block_elements;
    uint32_t last_tag;    /* that a step took */
    char *step, *pinned;  /* its metadata */
    int32_t *block_table; /* [RIG_ROWS, max_blocks] */
    int n_held[RIG_ROWS]; /* blocks of a sequence */
    struct batch_row rows[RIG_ROWS];
    int32_t tokens[RIG_ROWS], positions[RIG_ROWS], slots[RIG_ROWS], kv_len[RIG_ROWS];
    int32_t q_start[RIG_ROWS + 1];
};

/* Weights are random, quantized as the configuration says. bias: Qwen2.5's way, else norms of q and
 * k. fp8: keys and values are E4M3. max_len: of each sequence, 0: there is none. */
void rig_init(struct rig *r, const struct model_config *c, bool bias, bool fp8, int block_len,
              const int max_len[RIG_ROWS]);
void rig_deinit(struct rig *r);

/* A step of n decodes whose lengths, this step's keys included, are given; skip_first: the first
 * row is not sampled from, if there are others. Its metadata are on the device. */
struct step_view rig_step(struct rig *r, const int *kv_len, int n, bool skip_first);

/* Tags of a new step, so that one that was packed can run again. */
void rig_renew(struct rig *r);

/* Enqueues it, by the resident kernel if it can or by the chain. */
void rig_run(struct rig *r, const struct step_view *v, int n, int n_rows, bool resident);

#endif
