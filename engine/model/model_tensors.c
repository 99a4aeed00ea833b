/* model_tensors.c - see model_tensors.h. */
#include "engine/model/model_tensors.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/util/must.h"

enum {
    MAX_OUTSIDE = 3,  /* embedding, last norm, LM head */
    MAX_A_LAYER = 12, /* two norms, four projections, three biases or two norms, three of ffn */
    MAX_TOLD = 8,     /* problems of one kind that are told one by one */
    SHAPE_TEXT = 96,
};

uint32_t dtype_bytes(enum dtype dtype)
{
    return dtype == DTYPE_F32 ? 4 : 2;
}

uint64_t tensor_elements(const struct tensor *t)
{
    uint64_t n = 1;

    for (int i = 0; i < t->rank; i++)
        n *= (uint64_t)t->shape[i];
    return n;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const struct tensor *)a)->name, ((const struct tensor *)b)->name);
}

/* cols 0 is a vector. The configuration's limits keep every product far below 2^63. */
__attribute__((format(printf, 4, 5))) static void need(struct model_tensors *t, int64_t rows,
                                                       int64_t cols, const char *fmt, ...)
{
    struct tensor *x = &t->all[t->n];
    char *name = t->names[t->n];
    va_list ap;

    va_start(ap, fmt);
    must(vsnprintf(name, MODEL_TENSOR_NAME, fmt, ap) < MODEL_TENSOR_NAME);
    va_end(ap);
    *x = (struct tensor){.name = name, .rank = cols ? 2 : 1, .shape = {rows, cols}};
    t->n_elements += tensor_elements(x);
    t->n++;
}

static void need_layer(struct model_tensors *t, const struct model_config *c, int i)
{
    const int64_t q_dim = (int64_t)c->n_heads * c->head_dim;
    const int64_t kv_dim = (int64_t)c->n_kv_heads * c->head_dim;

    need(t, c->hidden_dim, 0, "model.layers.%d.input_layernorm.weight", i);
    need(t, q_dim, c->hidden_dim, "model.layers.%d.self_attn.q_proj.weight", i);
    need(t, kv_dim, c->hidden_dim, "model.layers.%d.self_attn.k_proj.weight", i);
    need(t, kv_dim, c->hidden_dim, "model.layers.%d.self_attn.v_proj.weight", i);
    need(t, c->hidden_dim, q_dim, "model.layers.%d.self_attn.o_proj.weight", i);
    if (c->arch == MODEL_QWEN2) {
        need(t, q_dim, 0, "model.layers.%d.self_attn.q_proj.bias", i);
        need(t, kv_dim, 0, "model.layers.%d.self_attn.k_proj.bias", i);
        need(t, kv_dim, 0, "model.layers.%d.self_attn.v_proj.bias", i);
    } else {
        need(t, c->head_dim, 0, "model.layers.%d.self_attn.q_norm.weight", i);
        need(t, c->head_dim, 0, "model.layers.%d.self_attn.k_norm.weight", i);
    }
    need(t, c->hidden_dim, 0, "model.layers.%d.post_attention_layernorm.weight", i);
    need(t, c->ffn_dim, c->hidden_dim, "model.layers.%d.mlp.gate_proj.weight", i);
    need(t, c->ffn_dim, c->hidden_dim, "model.layers.%d.mlp.up_proj.weight", i);
    need(t, c->hidden_dim, c->ffn_dim, "model.layers.%d.mlp.down_proj.weight", i);
}

int model_tensors_list(struct model_tensors *t, const struct model_config *c)
{
    size_t max = MAX_OUTSIDE + (size_t)c->n_layers * MAX_A_LAYER;

    must(c->n_layers > 0);
    t->all = calloc(max, sizeof(*t->all));
    t->names = calloc(max, sizeof(*t->names));
    if (!t->all || !t->names) {
        model_tensors_deinit(t);
        return -ENOMEM;
    }
    need(t, c->vocab_size, c->hidden_dim, "model.embed_tokens.weight");
    for (int i = 0; i < c->n_layers; i++)
        need_layer(t, c, i);
    need(t, c->hidden_dim, 0, "model.norm.weight");
    if (!c->tied)
        need(t, c->vocab_size, c->hidden_dim, "lm_head.weight");
    must(t->n <= max);
    qsort(t->all, t->n, sizeof(*t->all), by_name);
    return 0;
}

