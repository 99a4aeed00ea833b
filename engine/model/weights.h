/* weights.h - a rank's weights in memory, as every backend holds them, and the work of filling
 * them: q, k and v are one matrix, and so are gate and up.
 *
 * weights_init plans; the caller takes `bytes` of whatever memory it likes; weights_place says
 * where that is; then weights_load reads the pieces. Immutable afterwards. */
#ifndef NVLLM_ENGINE_MODEL_WEIGHTS_H
#define NVLLM_ENGINE_MODEL_WEIGHTS_H

#include <stddef.h>
#include <stdint.h>

#include "engine/model/model.h"
#include "engine/model/tensor_table.h"

/* How a backend wants its matrices. */
struct weights_layout {
    enum dtype vectors;     /* bf16 or f32; matrices are bf16 */
    int32_t k_align;        /* ld is k rounded up to a multiple */
    uint32_t align;         /* each matrix begins at a multiple of so many bytes */
    int64_t piece_elements; /* of a piece, at most; but at least scale_rows rows */
};

/* Dimensions are those of the rank. */
struct layer_weights {
    union {
        struct matrix of[N_LAYER_WEIGHTS]; /* by role */
        struct {
            struct matrix attn_norm;      /* [hidden_dim] */
            struct matrix qkv;            /* [(n_heads + 2 n_kv_heads) * head_dim, hidden_dim] */
            struct matrix qkv_bias;       /* [(n_heads + 2 n_kv_heads) * head_dim] or absent */
            struct matrix q_norm, k_norm; /* [head_dim] or absent */
            struct matrix o;              /* [hidden_dim, n_heads * head_dim] */
            struct matrix mlp_norm;       /* [hidden_dim] */
            struct matrix router;         /* [n_experts, hidden_dim] or absent */
            struct matrix gate_up;        /* [2 * ffn_dim, hidden_dim], of each expert in turn */
            struct matrix down;           /* [hidden_dim, ffn_dim], of each expert in turn */
        };
    };
};

struct weights {
    union {
        struct matrix of[N_MODEL_WEIGHTS];
        struct {
            struct matrix embed;   /* [vocab_size, hidden_dim] */
            struct matrix lm_head; /* as embed; of a tied model embed itself */
            struct matrix norm;    /* [hidden_dim] */
        };
    };
    struct layer_weights *layers; /* [n_layers] */
    uint64_t bytes;
    uint64_t piece_bytes;        /* of a buffer for any piece */
    struct weight_piece *pieces; /* [n_pieces] */
    int32_t n_pieces;
    size_t pieces_cap;
    const struct quantization *quant; /* the model's */
    struct weights_layout layout;
    bool tied;
};

/* Whole rows of one tensor, or of a rank's columns of it, read at once. */
struct weight_piece {
    struct weight_part part; /* of these rows alone */
    int32_t number;          /* of the tensor among those of its kind */
    struct matrix *to;
};

/* The structure must not move afterwards. -ENOTSUP: not divisible among so many ranks; -ENOMEM. */
int weights_init(struct weights *w, const struct model_config *c, struct shard s,
                 const struct weights_layout *layout, struct err *e);
/* base: `bytes` of memory, aligned as the layout says, and zeroed if k_align is over 1. */
void weights_place(struct weights *w, void *base);
/* The bytes alone. */
int weights_measure(uint64_t *out, const struct model_config *c, struct shard s,
                    const struct weights_layout *layout, struct err *e);
void weights_deinit(struct weights *w); /* the memory stays the caller's */

/* The rows of its matrix that a piece becomes. */
struct matrix weight_piece_rows(const struct weight_piece *p);
/* The same in a buffer, `piece_bytes` of memory aligned to 64: elements, scales and zeros are to be
 * copied to the rows above, each in one piece. */
struct matrix weight_piece_buffer(const struct weight_piece *p, void *buffer);

/* Reads a piece into `to`, one of these two. */
int weight_piece_read(const struct model *m, const struct weight_piece *p, const struct matrix *to,
                      struct err *e);

/* Brings a piece to where it belongs. Several threads call it, `thread` numbers them. */
typedef int weight_piece_fn(void *ctx, int thread, const struct weight_piece *p, struct err *e);

/* Calls load for all pieces on at most max_threads threads, the caller's among them. Stops at the
 * first error and returns it. progress, which may be NULL, is called by one thread at a time. */
enum { WEIGHTS_MAX_THREADS = 32 };
int weights_load(const struct weights *w, int max_threads, weight_piece_fn *load, void *ctx,
                 void (*progress)(void *ctx, double done), void *progress_ctx, struct err *e);

#endif
