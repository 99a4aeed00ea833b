/* doctor.h - what “nvllmctl doctor” has found, and the checks that find it.
 *
 * A check reports what it sees and never changes anything. Permissions are read from owner, group
 * and mode; access lists are ignored. Functions that give a string allocate it in struct doctor. */
#ifndef NVLLM_CLIENT_CTL_DOCTOR_H
#define NVLLM_CLIENT_CTL_DOCTOR_H

#include <jansson.h>
#include <obstack.h>
#include <sys/stat.h>
#include <sys/types.h>

#include "client/ctl/ctl.h"
#include "proto/program.h"

#define obstack_chunk_alloc malloc
#define obstack_chunk_free  free

enum doctor_level { DOCTOR_OK, DOCTOR_NOTE, DOCTOR_WRONG };

/* The user that the daemon runs as. */
struct doctor_user {
    char name[33];
    uid_t uid;
    gid_t groups[256]; /* [n_groups] */
    int n_groups;
};

struct doctor {
    struct ctl *ctl;
    bool json;
    json_t *findings;
    int n_wrong;
    bool is_running;  /* the daemon answers */
    bool not_running; /* nobody listens at the socket, and nothing else is wrong with it */
    bool not_service; /* another process than the service listens */
    const char *config;
    bool has_config;         /* it was given, or exists */
    const char *nvllmd;      /* path of the program; NULL: not found */
    const char *given_model; /* --model */
    json_t *of_model;        /* nvllmd's findings on the folder */
    const char *model;       /* the folder; NULL: unknown */
    struct doctor_user user;
    bool user_given;       /* --user */
    uint64_t weight_bytes; /* of the model's files */
    struct obstack texts;  /* what doctor_text() and doctor_quote() give */
};

/* Formats a string; quotes one for a shell. */
__attribute__((format(printf, 2, 3))) const char *doctor_text(struct doctor *d, const char *fmt,
                                                              ...);
const char *doctor_quote(struct doctor *d, const char *text);

/* Adds a finding: what it is about and, unless NULL, the command that fixes it, which root sees
 * without “sudo ” at its beginning. True for DOCTOR_OK. */
__attribute__((format(printf, 5, 6))) bool doctor_say(struct doctor *d, enum doctor_level level,
                                                      const char *about, const char *fix,
                                                      const char *fmt, ...);

/* Checks that the user may enter each folder above path and, of R_OK, W_OK and X_OK, do `want` with
 * path itself. False after a finding. */
bool doctor_path(struct doctor *d, const char *about, const struct doctor_user *user,
                 const char *path, int want);

/* ---- the checks, in their order */

void doctor_socket(struct doctor *d); /* the socket, and whether a daemon answers */
void doctor_model(struct doctor *d);  /* the model's folder and files */
void doctor_host(struct doctor *d);   /* devices, memory, limits of the kernel */

/* Adds nvllmd's findings on the model; true when none is wrong. */
bool doctor_take_model(struct doctor *d);

/* ---- commands that fix something, complete so that they can be pasted */

/* "sudo " if it takes root's rights to change what belongs to the owner. */
const char *doctor_sudo(uid_t owner);

bool doctor_has_service(void);                  /* systemd runs, and knows nvllmd.service */
bool doctor_is_service(const struct doctor *d); /* … and no other process listens */

const char *doctor_start(struct doctor *d);   /* start the daemon */
const char *doctor_restart(struct doctor *d); /* restart it */
const char *doctor_log(struct doctor *d);     /* see why it fails */
const char *doctor_edit(struct doctor *d);    /* edit its configuration */
const char *doctor_again(struct doctor *d);   /* run doctor again as root */

/* "nvllmctl WORDS" of an administrator, by the path of this program. */
const char *doctor_ask(struct doctor *d, const char *words);

/* A user by name; false if there is none. */
bool doctor_find_user(struct doctor_user *user, const char *name);
bool doctor_in_group(const struct doctor_user *user, gid_t group);

#endif
