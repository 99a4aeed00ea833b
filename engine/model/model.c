/* model.c - see model.h: opens the safetensors files of a folder, model.safetensors or the shards
 * that model.safetensors.index.json names, each once, and compares their tensors with those that
 * the configuration needs. */
#include "engine/model/model.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/model/model_config.h"
#include "engine/model/model_impl.h"
#include "engine/model/rope.h"
#include "engine/util/bf16.h"
#include "engine/util/file.h"
#include "engine/util/json_util.h"
#include "engine/util/must.h"

#define MODEL_PREFIX "model."

enum {
    CONVERT_BYTES = 32768, /* read and converted at a time: stays in the L1 cache */
    MAX_INDEX_BYTES = 64 << 20,
};

/* ---- files */

/* The object in a file of the folder, or NULL with a problem noted. */
static json_t *read_object(int dir, const char *name, size_t max_bytes, bool optional,
                           struct problems *p)
{
    json_t *root = NULL;
    struct err e;
    int rc = json_object_read(&root, dir, name, max_bytes, &e);

    if (rc < 0 && !(rc == -ENOENT && optional))
        problems_add(p, rc, "%s", e.text);
    return root;
}

static int read_header(struct model_file *f, struct err *e)
{
    uint8_t first[SAFETENSORS_LENGTH_BYTES] = {0};
    size_t json_bytes = 0;
    char *json = NULL;
    int rc;

    if (f->bytes >= sizeof(first)) {
        rc = file_read(f->fd, f->name, 0, first, sizeof(first), e);
        if (rc < 0)
            return rc;
    }
    rc = safetensors_header_bytes(&json_bytes, f->name, first, f->bytes, e);
    if (rc < 0)
        return rc;
    json = malloc(json_bytes + 1);
    if (!json)
        return err_set(e, -ENOMEM, "%s: no memory for a header of %zu bytes", f->name, json_bytes);
    rc = file_read(f->fd, f->name, sizeof(first), json, json_bytes, e);
    if (rc == 0)
        rc = safetensors_parse(&f->tensors, f->name, json, json_bytes, f->bytes, e);
    free(json);
    return rc;
}

/* A file with a problem is kept, without tensors. The name is a constant or the index's. */
static void add_file(struct model *m, int dir, const char *name, struct problems *p)
{
    struct model_file *f = &m->files[m->n_files++];
    struct stat st;
    struct err e;
    int rc;

    *f = (struct model_file){.name = name, .fd = -1};
    rc = file_open(&f->fd, &f->bytes, dir, name, &e);
    if (rc == 0 && fstat(f->fd, &st) == 0)
        f->written = st.st_mtim;
    if (rc == 0)
        rc = read_header(f, &e);
    if (rc < 0)
        problems_add(p, rc, "%s", e.text);
}

/* A shard's name has no slash: an index must not lead out of its folder. */
static bool is_shard_name(const char *name)
{
    static const char suffix[] = ".safetensors";
    size_t n = strlen(name);

    return n > strlen(suffix) && n <= NAME_MAX && name[0] != '.' && !strchr(name, '/') &&
           strcmp(name + n - strlen(suffix), suffix) == 0;
}

static const struct model_file *file_by_name(const struct model *m, const char *name)
{
    for (size_t i = 0; i < m->n_files; i++)
        if (strcmp(m->files[i].name, name) == 0)
            return &m->files[i];
    return NULL;
}

/* One problem a shard: the index of a truncated download disagrees in hundreds of places. */
static void check_shard(const struct model *m, const struct model_file *f, struct problems *p)
{
    const char *tensor, *first = NULL;
    size_t n_absent = 0;
    json_t *value;

    json_object_foreach(m->index, tensor, value)
    {
        if (strcmp(json_string_value(value), f->name) != 0 || safetensors_find(&f->tensors, tensor))
            continue;
        if (n_absent++ == 0)
            first = tensor;
    }
    if (n_absent > 0)
        problems_add(p, -EINVAL, "%s: weight_map.%.120s: %s has no such tensor%s", MODEL_INDEX_FILE,
                     first, f->name, n_absent > 1 ? ", nor others that the map lists there" : "");
}

static void open_shards(struct model *m, int dir, struct problems *p)
{
    const char *tensor, *name;
    json_t *value;

    json_object_foreach(m->index, tensor, value)
    {
        name = json_string_value(value);
        if (!name || !is_shard_name(name)) {
            problems_add(p, -EINVAL,
                         "%s: weight_map.%.120s: %s%.80s%s is not the name of a .safetensors file "
                         "in the folder",
                         MODEL_INDEX_FILE, tensor, name ? "\"" : "",
                         name ? name : json_type_name(value), name ? "\"" : "");
            return;
        }
        if (file_by_name(m, name))
            continue;
        if (m->n_files == MODEL_MAX_FILES) {
            problems_add(p, -ENOTSUP, "%s: weight_map: more than %d files", MODEL_INDEX_FILE,
                         MODEL_MAX_FILES);
            return;
        }
        add_file(m, dir, name, p);
    }
    for (size_t i = 0; i < m->n_files; i++)
        if (m->files[i].tensors.header)
            check_shard(m, &m->files[i], p);
}

