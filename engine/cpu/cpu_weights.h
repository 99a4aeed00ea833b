/* cpu_weights.h - a model's weights as the CPU backend holds them: bf16 matrices with padded rows,
 * what is multiplied with the same input side by side, and float vectors.
 *
 * Immutable after load. */
#ifndef NVLLM_ENGINE_CPU_CPU_WEIGHTS_H
#define NVLLM_ENGINE_CPU_CPU_WEIGHTS_H

#include <stdint.h>

#include "engine/cpu/cpu_machine.h"
#include "engine/cpu/cpu_pool.h"
#include "engine/util/err.h"
#include "engine/model/model.h"

struct matrix {
    uint16_t *w; /* [n_outs, k] bf16 */
    int n_outs;
    int k; /* inputs, padded with zeros to CPU_K_ALIGN */
};

struct layer {
    struct matrix qkv;     /* queries' heads, keys' heads, values' heads */
    struct matrix out;     /* of attention */
    struct matrix gate_up; /* ffn_dim gates, ffn_dim ups */
    struct matrix down;
    float *qkv_bias;        /* Qwen2, else NULL */
    float *q_norm, *k_norm; /* [head_dim]; Qwen3, else NULL */
    float *attn_norm;       /* [hidden_dim] */
    float *ffn_norm;
};

struct weights {
    struct matrix embed;
    struct matrix head; /* tied: embed */
    float *final_norm;
    struct layer *layers; /* [n_layers] */
    struct region memory;
};

/* Reads everything with all threads of the pool. Negative errno and a text. */
int weights_load(struct weights **out, const struct model *model, struct cpu_pool *pool,
                 void (*progress)(void *ctx, double done), void *progress_ctx, struct err *e);
void weights_free(struct weights *w);

#endif
