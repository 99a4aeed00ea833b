/* tensor_table.c - see tensor_table.h. */
#include "engine/model/tensor_table.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "engine/model/quantization.h"
#include "engine/util/must.h"

#define LAYER "model.layers.{layer}."

const struct tensor_spec tensor_specs[N_TENSOR_SPECS] = {
    {"model.embed_tokens.weight", WEIGHT_EMBED, DIM_VOCAB, DIM_HIDDEN, SHARD_ROWS, ALWAYS},
    {"lm_head.weight", WEIGHT_LM_HEAD, DIM_VOCAB, DIM_HIDDEN, SHARD_ROWS, UNLESS_TIED},
    {"model.norm.weight", WEIGHT_NORM, DIM_HIDDEN, DIM_1, SHARD_NONE, ALWAYS},
    {LAYER "input_layernorm.weight", WEIGHT_ATTN_NORM, DIM_HIDDEN, DIM_1, SHARD_NONE, ALWAYS},
    {LAYER "self_attn.q_proj.weight", WEIGHT_QKV, DIM_Q, DIM_HIDDEN, SHARD_ROWS, ALWAYS},
    {LAYER "self_attn.k_proj.weight", WEIGHT_QKV, DIM_KV, DIM_HIDDEN, SHARD_ROWS, ALWAYS},
    {LAYER "self_attn.v_proj.weight", WEIGHT_QKV, DIM_KV, DIM_HIDDEN, SHARD_ROWS, ALWAYS},
    {LAYER "self_attn.q_proj.bias", WEIGHT_QKV_BIAS, DIM_Q, DIM_1, SHARD_ROWS, WITH_QKV_BIAS},
    {LAYER "self_attn.k_proj.bias", WEIGHT_QKV_BIAS, DIM_KV, DIM_1, SHARD_ROWS, WITH_QKV_BIAS},
    {LAYER "self_attn.v_proj.bias", WEIGHT_QKV_BIAS, DIM_KV, DIM_1, SHARD_ROWS, WITH_QKV_BIAS},
    {LAYER "self_attn.q_norm.weight", WEIGHT_Q_NORM, DIM_HEAD, DIM_1, SHARD_NONE, WITH_QK_NORM},
    {LAYER "self_attn.k_norm.weight", WEIGHT_K_NORM, DIM_HEAD, DIM_1, SHARD_NONE, WITH_QK_NORM},
    {LAYER "self_attn.o_proj.weight", WEIGHT_O, DIM_HIDDEN, DIM_Q, SHARD_COLUMNS, ALWAYS},
    {LAYER "post_attention_layernorm.weight", WEIGHT_MLP_NORM, DIM_HIDDEN, DIM_1, SHARD_NONE,
     ALWAYS},
    {LAYER "mlp.gate.weight", WEIGHT_ROUTER, DIM_EXPERTS, DIM_HIDDEN, SHARD_NONE, WITH_MLP_EXPERTS},
    {LAYER "block_sparse_moe.gate.weight", WEIGHT_ROUTER, DIM_EXPERTS, DIM_HIDDEN, SHARD_NONE,
     WITH_BLOCK_SPARSE_MOE},
    {LAYER "mlp.gate_proj.weight", WEIGHT_GATE_UP, DIM_FFN, DIM_HIDDEN, SHARD_ROWS,
     WITHOUT_EXPERTS},
    {LAYER "mlp.up_proj.weight", WEIGHT_GATE_UP, DIM_FFN, DIM_HIDDEN, SHARD_ROWS, WITHOUT_EXPERTS},
    {LAYER "mlp.experts.{expert}.gate_proj.weight", WEIGHT_GATE_UP, DIM_FFN, DIM_HIDDEN, SHARD_ROWS,
     WITH_MLP_EXPERTS},
    {LAYER "mlp.experts.{expert}.up_proj.weight", WEIGHT_GATE_UP, DIM_FFN, DIM_HIDDEN, SHARD_ROWS,
     WITH_MLP_EXPERTS},
    {LAYER "block_sparse_moe.experts.{expert}.w1.weight", WEIGHT_GATE_UP, DIM_FFN, DIM_HIDDEN,
     SHARD_ROWS, WITH_BLOCK_SPARSE_MOE},
    {LAYER "block_sparse_moe.experts.{expert}.w3.weight", WEIGHT_GATE_UP, DIM_FFN, DIM_HIDDEN,
     SHARD_ROWS, WITH_BLOCK_SPARSE_MOE},
    {LAYER "mlp.down_proj.weight", WEIGHT_DOWN, DIM_HIDDEN, DIM_FFN, SHARD_COLUMNS,
     WITHOUT_EXPERTS},
    {LAYER "mlp.experts.{expert}.down_proj.weight", WEIGHT_DOWN, DIM_HIDDEN, DIM_FFN, SHARD_COLUMNS,
     WITH_MLP_EXPERTS},
    {LAYER "block_sparse_moe.experts.{expert}.w2.weight", WEIGHT_DOWN, DIM_HIDDEN, DIM_FFN,
     SHARD_COLUMNS, WITH_BLOCK_SPARSE_MOE},
};

