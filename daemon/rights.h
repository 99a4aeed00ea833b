/* rights.h - who may ask for what: one row for each operation of the protocol, and who is who.
 *
 * Who somebody is comes from the kernel, when a client connects: a later change of groups holds for
 * its next connection. */
#ifndef NVLLM_DAEMON_RIGHTS_H
#define NVLLM_DAEMON_RIGHTS_H

#include <stdbool.h>
#include <sys/socket.h>
#include <sys/types.h>

#include "engine/util/err.h"
#include "proto/nvllm.pb-c.h"

enum right {
    RIGHT_USER,  /* everybody who may connect, for what is their own; admins for all */
    RIGHT_OWNER, /* the user whose request it is about, and admins */
    RIGHT_ADMIN,
};

struct rights_row {
    Nvllm__V1__ClientFrame__OpCase op;
    const char *name; /* the protocol's: "drain" */
    enum right right;
};

/* The row of an operation; NULL for what is none. */
const struct rights_row *rights_row(Nvllm__V1__ClientFrame__OpCase op);

/* Whether somebody may. owner is asked for with RIGHT_OWNER alone. */
bool rights_allow(enum right right, bool admin, bool owner);

/* Who counts as admin: root, the daemon's own user, members of the group. */
struct rights {
    uid_t own_uid;
    bool has_group;
    gid_t group;
};

/* group is a name; "": none. -EINVAL where there is no such group. */
int rights_init(struct rights *r, const char *group, struct err *e);

bool rights_is_admin(const struct rights *r, const struct ucred *peer, const gid_t *groups,
                     size_t n_groups);

/* Who is at the other end of a connected socket. Negative errno. */
int rights_of_peer(const struct rights *r, int fd, struct ucred *peer, bool *admin);

#endif
