/* rights.c - see rights.h. */
#include "daemon/rights.h"

#include <errno.h>
#include <grp.h>
#include <stdlib.h>
#include <unistd.h>

#define OP(name) NVLLM__V1__CLIENT_FRAME__OP_##name

/* Users may inspect and change their own objects; what concerns all is for admins. A pinned prefix
 * takes blocks from all. */
static const struct rights_row table[] = {
    {OP(HELLO), "hello", RIGHT_USER},
    {OP(GENERATE), "generate", RIGHT_USER},
    {OP(CANCEL), "cancel", RIGHT_OWNER},
    {OP(TOKENIZE), "tokenize", RIGHT_USER},
    {OP(DETOKENIZE), "detokenize", RIGHT_USER},
    {OP(RENDER), "render", RIGHT_USER},
    {OP(GET_STATUS), "get_status", RIGHT_USER},
    {OP(LIST_REQUESTS), "list_requests", RIGHT_USER},
    {OP(GET_BLOCKS), "get_blocks", RIGHT_USER},
    {OP(SHOW_CACHE), "show_cache", RIGHT_USER},
    {OP(CLEAR_CACHE), "clear_cache", RIGHT_USER},
    {OP(PIN_CACHE), "pin_cache", RIGHT_ADMIN},
    {OP(EXPLAIN), "explain", RIGHT_OWNER},
    {OP(DRAIN), "drain", RIGHT_ADMIN},
    {OP(RESUME), "resume", RIGHT_ADMIN},
    {OP(RELOAD), "reload", RIGHT_ADMIN},
    {OP(SET_LOG_LEVEL), "set_log_level", RIGHT_ADMIN},
    {OP(SHUTDOWN), "shutdown", RIGHT_ADMIN},
};

const struct rights_row *rights_row(Nvllm__V1__ClientFrame__OpCase op)
{
    for (size_t i = 0; i < sizeof(table) / sizeof(*table); i++)
        if (table[i].op == op)
            return &table[i];
    return NULL;
}

bool rights_allow(enum right right, bool admin, bool owner)
{
    switch (right) {
    case RIGHT_USER:
        return true;
    case RIGHT_OWNER:
        return owner || admin;
    case RIGHT_ADMIN:
        break;
    }
    return admin;
}

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
