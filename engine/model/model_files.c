/* model_files.c - see model_files.h. */
#include "engine/model/model_files.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/util/file.h"
#include "engine/util/json_util.h"

static const char *const suffix = ".safetensors";

static int read_header(struct model_file *m, struct err *e)
{
    uint8_t first[SAFETENSORS_LENGTH_BYTES] = {0};
    size_t json_bytes = 0;
    char *json = NULL;
    int rc;

    if (m->bytes >= sizeof(first)) {
        rc = file_read(m->fd, m->name, 0, first, sizeof(first), e);
        if (rc < 0)
            return rc;
    }
    rc = safetensors_header_bytes(&json_bytes, m->name, first, m->bytes, e);
    if (rc < 0)
        return rc;
    json = malloc(json_bytes + 1);
    if (!json)
        return err_set(e, -ENOMEM, "%s: no memory for a header of %zu bytes", m->name, json_bytes);
    rc = file_read(m->fd, m->name, sizeof(first), json, json_bytes, e);
    if (rc == 0)
        rc = safetensors_parse(&m->tensors, m->name, json, json_bytes, m->bytes, e);
    free(json);
    return rc;
}

/* Opens a file and reads its header. A file with a problem is kept, without tensors. False: no
 * memory. */
static bool add_file(struct model_files *f, int dir, const char *name, struct problems *p)
{
    struct model_file *m = &f->all[f->n];
    struct err e;
    int rc;

    *m = (struct model_file){.name = strdup(name), .fd = -1};
    if (!m->name) {
        problems_add(p, -ENOMEM, "%s: no memory", name);
        return false;
    }
    f->n++;
    rc = file_open(&m->fd, &m->bytes, dir, name, &e);
    if (rc == 0)
        rc = read_header(m, &e);
    if (rc < 0)
        problems_add(p, rc, "%s", e.text);
    return true;
}

/* A shard's name has no slash: an index must not lead out of its folder. */
static bool is_shard_name(const char *name)
{
    size_t n = strlen(name);

    return n > strlen(suffix) && n <= NAME_MAX && name[0] != '.' && !strchr(name, '/') &&
           strcmp(name + n - strlen(suffix), suffix) == 0;
}

static struct model_file *file_by_name(const struct model_files *f, const char *name)
{
    for (size_t i = 0; i < f->n; i++)
        if (strcmp(f->all[i].name, name) == 0)
            return &f->all[i];
    return NULL;
}

/* One problem a shard: the index of a truncated download disagrees in hundreds of places. */
static void check_shard(const struct model_files *f, const struct model_file *m, struct problems *p)
{
    const char *tensor, *first = NULL;
    size_t n_absent = 0;
    json_t *value;

    json_object_foreach(f->index, tensor, value)
    {
        if (strcmp(json_string_value(value), m->name) != 0 || safetensors_find(&m->tensors, tensor))
            continue;
        if (n_absent++ == 0)
            first = tensor;
    }
    if (n_absent > 0)
        problems_add(p, -EINVAL, "%s: weight_map.%.120s: %s has no such tensor%s", MODEL_INDEX_FILE,
                     first, m->name, n_absent > 1 ? ", nor others that the map wants there" : "");
}

static void open_shards(struct model_files *f, int dir, struct problems *p)
{
    const char *tensor, *name;
    json_t *value;

    json_object_foreach(f->index, tensor, value)
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
        if (file_by_name(f, name))
            continue;
        if (f->n == MODEL_MAX_SHARDS) {
            problems_add(p, -ENOTSUP, "%s: weight_map: more than %d files", MODEL_INDEX_FILE,
                         MODEL_MAX_SHARDS);
            return;
        }
        if (!add_file(f, dir, name, p))
            return;
    }
    for (size_t i = 0; i < f->n; i++)
        if (f->all[i].tensors.header)
            check_shard(f, &f->all[i], p);
}

static void open_index(struct model_files *f, int dir, struct problems *p)
{
    json_t *root = NULL;
    struct err e;
    int rc;

    rc = json_object_read(&root, dir, MODEL_INDEX_FILE, MODEL_INDEX_MAX_BYTES, &e);
    if (rc < 0) {
        problems_add(p, rc, "%s", e.text);
        return;
    }
    f->index = json_object_get(root, "weight_map");
    if (json_object_size(f->index) > 0) { /* 0 where it is no object, too */
        json_incref(f->index);
        open_shards(f, dir, p);
    } else {
        problems_add(p, -EINVAL,
                     "%s: weight_map: must be an object that names a file for each "
                     "tensor",
                     MODEL_INDEX_FILE);
        f->index = NULL;
    }
    json_decref(root);
}

/* A broken link counts: the error is then about what it leads to. */
static bool exists(int dir, const char *name)
{
    struct stat st;

    return fstatat(dir, name, &st, AT_SYMLINK_NOFOLLOW) == 0;
}

void model_files_open(struct model_files *f, int dir, struct problems *p)
{
    f->all = calloc(MODEL_MAX_SHARDS, sizeof(*f->all));
    if (!f->all) {
        problems_add(p, -ENOMEM, "%s: no memory", MODEL_WEIGHTS_FILE);
        return;
    }
    if (exists(dir, MODEL_WEIGHTS_FILE))
        add_file(f, dir, MODEL_WEIGHTS_FILE, p);
    else if (exists(dir, MODEL_INDEX_FILE))
        open_index(f, dir, p);
    else if (exists(dir, "pytorch_model.bin") || exists(dir, "pytorch_model.bin.index.json"))
        problems_add(p, -ENOTSUP,
                     "%s: is not there, only pytorch_model.bin, which is not read: "
                     "convert it to safetensors",
                     MODEL_WEIGHTS_FILE);
    else
        problems_add(p, -ENOENT, "%s: is not there, and no %s either: the folder has no weights",
                     MODEL_WEIGHTS_FILE, MODEL_INDEX_FILE);
}

void model_files_close(struct model_files *f)
{
    for (size_t i = 0; i < f->n; i++) {
        safetensors_deinit(&f->all[i].tensors);
        free(f->all[i].name);
        if (f->all[i].fd >= 0)
            close(f->all[i].fd);
    }
    json_decref(f->index);
    free(f->all);
    *f = (struct model_files){0};
}

const struct model_file *model_files_of(const struct model_files *f, const char *name)
{
    const char *shard;

    if (f->n == 0)
        return NULL;
    if (!f->index)
        return &f->all[0];
    shard = json_string_value(json_object_get(f->index, name));
    return shard ? file_by_name(f, shard) : NULL;
}
