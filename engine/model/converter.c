/* converter.c - see converter.h. Each file of weights becomes one of the same name: its tensors in
 * their order, a projection's replaced by those of its new form. */
#include "engine/model/converter.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/model/folder_files.h"
#include "engine/model/model_config.h"
#include "engine/model/model_impl.h"
#include "engine/model/packing.h"
#include "engine/model/quantized.h"
#include "engine/util/bf16.h"
#include "engine/util/file.h"
#include "engine/util/json_util.h"
#include "engine/util/must.h"

enum {
    COPY_BYTES = 1 << 20, /* of a tensor at a time */
    MAX_OUTPUTS = 3,      /* tensors that a projection becomes */
    PATH = 4096,
};

/* What becomes of a tensor: a projection's elements become the projection, what else it has goes
 * with them, and others are copied. */
struct fate {
    const struct tensor_spec *projection;
    int32_t number; /* of its kind */
    bool gone;
};

/* A tensor of the new folder. */
struct output {
    const struct tensor *from;
    const struct fate *fate;
    char name[TENSOR_NAME_BYTES]; /* of a projection's */
};

struct converter {
    struct model *model;
    enum dtype dtype;
    int from, to;         /* folders */
    struct fate **fates;  /* [n_files][n of the file] */
    json_t *map;          /* weight_map of the new folder */
    uint64_t bytes;       /* of all its tensors */
    size_t n_done, n_all; /* tensors */
    void (*progress)(void *ctx, double done);
    void *progress_ctx;
    /* of the file that is written */
    struct new_file out;
    struct tensor *tensors; /* [n] */
    struct output *outputs; /* [n] */
    size_t n;
};

static int no_memory(struct err *e)
{
    return err_set(e, -ENOMEM, "out of memory");
}

/* ---- what each tensor becomes */

static struct fate *fate_of(const struct converter *c, const struct tensor *t)
{
    return &c->fates[t->file][t - c->model->files[t->file].tensors.tensors];
}

/* The tensors of one projection. */
static void decide(struct converter *c, const struct tensor_spec *s, int32_t i)
{
    const struct model *m = c->model;
    const struct tensor whole = tensor_of_spec(s, &m->config);
    const int32_t layer = i / tensor_spec_experts(s, &m->config);
    char name[TENSOR_NAME_BYTES], part[TENSOR_NAME_BYTES];

    tensor_spec_name(name, s, &m->config, i);
    if (!quantization_has(m->config.quant, s->role, layer))
        return;
    for (int which = 0; which < N_STORED; which++) {
        struct tensor wanted;
        const char *types;
        struct fate *fate;

        if (!quantization_stored(&wanted, &types, m->config.quant, (enum stored)which,
                                 whole.shape[0], whole.shape[1]))
            continue;
        tensor_part_name(part, name, wanted.name);
        fate = fate_of(c, model_tensor(m, part));
        if (which == STORED_ELEMENTS)
            *fate = (struct fate){.projection = s, .number = i};
        else
            fate->gone = true;
    }
}

static int decide_all(struct converter *c, struct err *e)
{
    const struct model *m = c->model;

    c->fates = calloc(m->n_files, sizeof(*c->fates));
    if (!c->fates)
        return no_memory(e);
    for (size_t f = 0; f < m->n_files; f++) {
        c->fates[f] = calloc(m->files[f].tensors.n + 1, sizeof(**c->fates));
        if (!c->fates[f])
            return no_memory(e);
        c->n_all += m->files[f].tensors.n;
        for (size_t i = 0; i < m->files[f].tensors.n; i++) {
            const struct tensor *t = &m->files[f].tensors.tensors[i];

            if (t->rank > MODEL_MAX_RANK)
                return err_set(e, -ENOTSUP,
                               "%s: %.120s: shape: %d dimensions are not supported; %d are",
                               m->files[f].name, t->name, t->rank, MODEL_MAX_RANK);
        }
    }
    for (const struct tensor_spec *s = tensor_specs; s < tensor_specs + N_TENSOR_SPECS; s++)
        for (int32_t i = 0; i < tensor_spec_count(s, &m->config); i++)
            decide(c, s, i);
    return 0;
}

/* ---- the tensors of a file */

