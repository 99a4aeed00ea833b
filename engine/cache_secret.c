/* cache_secret.c - the secret under which prefix-cache digests are made. Where it is kept, it and
 * so the digests are the same after a restart. Any thread. */
#include "engine/engine.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/util/file.h"

static int draw(uint8_t secret[PREFIX_CACHE_SECRET], struct err *e)
{
    if (getrandom(secret, PREFIX_CACHE_SECRET, 0) != PREFIX_CACHE_SECRET)
        return err_set(e, -EIO, "getrandom: %s", strerror(errno));
    return 0;
}

static int create(uint8_t secret[PREFIX_CACHE_SECRET], const char *path, struct err *e)
{
    int fd, rc = draw(secret, e);

    if (rc < 0)
        return rc;
    fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd < 0)
        return err_set(e, -errno, "%s: cannot be created: %s", path, strerror(errno));
    errno = EIO; /* of a short write */
    if (write(fd, secret, PREFIX_CACHE_SECRET) != PREFIX_CACHE_SECRET || fsync(fd) < 0) {
        rc = err_set(e, -errno, "%s: cannot be written: %s", path, strerror(errno));
        unlink(path);
    }
    close(fd);
    return rc;
}

/* secret NULL: the file is not read. -ENOENT: there is none yet. */
static int read_secret(uint8_t *secret, const char *path, struct err *e)
{
    struct stat st;
    uint64_t bytes;
    int fd, rc = file_open(&fd, &bytes, AT_FDCWD, path, e);

    if (rc < 0)
        return rc;
    if (fstat(fd, &st) < 0)
        rc = err_set(e, -errno, "%s: fstat: %s", path, strerror(errno));
    else if (st.st_mode & (S_IRWXG | S_IRWXO))
        rc = err_set(e, -EPERM, "%s: mode %03o, but only its owner may have access (0600)", path,
                     (unsigned)st.st_mode & 0777);
    else if (bytes != PREFIX_CACHE_SECRET)
        rc = err_set(e, -EINVAL, "%s: %llu bytes, but a secret has %d; remove it to get a new one",
                     path, (unsigned long long)bytes, PREFIX_CACHE_SECRET);
    else if (secret)
        rc = file_read(fd, path, 0, secret, PREFIX_CACHE_SECRET, e);
    close(fd);
    return rc;
}

/* secret NULL: says whether it could be had, and changes nothing. */
static int find(uint8_t *secret, const char *folder, struct err *e)
{
    char path[PATH_MAX];
    int rc;

    if (snprintf(path, sizeof(path), "%s/cache-secret", folder) >= (int)sizeof(path))
        return err_set(e, -ENAMETOOLONG, "the path is too long");
    rc = read_secret(secret, path, e);
    if (rc != -ENOENT)
        return rc;
    if (secret)
        return create(secret, path, e);
    if (access(folder, W_OK | X_OK) < 0)
        return err_set(e, -errno, "%s: %s", folder, strerror(errno));
    return 0;
}

/* Names the option that the folder comes from. */
static int name_option(int rc, struct err *e)
{
    const struct err why = *e;

    return rc < 0 ? err_set(e, rc, "cache.folder: %s", why.text) : 0;
}

int cache_secret_load(uint8_t secret[PREFIX_CACHE_SECRET], const char *folder, struct err *e)
{
    return folder ? name_option(find(secret, folder, e), e) : draw(secret, e);
}

int cache_secret_check(const char *folder, struct err *e)
{
    return name_option(find(NULL, folder, e), e);
}
