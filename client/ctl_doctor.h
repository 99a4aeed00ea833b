/* ctl_doctor.h - what “nvllmctl doctor” has found, and the checks that find it.
 *
 * A check says what it sees and never changes anything. What a user may do is read from owner,
 * group and mode; access lists are not looked at. */
#ifndef NVLLM_CTL_DOCTOR_H
#define NVLLM_CTL_DOCTOR_H

#include <jansson.h>
#include <sys/stat.h>
#include <sys/types.h>

#include "client/ctl.h"

enum doctor_level { DOCTOR_GOOD, DOCTOR_NOTE, DOCTOR_WRONG };

/* Who the daemon is, or will be. */
struct doctor_user {
    char name[33];
    uid_t uid;
    gid_t *groups; /* [n_groups] */
    int n_groups;
};

struct doctor {
    struct ctl *ctl;
    bool json;
    json_t *findings;
    int n_wrong;
    bool is_running;  /* the daemon answers */
    bool not_running; /* what is wrong with the socket is that nobody listens, and that alone */
    const char *config;
    const char *given_model; /* by --model */
    char model[4096];        /* the folder; empty: nobody knows */
    struct doctor_user user;
    bool user_given;       /* by --user */
    uint64_t weight_bytes; /* of the model's files */
};

/* One finding: what it is about, and, where mend is not NULL, the command that mends it. */
__attribute__((format(printf, 5, 6))) void doctor_say(struct doctor *d, enum doctor_level level,
                                                      const char *about, const char *mend,
                                                      const char *fmt, ...);

/* Checks that each folder above path, and path itself, lets the user in; want is of R_OK, W_OK and
 * X_OK, of path itself. False, and said, when it does not. */
bool doctor_path(struct doctor *d, const char *about, const struct doctor_user *user,
                 const char *path, int want);

/* The socket, and whether a daemon answers at it. */
void doctor_socket(struct doctor *d);

/* The model's folder: which it is, and what is in it. */
void doctor_model(struct doctor *d);

/* Devices, memory and the kernel's limits. */
void doctor_host(struct doctor *d);

/* A user by name; false: there is none, and *user is as it was. groups are to be freed. */
bool doctor_find_user(struct doctor_user *user, const char *name);
bool doctor_in_group(const struct doctor_user *user, gid_t group);

#endif