static void add_output(struct converter *c, const struct tensor *from, const struct fate *fate,
                       const char *suffix, const char *type, int rank, int64_t rows, int64_t cols)
{
    struct output *o = &c->outputs[c->n];
    struct tensor *t = &c->tensors[c->n++];
    char name[TENSOR_NAME_BYTES];

    *o = (struct output){.from = from, .fate = fate};
    *t = (struct tensor){.name = o->name, .type = type, .rank = rank, .shape = {rows, cols}};
    tensor_spec_name(name, fate->projection, &c->model->config, fate->number);
    tensor_part_name(o->name, model_stored_name(c->model, name), suffix);
}

static void add_projection(struct converter *c, const struct tensor *from, const struct fate *fate)
{
    const struct quantization *q = &c->model->quant;
    const struct tensor whole = tensor_of_spec(fate->projection, &c->model->config);
    const int64_t n = whole.shape[0], k = whole.shape[1];

    if (c->dtype == DTYPE_BF16) {
        add_output(c, from, fate, "weight", "BF16", 2, n, k);
    } else if (c->dtype == DTYPE_E4M3) {
        add_output(c, from, fate, "weight", "F8_E4M3", 2, n, k);
        add_output(c, from, fate, "weight_scale_inv", "F32", 2, (n + QUANT_BLOCK - 1) / QUANT_BLOCK,
                   (k + QUANT_BLOCK - 1) / QUANT_BLOCK);
    } else {
        add_output(c, from, fate, "weight_packed", "I32", 2, n, k / INT4_IN_WORD);
        add_output(c, from, fate, "weight_scale", "BF16", 2, n, k / q->scale_cols);
        add_output(c, from, fate, "weight_shape", "I64", 1, 2, 0);
    }
}

/* Lists what a file is to hold. */
static int list_outputs(struct converter *c, size_t file, struct err *e)
{
    const struct safetensors *s = &c->model->files[file].tensors;

    c->n = 0;
    c->tensors = calloc(s->n * MAX_OUTPUTS + 1, sizeof(*c->tensors));
    c->outputs = calloc(s->n * MAX_OUTPUTS + 1, sizeof(*c->outputs));
    if (!c->tensors || !c->outputs)
        return no_memory(e);
    for (size_t i = 0; i < s->n; i++) {
        const struct tensor *t = &s->tensors[i];
        const struct fate *fate = &c->fates[file][i];

        if (fate->projection) {
            add_projection(c, t, fate);
        } else if (!fate->gone) {
            c->outputs[c->n] = (struct output){.from = t};
            c->tensors[c->n] = *t;
            if (c->dtype == DTYPE_BF16 && t->dtype <= DTYPE_F32)
                c->tensors[c->n].type = dtype_info[DTYPE_BF16].safetensors;
            c->n++;
        }
    }
    return 0;
}

/* ---- data */

static int copy_tensor(struct converter *c, size_t file, const struct tensor *from,
                       const struct tensor *to, struct err *e)
{
    struct tensor t = *from;
    const bool rounds = strcmp(from->type, to->type) != 0;
    const uint64_t all = rounds ? to->bytes / sizeof(uint16_t) : from->bytes;
    const uint64_t step = rounds ? COPY_BYTES / sizeof(uint16_t) : COPY_BYTES;
    char *buffer = malloc(COPY_BYTES);
    int r = buffer ? 0 : no_memory(e);

    t.file = (int32_t)file; /* of those that the model does not need it is not set */
    for (uint64_t at = 0, n; at < all && r == 0; at += n) {
        n = all - at < step ? all - at : step;
        r = rounds ? model_read_bf16(c->model, &t, at, (uint16_t *)(void *)buffer, (size_t)n, e)
                   : model_read(c->model, &t, at, buffer, (size_t)n, e);
        if (r == 0)
            r = new_file_write(&c->out, buffer, (size_t)(rounds ? n * sizeof(uint16_t) : n), e);
    }
    free(buffer);
    return r;
}

/* A whole projection as it would be in memory, to be freed with its data. */
static int read_projection(struct matrix *out, const struct converter *c, const struct fate *fate,
                           struct err *e)
{
    const struct quantization *q = &c->model->quant;
    const struct tensor whole = tensor_of_spec(fate->projection, &c->model->config);
    struct matrix m = {.dtype = q->dtype,
                       .n = (int32_t)whole.shape[0],
                       .k = (int32_t)whole.shape[1],
                       .ld = whole.shape[1],
                       .scale_dtype = q->scale_dtype,
                       .scale_rows = q->scale_rows,
                       .scale_cols = q->scale_cols ? q->scale_cols : (int32_t)whole.shape[1]};
    const struct weight_piece piece = {
        .part = {.tensor = fate->projection, .n_rows = m.n, .n_cols = m.k, .to_rows = m.n},
        .number = fate->number,
        .to = out};
    const size_t n_scales = (size_t)matrix_scales(&m);

