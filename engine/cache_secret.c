/* cache_secret.c - see cache_secret.h. */
#include "engine/cache_secret.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

static const char name[] = "cache-secret";

static int draw(uint8_t secret[PREFIX_CACHE_SECRET], struct err *e)
{
    if (getrandom(secret, PREFIX_CACHE_SECRET, 0) != PREFIX_CACHE_SECRET)
        return err_set(e, -EIO, "getrandom: %s", strerror(errno));
    return 0;
}

static int create(uint8_t secret[PREFIX_CACHE_SECRET], int dir, const char *folder, struct err *e)
{
    int fd, rc = draw(secret, e);

    if (rc < 0)
        return rc;
    fd = openat(dir, name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd < 0)
        return err_set(e, -errno, "%s/%s: cannot create it: %s", folder, name, strerror(errno));
    errno = EIO; /* of a short write */
    if (write(fd, secret, PREFIX_CACHE_SECRET) != PREFIX_CACHE_SECRET || fsync(fd) < 0) {
        rc = err_set(e, -errno, "%s/%s: cannot write it: %s", folder, name, strerror(errno));
        unlinkat(dir, name, 0);
    }
    close(fd);
    return rc;
}

static int check_and_read(uint8_t secret[PREFIX_CACHE_SECRET], int fd, const char *folder,
                          struct err *e)
{
    struct stat st;

    if (fstat(fd, &st) < 0)
        return err_set(e, -errno, "%s/%s: %s", folder, name, strerror(errno));
    if (!S_ISREG(st.st_mode))
        return err_set(e, -EINVAL, "%s/%s: not a regular file", folder, name);
    if (st.st_mode & (S_IRWXG | S_IRWXO))
        return err_set(e, -EPERM, "%s/%s: mode %03o, but only its owner may have access (0600)",
                       folder, name, (unsigned)st.st_mode & 0777);
    errno = EIO; /* of a short read */
    if (st.st_size != PREFIX_CACHE_SECRET)
        return err_set(e, -EINVAL,
                       "%s/%s: %lld bytes where a secret has %d; remove it for a new one", folder,
                       name, (long long)st.st_size, PREFIX_CACHE_SECRET);
    if (read(fd, secret, PREFIX_CACHE_SECRET) != PREFIX_CACHE_SECRET)
        return err_set(e, -errno, "%s/%s: %s", folder, name, strerror(errno));
    return 0;
}

int cache_secret_load(uint8_t secret[PREFIX_CACHE_SECRET], const char *folder, struct err *e)
{
    int dir, fd, rc;

    if (!folder)
        return draw(secret, e);
    dir = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (dir < 0)
        return err_set(e, -errno, "state folder %s: %s", folder, strerror(errno));
    fd = openat(dir, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (fd >= 0) {
        rc = check_and_read(secret, fd, folder, e);
        close(fd);
    } else if (errno == ENOENT) {
        rc = create(secret, dir, folder, e);
    } else {
        rc = err_set(e, -errno, "%s/%s: %s", folder, name, strerror(errno));
    }
    close(dir);
    return rc;
}
