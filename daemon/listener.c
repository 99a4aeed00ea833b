/* listener.c - see listener.h. */
#include "daemon/listener.h"

#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/inotify.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <systemd/sd-daemon.h>

#include "daemon/accounts.h"

enum { BACKLOG = 1024 };

struct listener {
    struct listener_options options;
    struct sockaddr_un addr; /* its path may be remade */
    char lock_path[sizeof(((struct sockaddr_un *)0)->sun_path) + 8];
    int fd;
    int lock_fd;      /* -1: systemd's socket */
    gid_t gid;        /* of the group, where one is named */
    struct stat file; /* of the path, as we have made it; zeroed: it is not ours to remove */
};

static int listener_new(struct listener **out, struct err *e)
{
    *out = calloc(1, sizeof(**out));
    if (!*out)
        return err_set(e, -ENOMEM, "listener: out of memory");
    (*out)->fd = (*out)->lock_fd = -1;
    return 0;
}

static bool same_file(const struct stat *a, const struct stat *b)
{
    return a->st_dev == b->st_dev && a->st_ino == b->st_ino;
}

/* Whether the path names the open file. */
static bool is_at(int fd, const char *path)
{
    struct stat ours, named;

    return fstat(fd, &ours) == 0 && stat(path, &named) == 0 && same_file(&ours, &named);
}

/* Takes the lock, again if an ending daemon has removed the file in the meantime. */
static int take_lock(struct listener *l, struct err *e)
{
    const char *path = l->addr.sun_path;

    for (;;) {
        int fd = open(l->lock_path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);

        if (fd < 0 && errno == ENOENT)
            return err_set(e, -ENOENT, "%s: its folder does not exist", path);
        if (fd < 0)
            return err_set(e, -errno, "%s: %s", l->lock_path, strerror(errno));
        if (flock(fd, LOCK_EX | LOCK_NB) < 0) {
            int code = errno == EWOULDBLOCK ? -EADDRINUSE : -errno;

            close(fd);
            if (code == -EADDRINUSE)
                return err_set(e, code, "%s: another nvllmd serves this socket", path);
            return err_set(e, code, "%s: %s", l->lock_path, strerror(-code));
        }
        if (is_at(fd, l->lock_path)) {
            l->lock_fd = fd;
            return 0;
        }
        close(fd);
    }
}

/* Checks that the path is free, or holds the socket of a dead daemon, which sets *left. type: that
 * of a daemon, or another to find one without connecting to it. */