    m.data = malloc(matrix_bytes(&m));
    m.scales = malloc(dtype_bytes(m.scale_dtype, n_scales));
    m.zeros = q->zeros ? malloc(n_scales) : NULL;
    *out = m;
    if (!m.data || !m.scales || (q->zeros && !m.zeros))
        return err_set(e, -ENOMEM, "out of memory for a weight of %d x %d", m.n, m.k);
    return quantized_piece_read(c->model, &piece, out, e);
}

static int put_floats(struct converter *c, const struct matrix *m, struct err *e)
{
    float *row = malloc((size_t)m->k * sizeof(*row));
    uint16_t *halves = malloc((size_t)m->k * sizeof(*halves));
    int r = row && halves ? 0 : no_memory(e);

    for (int32_t i = 0; i < m->n && r == 0; i++) {
        matrix_row_f32(row, m, i);
        bf16_from_f32_array(halves, row, (size_t)m->k);
        r = new_file_write(&c->out, halves, (size_t)m->k * sizeof(*halves), e);
    }
    free(row);
    free(halves);
    return r;
}

/* The data of a projection's outputs, one behind the other. */
static int put_projection(struct converter *c, const struct fate *fate, struct err *e)
{
    struct matrix m;
    int r = read_projection(&m, c, fate, e);

    if (r == 0 && c->dtype == DTYPE_BF16) {
        r = put_floats(c, &m, e);
    } else if (r == 0) {
        const int64_t shape[2] = {m.n, m.k};
        uint32_t *words = m.data;

        for (uint64_t i = 0; m.dtype == DTYPE_INT4 && i < matrix_bytes(&m) / sizeof(*words); i++)
            words[i] = int4_to_sequence(words[i]);
        r = new_file_write(&c->out, m.data, matrix_bytes(&m), e);
        if (r == 0)
            r = new_file_write(&c->out, m.scales,
                               dtype_bytes(m.scale_dtype, (uint64_t)matrix_scales(&m)), e);
        if (r == 0 && m.dtype == DTYPE_INT4)
            r = new_file_write(&c->out, shape, sizeof(shape), e);
    }
    free(m.data);
    free(m.scales);
    free(m.zeros);
    return r;
}

static int put_data(struct converter *c, size_t file, struct err *e)
{
    int r = 0;

    for (size_t i = 0; i < c->n && r == 0; i++) {
        const struct output *o = &c->outputs[i];

        if (o->fate || model_file_of(c->model, o->from->name) == &c->model->files[file])
            json_object_set_new(c->map, c->tensors[i].name, json_string(c->out.name));
        c->bytes += c->tensors[i].bytes;
        if (!o->fate)
            r = copy_tensor(c, file, o->from, &c->tensors[i], e);
        else if (i == 0 || c->outputs[i - 1].fate != o->fate)
            r = put_projection(c, o->fate, e);
        if (c->progress && r == 0)
            c->progress(c->progress_ctx,
                        (double)(c->n_done + i * c->model->files[file].tensors.n / c->n) /
                            (double)c->n_all);
    }
    c->n_done += c->model->files[file].tensors.n;
    return r;
}

static int write_weights(struct converter *c, size_t file, struct err *e)
{
    char *header = NULL;
    size_t bytes;
    int r = list_outputs(c, file, e);

    if (r == 0 && safetensors_header(&header, &bytes, c->tensors, c->n) < 0)
        r = no_memory(e);
    if (r == 0)
        r = new_file_open(&c->out, c->to, c->model->files[file].name, e);
    if (r == 0)
        r = new_file_write(&c->out, header, bytes, e);
    if (r == 0)
        r = put_data(c, file, e);
    r = new_file_close(&c->out, r, e);
    free(header);
    free(c->tensors);
    free(c->outputs);
    c->tensors = NULL;
    c->outputs = NULL;
    return r;
}

/* ---- other files */

static int write_json(struct converter *c, const char *name, const json_t *root, struct err *e)
{
    char *text = json_text(root, JSON_INDENT(2) | JSON_SORT_KEYS);
    int r = text ? new_file_open(&c->out, c->to, name, e) : no_memory(e);

    if (r == 0)
        r = new_file_write(&c->out, text, strlen(text), e);
    free(text);
    return new_file_close(&c->out, r, e);
}

