/* file.c - see file.h. */
#include "engine/util/file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

int file_open(int *fd, uint64_t *bytes, int dir, const char *name, struct err *e)
{
    struct stat st;
    int f, rc = 0;

    /* O_NONBLOCK: opening a FIFO must not wait for a writer. */
    do
        f = openat(dir, name, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    while (f < 0 && errno == EINTR);
    if (f < 0 && errno == ENOENT && fstatat(dir, name, &st, AT_SYMLINK_NOFOLLOW) == 0)
        return err_set(e, -EINVAL, "%s: is a broken link", name);
    if (f < 0 && errno == ENXIO) /* a socket, or a device with nothing behind it */
        return err_set(e, -EINVAL, "%s: is not a regular file", name);
    if (f < 0)
        return err_set(e, -errno, "%s: cannot be opened: %s", name, strerror(errno));
    if (fstat(f, &st) < 0)
        rc = err_set(e, -errno, "%s: fstat: %s", name, strerror(errno));
    else if (!S_ISREG(st.st_mode))
        rc = err_set(e, -EINVAL, "%s: is not a regular file", name);
    if (rc < 0) {
        close(f);
        return rc;
    }
    *bytes = (uint64_t)st.st_size;
    *fd = f;
    return 0;
}

int file_read(int fd, const char *name, uint64_t offset, void *dst, size_t bytes, struct err *e)
{
    char *at = dst;
    ssize_t n;

    if (offset > INT64_MAX || bytes > INT64_MAX - offset)
        return err_set(e, -EIO, "%s: a read beyond any file was asked for", name);
    while (bytes > 0) {
        n = pread(fd, at, bytes, (off_t)offset);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return err_set(e, -errno, "%s: cannot read at %llu: %s", name,
                           (unsigned long long)offset, strerror(errno));
        if (n == 0)
            return err_set(e, -EIO, "%s: ends at byte %llu, %zu bytes too early", name,
                           (unsigned long long)offset, bytes);
        at += n;
        offset += (uint64_t)n;
        bytes -= (size_t)n;
    }
    return 0;
}

int file_read_all(char **text, size_t *bytes, int dir, const char *name, size_t max_bytes,
                  struct err *e)
{
    uint64_t size;
    char *buf = NULL;
    int fd, rc;

    rc = file_open(&fd, &size, dir, name, e);
    if (rc < 0)
        return rc;
    if (size > max_bytes)
        rc = err_set(e, -EFBIG, "%s: %llu bytes; at most %zu are supported", name,
                     (unsigned long long)size, max_bytes);
    else if (!(buf = malloc((size_t)size + 1)))
        rc = err_set(e, -ENOMEM, "%s: no memory for %llu bytes", name, (unsigned long long)size);
    else
        rc = file_read(fd, name, 0, buf, (size_t)size, e);
    close(fd);
    if (rc < 0) {
        free(buf);
        return rc;
    }
    buf[size] = '\0';
    *bytes = (size_t)size;
    *text = buf;
    return 0;
}

int file_read_folder(char **text, size_t *bytes, const char *folder, const char *name,
                     size_t max_bytes, struct err *e)
{
    int dir = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    int rc;

    if (dir < 0)
        return err_set(e, -errno, "%s: %s", folder, strerror(errno));
    rc = file_read_all(text, bytes, dir, name, max_bytes, e);
    close(dir);
    return rc;
}

int file_write(int fd, const void *from, size_t bytes)
{
    const char *at = from;

    while (bytes > 0) {
        const ssize_t n = write(fd, at, bytes);

        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return n < 0 ? -errno : -ENOSPC;
        at += n;
        bytes -= (size_t)n;
    }
    return 0;
}

int file_replace(int dir, const char *name, const char *beside, const void *from, size_t bytes)
{
    int fd, r;

    (void)unlinkat(dir, beside, 0);
    fd = openat(dir, beside, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (fd < 0)
        return -errno;
    r = file_write(fd, from, bytes);
    if (r == 0 && fsync(fd) < 0)
        r = -errno;
    if (close(fd) < 0 && r == 0) /* where a network's file system tells */
        r = -errno;
    if (r == 0 && renameat(dir, beside, dir, name) < 0)
        r = -errno;
    if (r < 0)
        (void)unlinkat(dir, beside, 0);
    return r;
}
