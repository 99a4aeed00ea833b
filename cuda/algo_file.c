/* algo_file.c - see algo_file.h. A header, then the records as they lie in memory: the file never
 * leaves the machine, and the key names the software that was
 * measured, and the magic our kernels: it is raised when those of a path become others. */
#include "cuda/algo_file.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include "engine/util/file.h"
#include "engine/util/must.h"

static const char magic[8] = "nvllmA4";

struct header {
    char magic[8];
    uint32_t record_bytes, n;
    char key[ALGO_KEY];
    uint64_t checksum; /* of the header with 0 here, then of the records */
};

/* False: the path is too long. */
static bool file_path(char path[PATH_MAX], const char *folder, const char *key)
{
    return snprintf(path, PATH_MAX, "%s/products-%016llx", folder,
                    (unsigned long long)XXH3_64bits(key, strlen(key))) < PATH_MAX;
}

static struct header header_of(const char *key, const struct algo_record *records, int n)
{
    struct header h = {.record_bytes = sizeof(*records), .n = (uint32_t)n};

    must(strlen(key) < sizeof(h.key));
    memcpy(h.magic, magic, sizeof(magic));
    memcpy(h.key, key, strlen(key));
    h.checksum =
        XXH3_64bits_withSeed(records, (size_t)n * sizeof(*records), XXH3_64bits(&h, sizeof(h)));
    return h;
}

/* Written by this user, and writable by no other. */
static bool is_ours(int fd)
{
    struct stat s;

    return fstat(fd, &s) == 0 && s.st_uid == geteuid() && !(s.st_mode & (S_IWGRP | S_IWOTH));
}

static bool record_is_sane(const struct algo_record *r)
{
    const struct algo_shape *s = &r->shape;

    return s->m > 0 && s->n > 0 && s->k > 0 && s->out >= 0 && s->y_stride >= s->n &&
           isfinite(r->us) && r->us >= 0.0f;
}

const struct algo_record *algo_find(const struct algo_records *r, const struct algo_shape *s)
{
    for (int i = 0; r && i < r->n; i++)
        if (memcmp(&r->all[i].shape, s, sizeof(*s)) == 0)
            return &r->all[i];
    return NULL;
}

/* How many records; -1 unless the whole file is as it was written. */
static int read_records(struct algo_record *to, int fd, uint64_t bytes, const char *name,
                        const char *key)
{
    const uint64_t most = sizeof(struct header) + ALGO_FILE_MAX * sizeof(*to);
    struct header found, expected;
    size_t size;
    struct err e;

    if (!is_ours(fd) || bytes < sizeof(found) || bytes > most ||
        (bytes - sizeof(found)) % sizeof(*to) != 0)
        return -1;
    size = bytes - sizeof(found);
    if (file_read(fd, name, 0, &found, sizeof(found), &e) < 0 ||
        file_read(fd, name, sizeof(found), to, size, &e) < 0)
        return -1;
    expected = header_of(key, to, (int)(size / sizeof(*to)));
    if (memcmp(&found, &expected, sizeof(found)) != 0)
        return -1;
    for (size_t i = 0; i < size / sizeof(*to); i++)
        if (!record_is_sane(&to[i]))
            return -1;
    return (int)(size / sizeof(*to));
}

int algo_file_read(struct algo_records *out, const char *folder, const char *key, struct err *e)
{
    struct algo_record *records = calloc(ALGO_FILE_MAX, sizeof(*records));
    int fd, count = -1;
    char path[PATH_MAX];
    uint64_t bytes;
    struct err ignored;

    if (!records)
        return err_set(e, -ENOMEM, "out of memory");
    if (folder && file_path(path, folder, key) &&
        file_open(&fd, &bytes, AT_FDCWD, path, &ignored) == 0) {
        count = read_records(records, fd, bytes, path, key);
        close(fd);
    }
    *out = (struct algo_records){records, count < 0 ? 0 : count};
    return 0;
}

static bool write_records(int fd, const struct header *h, const struct algo_record *records)
{
    FILE *f = fdopen(fd, "we");
    bool written;

    if (!f) {
        close(fd);
        return false;
    }
    written = fwrite(h, sizeof(*h), 1, f) == 1 &&
              (h->n == 0 || fwrite(records, sizeof(*records), h->n, f) == h->n);
    return fclose(f) == 0 && written;
}

/* Each process has one temporary file, named after it. */
int algo_file_write(const char *folder, const char *key, const struct algo_records *r,
                    struct err *e)
{
    char path[PATH_MAX], temporary[PATH_MAX + 32];
    struct header h;
    int fd, code;

    must(r->n >= 0 && r->n <= ALGO_FILE_MAX);
    h = header_of(key, r->all, r->n);
    if (!file_path(path, folder, key))
        return err_set(e, -ENAMETOOLONG, "cuda.cache_folder: the path is too long");
    if (mkdir(folder, 0700) < 0 && errno != EEXIST)
        return err_set(e, -errno, "%s: cannot be created: %s", folder, strerror(errno));
    snprintf(temporary, sizeof(temporary), "%s.%ld", path, (long)getpid());
    (void)unlink(temporary); /* left by a process that died */
    fd = open(temporary, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd >= 0 && write_records(fd, &h, r->all) && rename(temporary, path) == 0)
        return 0;
    code = errno ? -errno : -EIO;
    if (fd >= 0)
        (void)unlink(temporary);
    return err_set(e, code, "%s: cannot be written: %s", path, strerror(-code));
}
