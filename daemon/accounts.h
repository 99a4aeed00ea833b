/* accounts.h - users: what each, and all together, hold of the daemon, so that checking a limit is
 * one comparison; and whether one is an admin.
 *
 * An account lives while it is referred to, and must be at zero when it is freed. Loop thread only,
 * but amounts may be added and subtracted on any thread. */
#ifndef NVLLM_DAEMON_ACCOUNTS_H
#define NVLLM_DAEMON_ACCOUNTS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>
#include <sys/types.h>

#include "engine/util/err.h"
#include "engine/util/id_map.h"
#include "engine/util/list.h"

enum account_item {
    ACCOUNT_CONNECTIONS,
    ACCOUNT_REQUESTS,      /* without a terminal event */
    ACCOUNT_QUEUED_TOKENS, /* of prompts without a first event */
    ACCOUNT_INSPECTS,      /* inspect requests without a report */
    ACCOUNT_BUFFER_BYTES,  /* of incomplete frames and unread answers */
    ACCOUNT_REQUEST_BYTES, /* unpacked messages until the engine admits them, the engine's memory,
                            * answers included, until the end, and sessions to be written */
    ACCOUNT_SESSIONS,      /* of chats, see chat_session.h */
    ACCOUNT_SESSION_BYTES, /* of all these */
    N_ACCOUNT_ITEMS,
};

struct account {
    struct accounts *all;
    uid_t uid;
    uint32_t refs;
    atomic_uint_fast64_t amounts[N_ACCOUNT_ITEMS];
    struct list sessions;     /* struct chat_session */
    uint64_t round, round_us; /* the loop's time that its frames took in that round */
};

struct accounts {
    struct id_map by_uid;
    struct account total; /* of all users */
};

/* A zeroed struct has none. */
void accounts_deinit(struct accounts *a);

/* A reference to a user's account, which is made if needed. NULL: no memory. */
struct account *account_get(struct accounts *a, uid_t uid);
void account_ref(struct account *one);
void account_unref(struct account *one);

/* From any thread. */
void account_add(struct account *one, enum account_item item, uint64_t n);
void account_sub(struct account *one, enum account_item item, uint64_t n);

/* ---- rights
 * The kernel identifies a client when it connects; a later change of its groups counts from its
 * next connection. clients.c says what admins may do. */

/* Admins: root, the daemon's own user, members of the group. */
struct rights {
    uid_t own_uid;
    bool has_group;
    gid_t group;
};

/* The group of that name, the value of an option. Leaves *out as it is where group is "". */
int rights_find_group(gid_t *out, const char *group, const char *option, struct err *e);

/* group is a name; "": none. -EINVAL where there is no such group. */
int rights_init(struct rights *r, const char *group, struct err *e);

bool rights_is_admin(const struct rights *r, const struct ucred *peer, const gid_t *groups,
                     size_t n_groups);

/* Identifies the peer of a connected socket. Negative errno. */
int rights_of_peer(const struct rights *r, int fd, struct ucred *peer, bool *admin);

#endif
