/* model.c - see model.h: opens a folder and compares its tensors with those that the configuration
 * needs. */
#include "engine/model/model.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/model/model_config.h"
#include "engine/model/model_files.h"
#include "engine/model/tensor_table.h"
#include "engine/util/bf16.h"
#include "engine/util/file.h"
#include "engine/util/must.h"

enum {
    CONVERT_BYTES = 32768, /* read and converted at a time: stays in the L1 cache */
    MAX_REPORTED = 8,      /* tensors of a wrong shape or type that are reported one by one */
    MAX_NAMED = 3,         /* missing tensors that are named */
    SHAPE_TEXT = 96,
};

struct model {
    struct model_config config;
    struct model_defaults defaults;
    struct model_files files;
    /* of the tensors that the configuration needs */
    size_t n_tensors;
    uint64_t n_elements; /* the model's parameters */
    uint64_t bytes;      /* as stored */
    const char *dtype;   /* for the report */
};

static void shape_text(char *out, const struct tensor *t)
{
    int n = snprintf(out, SHAPE_TEXT, "[");

    for (int i = 0; i < t->rank && i < MODEL_MAX_RANK && n < SHAPE_TEXT; i++)
        n += snprintf(out + n, (size_t)(SHAPE_TEXT - n), "%s%" PRId64, i ? ", " : "", t->shape[i]);
    if (n < SHAPE_TEXT)
        snprintf(out + n, (size_t)(SHAPE_TEXT - n), "%s]", t->rank > MODEL_MAX_RANK ? ", ..." : "");
}

static int check_tensor(const struct tensor *t, const struct tensor *wanted, const char *file,
                        struct err *e)
{
    char is[SHAPE_TEXT], asked[SHAPE_TEXT];

    if (t->rank != wanted->rank ||
        memcmp(t->shape, wanted->shape, sizeof(t->shape[0]) * (size_t)t->rank) != 0) {
        shape_text(is, t);
        shape_text(asked, wanted);
        return err_set(e, -EINVAL, "%s: %s: shape: is %s where config.json asks for %s", file,
                       t->name, is, asked);
    }
    if (t->dtype == N_DTYPES)
        return err_set(e, -ENOTSUP,
                       "%s: %s: dtype: %s is not supported for weights; BF16, F16 and F32 are",
                       file, t->name, t->type);
    must(t->bytes == tensor_elements(t) * dtype_info[t->dtype].bytes); /* the header was checked */
    return 0;
}

/* Looks for each tensor that the configuration needs in the files, and notes those that are missing
 * or of another shape or type. */
static void check_tensors(struct model *m, struct problems *p)
{
    const struct model_files *f = &m->files;
    char name[TENSOR_NAME_BYTES], missing[(MAX_NAMED + 1) * TENSOR_NAME_BYTES] = "";
    size_t n_missing = 0, n_wrong = 0;
    int at = 0;

    for (const struct tensor_spec *s = tensor_specs; s < tensor_specs + N_TENSOR_SPECS; s++) {
        const struct tensor wanted = tensor_of_spec(s, &m->config);

        for (int32_t layer = 0; layer < tensor_spec_count(s, &m->config); layer++) {
            const struct model_file *file;
            struct tensor *t;
            struct err e;
            int rc;

            tensor_spec_name(name, s, layer);
            m->n_tensors++;
            m->n_elements += tensor_elements(&wanted);
            file = model_files_of(f, name);
            t = file ? safetensors_find(&file->tensors, name) : NULL;
            if (!t) {
                if ((!file || file->tensors.header) && n_missing++ < MAX_NAMED)
                    at += snprintf(missing + at, sizeof(missing) - (size_t)at, "%s%s",
                                   at ? ", " : "", name);
                continue;
            }
            rc = check_tensor(t, &wanted, file->name, &e);
            if (rc < 0) {
                if (n_wrong++ < MAX_REPORTED)
                    problems_add(p, rc, "%s", e.text);
                continue;
            }
            t->file = (int32_t)(file - f->all);
            m->bytes += t->bytes;
            if (!m->dtype)
                m->dtype = dtype_info[t->dtype].name;
            else if (m->dtype != dtype_info[t->dtype].name)
                m->dtype = "mixed types";
        }
    }
    if (n_wrong > MAX_REPORTED)
        problems_add(p, -EINVAL, "%zu more tensors are of a wrong shape or type",
                     n_wrong - MAX_REPORTED);
    if (n_missing > 0 && f->n > 0) /* a folder without any file has been reported */
        problems_add(p, -EINVAL, "%s: %zu of %zu tensors are missing: %s%s",
                     f->index ? MODEL_INDEX_FILE : MODEL_WEIGHTS_FILE, n_missing, m->n_tensors,
                     missing, n_missing > MAX_NAMED ? ", ..." : "");
}

