/* doctor.h - what the files of “nvllmctl doctor” share: the state of a run, its findings, and the
 * checks. Everything is on one thread, and a run is the life of the program. */
#ifndef NVLLM_CLIENT_CTL_DOCTOR_H
#define NVLLM_CLIENT_CTL_DOCTOR_H

#include <jansson.h>
#include <obstack.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "client/ctl/ctl.h"

enum level { OK, NOTE, WRONG };

struct user {
    char name[33]; /* or the number */
    uid_t uid;
    gid_t groups[256]; /* [n_groups] */
    int n_groups;      /* 0: the user has no entry in the database */
};

struct doctor {
    struct ctl *ctl;
    const char *about; /* what is being checked */
    json_t *findings;  /* NULL: they are printed at once */
    int n_wrong;
    bool is_running;  /* the daemon answers */
    bool not_running; /* nobody listens at the socket, and nothing else is wrong with it */
    bool not_service; /* another process than the service listens */
    const char *config;
    bool has_config;         /* it was given, or exists */
    const char *own;         /* path of this program */
    const char *nvllmd;      /* path of the program; NULL: not found */
    const char *given_model; /* --model */
    json_t *of_model;        /* nvllmd's findings on the folder */
    const char *model;       /* the folder; NULL: unknown */
    struct user me;
    struct user user;      /* that the daemon runs as */
    uint64_t weight_bytes; /* of the model's files */
    struct obstack texts;  /* what doctor_format() and doctor_quote() give */
};

/* doctor.c */
/* Adds a finding on what is being checked and, unless NULL, the command that fixes it, which root
 * sees without “sudo ” at its beginning. True for OK. */
__attribute__((format(printf, 4, 5))) bool doctor_say(struct doctor *d, enum level level,
                                                      const char *fix, const char *fmt, ...);
/* These give a string that lasts as long as d: a formatted one, one quoted for a shell, the folder
 * of a path, and the commands to run this check again and to edit the configuration. */
__attribute__((format(printf, 2, 3))) const char *doctor_format(struct doctor *d, const char *fmt,
                                                                ...);
const char *doctor_quote(struct doctor *d, const char *text);
const char *doctor_folder_of(struct doctor *d, const char *path);
const char *doctor_again_command(struct doctor *d);
const char *doctor_edit_command(struct doctor *d);
/* Whether the user may enter each folder above path, and do `want`, as access(), with path. */
bool doctor_check_path(struct doctor *d, const struct user *user, const char *path, int want);
/* The first bytes of a file, without a newline at their end; false if it is unreadable or empty. */
bool doctor_read_start(char *text, size_t n, const char *path);

/* Whether the configuration is that of the service, and can be judged as systemd would start it. */
bool doctor_is_of_service(const struct doctor *d);

/* doctor_checks.c */
void doctor_check_config(struct doctor *d);
void doctor_check_model(struct doctor *d);
void doctor_check_devices(struct doctor *d);
void doctor_check_memory(struct doctor *d);
void doctor_check_limits(struct doctor *d);

#endif
