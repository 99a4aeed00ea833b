/* rendezvous.c - see rendezvous.h. */
#include "cuda/rendezvous.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/util/file.h"

struct content {
    char magic[16];
    char id[RENDEZVOUS_BYTES];
};

static const char magic[16] = "nvllm cluster 1\n";

static int failure(const char *path, int code, struct err *e)
{
    return err_set(e, -code, "cluster.rendezvous: %s: %s", path, strerror(code));
}

int rendezvous_write(const char *path, const char id[RENDEZVOUS_BYTES], struct err *e)
{
    struct content c;
    char made[4096];
    int r;

    memcpy(c.magic, magic, sizeof(magic));
    memcpy(c.id, id, sizeof(c.id));
    if ((size_t)snprintf(made, sizeof(made), "%s.%ld", path, (long)getpid()) >= sizeof(made))
        return failure(path, ENAMETOOLONG, e);
    r = file_replace(AT_FDCWD, path, made, &c, sizeof(c));
    return r < 0 ? failure(path, -r, e) : 0;
}

int rendezvous_read(char id[RENDEZVOUS_BYTES], const char *path, struct err *e)
{
    struct content c;
    struct stat st;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK), r = 0;

    if (fd < 0 && errno == ELOOP)
        return err_set(e, -EINVAL, "cluster.rendezvous: %s is a symbolic link", path);
    if (fd < 0)
        return failure(path, errno, e);
    if (fstat(fd, &st) < 0)
        r = failure(path, errno, e);
    else if (!S_ISREG(st.st_mode))
        r = err_set(e, -EINVAL, "cluster.rendezvous: %s is not a regular file", path);
    else if (st.st_uid != geteuid() || (st.st_mode & 022) != 0)
        r = err_set(e, -EPERM,
                    "cluster.rendezvous: %s can be written by others; all processes of a cluster "
                    "run as one user",
                    path);
    else if (st.st_size != (off_t)sizeof(c) || read(fd, &c, sizeof(c)) != (ssize_t)sizeof(c) ||
             memcmp(c.magic, magic, sizeof(magic)) != 0)
        r = err_set(e, -EINVAL,
                    "cluster.rendezvous: %s was not written by nvllmd; remove it, or name another",
                    path);
    close(fd);
    if (r == 0)
        memcpy(id, c.id, sizeof(c.id));
    return r;
}

void rendezvous_remove(const char *path)
{
    (void)unlink(path);
}