/* What transformers and its like are not to expect quantized: the LM head and routers. */
static json_t *plain_modules(const struct model_config *config)
{
    json_t *list = json_pack("[s]", "lm_head");

    for (const struct tensor_spec *s = tensor_specs; s < tensor_specs + N_TENSOR_SPECS; s++)
        for (int32_t i = 0; s->role == WEIGHT_ROUTER && i < tensor_spec_count(s, config); i++) {
            char name[TENSOR_NAME_BYTES];

            tensor_spec_name(name, s, config, i);
            name[strlen(name) - strlen(".weight")] = '\0';
            json_array_append_new(list, json_string(name));
        }
    return list;
}

static json_t *quantization_config(const struct converter *c)
{
    const struct model_config *config = &c->model->config;

    if (c->dtype == DTYPE_E4M3)
        return json_pack("{s:s, s:s, s:s, s:[i, i], s:o}", "quant_method", "fp8",
                         "activation_scheme", "dynamic", "fmt", "e4m3", "weight_block_size",
                         (int)QUANT_BLOCK, (int)QUANT_BLOCK, "modules_to_not_convert",
                         plain_modules(config));
    return json_pack(
        "{s:s, s:s, s:s, s:n, s:o, s:{s:{s:[s], s:n, s:n, s:{s:i, s:s, s:b, s:s, s:i, s:b, s:n}}}}",
        "quant_method", "compressed-tensors", "format", "pack-quantized", "quantization_status",
        "compressed", "kv_cache_scheme", "ignore", plain_modules(config), "config_groups",
        "group_0", "targets", "Linear", "input_activations", "output_activations", "weights",
        "num_bits", 4, "type", "int", "symmetric", 1, "strategy", "group", "group_size",
        (int)c->model->quant.scale_cols, "dynamic", 0, "actorder");
}

static int write_config(struct converter *c, struct err *e)
{
    static const char *const types[] = {"dtype", "torch_dtype"};
    json_t *root;
    int r = json_object_read(&root, c->from, MODEL_CONFIG_FILE, MODEL_CONFIG_MAX_BYTES, e);

    if (r < 0)
        return r;
    if (c->dtype == DTYPE_BF16)
        json_object_del(root, "quantization_config");
    else if (json_object_set_new(root, "quantization_config", quantization_config(c)) < 0)
        r = no_memory(e);
    for (int i = 0; i < 2 && c->dtype == DTYPE_BF16; i++)
        if (json_object_get(root, types[i]))
            json_object_set_new(root, types[i], json_string(dtype_info[DTYPE_BF16].torch));
    if (r == 0)
        r = write_json(c, MODEL_CONFIG_FILE, root, e);
    json_decref(root);
    return r;
}

static int write_index(struct converter *c, struct err *e)
{
    json_t *root;
    int r;

    if (!c->model->index)
        return 0;
    root = json_pack("{s:{s:I}, s:O}", "metadata", "total_size", (json_int_t)c->bytes, "weight_map",
                     c->map);
    r = root ? write_json(c, MODEL_INDEX_FILE, root, e) : no_memory(e);
    json_decref(root);
    return r;
}

/* ---- all */

static int write_all(struct converter *c, struct err *e)
{
    int r = decide_all(c, e);

    c->map = json_object();
    for (size_t f = 0; f < c->model->n_files && r == 0; f++)
        r = write_weights(c, f, e);
    if (r == 0)
        r = write_index(c, e);
    if (r == 0)
        r = write_config(c, e);
    if (r == 0)
        r = folder_copy(c->from, c->to, e);
    for (size_t f = 0; c->fates && f < c->model->n_files; f++)
        free(c->fates[f]);
    free(c->fates);
    json_decref(c->map);
    return r;
}

/* Whether what was written can be opened: a plain tensor may have had the name of a scale. */
static int check_written(const char *folder, struct err *e)
{
    struct model *m = NULL;
    const int r = model_open(&m, folder, e);

    model_close(m);
    return r;
}

/* An error of errno that names the new folder as the caller does. */
static int cannot_make(const char *to, struct err *e)
{
    const int code = errno;
    const bool in_parent =
        code == ENOENT || code == ENOTDIR || code == EACCES || code == EPERM || code == EROFS;

    return err_set(e, -code, "%s: cannot be made: %s%s", to, strerror(code),
                   in_parent ? "; its parent folder must exist and be writable" : "");
}