static void open_index(struct model *m, int dir, struct problems *p)
{
    json_t *root = read_object(dir, MODEL_INDEX_FILE, MAX_INDEX_BYTES, false, p);

    if (!root)
        return;
    m->index = json_object_get(root, "weight_map");
    if (json_object_size(m->index) > 0) { /* 0 where it is no object, too */
        json_incref(m->index);
        open_shards(m, dir, p);
    } else {
        problems_add(p, -EINVAL,
                     "%s: weight_map: must be an object that names a file for each "
                     "tensor",
                     MODEL_INDEX_FILE);
        m->index = NULL;
    }
    json_decref(root);
}

/* A broken link counts: the error is then about what it leads to. */
static bool exists(int dir, const char *name)
{
    struct stat st;

    return fstatat(dir, name, &st, AT_SYMLINK_NOFOLLOW) == 0;
}

static void open_files(struct model *m, int dir, struct problems *p)
{
    if (exists(dir, MODEL_WEIGHTS_FILE))
        add_file(m, dir, MODEL_WEIGHTS_FILE, p);
    else if (exists(dir, MODEL_INDEX_FILE))
        open_index(m, dir, p);
    else if (exists(dir, "pytorch_model.bin") || exists(dir, "pytorch_model.bin.index.json"))
        problems_add(p, -ENOTSUP,
                     "%s: is missing, and pytorch_model.bin is not supported: "
                     "convert it to safetensors",
                     MODEL_WEIGHTS_FILE);
    else
        problems_add(p, -ENOENT, "%s: is missing, and so is %s: the folder has no weights",
                     MODEL_WEIGHTS_FILE, MODEL_INDEX_FILE);
}

const struct model_file *model_file_of(const struct model *m, const char *tensor)
{
    const char *shard = json_string_value(json_object_get(m->index, tensor));

    if (!m->index)
        return m->n_files > 0 ? &m->files[0] : NULL;
    return shard ? file_by_name(m, shard) : NULL;
}

/* ---- tensors */

const char *model_stored_name(const struct model *m, const char *name)
{
    const size_t n = strlen(MODEL_PREFIX);

    return m->bare && strncmp(name, MODEL_PREFIX, n) == 0 ? name + n : name;
}

struct tensor *model_find(const struct model *m, const char *name)
{
    const struct model_file *file = model_file_of(m, name);

    return file ? safetensors_find(&file->tensors, name) : NULL;
}

/* What the names and the head of a folder's tensors are like. An embedder may have been saved
 * without its head, whatever its configuration says. */
static void look_at_names(struct model *m)
{
    struct model_config *c = &m->config;

    m->bare = !model_find(m, MODEL_PREFIX "norm.weight") && model_find(m, "norm.weight");
    if (m->embedder.pooling != POOLING_NONE && !c->tied && !model_find(m, "lm_head.weight"))
        c->headless = c->tied = true;
    if (c->headless && m->embedder.pooling == POOLING_NONE) { /* as most embedders do */
        m->embedder.pooling = POOLING_LAST;
        m->embedder.normalize = true;
    }
}

/* Reads and checks all files, after a problem too. */
static void load(struct model *m, int dir, struct problems *p)
{
    json_t *root = read_object(dir, MODEL_CONFIG_FILE, MODEL_CONFIG_MAX_BYTES, false, p);
    bool shape_known;
    uint32_t before;

    model_config_parse(&m->config, &m->defaults, root, p);
    quantization_parse(&m->quant, root, p);
    json_decref(root);
    shape_known = p->n == 0;
    if (shape_known)
        problems_say(p, "ok", MODEL_CONFIG_FILE);
    before = p->n;
    root = read_object(dir, MODEL_GENERATION_FILE, MODEL_CONFIG_MAX_BYTES, true, p);
    model_defaults_parse(&m->defaults, shape_known ? m->config.vocab_size : INT32_MAX, root, p);
    if (p->n == before)
        problems_say(p, "ok", MODEL_GENERATION_FILE "%s", root ? "" : " (none: neutral)");
    json_decref(root);
    embedder_read(&m->embedder, dir, shape_known ? m->config.hidden_dim : 0, p);
    before = p->n;
    open_files(m, dir, p);
    look_at_names(m);
    if (shape_known)
        model_check_tensors(m, p);
    model_report(m, p, shape_known, p->n == before);
}

/* *out may have problems, and is NULL if there is no such folder or no memory. */
static void open_folder(struct model **out, const char *folder, struct problems *p)
{
    struct model *m = calloc(1, sizeof(*m));
    int dir = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);

    *out = m;
    if (!m || dir < 0)
        problems_add(p, -errno, "%s: %s%s", folder, strerror(errno),
                     errno == ENOTDIR ? "; a model is a folder of config.json and safetensors"
                                      : "");
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

