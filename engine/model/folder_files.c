/* folder_files.c - see folder_files.h. */
#include "engine/model/folder_files.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/model/model_config.h"
#include "engine/util/file.h"

enum { COPY_BYTES = 1 << 20 };

/* ---- a new file */

int new_file_open(struct new_file *f, int dir, const char *name, struct err *e)
{
    f->name = name;
    f->fd = openat(dir, name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
    return f->fd < 0 ? err_set(e, -errno, "%s: %s", name, strerror(errno)) : 0;
}

int new_file_write(struct new_file *f, const void *from, size_t bytes, struct err *e)
{
    const int r = file_write(f->fd, from, bytes);

    return r < 0 ? err_set(e, r, "%s: cannot write: %s", f->name, strerror(-r)) : 0;
}

int new_file_close(struct new_file *f, int r, struct err *e)
{
    if (f->fd >= 0 && r == 0 && fsync(f->fd) < 0)
        r = err_set(e, -errno, "%s: %s", f->name, strerror(errno));
    if (f->fd >= 0 && close(f->fd) < 0 && r == 0)
        r = err_set(e, -errno, "%s: %s", f->name, strerror(errno));
    f->fd = -1;
    return r;
}

/* ---- copies */

static int copy_file(int from, int to, const char *name, struct err *e)
{
    struct new_file out = {.fd = -1};
    char *buffer = malloc(COPY_BYTES);
    uint64_t bytes = 0;
    int fd = -1, r = buffer ? file_open(&fd, &bytes, from, name, e)
                            : err_set(e, -ENOMEM, "%s: out of memory", name);

    if (r == 0)
        r = new_file_open(&out, to, name, e);
    for (uint64_t at = 0, n; at < bytes && r == 0; at += n) {
        n = bytes - at < COPY_BYTES ? bytes - at : COPY_BYTES;
        r = file_read(fd, name, at, buffer, (size_t)n, e);
        if (r == 0)
            r = new_file_write(&out, buffer, (size_t)n, e);
    }
    r = new_file_close(&out, r, e);
    if (fd >= 0)
        close(fd);
    free(buffer);
    return r;
}

/* Not weights in any form. */
static bool is_copied(const char *name)
{
    static const char *const weights[] = {".safetensors", ".safetensors.index.json",
                                          ".bin",         ".bin.index.json",
                                          ".pt",          ".pth",
                                          ".gguf",        ".onnx",
                                          ".onnx_data"};

    for (size_t i = 0; i < sizeof(weights) / sizeof(weights[0]); i++) {
        const size_t n = strlen(weights[i]);

        if (strlen(name) >= n && strcmp(name + strlen(name) - n, weights[i]) == 0)
            return false;
    }
    return true;
}

static int copy_all(int from, int to, bool is_inner, struct err *e);

/* A folder in the folder, as embedders have. */
static int copy_inner(int from, int to, const char *name, struct err *e)
{
    const int inner = openat(from, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    int made = -1, r;

    if (inner < 0)
        return err_set(e, -errno, "%s: %s", name, strerror(errno));
    r = mkdirat(to, name, 0755);
    if (r == 0)
        r = made = openat(to, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    r = r < 0 ? err_set(e, -errno, "%s: %s", name, strerror(errno))
              : copy_all(inner, made, true, e);
    if (made >= 0)
        close(made);
    close(inner);
    return r;
}

static int copy_all(int from, int to, bool is_inner, struct err *e)
{
    const int again = dup(from);
    DIR *d = again < 0 ? NULL : fdopendir(again);
    const struct dirent *entry;
    struct stat st;
    int r = 0;

    if (!d) {
        r = err_set(e, -errno, "%s", strerror(errno));
        if (again >= 0)
            close(again);
        return r;
    }
    rewinddir(d);
    while (r == 0 && (entry = readdir(d))) {
        const char *name = entry->d_name;

        if (name[0] == '.' || fstatat(from, name, &st, 0) < 0)
            continue;
        if (S_ISDIR(st.st_mode) && !is_inner)
            r = copy_inner(from, to, name, e);
        else if (S_ISREG(st.st_mode) && is_copied(name) &&
                 (is_inner || strcmp(name, MODEL_CONFIG_FILE) != 0))
            r = copy_file(from, to, name, e);
    }
    closedir(d);
    return r;
}

int folder_copy(int from, int to, struct err *e)
{
    return copy_all(from, to, false, e);
}

static void remove_all(int at, const char *name, int depth)
{
    const int fd = openat(at, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    DIR *d = fd < 0 ? NULL : fdopendir(fd);
    const struct dirent *entry;

    while (d && (entry = readdir(d))) {
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0)
            continue;
        if (unlinkat(fd, entry->d_name, 0) < 0 && depth > 0)
            remove_all(fd, entry->d_name, depth - 1);
    }
    if (d)
        closedir(d);
    else if (fd >= 0)
        close(fd);
    (void)unlinkat(at, name, AT_REMOVEDIR);
}

void folder_remove(int at, const char *name)
{
    remove_all(at, name, 1);
}
