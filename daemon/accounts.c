/* accounts.c - see accounts.h. */
#include "daemon/accounts.h"

#include <errno.h>
#include <grp.h>
#include <limits.h>
#include <stdlib.h>
#include <unistd.h>

#include "engine/util/must.h"

static void must_be_zero(const struct account *one)
{
    for (int i = 0; i < N_ACCOUNT_ITEMS; i++)
        must(atomic_load(&one->amounts[i]) == 0);
}

void accounts_deinit(struct accounts *a)
{
    must(a->by_uid.n == 0); /* nobody refers to one */
    must_be_zero(&a->total);
    id_map_deinit(&a->by_uid);
}

struct account *account_get(struct accounts *a, uid_t uid)
{
    struct account *one = id_map_get(&a->by_uid, uid);

    if (!one) {
        one = calloc(1, sizeof(*one));
        if (!one)
            return NULL;
        one->all = a;
        one->uid = uid;
        list_init(&one->sessions);
        if (id_map_put(&a->by_uid, uid, one) < 0) {
            free(one);
            return NULL;
        }
    }
    one->refs++;
    return one;
}

void account_ref(struct account *one)
{
    must(one->refs > 0);
    one->refs++;
}

void account_unref(struct account *one)
{
    must(one->refs > 0);
    if (--one->refs)
        return;
    must_be_zero(one);
    must(id_map_take(&one->all->by_uid, one->uid) == one);
    free(one);
}

void account_add(struct account *one, enum account_item item, uint64_t n)
{
    atomic_fetch_add(&one->amounts[item], n);
    atomic_fetch_add(&one->all->total.amounts[item], n);
}

void account_sub(struct account *one, enum account_item item, uint64_t n)
{
    if (n == 0)
        return;
    must(atomic_fetch_sub(&one->all->total.amounts[item], n) >= n);
    must(atomic_fetch_sub(&one->amounts[item], n) >= n);
}

/* ---- rights */

int rights_find_group(gid_t *out, const char *group, const char *option, struct err *e)
{
    const struct group *g;

    if (!*group)
        return 0;
    errno = 0;
    g = getgrnam(group);
    if (!g)
        return err_set(e, errno ? -errno : -EINVAL, "%s: there is no group %s", option, group);
    *out = g->gr_gid;
    return 0;
}

int rights_init(struct rights *r, const char *group, struct err *e)
{
    *r = (struct rights){.own_uid = geteuid(), .has_group = *group};
    return rights_find_group(&r->group, group, "daemon.admin_group", e);
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
    static gid_t groups[NGROUPS_MAX]; /* too many for the stack */
    socklen_t bytes = sizeof(groups), len = sizeof(*peer);
    struct ucred who;

    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &who, &len) < 0)
        return -errno;
    if (!r->has_group || getsockopt(fd, SOL_SOCKET, SO_PEERGROUPS, groups, &bytes) < 0)
        bytes = 0;
    *peer = who;
    *admin = rights_is_admin(r, &who, groups, bytes / sizeof(*groups));
    return 0;
}
