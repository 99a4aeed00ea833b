/* reference_forward.c - see reference_forward.h. */
#include "tests/unit/reference_forward.h"

#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/model/packing.h"
#include "engine/model/rope.h"
#include "engine/model/weights.h"
#include "engine/util/bf16.h"

static struct err e;
static struct model *model; /* of the pass under way */

static int read_piece(void *m, int thread, const struct weight_piece *p, struct err *err)
{
    const struct matrix to = weight_piece_rows(p);

    (void)thread;
    return weight_piece_read(m, p, &to, err);
}

/* What the elements and scales of a quantized weight stand for; NULL: it is not quantized. */
static double *dequantized(const char *name)
{
    static const struct weights_layout layout = {.vectors = DTYPE_F32,
                                                 .k_align = 16,
                                                 .align = 64,
                                                 .piece_elements = 1 << 20};
    const struct model_config *c = model_config(model);
    struct weights w;
    double *out = NULL;
    void *base;

    ck_assert_int_eq(weights_init(&w, c, (struct shard){0, 1}, &layout, &e), 0);
    base = aligned_alloc(64, w.bytes);
    memset(base, 0, w.bytes);
    weights_place(&w, base);
    ck_assert_int_eq(weights_load(&w, 1, read_piece, model, NULL, NULL, &e), 0);
    for (int32_t i = 0; i < w.n_pieces; i++) { /* one of each weight here */
        const struct weight_piece *p = &w.pieces[i];
        const struct matrix rows = weight_piece_rows(p);
        char of[TENSOR_NAME_BYTES];
        float *row = calloc((size_t)rows.k, sizeof(*row));

        tensor_spec_name(of, p->part.tensor, c, p->number);
        if (rows.scale_rows && strcmp(of, name) == 0) {
            out = calloc((size_t)rows.n * (size_t)rows.k, sizeof(*out));
            for (int32_t r = 0; r < rows.n; r++) {
                matrix_row_f32(row, &rows, r);
                for (int32_t k = 0; k < rows.k; k++)
                    out[r * rows.k + k] = (double)row[k];
            }
        }
        free(row);
    }
    weights_deinit(&w);
    free(base);
    return out;
}

/* A tensor as doubles. The expert matters where the format has a second number. */
static double *weights_of(const char *format, int layer, int expert)
{
    char name[128];
    const struct tensor *t;
    uint16_t *half;
    double *out;
    size_t n;

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
    snprintf(name, sizeof(name), format, layer, expert);
#pragma GCC diagnostic pop
    out = model_config(model)->quant ? dequantized(name) : NULL;
    if (out)
        return out;
    t = model_tensor(model, name);
    ck_assert_msg(t != NULL, "%s", name);
    n = (size_t)tensor_elements(t);
    half = calloc(n, sizeof(*half));
    out = calloc(n, sizeof(*out));
    ck_assert_int_eq(model_read_bf16(model, t, 0, half, n, &e), 0);
    for (size_t i = 0; i < n; i++)
        out[i] = (double)f32_from_bf16(half[i]);
    free(half);
    return out;
}

static double *weights(const char *format, int layer)
{
    return weights_of(format, layer, 0);
}

/* y [n, outs] = x [n, k] * w [outs, k] + bias */
static double *times(const double *x, const double *w, const double *bias, int n, int outs, int k)
{
    double *y = calloc((size_t)(n * outs), sizeof(*y));

    for (int i = 0; i < n; i++)
        for (int o = 0; o < outs; o++) {
            double sum = bias ? bias[o] : 0.0;

            for (int j = 0; j < k; j++)
                sum += x[i * k + j] * w[o * k + j];
            y[i * outs + o] = sum;
        }
    return y;
}

static void norm(double *y, const double *x, const double *w, int n, double eps)
{
    double squares = 0.0;

    for (int i = 0; i < n; i++)
        squares += x[i] * x[i];
    for (int i = 0; i < n; i++)
        y[i] = x[i] / sqrt(squares / n + eps) * w[i];
}

static void rotate(double *x, int pos, const struct model_config *c)
{
    const int half = c->head_dim / 2;
    const double scale = (double)rope_scale(c); /* test_rope.c checks these two */
    float inv_freq[64];

    rope_frequencies(c, inv_freq);
    for (int i = 0; i < half; i++) {
        const double angle = pos * (double)inv_freq[i], a = x[i], b = x[i + half];

        x[i] = scale * (a * cos(angle) - b * sin(angle));
        x[i + half] = scale * (b * cos(angle) + a * sin(angle));
    }
}

