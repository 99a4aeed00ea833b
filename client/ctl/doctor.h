/* doctor.h - what “nvllmctl doctor” has found, and the checks that find it.
 *
 * A check says what it sees and never changes anything. What a user may do is read from owner,
 * group and mode; access lists are not looked at. */
#ifndef NVLLM_CLIENT_CTL_DOCTOR_H
#define NVLLM_CLIENT_CTL_DOCTOR_H

#include <jansson.h>
#include <sys/stat.h>
#include <sys/types.h>

#include "client/ctl/ctl.h"
#include "proto/program.h"

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
    bool by_hand;     /* who listens is not the service's daemon */
    const char *config;
    const char *given_config; /* by --config */
    bool has_config;          /* it was given, or is there */
    char nvllmd[4096];        /* the program; empty: it is not to be found */
    const char *given_model;  /* by --model */
    json_t *of_model;         /* what nvllmd says of the folder */
    char model[4096];         /* the folder; empty: nobody knows */
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

/* Which program the daemon is. */
void doctor_find_program(struct doctor *d);

/* The socket, and whether a daemon answers at it. */
void doctor_socket(struct doctor *d);

/* Whether the daemon would start as it is configured, and which model and socket it would have. */
void doctor_config(struct doctor *d);

/* Says what is wrong with the model in the eyes of nvllmd; true when nothing is. */
bool doctor_take_model(struct doctor *d);

/* The model's folder: which it is, and what is in it. */
void doctor_model(struct doctor *d);

/* Devices, memory and the kernel's limits. */
void doctor_host(struct doctor *d);

/* ---- commands that mend: whole, so that they can be pasted */

enum { DOCTOR_COMMAND = 16384 };

/* "sudo " where root's rights are needed to change what belongs to the owner. */
const char *doctor_sudo(uid_t owner);

/* Without the "sudo " that the command begins with, where one is root already. */
const char *doctor_as_root(const char *command);

/* Whether systemd runs here and knows the service. */
bool doctor_has_service(void);

/* The service's commands are of use: not to a daemon that somebody has started besides it. */
bool doctor_is_by_service(const struct doctor *d);

/* How the daemon is started, ended and begun anew here, and where it says what it does. */
const char *doctor_start(char out[DOCTOR_COMMAND], const struct doctor *d);
const char *doctor_restart(char out[DOCTOR_COMMAND], const struct doctor *d);
const char *doctor_log(char out[DOCTOR_COMMAND], const struct doctor *d);

/* "nvllmctl WORDS", of administrators: this very program, for root's shell need not find it; with
 * --socket, where the socket is not the usual one, and with sudo for who is neither root nor the
 * daemon's user. */
const char *doctor_ask(char out[DOCTOR_COMMAND], const struct doctor *d, const char *words);

/* This look again, with root's rights. */
const char *doctor_again(char out[DOCTOR_COMMAND], const struct doctor *d);

/* An editor on the configuration. */
const char *doctor_edit(char out[DOCTOR_COMMAND], const struct doctor *d);

/* A user by name; false: there is none, and *user is as it was. groups are to be freed. */
bool doctor_find_user(struct doctor_user *user, const char *name);
bool doctor_in_group(const struct doctor_user *user, gid_t group);

#endif
