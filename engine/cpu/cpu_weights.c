/* cpu_weights.c - see cpu_weights.h.
 *
 * Two passes over the model's list of tensors: the first adds up how much memory they take, the
 * second gives each its place and notes what is to be read; then all threads read. */
#include "engine/cpu/cpu_weights.h"

#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/util/checked.h"
#include "engine/cpu/cpu_ops.h"
#include "engine/util/must.h"

enum {
    PIECE_ELEMENTS = 2 << 20, /* read by one task */
    ALIGN = 64,
};

/* Rows of one tensor to be read by one task, as bf16 or as floats. */
struct piece {
    const struct tensor *tensor;
    uint64_t first_row;
    uint64_t n_rows;
    uint64_t row; /* elements of a row in the file */
    uint64_t stride;
    uint16_t *bf16;
    float *floats;
};

struct loader {
    const struct model *model;
    struct weights *weights;
    bool placing; /* second pass */
    size_t used;  /* bytes of memory given out */
    bool overflow;
    struct piece *pieces;
    size_t n_pieces, cap_pieces;
    uint64_t n_elements;
    /* reading */
    void (*progress)(void *ctx, double done);
    void *progress_ctx;
    pthread_mutex_t lock; /* of what follows */
    uint64_t n_read;
    int error;
    struct err err;
};

static void *loader_take(struct loader *l, uint64_t n, size_t size)
{
    const size_t at = l->used;
    uint64_t bytes;

    if (!u64_mul(&bytes, n, size) || bytes > SIZE_MAX / 4 || at > SIZE_MAX / 4) {
        l->overflow = true;
        return NULL;
    }
    l->used = (at + (size_t)bytes + ALIGN - 1) / ALIGN * ALIGN;
    return l->placing ? l->weights->memory.base + at : NULL;
}

/* Notes pieces of a tensor whose rows go to bf16 or floats, stride elements apart. */
static int loader_note(struct loader *l, const char *name, uint64_t n_rows, uint64_t row,
                       uint64_t stride, uint16_t *bf16, float *floats)
{
    const struct tensor *t = model_tensor(l->model, name);
    const uint64_t step = row >= PIECE_ELEMENTS ? 1 : PIECE_ELEMENTS / row;

    if (!l->placing)
        return 0;
    must(t);
    for (uint64_t at = 0; at < n_rows; at += step) {
        if (l->n_pieces == l->cap_pieces) {
            const size_t cap = l->cap_pieces ? 2 * l->cap_pieces : 256;
            struct piece *grown = reallocarray(l->pieces, cap, sizeof(*grown));

            if (!grown)
                return -ENOMEM;
            l->pieces = grown;
            l->cap_pieces = cap;
        }
        l->pieces[l->n_pieces++] = (struct piece){
            .tensor = t,
            .first_row = at,
            .n_rows = n_rows - at < step ? n_rows - at : step,
            .row = row,
            .stride = stride,
            .bf16 = bf16 ? bf16 + at * stride : NULL,
            .floats = floats,
        };
    }
    l->n_elements += n_rows * row;
    return 0;
}

/* One part of a matrix: n_outs rows of a tensor. */
struct part {
    const char *name; /* behind the layer's prefix */
    int n_outs;
};

/* Stacks the parts on one another. */
static int place_matrix(struct loader *l, struct matrix *m, const char *prefix,
                        const struct part *parts, int n_parts, int k)
{
    char name[128];
    int at = 0, r = 0;

    m->n_outs = 0;
    for (int i = 0; i < n_parts; i++)
        m->n_outs += parts[i].n_outs;
    m->k = (k + CPU_K_ALIGN - 1) / CPU_K_ALIGN * CPU_K_ALIGN;
    m->w = loader_take(l, (uint64_t)m->n_outs * (uint64_t)m->k, sizeof(*m->w));
    for (int i = 0; i < n_parts && r == 0; i++) {
        snprintf(name, sizeof(name), "%s%s", prefix, parts[i].name);
        r = loader_note(l, name, (uint64_t)parts[i].n_outs, (uint64_t)k, (uint64_t)m->k,
                        m->w ? m->w + (size_t)at * (size_t)m->k : NULL, NULL);
        at += parts[i].n_outs;
    }
    return r;
}