int model_quantize(struct model *m, enum dtype dtype, struct err *e)
{
    uint16_t *layers = m->quant.layers;
    int rc;

    if (dtype == DTYPE_BF16)
        return 0;
    if (m->config.quant)
        return err_set(e, -ENOTSUP, "model.quantize: the folder's weights are %s already",
                       m->dtype);
    rc = quantization_at_load(&m->quant, &m->config, dtype, e);
    m->quant.layers = layers;
    if (rc < 0)
        return rc;
    for (int32_t layer = 0; layer < m->config.n_layers; layer++)
        for (int role = N_MODEL_WEIGHTS; role < N_WEIGHTS; role++)
            if (quantization_may_have((enum weight_role)role))
                layers[layer] |= (uint16_t)(1u << (role - N_MODEL_WEIGHTS));
    m->config.quant = &m->quant;
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
    for (size_t i = 0; i < m->n_files; i++) {
        safetensors_deinit(&m->files[i].tensors);
        if (m->files[i].fd >= 0)
            close(m->files[i].fd);
    }
    free(m->quant.layers);
    json_decref(m->index);
    embedder_deinit(&m->embedder);
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
    const struct tensor *t = model_find(m, model_stored_name(m, name));

    return t && t->file >= 0 ? t : NULL;
}

const struct embedder *model_embedder(const struct model *m)
{
    return &m->embedder;
}

uint64_t model_weight_bytes(const struct model *m)
{
    return m->bytes;
}

uint64_t model_n_parameters(const struct model *m)
{
    return m->n_elements;
}

const char *model_dtype_name(const struct model *m)
{
    return m->dtype;
}

const char *model_kept_as(const struct model_config *c)
{
    return dtype_info[c->quant ? c->quant->dtype : DTYPE_BF16].name;
}

bool model_has_changed(const struct model *m)
{
    struct stat st;

    for (size_t i = 0; i < m->n_files; i++) {
        const struct model_file *f = &m->files[i];

        if (fstat(f->fd, &st) < 0 || (uint64_t)st.st_size != f->bytes ||
            st.st_mtim.tv_sec != f->written.tv_sec || st.st_mtim.tv_nsec != f->written.tv_nsec)
            return true;
    }
    return false;
}

int model_fingerprint(const struct model *m, enum model_sameness what, XXH128_hash_t *out,
                      struct err *e)
{
    enum { BEGINNING = 4096 };
    const struct model_config *c = &m->config;
    const double numbers[] = {c->n_layers,          c->n_heads,      c->n_kv_heads, c->head_dim,
                              c->ffn_dim,           c->rms_norm_eps, rope_scale(c), c->n_experts,
                              c->n_experts_per_tok, c->norm_topk};
    float inv_freq[MODEL_MAX_HEAD_DIM / 2];
    XXH3_state_t *state = XXH3_createState();
    char bytes[BEGINNING];
    int r = 0;

    if (!state)
        return err_set(e, -ENOMEM, "out of memory");
    (void)XXH3_128bits_reset(state);
    (void)XXH3_128bits_update(state, numbers, sizeof(numbers));
    rope_frequencies(c, inv_freq);
    (void)XXH3_128bits_update(state, inv_freq, (size_t)c->head_dim / 2 * sizeof(*inv_freq));
    if (c->quant && (c->quant->format != QUANT_AT_LOAD || what >= MODEL_AS_LOADED)) {
        const int32_t quant[] = {(int32_t)c->quant->format, (int32_t)c->quant->dtype,
                                 c->quant->zero_bias};

        (void)XXH3_128bits_update(state, quant, sizeof(quant));
    }
    for (size_t f = 0; r == 0 && f < m->n_files; f++) {
        struct stat st;

        if (fstat(m->files[f].fd, &st) < 0)
            r = err_set(e, -errno, "%s: %s", m->files[f].name, strerror(errno));
        else if (what >= MODEL_AS_OPENED)
            (void)XXH3_128bits_update(state, &st.st_mtim, sizeof(st.st_mtim));
        for (size_t i = 0; r == 0 && i < m->files[f].tensors.n; i++) {
            const struct tensor *t = &m->files[f].tensors.tensors[i];
            const size_t n = t->bytes < BEGINNING ? (size_t)t->bytes : BEGINNING;

            if (t->file < 0) /* not of the configuration */
                continue;
            r = model_read(m, t, 0, bytes, n, e);
            if (r < 0)
                break;
            (void)XXH3_128bits_update(state, t->name, strlen(t->name));
            (void)XXH3_128bits_update(state, &t->bytes, sizeof(t->bytes));
            (void)XXH3_128bits_update(state, bytes, n);
        }
    }
    *out = XXH3_128bits_digest(state);
    XXH3_freeState(state);
    return r;
}

int model_read(const struct model *m, const struct tensor *t, uint64_t offset, void *dst,
               size_t bytes, struct err *e)
{
    const struct model_file *f = &m->files[t->file];

    must(offset <= t->bytes && bytes <= t->bytes - offset);
    return file_read(f->fd, f->name, t->offset + offset, dst, bytes, e);
}

int model_read_bf16(const struct model *m, const struct tensor *t, uint64_t first, uint16_t *dst,
                    size_t n, struct err *e)
{
    const uint32_t size = dtype_info[t->dtype].bits / 8;
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
