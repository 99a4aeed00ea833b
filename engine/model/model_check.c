/* model_check.c - see model_impl.h: compares the tensors of a folder's files with those that its
 * configuration needs, and reports what the model is. */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "engine/model/model_config.h"
#include "engine/model/model_impl.h"

enum {
    MAX_REPORTED = 8, /* tensors of a wrong shape or type that are reported one by one */
    MAX_NAMED = 3,    /* missing tensors that are named */
    SHAPE_TEXT = 96,
    NOTE_NUMBERS = 512, /* of g_idx, read at a time */
};

#define PLAIN_TYPES "BF16, F16 or F32"

struct check {
    struct model *m;
    struct problems *p;
    size_t n_missing, n_wrong;
    bool lacks_config;                                 /* of quantization: has been noted */
    char missing[(MAX_NAMED + 1) * TENSOR_NAME_BYTES]; /* their names */
    int at;                                            /* in these */
    uint16_t *plain; /* [n_layers] projections that are not quantized, as of struct quantization */
};

static void shape_text(char *out, const struct tensor *t)
{
    int n = snprintf(out, SHAPE_TEXT, "[");

    for (int i = 0; i < t->rank && i < MODEL_MAX_RANK && n < SHAPE_TEXT; i++)
        n += snprintf(out + n, (size_t)(SHAPE_TEXT - n), "%s%" PRId64, i ? ", " : "", t->shape[i]);
    if (n < SHAPE_TEXT)
        snprintf(out + n, (size_t)(SHAPE_TEXT - n), "%s]", t->rank > MODEL_MAX_RANK ? ", ..." : "");
}

/* Whether a type is one of "BF16, F16 or F32". */
static bool is_among(const char *type, const char *types)
{
    const size_t n = strlen(type);

    for (const char *at = types; (at = strstr(at, type)); at += n)
        if ((at == types || at[-1] == ' ') && (!at[n] || at[n] == ' ' || at[n] == ','))
            return true;
    return false;
}

static bool has_shape(const struct tensor *t, const struct tensor *wanted)
{
    if (t->rank == 0) /* a number by itself */
        return wanted->rank == 1 && wanted->shape[0] == 1;
    return t->rank == wanted->rank &&
           memcmp(t->shape, wanted->shape, sizeof(t->shape[0]) * (size_t)t->rank) == 0;
}

static int check_tensor(const struct tensor *t, const struct tensor *wanted, const char *types,
                        const char *file, struct err *e)
{
    char is[SHAPE_TEXT], asked[SHAPE_TEXT];

    if (!has_shape(t, wanted)) {
        shape_text(is, t);
        shape_text(asked, wanted);
        return err_set(e, -EINVAL, "%s: %s: shape: is %s, but config.json implies %s", file,
                       t->name, is, asked);
    }
    if (!is_among(t->type, types))
        return err_set(e, -ENOTSUP, "%s: %s: dtype: %s is not supported for it, but %s", file,
                       t->name, t->type, types);
    return 0;
}

static void note_wrong(struct check *c, int code, const char *text)
{
    if (c->n_wrong++ < MAX_REPORTED)
        problems_add(c->p, code, "%s", text);
}

/* FP8 weights whose format nothing says, noted once for all of them. */
static void note_no_config(struct check *c, const struct tensor *t)
{
    if (!c->lacks_config)
        problems_add(c->p, -ENOTSUP,
                     "config.json: quantization_config is missing, but %s is %s: use the "
                     "config.json that belongs to these weights",
                     t->name, t->type);
    c->lacks_config = true;
}

/* Looks for one tensor. NULL: it is missing or wrong, which has been noted. */
static const struct tensor *need_tensor(struct check *c, const char *name,
                                        const struct tensor *wanted, const char *types)
{
    const char *stored_name = model_stored_name(c->m, name);
    const struct model_file *file = model_file_of(c->m, stored_name);
    struct tensor *t = model_find(c->m, stored_name);
    struct err e;
    int rc;

    c->m->n_tensors++;
    if (!t) {
        if ((!file || file->tensors.header) && c->n_missing++ < MAX_NAMED)
            c->at += snprintf(c->missing + c->at, sizeof(c->missing) - (size_t)c->at, "%s%s",
                              c->at ? ", " : "", name);
        return NULL;
    }
    if (c->m->quant.format == QUANT_NONE && t->dtype == DTYPE_E4M3) {
        note_no_config(c, t);
        return NULL;
    }
    rc = check_tensor(t, wanted, types, file->name, &e);
    if (rc < 0) {
        note_wrong(c, rc, e.text);
        return NULL;
    }
    t->file = (int32_t)(file - c->m->files);
    c->m->bytes += t->bytes;
    return t;
}

/* ---- quantized weights */

/* What g_idx or weight_shape says must be what the configuration does: columns of a group side by
 * side, and the size of the weight. */