/* out [n, n_heads * dim] of causal attention. */
static double *attention(const struct model_config *c, const double *q, const double *k,
                         const double *v, int n)
{
    const int dim = c->head_dim, qs = c->n_heads * dim, ks = c->n_kv_heads * dim;
    double *out = calloc((size_t)(n * qs), sizeof(*out)), *p = calloc((size_t)n, sizeof(*p));

    for (int i = 0; i < n; i++)
        for (int h = 0; h < c->n_heads; h++) {
            const int kv = h / (c->n_heads / c->n_kv_heads);
            double sum = 0.0;

            for (int j = 0; j <= i; j++) {
                double dot = 0.0;

                for (int d = 0; d < dim; d++)
                    dot += q[i * qs + h * dim + d] * k[j * ks + kv * dim + d];
                sum += p[j] = exp(dot / sqrt(dim));
            }
            for (int j = 0; j <= i; j++)
                for (int d = 0; d < dim; d++)
                    out[i * qs + h * dim + d] += p[j] / sum * v[j * ks + kv * dim + d];
        }
    free(p);
    return out;
}

/* Names of an FFN's tensors. */
struct ffn_names {
    const char *gate, *up, *down;
};

static double *ffn(const struct model_config *c, const double *h, int n,
                   const struct ffn_names *names, int l, int expert)
{
    double *w[3] = {weights_of(names->gate, l, expert), weights_of(names->up, l, expert),
                    weights_of(names->down, l, expert)};
    double *g = times(h, w[0], NULL, n, c->ffn_dim, c->hidden_dim);
    double *u = times(h, w[1], NULL, n, c->ffn_dim, c->hidden_dim), *d;

    for (int i = 0; i < n * c->ffn_dim; i++)
        g[i] = g[i] / (1.0 + exp(-g[i])) * u[i];
    d = times(g, w[2], NULL, n, c->hidden_dim, c->ffn_dim);
    free(w[0]), free(w[1]), free(w[2]), free(g), free(u);
    return d;
}

/* Replaces a row's scores by the weights of the experts, 0 for those that are not chosen. */
static void choose(double *scores, const struct model_config *c)
{
    double all = 0.0, chosen = 0.0;
    bool is_chosen[64] = {false};

    for (int k = 0; k < c->n_experts_per_tok; k++) {
        int best = -1;

        for (int i = 0; i < c->n_experts; i++)
            if (!is_chosen[i] && (best < 0 || scores[i] > scores[best]))
                best = i;
        is_chosen[best] = true;
        chosen += exp(scores[best]);
    }
    for (int i = 0; i < c->n_experts; i++)
        all += exp(scores[i]);
    for (int i = 0; i < c->n_experts; i++)
        scores[i] = is_chosen[i] ? exp(scores[i]) / (c->norm_topk ? chosen : all) : 0.0;
}

/* Every expert computes every row, and what it was not chosen for counts nothing. */
static double *mixture(const struct model_config *c, const double *h, int n, int l)
{
    static const struct ffn_names mlp = {"model.layers.%d.mlp.experts.%d.gate_proj.weight",
                                         "model.layers.%d.mlp.experts.%d.up_proj.weight",
                                         "model.layers.%d.mlp.experts.%d.down_proj.weight"};
    static const struct ffn_names sparse = {
        "model.layers.%d.block_sparse_moe.experts.%d.w1.weight",
        "model.layers.%d.block_sparse_moe.experts.%d.w3.weight",
        "model.layers.%d.block_sparse_moe.experts.%d.w2.weight"};
    double *w = weights(c->block_sparse_moe ? "model.layers.%d.block_sparse_moe.gate.weight"
                                            : "model.layers.%d.mlp.gate.weight",
                        l);
    double *scores = times(h, w, NULL, n, c->n_experts, c->hidden_dim);
    double *y = calloc((size_t)(n * c->hidden_dim), sizeof(*y));

    for (int i = 0; i < n; i++)
        choose(scores + i * c->n_experts, c);
    for (int x = 0; x < c->n_experts; x++) {
        double *d = ffn(c, h, n, c->block_sparse_moe ? &sparse : &mlp, l, x);

        for (int i = 0; i < n * c->hidden_dim; i++)
            y[i] += scores[i / c->hidden_dim * c->n_experts + x] * d[i];
        free(d);
    }
    free(w), free(scores);
    return y;
}

