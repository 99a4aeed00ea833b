/* read_file.c - see read_file.h. */
#include "engine/read_file.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Reads until the end or size bytes, whichever is first. */
static ssize_t read_all(int fd, char *buf, size_t size)
{
    size_t n = 0;

    while (n < size) {
        ssize_t got = read(fd, buf + n, size - n);

        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return -errno;
        if (!got)
            break;
        n += (size_t)got;
    }
    return (ssize_t)n;
}

int read_file(char **data, size_t *len, const char *folder, const char *name, size_t max,
              struct err *e)
{
    char path[PATH_MAX];
    struct stat st;
    char *buf = NULL;
    ssize_t n = 0;
    int fd, r;

    if (snprintf(path, sizeof(path), "%s/%s", folder, name) >= (int)sizeof(path))
        return err_set(e, -ENAMETOOLONG, "%.200s…/%s: the path is too long", folder, name);
    /* Non-blocking: a FIFO in the folder must not hang the start. */
    fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0)
        return err_set(e, -errno, "%s: %s", path, strerror(errno));
    if (fstat(fd, &st) < 0) {
        r = err_set(e, -errno, "%s: %s", path, strerror(errno));
    } else if (!S_ISREG(st.st_mode)) {
        r = err_set(e, -EINVAL, "%s: is not a regular file", path);
    } else if ((unsigned long long)st.st_size > max) {
        r = err_set(e, -EFBIG, "%s: is larger than %zu bytes", path, max);
    } else if (!(buf = malloc((size_t)st.st_size + 1))) {
        r = err_set(e, -ENOMEM, "%s: not enough memory", path);
    } else {
        n = read_all(fd, buf, (size_t)st.st_size);
        r = n < 0 ? err_set(e, (int)n, "%s: %s", path, strerror((int)-n)) : 0;
    }
    close(fd);
    if (r) {
        free(buf);
        return r;
    }
    buf[n] = '\0';
    *data = buf;
    *len = (size_t)n;
    return 0;
}
