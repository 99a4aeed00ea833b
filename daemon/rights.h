/* rights.h - who may call which operation: one row for each, and how a client is identified.
 *
 * The kernel identifies a client when it connects; a later change of its groups counts from its
 * next connection. */
#ifndef NVLLM_DAEMON_RIGHTS_H
#define NVLLM_DAEMON_RIGHTS_H

#include <stdbool.h>
#include <sys/socket.h>
#include <sys/types.h>

#include "engine/util/err.h"
#include "proto/nvllm.pb-c.h"

enum right {
    RIGHT_USER,  /* all users, for their own objects; admins for all objects */
    RIGHT_OWNER, /* the user who owns the request, and admins */
    RIGHT_ADMIN,
};

struct rights_row {
    Nvllm__V1__ClientFrame__OpCase op;
    const char *name; /* the protocol's: "drain" */
    enum right right;
};

/* The row of an operation, or NULL. */
const struct rights_row *rights_row(Nvllm__V1__ClientFrame__OpCase op);

/* Whether a client has the right. owner counts with RIGHT_OWNER only. */
bool rights_allow(enum right right, bool admin, bool owner);

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