static void report_weights(const struct model *m, const struct problems *p, bool shape_known,
                           bool weights_right)
{
    const struct model_config *c = &m->config;
    const char *plural = m->files.n == 1 ? "" : "s";
    char stored[64] = "";

    if (!shape_known && weights_right)
        problems_say(p, "ok",
                     "headers of %zu safetensors file%s (tensors cannot be checked without a "
                     "right " MODEL_CONFIG_FILE ")",
                     m->files.n, plural);
    if (!shape_known)
        return;
    if (weights_right) {
        problems_say(p, "ok", "%zu tensors in %zu file%s", m->n_tensors, m->files.n, plural);
        snprintf(stored, sizeof(stored), ", %" PRIu64 " bytes of %s", m->bytes, m->dtype);
    }
    problems_say(p, "", "%s: %d layers of %d, %d query and %d KV heads of %d, ffn %d", c->arch,
                 c->n_layers, c->hidden_dim, c->n_heads, c->n_kv_heads, c->head_dim, c->ffn_dim);
    problems_say(p, "", "vocabulary %d%s, up to %d tokens, %.1f million parameters%s",
                 c->vocab_size, c->tied ? " (tied)" : "", c->max_seq_len,
                 (double)m->n_elements / 1e6, stored);
}

/* Reads and checks all files, after a problem too. */
static void load(struct model *m, int dir, struct problems *p)
{
    bool shape_known;
    uint32_t before;

    model_config_read(&m->config, &m->defaults, dir, p);
    shape_known = p->n == 0;
    if (shape_known)
        problems_say(p, "ok", MODEL_CONFIG_FILE);
    before = p->n;
    model_defaults_read(&m->defaults, shape_known ? m->config.vocab_size : INT32_MAX, dir, p);
    if (p->n == before)
        problems_say(p, "ok", MODEL_GENERATION_FILE "%s",
                     faccessat(dir, MODEL_GENERATION_FILE, F_OK, 0) == 0 ? "" : " (none: neutral)");
    before = p->n;
    model_files_open(&m->files, dir, p);
    if (shape_known)
        check_tensors(m, p);
    report_weights(m, p, shape_known, p->n == before);
}

/* *out may have problems, and is NULL if there is no such folder or no memory. */
static void open_folder(struct model **out, const char *folder, struct problems *p)
{
    struct model *m = calloc(1, sizeof(*m));
    int dir = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);

    *out = m;
    if (!m || dir < 0)
        problems_add(p, -errno, "%s: %s", folder, strerror(errno));
    else
        load(m, dir, p);
    if (dir >= 0)
        close(dir);
}

int model_open(struct model **out, const char *folder, struct err *e)
{
    struct problems p = {0};
    struct model *m;

    open_folder(&m, folder, &p);
    if (p.n > 0) {
        model_close(m);
        return err_set(e, p.code, "%s", p.first.text);
    }
    *out = m;
    return 0;
}

void model_check(int32_t *vocab_size, const char *folder, struct problems *p)
{
    struct model *m;

    open_folder(&m, folder, p);
    *vocab_size = m && m->n_tensors ? m->config.vocab_size : 0;
    model_close(m);
}

void model_close(struct model *m)
{
    if (!m)
        return;
    model_files_close(&m->files);
    free(m);
}

const struct model_config *model_config(const struct model *m)
{
    return &m->config;
}

const struct model_defaults *model_defaults(const struct model *m)
{
    return &m->defaults;
}

const struct tensor *model_tensor(const struct model *m, const char *name)
{
    const struct model_file *file = model_files_of(&m->files, name);
    const struct tensor *t = file ? safetensors_find(&file->tensors, name) : NULL;

    return t && t->file >= 0 ? t : NULL;
}

uint64_t model_weight_bytes(const struct model *m)
{
    return m->bytes;
}

int model_read(const struct model *m, const struct tensor *t, uint64_t offset, void *dst,
               size_t bytes, struct err *e)
{
    const struct model_file *f = &m->files.all[t->file];

    must(offset <= t->bytes && bytes <= t->bytes - offset);
    return file_read(f->fd, f->name, t->offset + offset, dst, bytes, e);
}

int model_read_bf16(const struct model *m, const struct tensor *t, uint64_t first, uint16_t *dst,
                    size_t n, struct err *e)
{
    const uint32_t size = dtype_info[t->dtype].bytes;
    const uint64_t n_elements = t->bytes / size;
    union {
        float f32[CONVERT_BYTES / sizeof(float)];
        uint16_t f16[CONVERT_BYTES / sizeof(uint16_t)];
    } buf;

    must(first <= n_elements && n <= n_elements - first);
    if (t->dtype == DTYPE_BF16)
        return model_read(m, t, first * size, dst, n * size, e);
    while (n > 0) {
        size_t chunk = n < CONVERT_BYTES / size ? n : CONVERT_BYTES / size;
        int rc = model_read(m, t, first * size, &buf, chunk * size, e);

        if (rc < 0)
            return rc;
        if (t->dtype == DTYPE_F32)
            bf16_from_f32_array(dst, buf.f32, chunk);
        else
            bf16_from_f16_array(dst, buf.f16, chunk);
        dst += chunk;
        first += chunk;
        n -= chunk;
    }
    return 0;
}
