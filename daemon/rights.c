/* rights.c - see rights.h. */
#include "daemon/rights.h"

#include <errno.h>
#include <grp.h>
#include <stdlib.h>
#include <unistd.h>

int rights_init(struct rights *r, const char *group, struct err *e)
{
    struct group *g;

    *r = (struct rights){.own_uid = geteuid()};
    if (!*group)
        return 0;
    errno = 0;
    g = getgrnam(group);
    if (!g)
        return err_set(e, errno ? -errno : -EINVAL, "daemon.admin_group: no group %s", group);
    r->has_group = true;
    r->group = g->gr_gid;
    return 0;
}

bool rights_is_admin(const struct rights *r, const struct ucred *peer, const gid_t *groups,
                     size_t n_groups)
{
    if (peer->uid == 0 || peer->uid == r->own_uid)
        return true;
    if (!r->has_group)
        return false;
    if (peer->gid == r->group)
        return true;
    for (size_t i = 0; i < n_groups; i++)
        if (groups[i] == r->group)
            return true;
    return false;
}

int rights_of_peer(const struct rights *r, int fd, struct ucred *peer, bool *admin)
{
    struct ucred who;
    socklen_t len = sizeof(who);
    gid_t *groups = NULL;
    size_t n_groups = 0;
    int ret = 0;

    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &who, &len) < 0)
        return -errno;
    if (r->has_group) {
        len = 0; /* asks how many there are */
        if (getsockopt(fd, SOL_SOCKET, SO_PEERGROUPS, NULL, &len) < 0 && errno == ERANGE) {
            groups = malloc(len);
            if (!groups)
                return -ENOMEM;
            ret = getsockopt(fd, SOL_SOCKET, SO_PEERGROUPS, groups, &len) < 0 ? -errno : 0;
            n_groups = ret == 0 ? len / sizeof(*groups) : 0;
        }
    }
    if (ret == 0) {
        *peer = who;
        *admin = rights_is_admin(r, &who, groups, n_groups);
    }
    free(groups);
    return ret;
}