static int check_note(const struct model *m, const struct tensor *t, int64_t n, int64_t k,
                      struct err *e)
{
    const struct quantization *q = &m->quant;
    const char *file = m->files[t->file].name;

    if (q->format == QUANT_CT_PACKED) {
        int64_t shape[2];
        const int rc = model_read(m, t, 0, shape, sizeof(shape), e);

        if (rc == 0 && (shape[0] != n || shape[1] != k))
            return err_set(e, -EINVAL,
                           "%s: %s: is [%" PRId64 ", %" PRId64
                           "], but config.json implies [%" PRId64 ", %" PRId64 "]",
                           file, t->name, shape[0], shape[1], n, k);
        return rc;
    }
    for (int64_t at = 0; q->format == QUANT_GPTQ && at < k; at += NOTE_NUMBERS) {
        const int64_t some = k - at < NOTE_NUMBERS ? k - at : NOTE_NUMBERS;
        int32_t groups[NOTE_NUMBERS];
        const int rc = model_read(m, t, (uint64_t)at * sizeof(*groups), groups,
                                  (size_t)some * sizeof(*groups), e);

        if (rc < 0)
            return rc;
        for (int64_t i = 0; i < some; i++)
            if (groups[i] != (at + i) / q->scale_cols)
                return err_set(e, -ENOTSUP,
                               "%s: %s: column %" PRId64 " is of group %d and not %" PRId64
                               ": reordered columns are not supported",
                               file, t->name, at + i, groups[i], (at + i) / q->scale_cols);
    }
    return 0;
}

/* The scales of all INT4 weights have one type, which the first decides. */
static int check_scale_type(struct quantization *q, const struct tensor *t, struct err *e)
{
    if (q->scale_dtype == N_DTYPES)
        q->scale_dtype = t->dtype;
    if (q->dtype != DTYPE_INT4 || q->scale_dtype == t->dtype)
        return 0;
    return err_set(e, -ENOTSUP, "%s: dtype: is %s, but that of other scales is %s", t->name,
                   t->type, dtype_info[q->scale_dtype].safetensors);
}

/* Elements are packed and scaled in whole groups. */
static int check_groups(const struct quantization *q, const char *name, int64_t n, int64_t k,
                        struct err *e)
{
    if (q->dtype == DTYPE_INT4 && k % q->scale_cols != 0)
        return err_set(e, -ENOTSUP,
                       "config.json: quantization_config: groups of %d do not divide the %" PRId64
                       " columns of %s",
                       q->scale_cols, k, name);
    if ((q->format == QUANT_AWQ || q->format == QUANT_GPTQ) && n % INT4_IN_WORD != 0)
        return err_set(e, -ENOTSUP, "the %" PRId64 " rows of %s are not a multiple of %d", n, name,
                       INT4_IN_WORD);
    return 0;
}

/* A projection by its parts. */
static void need_quantized(struct check *c, const char *name, int64_t n, int64_t k)
{
    struct quantization *q = &c->m->quant;
    struct err e;
    int rc = check_groups(q, name, n, k, &e);

    for (int which = 0; which < N_STORED && rc == 0; which++) {
        char part[TENSOR_NAME_BYTES];
        const struct tensor *t;
        struct tensor wanted;
        const char *types;

        if (!quantization_stored(&wanted, &types, q, (enum stored)which, n, k))
            continue;
        tensor_part_name(part, name, wanted.name);
        t = need_tensor(c, part, &wanted, types);
        if (t && which == STORED_SCALES)
            rc = check_scale_type(q, t, &e);
        else if (t && which == STORED_NOTE)
            rc = check_note(c->m, t, n, k, &e);
    }
    if (rc < 0)
        note_wrong(c, rc, e.text);
}

/* The files have a weight with elements of a type that is not quantized. */
static bool is_plain(const struct model *m, const char *name)
{
    const struct tensor *t = model_find(m, model_stored_name(m, name));

    return t && t->dtype <= DTYPE_F32;
}

/* A weight that is never quantized here is, as an LM head may be. */
static bool is_quantized_wrongly(const struct model *m, const char *name)
{
    char part[TENSOR_NAME_BYTES];
    struct tensor elements;
    const char *types;

    if (m->quant.format == QUANT_NONE || model_find(m, model_stored_name(m, name)) ||
        !quantization_stored(&elements, &types, &m->quant, STORED_ELEMENTS, 1, 1))
        return false;
    tensor_part_name(part, name, elements.name);
    return model_find(m, model_stored_name(m, part));
}

/* ---- all of them */

