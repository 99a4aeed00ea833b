/* model_tensors.c - see model_tensors.h. */
#include "engine/model/model_tensors.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/util/must.h"

enum {
    MAX_REPORTED = 8, /* problems of one kind that are reported one by one */
    SHAPE_TEXT = 96,
};

const struct dtype_info dtype_info[N_DTYPES] = {
    [DTYPE_BF16] = {"bf16", "BF16", "bfloat16", 2},
    [DTYPE_F16] = {"f16", "F16", "float16", 2},
    [DTYPE_F32] = {"f32", "F32", "float32", 4},
};

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

int model_tensors_list(struct model_tensors *t, const struct model_config *c, struct problems *p)
{
    size_t n = 0;

    for (int i = 0; i < N_TENSOR_SPECS; i++)
        n += (size_t)tensor_spec_count(&tensor_specs[i], c);
    t->all = calloc(n, sizeof(*t->all));
    t->names = calloc(n, sizeof(*t->names));
    if (!t->all || !t->names) {
        model_tensors_deinit(t);
        return problems_add(p, -ENOMEM, "config.json: no memory for %d layers", c->n_layers);
    }
    for (int i = 0; i < N_TENSOR_SPECS; i++) {
        const struct tensor_spec *s = &tensor_specs[i];

        for (int32_t layer = 0; layer < tensor_spec_count(s, c); layer++, t->n++) {
            struct tensor *x = &t->all[t->n];

            tensor_spec_name(t->names[t->n], s, layer);
            *x = (struct tensor){.name = t->names[t->n],
                                 .rank = s->cols == DIM_1 ? 1 : 2,
                                 .shape = {tensor_dim_size(c, s->rows),
                                           tensor_dim_size(c, s->cols)}};
            t->n_elements += tensor_elements(x);
        }
    }
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
    for (int i = 0; i < N_DTYPES; i++) {
        if (strcmp(name, dtype_info[i].safetensors) == 0) {
            *out = (enum dtype)i;
            return true;
        }
    }
    return false;
}

/* Compares a tensor with what the file has by its name. */
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
    must(x->bytes == tensor_elements(t) * dtype_info[t->dtype].bytes); /* the header was checked */
    t->bytes = x->bytes;
    t->offset = x->offset;
    return 0;
}

static void report_missing(const struct model_tensors *t, const struct model_files *f,
                           struct problems *p)
{
    char names[4 * TENSOR_NAME_BYTES] = "";
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

    report_missing(t, f, p);
    t->bytes = 0;
    for (size_t i = 0; i < t->n; i++) {
        const struct safetensors_entry *x = model_files_find(f, &file, t->all[i].name);

        if (!x)
            continue;
        rc = check_tensor(&t->all[i], x, f->all[file].name, &e);
        if (rc < 0 && n_wrong++ < MAX_REPORTED)
            problems_add(p, rc, "%s", e.text);
        t->all[i].file = (int32_t)file;
        t->bytes += t->all[i].bytes;
    }
    if (n_wrong > MAX_REPORTED)
        problems_add(p, -EINVAL, "%zu more tensors are of a wrong shape or type",
                     n_wrong - MAX_REPORTED);
}
