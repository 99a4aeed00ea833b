/* tensor_table.h - the tensors of a model as one table: the name in the files, the shape in terms
 * of the configuration, how tensor parallelism divides it, which models have it, and the weight
 * that it is part of. Checks and loaders read this table; tensor names appear nowhere else.
 *
 * Pure functions; any thread. */
#ifndef NVLLM_ENGINE_MODEL_TENSOR_TABLE_H
#define NVLLM_ENGINE_MODEL_TENSOR_TABLE_H

#include <stdint.h>

#include "engine/model/model.h"

enum {
    TENSOR_NAME_BYTES = 80,
    N_TENSOR_SPECS = 25,
};

/* What the forward pass multiplies by, in the order of struct weights and struct layer_weights. */
enum weight_role {
    WEIGHT_EMBED,
    WEIGHT_LM_HEAD,
    WEIGHT_NORM,
    N_MODEL_WEIGHTS, /* those before are there once, those after in each layer */
    WEIGHT_ATTN_NORM = N_MODEL_WEIGHTS,
    WEIGHT_QKV,
    WEIGHT_QKV_BIAS,
    WEIGHT_Q_NORM,
    WEIGHT_K_NORM,
    WEIGHT_O,
    WEIGHT_MLP_NORM,
    WEIGHT_ROUTER,
    WEIGHT_GATE_UP,
    WEIGHT_DOWN,
    N_WEIGHTS,
    N_LAYER_WEIGHTS = N_WEIGHTS - N_MODEL_WEIGHTS,
};

enum tensor_dim { DIM_1, DIM_VOCAB, DIM_HIDDEN, DIM_Q, DIM_KV, DIM_FFN, DIM_HEAD, DIM_EXPERTS };

/* The dimension that ranks divide among themselves. SHARD_NONE: each rank has all of it. */
enum shard_axis { SHARD_NONE, SHARD_ROWS, SHARD_COLUMNS };

enum tensor_presence {
    ALWAYS,
    WITH_QKV_BIAS,
    WITH_QK_NORM,
    UNLESS_TIED,
    WITHOUT_EXPERTS,
    WITH_MLP_EXPERTS,
    WITH_BLOCK_SPARSE_MOE, /* the same experts by other names */
};

/* Tensors of one role are adjacent in the table and are stacked by rows in its order; those of a
 * layer's experts, one expert after the other. */
struct tensor_spec {
    const char *name; /* "{layer}" and "{expert}" stand for their numbers */
    enum weight_role role;
    enum tensor_dim rows, cols; /* cols DIM_1: a vector */
    enum shard_axis axis;
    enum tensor_presence when;
};

extern const struct tensor_spec tensor_specs[N_TENSOR_SPECS];

/* How many tensors of this kind a layer has, or the model where it is of no layer: none, one, or
 * one an expert. */
int32_t tensor_spec_experts(const struct tensor_spec *t, const struct model_config *c);
/* How many a model has, in all layers. */
int32_t tensor_spec_count(const struct tensor_spec *t, const struct model_config *c);
/* The name of the i-th: layer by layer, and in each expert by expert. */
void tensor_spec_name(char out[TENSOR_NAME_BYTES], const struct tensor_spec *t,
                      const struct model_config *c, int32_t i);
/* The name of a tensor that belongs to another one, with `suffix` in place of "weight". */
void tensor_part_name(char out[TENSOR_NAME_BYTES], const char *name, const char *suffix);
int64_t tensor_dim_size(const struct model_config *c, enum tensor_dim dim);
/* A tensor of this kind, without its name and its place in a file. */
struct tensor tensor_of_spec(const struct tensor_spec *t, const struct model_config *c);
uint64_t tensor_elements(const struct tensor *t);

/* One of tp_size ranks. */
struct shard {
    int32_t rank, tp_size;
};

enum { SHARD_MAX_RANKS = 8 };

/* A rank's range of a dimension that is divided. Query heads are divided evenly; so are KV heads,
 * or several ranks have the same one where there are more ranks. The vocabulary is divided by
 * multiples of 64, of which the last ranks may get none, and FFN columns by multiples of 32, where
 * each rank gets some, else evenly; of a model that is quantized in groups of columns, by multiples
 * of a group. Each rank has all experts, of each its FFN columns: so ranks have the same work,
 * whichever experts a row goes to. */
void shard_range(int64_t *first, int64_t *n, const struct model_config *c, enum tensor_dim dim,
                 struct shard s);

/* 0, or -ENOTSUP with what cannot be divided among so many ranks. */
int shard_check(const struct model_config *c, int32_t tp_size, struct err *e);

/* The network as a rank computes it: its heads, KV heads and FFN columns. */
struct model_config shard_config(const struct model_config *c, struct shard s);

/* A rectangle of a tensor and the rows of a rank's matrix that it becomes; of experts, the first's:
 * expert e has the same e * to_rows rows further on. */
struct weight_part {
    const struct tensor_spec *tensor;
    int64_t row, col; /* in the tensor */
    int64_t n_rows, n_cols;
    int64_t to_row; /* in the matrix, which takes n_cols columns and to_rows rows in all, or each
                     * expert's part of it does */
    int64_t to_rows;
};

/* The parts of all weights of a rank, those of layers once for all layers, in the table's order.
 * Returns how many parts, or an error of shard_check(). */
int weight_parts(struct weight_part parts[N_TENSOR_SPECS], const struct model_config *c,
                 struct shard s, struct err *e);

#endif