void model_tensors_deinit(struct model_tensors *t)
{
    free(t->all);
    free(t->names);
    *t = (struct model_tensors){0};
}

const struct tensor *model_tensors_find(const struct model_tensors *t, const char *name)
{
    const struct tensor key = {.name = name};

    return t->n ? bsearch(&key, t->all, t->n, sizeof(key), by_name) : NULL;
}

static void shape_text(char *out, int32_t rank, const int64_t *shape)
{
    int n = snprintf(out, SHAPE_TEXT, "[");

    for (int i = 0; i < rank && i < MODEL_MAX_RANK && n < SHAPE_TEXT; i++)
        n += snprintf(out + n, (size_t)(SHAPE_TEXT - n), "%s%lld", i ? ", " : "",
                      (long long)shape[i]);
    if (n < SHAPE_TEXT)
        snprintf(out + n, (size_t)(SHAPE_TEXT - n), "%s]", rank > MODEL_MAX_RANK ? ", ..." : "");
}

static bool parse_dtype(enum dtype *out, const char *name)
{
    if (strcmp(name, "BF16") == 0)
        *out = DTYPE_BF16;
    else if (strcmp(name, "F16") == 0)
        *out = DTYPE_F16;
    else if (strcmp(name, "F32") == 0)
        *out = DTYPE_F32;
    else
        return false;
    return true;
}

/* Says in how a located tensor is wrong; 0 when it is right. */
static int check_tensor(struct tensor *t, const struct safetensors_entry *x, const char *file,
                        struct err *e)
{
    char is[SHAPE_TEXT], wanted[SHAPE_TEXT];

    if (x->rank != t->rank || memcmp(x->shape, t->shape, sizeof(t->shape[0]) * (size_t)t->rank)) {
        shape_text(is, x->rank, x->shape);
        shape_text(wanted, t->rank, t->shape);
        return err_set(e, -EINVAL, "%s: %s: shape: is %s where config.json asks for %s", file,
                       t->name, is, wanted);
    }
    if (!parse_dtype(&t->dtype, x->dtype))
        return err_set(e, -ENOTSUP,
                       "%s: %s: dtype: %s is not supported for weights; BF16, F16 and F32 are",
                       file, t->name, x->dtype);
    must(x->bytes == tensor_elements(t) * dtype_bytes(t->dtype)); /* the header was checked */
    t->bytes = x->bytes;
    t->offset = x->offset;
    return 0;
}

static void tell_missing(const struct model_tensors *t, const struct model_files *f,
                         struct problems *p)
{
    char names[4 * MODEL_TENSOR_NAME] = "";
    size_t n = 0, file;
    int at = 0;

    for (size_t i = 0; i < t->n; i++) {
        if (model_files_find(f, &file, t->all[i].name) || model_files_is_unread(f, t->all[i].name))
            continue;
        if (n++ < 3)
            at += snprintf(names + at, sizeof(names) - (size_t)at, "%s%s", at ? ", " : "",
                           t->all[i].name);
    }
    if (n > 0)
        problems_add(p, -EINVAL, "%s: %zu of %zu tensors are missing: %s%s",
                     f->index ? MODEL_INDEX_FILE : MODEL_WEIGHTS_FILE, n, t->n, names,
                     n > 3 ? ", ..." : "");
}

void model_tensors_locate(struct model_tensors *t, const struct model_files *f, struct problems *p)
{
    size_t n_wrong = 0, file = 0;
    struct err e;
    int rc;

    tell_missing(t, f, p);
    t->bytes = 0;
    for (size_t i = 0; i < t->n; i++) {
        const struct safetensors_entry *x = model_files_find(f, &file, t->all[i].name);

        if (!x)
            continue;
        rc = check_tensor(&t->all[i], x, f->all[file].name, &e);
        if (rc < 0 && n_wrong++ < MAX_TOLD)
            problems_add(p, rc, "%s", e.text);
        t->all[i].file = (int32_t)file;
        t->bytes += t->all[i].bytes;
    }
    if (n_wrong > MAX_TOLD)
        problems_add(p, -EINVAL, "%zu more tensors are of a wrong shape or type",
                     n_wrong - MAX_TOLD);
}