static const char layer_mark[] = "{layer}", expert_mark[] = "{expert}";

static bool has_spec(const struct tensor_spec *t, const struct model_config *c)
{
    switch (t->when) {
    case WITH_QKV_BIAS:
        return c->qkv_bias;
    case WITH_QK_NORM:
        return c->qk_norm;
    case UNLESS_TIED:
        return !c->tied;
    case WITHOUT_EXPERTS:
        return c->n_experts == 0;
    case WITH_MLP_EXPERTS:
        return c->n_experts > 0 && !c->block_sparse_moe;
    case WITH_BLOCK_SPARSE_MOE:
        return c->n_experts > 0 && c->block_sparse_moe;
    default:
        return true;
    }
}

int32_t tensor_spec_experts(const struct tensor_spec *t, const struct model_config *c)
{
    if (!has_spec(t, c))
        return 0;
    return strstr(t->name, expert_mark) ? c->n_experts : 1;
}

int32_t tensor_spec_count(const struct tensor_spec *t, const struct model_config *c)
{
    return tensor_spec_experts(t, c) * (t->role < N_MODEL_WEIGHTS ? 1 : c->n_layers);
}

/* Writes name with a number in place of the mark, if it has that, and returns what follows it. */
static const char *put_number(char **out, const char *name, const char *mark, int32_t number,
                              const char *end)
{
    const char *at = strstr(name, mark);
    int n;

    if (!at)
        return name;
    n = snprintf(*out, (size_t)(end - *out), "%.*s%d", (int)(at - name), name, number);
    must(n < end - *out);
    *out += n;
    return at + strlen(mark);
}

void tensor_spec_name(char out[TENSOR_NAME_BYTES], const struct tensor_spec *t,
                      const struct model_config *c, int32_t i)
{
    const int32_t n_experts = tensor_spec_experts(t, c);
    const char *const end = out + TENSOR_NAME_BYTES, *rest;
    int n;

    rest = put_number(&out, t->name, layer_mark, i / n_experts, end);
    rest = put_number(&out, rest, expert_mark, i % n_experts, end);
    n = snprintf(out, (size_t)(end - out), "%s", rest);
    must(n < end - out);
}

void tensor_part_name(char out[TENSOR_NAME_BYTES], const char *name, const char *suffix)
{
    static const char weight[] = "weight";
    const size_t n = strlen(name) - strlen(weight);

    must(strcmp(name + n, weight) == 0);
    must(snprintf(out, TENSOR_NAME_BYTES, "%.*s%s", (int)n, name, suffix) < TENSOR_NAME_BYTES);
}

/* The limits of model_config.c keep every product of two sizes far below 2^63. */
int64_t tensor_dim_size(const struct model_config *c, enum tensor_dim dim)
{
    const int64_t sizes[] = {
        [DIM_1] = 1,
        [DIM_VOCAB] = c->vocab_size,
        [DIM_HIDDEN] = c->hidden_dim,
        [DIM_Q] = (int64_t)c->n_heads * c->head_dim,
        [DIM_KV] = (int64_t)c->n_kv_heads * c->head_dim,
        [DIM_FFN] = c->ffn_dim,
        [DIM_HEAD] = c->head_dim,
        [DIM_EXPERTS] = c->n_experts,
    };

    return sizes[dim];
}

struct tensor tensor_of_spec(const struct tensor_spec *t, const struct model_config *c)
{
    return (struct tensor){.rank = t->cols == DIM_1 ? 1 : 2,
                           .shape = {tensor_dim_size(c, t->rows), tensor_dim_size(c, t->cols)}};
}

uint64_t tensor_elements(const struct tensor *t)
{
    uint64_t n = 1;

    for (int i = 0; i < t->rank; i++)
        n *= (uint64_t)t->shape[i];
    return n;
}

enum { FFN_UNIT = 32, VOCAB_UNIT = 64 }; /* what products on a device ask for */