/* Of a name without the slashes behind it. */
static size_t length_of(const char *to)
{
    size_t n = strlen(to);

    while (n > 1 && to[n - 1] == '/')
        n--;
    return n;
}

/* The real path of the folder that `to` is to be in, to be freed; NULL with errno. */
static char *parent_of(const char *to)
{
    char path[PATH];
    size_t n = length_of(to);

    while (n > 0 && to[n - 1] != '/')
        n--;
    if (snprintf(path, sizeof(path), "%.*s.", (int)n, to) >= PATH) {
        errno = ENAMETOOLONG;
        return NULL;
    }
    return realpath(path, NULL);
}

static bool is_inside(const char *path, const char *folder)
{
    const size_t n = strlen(folder);

    return strncmp(path, folder, n) == 0 && (!path[n] || path[n] == '/' || folder[n - 1] == '/');
}

/* A new folder inside the old one would be copied with it the next time, without its weights. */
static int check_place(const char *from, const char *to, struct err *e)
{
    char *old = realpath(from, NULL), *parent = old ? parent_of(to) : NULL;
    int r = 0;

    if (!old)
        r = err_set(e, -errno, "%s: %s", from, strerror(errno));
    else if (!parent)
        r = cannot_make(to, e);
    else if (is_inside(parent, old))
        r = err_set(e, -EINVAL, "%s: lies inside %s: give a name outside of that folder", to, from);
    free(old);
    free(parent);
    return r;
}

/* Writes the folder under another name beside `to`, and gives it that when it is whole. */
static int write_folder(struct converter *c, const char *to, struct err *e)
{
    char beside[PATH];
    int r;

    if (snprintf(beside, sizeof(beside), "%.*s.part-%d", (int)length_of(to), to, (int)getpid()) >=
        PATH)
        return err_set(e, -ENAMETOOLONG, "%.80s...: the name is too long", to);
    if (mkdir(beside, 0755) < 0)
        return errno == EEXIST ? err_set(e, -EEXIST, "%s: exists already: remove it", beside)
                               : cannot_make(to, e);
    c->to = open(beside, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    r = c->to < 0 ? err_set(e, -errno, "%s: %s", beside, strerror(errno)) : write_all(c, e);
    if (r == 0)
        r = check_written(beside, e);
    if (r == 0 && rename(beside, to) < 0)
        r = err_set(e, -errno, "%s: %s", to, strerror(errno));
    if (c->to >= 0)
        close(c->to);
    if (r < 0)
        folder_remove(AT_FDCWD, beside);
    return r;
}

/* As model_open(), whose errors name the folder's files, but not the folder if there is one. */
static int open_old(struct model **out, const char *folder, struct err *e)
{
    struct err why;
    const int r = model_open(out, folder, &why);
    const size_t n = strlen(folder);

    if (r < 0 && strncmp(why.text, folder, n) == 0 && why.text[n] == ':')
        return err_set(e, r, "%s", why.text);
    return r < 0 ? err_set(e, r, "%s: %s", folder, why.text) : 0;
}

int model_convert(const char *from, const char *to, enum dtype dtype,
                  void (*progress)(void *ctx, double done), void *progress_ctx, struct err *e)
{
    struct converter c = {.dtype = dtype,
                          .out.fd = -1,
                          .progress = progress,
                          .progress_ctx = progress_ctx};
    struct stat st;
    int r;

    must(dtype == DTYPE_BF16 || dtype == DTYPE_E4M3 || dtype == DTYPE_INT4);
    if (lstat(to, &st) == 0)
        return err_set(e, -EEXIST, "%s: exists already: give the name of a new folder", to);
    r = open_old(&c.model, from, e);
    if (r < 0)
        return r;
    r = check_place(from, to, e);
    if (r == 0 && dtype != DTYPE_BF16 && c.model->config.quant)
        r = err_set(e, -ENOTSUP, "%s: is quantized already: convert it to bf16 first", from);
    else if (r == 0 && dtype != DTYPE_BF16)
        r = model_quantize(c.model, dtype, e);
    if (r == 0) {
        c.from = open(from, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        r = c.from < 0 ? err_set(e, -errno, "%s: %s", from, strerror(errno))
                       : write_folder(&c, to, e);
        if (c.from >= 0)
            close(c.from);
    }
    model_close(c.model);
    return r;
}
