/* rights.h - who connects, and whether that is an admin; session_ops.c says what admins may do.
 *
 * The kernel identifies a client when it connects; a later change of its groups counts from its
 * next connection. */
#ifndef NVLLM_DAEMON_RIGHTS_H
#define NVLLM_DAEMON_RIGHTS_H

#include <stdbool.h>
#include <sys/socket.h>
#include <sys/types.h>

#include "engine/util/err.h"

/* Admins: root, the daemon's own user, members of the group. */
struct rights {
    uid_t own_uid;
    bool has_group;
    gid_t group;
};

/* group is a name; "": none. -EINVAL where there is no such group. */
int rights_init(struct rights *r, const char *group, struct err *e);

bool rights_is_admin(const struct rights *r, const struct ucred *peer, const gid_t *groups,
                     size_t n_groups);

/* Identifies the peer of a connected socket. Negative errno. */
int rights_of_peer(const struct rights *r, int fd, struct ucred *peer, bool *admin);

#endif