static int place_floats(struct loader *l, float **out, const char *prefix, const struct part *parts,
                        int n_parts)
{
    char name[128];
    int n = 0, at = 0, r = 0;

    for (int i = 0; i < n_parts; i++)
        n += parts[i].n_outs;
    *out = loader_take(l, (uint64_t)n, sizeof(**out));
    for (int i = 0; i < n_parts && r == 0; i++) {
        snprintf(name, sizeof(name), "%s%s", prefix, parts[i].name);
        r = loader_note(l, name, 1, (uint64_t)parts[i].n_outs, (uint64_t)parts[i].n_outs, NULL,
                        *out ? *out + at : NULL);
        at += parts[i].n_outs;
    }
    return r;
}

static int place_layer(struct loader *l, struct layer *y, int number)
{
    const struct model_config *c = model_config(l->model);
    const int q = c->n_heads * c->head_dim, kv = c->n_kv_heads * c->head_dim;
    const struct part qkv[] = {{"self_attn.q_proj.weight", q},
                               {"self_attn.k_proj.weight", kv},
                               {"self_attn.v_proj.weight", kv}};
    const struct part bias[] = {{"self_attn.q_proj.bias", q},
                                {"self_attn.k_proj.bias", kv},
                                {"self_attn.v_proj.bias", kv}};
    const struct part out[] = {{"self_attn.o_proj.weight", c->hidden_dim}};
    const struct part gate_up[] = {{"mlp.gate_proj.weight", c->ffn_dim},
                                   {"mlp.up_proj.weight", c->ffn_dim}};
    const struct part down[] = {{"mlp.down_proj.weight", c->hidden_dim}};
    const struct part q_norm[] = {{"self_attn.q_norm.weight", c->head_dim}};
    const struct part k_norm[] = {{"self_attn.k_norm.weight", c->head_dim}};
    const struct part attn_norm[] = {{"input_layernorm.weight", c->hidden_dim}};
    const struct part ffn_norm[] = {{"post_attention_layernorm.weight", c->hidden_dim}};
    char prefix[64];
    int r;

    snprintf(prefix, sizeof(prefix), "model.layers.%d.", number);
    if ((r = place_floats(l, &y->attn_norm, prefix, attn_norm, 1)) < 0 ||
        (r = place_floats(l, &y->ffn_norm, prefix, ffn_norm, 1)) < 0 ||
        (r = place_matrix(l, &y->qkv, prefix, qkv, 3, c->hidden_dim)) < 0 ||
        (r = place_matrix(l, &y->out, prefix, out, 1, q)) < 0 ||
        (r = place_matrix(l, &y->gate_up, prefix, gate_up, 2, c->hidden_dim)) < 0 ||
        (r = place_matrix(l, &y->down, prefix, down, 1, c->ffn_dim)) < 0)
        return r;
    if (c->arch == MODEL_QWEN2)
        return place_floats(l, &y->qkv_bias, prefix, bias, 3);
    if ((r = place_floats(l, &y->q_norm, prefix, q_norm, 1)) < 0)
        return r;
    return place_floats(l, &y->k_norm, prefix, k_norm, 1);
}

static int place_all(struct loader *l)
{
    const struct model_config *c = model_config(l->model);
    const struct part embed[] = {{"model.embed_tokens.weight", c->vocab_size}};
    const struct part head[] = {{"lm_head.weight", c->vocab_size}};
    const struct part norm[] = {{"model.norm.weight", c->hidden_dim}};
    struct weights *w = l->weights;
    int r;

    l->used = 0;
    if ((r = place_matrix(l, &w->embed, "", embed, 1, c->hidden_dim)) < 0 ||
        (r = place_floats(l, &w->final_norm, "", norm, 1)) < 0)
        return r;
    for (int i = 0; i < c->n_layers; i++)
        if ((r = place_layer(l, &w->layers[i], i)) < 0)
            return r;
    if (!c->tied)
        return place_matrix(l, &w->head, "", head, 1, c->hidden_dim);
    w->head = w->embed;
    return 0;
}