static int64_t min64(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* Multiples of unit, of which the last rank gets some too. */
static int64_t share_of(int64_t all, int32_t tp_size, int64_t unit)
{
    const int64_t share = (all + tp_size * unit - 1) / (tp_size * unit) * unit;

    return (tp_size - 1) * share < all ? share : 0;
}

/* Columns that are quantized together; 0: none are, or whole rows. */
static int32_t group_of(const struct model_config *c)
{
    return c->quant ? c->quant->scale_cols : 0;
}

static const char *group_name(const struct model_config *c)
{
    return c->quant->scale_rows > 1 ? "blocks" : "groups";
}

void shard_range(int64_t *first, int64_t *n, const struct model_config *c, enum tensor_dim dim,
                 struct shard s)
{
    const int64_t all = tensor_dim_size(c, dim);
    const int32_t group = group_of(c);
    int64_t share = 0;

    must(s.tp_size > 0 && s.rank >= 0 && s.rank < s.tp_size);
    if (dim == DIM_KV && c->n_kv_heads < s.tp_size) { /* a whole head, shared with other ranks */
        *n = c->head_dim;
        *first = (int64_t)s.rank * c->n_kv_heads / s.tp_size * c->head_dim;
        return;
    }
    if (dim == DIM_VOCAB && s.tp_size > 1)
        share = (all + s.tp_size * VOCAB_UNIT - 1) / (s.tp_size * VOCAB_UNIT) * VOCAB_UNIT;
    if (dim == DIM_FFN && (group > 0 || all % FFN_UNIT == 0 || all % s.tp_size != 0))
        share = share_of(all, s.tp_size, group > FFN_UNIT ? group : FFN_UNIT);
    if (share == 0 && (dim != DIM_FFN || (group == 0 && all % s.tp_size == 0)))
        share = (all + s.tp_size - 1) / s.tp_size;
    *first = min64(s.rank * share, all);
    *n = min64(share, all - *first);
}

/* An FFN that divides among the ranks may not divide in whole groups, so these are named. */
static int refuse_ffn(const struct model_config *c, int32_t tp_size, struct err *e)
{
    if (group_of(c) == 0)
        return err_set(e, -ENOTSUP, "an FFN of %d cannot be divided among %d ranks", c->ffn_dim,
                       tp_size);
    return err_set(e, -ENOTSUP,
                   "an FFN of %d cannot be divided among %d ranks in whole %s of %d: fewer ranks "
                   "may do",
                   c->ffn_dim, tp_size, group_name(c), group_of(c));
}

int shard_check(const struct model_config *c, int32_t tp_size, struct err *e)
{
    const int32_t group = group_of(c);
    int64_t first, n;

    if (c->n_heads % tp_size != 0)
        return err_set(e, -ENOTSUP, "%d query heads cannot be divided among %d ranks", c->n_heads,
                       tp_size);
    if (c->n_kv_heads % tp_size != 0 && tp_size % c->n_kv_heads != 0)
        return err_set(e, -ENOTSUP, "%d KV heads cannot be divided among %d ranks", c->n_kv_heads,
                       tp_size);
    shard_range(&first, &n, c, DIM_FFN, (struct shard){tp_size - 1, tp_size});
    if (n == 0)
        return refuse_ffn(c, tp_size, e);
    shard_range(&first, &n, c, DIM_Q, (struct shard){0, tp_size});
    if (group > 0 && tp_size > 1 && n % group != 0)
        return err_set(e, -ENOTSUP,
                       "o_proj is quantized in %s of %d columns, and %d ranks have %d each: "
                       "fewer ranks may do",
                       group_name(c), group, tp_size, (int)n);
    return 0;
}

struct model_config shard_config(const struct model_config *c, struct shard s)
{
    struct model_config mine = *c;
    int64_t first, q, kv, ffn;

    shard_range(&first, &q, c, DIM_Q, s);
    shard_range(&first, &kv, c, DIM_KV, s);
    shard_range(&first, &ffn, c, DIM_FFN, s);
    mine.n_heads = (int32_t)(q / c->head_dim);
    mine.n_kv_heads = (int32_t)(kv / c->head_dim);
    mine.ffn_dim = (int32_t)ffn;
    return mine;
}

int weight_parts(struct weight_part parts[N_TENSOR_SPECS], const struct model_config *c,
                 struct shard s, struct err *e)
{
    int n = 0, first = 0, r;

    r = shard_check(c, s.tp_size, e);
    if (r < 0)
        return r;
    for (int i = 0; i < N_TENSOR_SPECS; i++) {
        const struct tensor_spec *t = &tensor_specs[i];
        struct weight_part *p = &parts[n];

        if (tensor_spec_count(t, c) == 0)
            continue;
        *p = (struct weight_part){.tensor = t,
                                  .n_rows = tensor_dim_size(c, t->rows),
                                  .n_cols = tensor_dim_size(c, t->cols)};
        if (t->axis == SHARD_ROWS)
            shard_range(&p->row, &p->n_rows, c, t->rows, s);
        else if (t->axis == SHARD_COLUMNS)
            shard_range(&p->col, &p->n_cols, c, t->cols, s);
        if (n == 0 || parts[n - 1].tensor->role != t->role)
            first = n;
        else
            p->to_row = p[-1].to_row + p[-1].n_rows;
        n++;
        for (int k = first; k < n; k++)
            parts[k].to_rows = p->to_row + p->n_rows;
    }
    return n;
}
