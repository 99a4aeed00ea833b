/* weights.h - the model's weights on the device, bf16, with q, k, v and gate, up merged.
 *
 * Loaded once at open by several threads through pinned buffers; read-only afterwards. */
#ifndef NVLLM_CUDA_WEIGHTS_H
#define NVLLM_CUDA_WEIGHTS_H

#include <stdint.h>

#include "cuda/device.h"
#include "engine/backend.h"

struct layer_weights {
    uint16_t *attn_norm; /* [hidden_dim] */
    uint16_t *qkv;       /* [(n_heads + 2 n_kv_heads) * head_dim, hidden_dim] */
    uint16_t *qkv_bias;  /* [(n_heads + 2 n_kv_heads) * head_dim] or NULL */
    uint16_t *q_norm;    /* [head_dim] or NULL */
    uint16_t *k_norm;    /* [head_dim] or NULL */
    uint16_t *o;         /* [hidden_dim, n_heads * head_dim] */
    uint16_t *mlp_norm;  /* [hidden_dim] */
    uint16_t *gate_up;   /* [2 * ffn_dim, hidden_dim] */
    uint16_t *down;      /* [hidden_dim, ffn_dim] */
};

struct weights {
    uint16_t *embed;   /* [vocab_size, hidden_dim] */
    uint16_t *lm_head; /* the same, or embed */
    uint16_t *norm;    /* [hidden_dim] */
    struct layer_weights *layers;
    uint64_t bytes;
};

/* Takes the device's memory for weights and fills it. */
int weights_load(struct weights *w, struct device *d, const struct model *m,
                 const struct backend_options *o, struct err *e);
void weights_deinit(struct weights *w); /* the device keeps the memory until it is closed */

#endif