static int read_floats(const struct model *model, const struct piece *p, struct err *e)
{
    uint16_t part[1024];

    for (uint64_t at = 0; at < p->row; at += 1024) {
        const size_t n = p->row - at < 1024 ? (size_t)(p->row - at) : 1024;
        const int r = model_read_bf16(model, p->tensor, at, part, n, e);

        if (r < 0)
            return r;
        for (size_t i = 0; i < n; i++) {
            const uint32_t bits = (uint32_t)part[i] << 16;

            memcpy(p->floats + at + i, &bits, sizeof(bits));
        }
    }
    return 0;
}

static int read_piece(const struct model *model, const struct piece *p, struct err *e)
{
    int r = 0;

    if (p->floats)
        return read_floats(model, p, e);
    if (p->row == p->stride)
        return model_read_bf16(model, p->tensor, p->first_row * p->row, p->bf16,
                               (size_t)(p->n_rows * p->row), e);
    for (uint64_t i = 0; i < p->n_rows && r == 0; i++)
        r = model_read_bf16(model, p->tensor, (p->first_row + i) * p->row, p->bf16 + i * p->stride,
                            (size_t)p->row, e);
    return r;
}

static void read_task(void *ctx, int task, int thread)
{
    struct loader *l = ctx;
    const struct piece *p = &l->pieces[task];
    struct err err;
    int r;

    (void)thread;
    pthread_mutex_lock(&l->lock);
    r = l->error;
    pthread_mutex_unlock(&l->lock);
    if (r < 0)
        return;
    r = read_piece(l->model, p, &err);
    pthread_mutex_lock(&l->lock);
    if (r < 0 && l->error == 0) {
        l->error = r;
        l->err = err;
    }
    l->n_read += p->n_rows * p->row;
    if (r == 0 && l->progress) /* under the lock: what is reported only rises */
        l->progress(l->progress_ctx, (double)l->n_read / (double)l->n_elements);
    pthread_mutex_unlock(&l->lock);
}

static int loader_run(struct loader *l, struct cpu_pool *pool, struct err *e)
{
    int r;

    (void)place_all(l); /* the first pass only counts */
    if (l->overflow)
        return err_set(e, -ENOMEM, "%s: weights larger than memory can be", model_name(l->model));
    r = region_init(&l->weights->memory, "the model's weights", l->used, e);
    if (r < 0)
        return r;
    l->placing = true;
    r = place_all(l);
    if (r < 0)
        return err_set(e, r, "%s: out of memory", model_name(l->model));
    must(l->n_pieces <= INT32_MAX);
    cpu_pool_run(pool, (int)l->n_pieces, read_task, l);
    if (l->error < 0)
        return err_set(e, l->error, "%s", l->err.text);
    return 0;
}

int weights_load(struct weights **out, const struct model *model, struct cpu_pool *pool,
                 void (*progress)(void *ctx, double done), void *progress_ctx, struct err *e)
{
    struct loader l = {.model = model,
                       .progress = progress,
                       .progress_ctx = progress_ctx,
                       .lock = PTHREAD_MUTEX_INITIALIZER};
    struct weights *w = calloc(1, sizeof(*w));
    int r;

    if (w)
        w->layers = calloc((size_t)model_config(model)->n_layers, sizeof(*w->layers));
    if (!w || !w->layers) {
        r = err_set(e, -ENOMEM, "%s: out of memory", model_name(model));
        goto out;
    }
    l.weights = w;
    r = loader_run(&l, pool, e);
    if (r == 0) {
        *out = w;
        w = NULL;
    }
out:
    free(l.pieces);
    weights_free(w);
    pthread_mutex_destroy(&l.lock);
    return r;
}

void weights_free(struct weights *w)
{
    if (!w)
        return;
    region_deinit(&w->memory);
    free(w->layers);
    free(w);
}