/* One matrix has q, k and v, or gate and up, or all experts. */
static void note_mixed(struct check *c)
{
    for (int32_t layer = 0; layer < c->m->config.n_layers; layer++)
        if (c->plain[layer] & c->m->quant.layers[layer]) {
            problems_add(c->p, -ENOTSUP,
                         "config.json: quantization_config: layer %d has weights that are "
                         "quantized beside weights that are not: q, k and v, gate and up, and all "
                         "experts must be alike",
                         layer);
            return;
        }
}

static void check_spec(struct check *c, const struct tensor_spec *s)
{
    struct model *m = c->m;
    const struct tensor wanted = tensor_of_spec(s, &m->config);
    const int32_t n = tensor_spec_experts(s, &m->config);
    const bool may = m->quant.format != QUANT_NONE && quantization_may_have(s->role);
    const uint16_t bit = (uint16_t)(may ? 1u << (s->role - N_MODEL_WEIGHTS) : 0);

    for (int32_t i = 0; i < tensor_spec_count(s, &m->config); i++) {
        char name[TENSOR_NAME_BYTES];
        const struct tensor *t;

        tensor_spec_name(name, s, &m->config, i);
        m->n_elements += tensor_elements(&wanted);
        if (may && !is_plain(m, name)) {
            m->quant.layers[i / n] |= bit;
            m->config.quant = &m->quant;
            need_quantized(c, name, wanted.shape[0], wanted.shape[1]);
            continue;
        }
        if (may)
            c->plain[i / n] |= bit;
        if (is_quantized_wrongly(m, name)) {
            problems_add(c->p, -ENOTSUP, "%s: is quantized; only projections of layers may be",
                         name);
            continue;
        }
        t = need_tensor(c, name, &wanted, PLAIN_TYPES);
        if (t && !m->dtype)
            m->dtype = dtype_info[t->dtype].name;
        else if (t && m->dtype != dtype_info[t->dtype].name)
            m->dtype = "mixed types";
    }
}

void model_check_tensors(struct model *m, struct problems *p)
{
    struct check c = {.m = m, .p = p};

    c.plain = calloc((size_t)m->config.n_layers, sizeof(*c.plain));
    m->quant.layers = calloc((size_t)m->config.n_layers, sizeof(*m->quant.layers));
    if (!c.plain || !m->quant.layers) {
        problems_add(p, -ENOMEM, "out of memory");
        free(c.plain);
        return;
    }
    for (const struct tensor_spec *s = tensor_specs; s < tensor_specs + N_TENSOR_SPECS; s++)
        check_spec(&c, s);
    note_mixed(&c);
    free(c.plain);
    if (m->config.quant)
        m->dtype = dtype_info[m->quant.dtype].name;
    if (c.n_wrong > MAX_REPORTED)
        problems_add(p, -EINVAL, "%zu more tensors have a wrong shape or type",
                     c.n_wrong - MAX_REPORTED);
    if (c.n_missing > 0 && m->n_files > 0) /* a folder without any file has been reported */
        problems_add(p, -EINVAL, "%s: %zu of %zu tensors are missing: %s%s",
                     m->index ? MODEL_INDEX_FILE : MODEL_WEIGHTS_FILE, c.n_missing, m->n_tensors,
                     c.missing, c.n_missing > MAX_NAMED ? ", ..." : "");
}

void model_report(const struct model *m, const struct problems *p, bool shape_known,
                  bool weights_right)
{
    const struct model_config *c = &m->config;
    const char *plural = m->n_files == 1 ? "" : "s";
    char stored[64] = "", experts[64] = "";

    if (!shape_known && weights_right)
        problems_say(p, "ok",
                     "headers of %zu safetensors file%s (tensors cannot be checked without a "
                     "right " MODEL_CONFIG_FILE ")",
                     m->n_files, plural);
    if (!shape_known)
        return;
    if (weights_right) {
        problems_say(p, "ok", "%zu tensors in %zu file%s", m->n_tensors, m->n_files, plural);
        snprintf(stored, sizeof(stored), ", %" PRIu64 " bytes of %s", m->bytes, m->dtype);
    }
    if (c->n_experts)
        snprintf(experts, sizeof(experts), " in %d experts, %d a token", c->n_experts,
                 c->n_experts_per_tok);
    problems_say(p, "", "%s: %d layers of %d, %d query and %d KV heads of %d, ffn %d%s", c->arch,
                 c->n_layers, c->hidden_dim, c->n_heads, c->n_kv_heads, c->head_dim, c->ffn_dim,
                 experts);
    problems_say(p, "", "vocabulary %d%s, up to %d tokens, %.1f million parameters%s",
                 c->vocab_size,
                 c->headless ? " (no LM head)"
                 : c->tied   ? " (tied)"
                             : "",
                 c->max_seq_len, (double)m->n_elements / 1e6, stored);
    if (c->quant) {
        char text[QUANT_TEXT_BYTES];

        quantization_text(text, c->quant);
        problems_say(p, "", "projections are quantized: %s", text);
    }
}