static int look_at_path(const struct sockaddr_un *addr, int type, bool *left, struct err *e)
{
    const char *path = addr->sun_path;
    struct stat st;
    int fd, r;

    *left = false;
    if (lstat(path, &st) < 0)
        return errno == ENOENT ? 0 : err_set(e, -errno, "%s: %s", path, strerror(errno));
    if (!S_ISSOCK(st.st_mode))
        return err_set(e, -ENOTSOCK, "%s is not a socket; remove it or choose another path", path);
    fd = socket(AF_UNIX, type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return err_set(e, -errno, "socket: %s", strerror(errno));
    r = connect(fd, (const struct sockaddr *)addr, sizeof(*addr));
    /* EAGAIN: alive, its queue is full. */
    r = r == 0 || errno == EAGAIN || errno == EPROTOTYPE ? -EADDRINUSE : 0;
    close(fd);
    if (r < 0)
        return err_set(e, r, "%s: another program serves this socket", path);
    *left = true;
    return 0;
}

/* Binds the path and listens there. Removes a socket of a dead daemon, and nothing else. */
static int bind_path(struct listener *l, struct err *e)
{
    const struct listener_options *o = &l->options;
    const char *path = l->addr.sun_path;
    bool left;
    mode_t old;
    int r = look_at_path(&l->addr, SOCK_STREAM, &left, e);

    if (r < 0)
        return r;
    if (left && unlink(path) < 0 && errno != ENOENT)
        return err_set(e, -errno, "%s: cannot remove the old socket: %s", path, strerror(errno));
    l->fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (l->fd < 0)
        return err_set(e, -errno, "socket: %s", strerror(errno));
    old = umask(0777); /* no client may connect before mode and group are set */
    r = bind(l->fd, (const struct sockaddr *)&l->addr, sizeof(l->addr)) < 0 ? -errno : 0;
    umask(old);
    if (r < 0)
        return err_set(e, r, "%s: cannot bind: %s", path, strerror(-r));
    if (lstat(path, &l->file) < 0)
        return err_set(e, -errno, "%s: %s", path, strerror(errno));
    if (*o->group && chown(path, (uid_t)-1, l->gid) < 0)
        return err_set(e, -errno, "%s: cannot change its group to %s (%s): %s", path, o->group,
                       o->group_option, strerror(errno));
    if (listen(l->fd, BACKLOG) < 0 || chmod(path, o->mode) < 0)
        return err_set(e, -errno, "%s: %s", path, strerror(errno));
    return 0;
}

static int take_path(struct sockaddr_un *addr, const char *path, struct err *e)
{
    size_t n = strlen(path);

    if (n == 0)
        return err_set(e, -EINVAL, "daemon.socket: the path is empty");
    if (n >= sizeof(addr->sun_path))
        return err_set(e, -ENAMETOOLONG, "%s: the path has %zu bytes, that of a socket at most %zu",
                       path, n, sizeof(addr->sun_path) - 1);
    *addr = (struct sockaddr_un){.sun_family = AF_UNIX};
    memcpy(addr->sun_path, path, n + 1);
    return 0;
}

struct listener_options listener_options_of(const struct options *o, bool admins)
{
    if (admins)
        return (struct listener_options){o->admin_socket, (mode_t)o->admin_socket_mode,
                                         o->admin_group, "daemon.admin_group"};
    return (struct listener_options){o->socket, (mode_t)o->socket_mode, o->socket_group,
                                     "daemon.socket_group"};
}

int listener_open(struct listener **out, const struct listener_options *o, struct err *e)
{
    struct listener *l;
    int r = listener_new(&l, e);

    if (r < 0)
        return r;
    l->options = *o;
    r = take_path(&l->addr, o->path, e);
    snprintf(l->lock_path, sizeof(l->lock_path), "%s.lock", l->addr.sun_path);
    if (r < 0 || (r = rights_find_group(&l->gid, o->group, o->group_option, e)) < 0 ||
        (r = take_lock(l, e)) < 0 || (r = bind_path(l, e)) < 0)
        listener_free(l);
    else
        *out = l;
    return r;
}

static int check_folder(const char *path, struct err *e)
{
    char copy[PATH_MAX];
    const char *folder;
    struct stat st;

    snprintf(copy, sizeof(copy), "%s", path);
    folder = dirname(copy);
    if (stat(folder, &st) < 0)
        return errno == ENOENT ? err_set(e, -ENOENT, "%s: its folder does not exist", path)
                               : err_set(e, -errno, "%s: its folder: %s", path, strerror(errno));
    if (!S_ISDIR(st.st_mode))
        return err_set(e, -ENOTDIR, "%s: its parent is not a folder", path);
    if (faccessat(AT_FDCWD, folder, W_OK | X_OK, AT_EACCESS) < 0)
        return err_set(e, -errno, "%s: its folder: %s", path, strerror(errno));
    return 0;
}

static int check_group(const struct listener_options *o, struct err *e)
{
    gid_t gid = 0;
    int r = rights_find_group(&gid, o->group, o->group_option, e);

    if (r < 0 || !*o->group || geteuid() == 0 || getegid() == gid || group_member(gid))
        return r;
    return err_set(e, -EPERM, "%s: the user that runs nvllmd is not a member of %s",
                   o->group_option, o->group);
}

int listener_check_place(const struct listener_options *o, struct err *e)
{
    const int r = check_folder(o->path, e);

    return r < 0 ? r : check_group(o, e);
}

int listener_check(const struct listener_options *o, struct err *e)
{
    struct sockaddr_un addr;
    bool left;
    int r;

    if ((r = take_path(&addr, o->path, e)) < 0 || (r = listener_check_place(o, e)) < 0)
        return r;
    /* Last: a served socket is no fault of the rest. A connection would have systemd start it. */
    return look_at_path(&addr, SOCK_SEQPACKET, &left, e);
}

int listener_inherit(struct listener **out, struct err *e)
{
    int n = sd_listen_fds(1), fd = SD_LISTEN_FDS_START, flags, r;
    socklen_t len = sizeof((*out)->addr) - 1; /* the path keeps its NUL */

    *out = NULL;
    if (n == 0)
        return 0;
    if (n < 0)
        return err_set(e, n, "cannot take the socket from systemd: %s", strerror(-n));
    if (n != 1 || sd_is_socket(fd, AF_UNIX, SOCK_STREAM, 1) <= 0)
        return err_set(e, -EINVAL,
                       "systemd must pass one listening Unix stream socket (it passed %d)", n);
    flags = fcntl(fd, F_GETFL);
    if (flags < 0 || fcntl(fd, F_SETFL, flags | O_NONBLOCK) < 0)
        return err_set(e, -errno, "cannot take the socket from systemd: %s", strerror(errno));
    r = listener_new(out, e);
    if (r < 0)
        return r;
    (*out)->fd = fd;
    (void)getsockname(fd, (struct sockaddr *)&(*out)->addr, &len); /* else the path is "" */
    return 0;
}

static bool names_ours(const struct listener *l)
{
    struct stat st;

    return lstat(l->addr.sun_path, &st) == 0 && same_file(&st, &l->file);
}

static void remove_ours(struct listener *l)
{
    if (names_ours(l))
        unlink(l->addr.sun_path);
    l->file = (struct stat){0};
}

/* The lock counts only while its file is at its path: clearing the folder removes both. */
static int renew_lock(struct listener *l, struct err *e)
{
    int old = l->lock_fd, r;

    if (is_at(old, l->lock_path))
        return 0;
    r = take_lock(l, e);
    if (r == 0)
        close(old);
    return r;
}

bool listener_intact(const struct listener *l)
{
    return listener_inherited(l) || l->fd < 0 || names_ours(l);
}

bool listener_watch(const struct listener *l, int inotify)
{
    char folder[sizeof(l->addr.sun_path)];

    if (listener_inherited(l) || l->fd < 0)
        return true;
    snprintf(folder, sizeof(folder), "%s", l->addr.sun_path);
    /* A removal changes the number of its links. Files beside it would wake the daemon for nothing.
     */
    return inotify_add_watch(inotify, l->addr.sun_path, IN_ATTRIB | IN_MOVE_SELF) >= 0 &&
           inotify_add_watch(inotify, dirname(folder), IN_MOVE_SELF | IN_ONLYDIR) >= 0;
}

int listener_mend(struct listener *l, struct err *e)
{
    int old = l->fd, r;

    l->file = (struct stat){0};
    r = renew_lock(l, e);
    if (r == 0)
        r = bind_path(l, e);
    if (r == 0) {
        close(old);
        return 0;
    }
    remove_ours(l);
    if (l->fd != old && l->fd >= 0)
        close(l->fd);
    l->fd = old;
    return r;
}

bool listener_inherited(const struct listener *l)
{
    return l->lock_fd < 0;
}

int listener_fd(const struct listener *l)
{
    return l->fd;
}

const char *listener_path(const struct listener *l)
{
    return l->addr.sun_path;
}

void listener_stop(struct listener *l)
{
    remove_ours(l);
    if (l->fd >= 0)
        close(l->fd);
    l->fd = -1;
}

void listener_free(struct listener *l)
{
    if (!l)
        return;
    listener_stop(l);
    if (l->lock_fd >= 0) {
        unlink(l->lock_path); /* while it is locked: see take_lock */
        close(l->lock_fd);
    }
    free(l);
}