static void layer(const struct model_config *c, double *x, int n, int l)
{
    static const struct ffn_names dense = {"model.layers.%d.mlp.gate_proj.weight",
                                           "model.layers.%d.mlp.up_proj.weight",
                                           "model.layers.%d.mlp.down_proj.weight"};
    const int dim = c->head_dim, qs = c->n_heads * dim, ks = c->n_kv_heads * dim,
              hid = c->hidden_dim;
    double *w[11] = {
        weights("model.layers.%d.input_layernorm.weight", l),
        weights("model.layers.%d.post_attention_layernorm.weight", l),
        weights("model.layers.%d.self_attn.q_proj.weight", l),
        weights("model.layers.%d.self_attn.k_proj.weight", l),
        weights("model.layers.%d.self_attn.v_proj.weight", l),
        weights("model.layers.%d.self_attn.o_proj.weight", l),
        c->qkv_bias ? weights("model.layers.%d.self_attn.q_proj.bias", l) : NULL,
        c->qkv_bias ? weights("model.layers.%d.self_attn.k_proj.bias", l) : NULL,
        c->qkv_bias ? weights("model.layers.%d.self_attn.v_proj.bias", l) : NULL,
        c->qk_norm ? weights("model.layers.%d.self_attn.q_norm.weight", l) : NULL,
        c->qk_norm ? weights("model.layers.%d.self_attn.k_norm.weight", l) : NULL,
    };
    double *h = calloc((size_t)(n * hid), sizeof(*h)), *q, *k, *v, *a, *o, *d;

    for (int i = 0; i < n; i++)
        norm(h + i * hid, x + i * hid, w[0], hid, (double)c->rms_norm_eps);
    q = times(h, w[2], w[6], n, qs, hid);
    k = times(h, w[3], w[7], n, ks, hid);
    v = times(h, w[4], w[8], n, ks, hid);
    for (int i = 0; i < n; i++)
        for (int head = 0; head < c->n_heads + c->n_kv_heads; head++) {
            const bool is_q = head < c->n_heads;
            double *at = is_q ? q + i * qs + head * dim : k + i * ks + (head - c->n_heads) * dim;

            if (c->qk_norm)
                norm(at, at, is_q ? w[9] : w[10], dim, (double)c->rms_norm_eps);
            rotate(at, i, c);
        }
    a = attention(c, q, k, v, n);
    o = times(a, w[5], NULL, n, hid, qs);
    for (int i = 0; i < n * hid; i++)
        x[i] += o[i];
    for (int i = 0; i < n; i++)
        norm(h + i * hid, x + i * hid, w[1], hid, (double)c->rms_norm_eps);
    d = c->n_experts ? mixture(c, h, n, l) : ffn(c, h, n, &dense, l, 0);
    for (int i = 0; i < n * hid; i++)
        x[i] += d[i];
    for (int i = 0; i < 11; i++)
        free(w[i]);
    free(h), free(q), free(k), free(v), free(a), free(o), free(d);
}

double *reference_forward(struct model *m, const int32_t *tokens, int n)
{
    const struct model_config *c = model_config(m);
    const int hid = c->hidden_dim;
    double *x = calloc((size_t)(n * hid), sizeof(*x)), *z, *embed, *last, *head;

    model = m;
    embed = weights("model.embed_tokens.weight", 0);
    last = weights("model.norm.weight", 0);
    head = c->tied ? NULL : weights("lm_head.weight", 0);
    for (int i = 0; i < n; i++)
        memcpy(x + i * hid, embed + tokens[i] * hid, (size_t)hid * sizeof(*x));
    for (int l = 0; l < c->n_layers; l++)
        layer(c, x, n, l);
    for (int i = 0; i < n; i++)
        norm(x + i * hid, x + i * hid, last, hid, (double)c->rms_norm_eps);
    z = times(x, head ? head : embed, NULL, n, c->vocab_size, hid);
    for (int i = 0; i < n; i++) {
        double sum = 0.0;

        for (int j = 0; j < c->vocab_size; j++)
            sum += exp(z[i * c->vocab_size + j]);
        for (int j = 0; j < c->vocab_size; j++)
            z[i * c->vocab_size + j] -= log(sum);
    }
    free(x), free(embed), free(last), free(head);
    return z;
}
