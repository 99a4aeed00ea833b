/* algo_file.c - see algo_file.h. A header, then the records as they lie in memory: the file never
 * leaves the machine, and the key names the software that wrote it. */
#include "cuda/algo_file.h"

#include <errno.h>
#include <fcntl.h>
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

enum { NAME_BYTES = 64 };

static const char magic[8] = "nvllmA2";

struct header {
    char magic[8];
    uint32_t record_bytes, n;
    char key[ALGO_KEY];
    uint64_t checksum; /* of the header with 0 here, then of the records */
};

static void file_name(char name[NAME_BYTES], const char *key)
{
    snprintf(name, NAME_BYTES, "products-%016llx",
             (unsigned long long)XXH3_64bits(key, strlen(key)));
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
    int dir, fd, count = -1;
    char name[NAME_BYTES];
    uint64_t bytes;
    struct err ignored;

    if (!records)
        return err_set(e, -ENOMEM, "out of memory");
    file_name(name, key);
    dir = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (dir >= 0 && file_open(&fd, &bytes, dir, name, &ignored) == 0) {
        count = read_records(records, fd, bytes, name, key);
        close(fd);
    }
    if (dir >= 0)
        close(dir);
    *out = (struct algo_records){records, count < 0 ? 0 : count};
    return 0;
}

/* Each process has one temporary file, named after it. */
static int write_in(int dir, const char *name, const struct header *h,
                    const struct algo_record *records)
{
    char temporary[NAME_BYTES + 32];
    FILE *f;
    int fd, r;
    bool written;

    snprintf(temporary, sizeof(temporary), "%s.%ld", name, (long)getpid());
    (void)unlinkat(dir, temporary, 0); /* left by a process that died */
    fd = openat(dir, temporary, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
    f = fd < 0 ? NULL : fdopen(fd, "we");
    if (!f) {
        r = -errno;
        if (fd >= 0)
            close(fd);
        return r;
    }
    written =
        fwrite(h, sizeof(*h), 1, f) == 1 && fwrite(records, sizeof(*records), h->n, f) == h->n;
    if (fclose(f) == 0 && written && renameat(dir, temporary, dir, name) == 0)
        return 0;
    r = -errno;
    (void)unlinkat(dir, temporary, 0);
    return r < 0 ? r : -EIO;
}

int algo_file_write(const char *folder, const char *key, const struct algo_records *r,
                    struct err *e)
{
    struct header h;
    char name[NAME_BYTES];
    int dir, code;

    must(r->n >= 0 && r->n <= ALGO_FILE_MAX);
    h = header_of(key, r->all, r->n);
    file_name(name, key);
    if (mkdir(folder, 0700) < 0 && errno != EEXIST)
        return err_set(e, -errno, "%s: cannot be made: %s", folder, strerror(errno));
    dir = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (dir < 0)
        return err_set(e, -errno, "%s: cannot be opened: %s", folder, strerror(errno));
    code = write_in(dir, name, &h, r->all);
    close(dir);
    return code < 0
               ? err_set(e, code, "%s/%s: cannot be written: %s", folder, name, strerror(-code))
               : 0;
}
