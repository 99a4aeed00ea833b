/* model.c - see model.h. */
#include "engine/model/model.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/util/bf16.h"
#include "engine/util/file.h"
#include "engine/model/model_config.h"
#include "engine/model/model_files.h"
#include "engine/model/model_tensors.h"
#include "engine/util/must.h"

enum { CONVERT_BYTES = 32768 }; /* read and converted at a time: stays in the L1 cache */

struct model {
    char *folder; /* as given */
    char *real;   /* with links resolved */
    struct model_config config;
    struct model_defaults defaults;
    struct model_files files;
    struct model_tensors tensors;
};

static void load(struct model *m, int dir, struct problems *p)
{
    model_config_read(&m->config, &m->defaults, dir, p);
    if (p->n == 0)
        model_defaults_read(&m->defaults, m->config.vocab_size, dir, p);
    if (p->n == 0)
        model_files_open(&m->files, dir, p);
    if (p->n == 0 && model_tensors_list(&m->tensors, &m->config, p) == 0)
        model_tensors_locate(&m->tensors, &m->files, p);
    model_files_forget_headers(&m->files);
}

int model_open(struct model **out, const char *folder, struct err *e)
{
    struct problems p = {0};
    struct model *m;
    int dir = -1, rc;

    m = calloc(1, sizeof(*m));
    if (!m)
        return err_set(e, -ENOMEM, "%s: no memory", folder);
    dir = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (dir < 0) {
        rc = err_set(e, -errno, "%s: %s", folder, strerror(errno));
        goto fail;
    }
    m->folder = strdup(folder);
    m->real = m->folder ? realpath(folder, NULL) : NULL;
    if (!m->real) {
        rc = err_set(e, -errno, "%s: %s", folder, strerror(errno));
        goto fail;
    }
    load(m, dir, &p);
    if (p.n > 0) {
        rc = err_set(e, p.code, "%s", p.first.text);
        goto fail;
    }
    close(dir);
    *out = m;
    return 0;
fail:
    if (dir >= 0)
        close(dir);
    model_close(m);
    return rc;
}

void model_close(struct model *m)
{
    if (!m)
        return;
    model_tensors_deinit(&m->tensors);
    model_files_close(&m->files);
    free(m->folder);
    free(m->real);
    free(m);
}

const char *model_name(const struct model *m)
{
    const char *slash = strrchr(m->real, '/');

    return slash && slash[1] ? slash + 1 : m->real;
}

const char *model_folder(const struct model *m)
{
    return m->folder;
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
    return model_tensors_find(&m->tensors, name);
}

uint64_t model_weight_bytes(const struct model *m)
{
    return m->tensors.bytes;
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
