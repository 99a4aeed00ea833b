/* doctor_config.c - what “nvllmd check-config”, run with the rights of the daemon's user, finds. */
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <jansson.h>
#include <limits.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include "client/ctl/doctor.h"
#include "client/ctl/json.h"

enum { CHECK_MS = 30000 };

/* Beside this program, as installed and as built, or in the PATH of the shell or of root. */
void doctor_find_program(struct doctor *d)
{
    const char *path = getenv("PATH"), *own = doctor_folder_of(d, d->own);
    char *rest = (char *)doctor_format(d, "%s:%s/../sbin:%s/../daemon:%s:/usr/local/sbin:/usr/sbin",
                                       own, own, own, path ? path : "");
    char *folder, real[PATH_MAX];
    struct stat st;

    while (!d->nvllmd && (folder = strsep(&rest, ":")) != NULL)
        if (folder[0] == '/' && realpath(doctor_format(d, "%s/nvllmd", folder), real) &&
            stat(real, &st) == 0 && S_ISREG(st.st_mode) && access(real, X_OK) == 0)
            d->nvllmd = doctor_format(d, "%s", real);
}

/* In the child, which drops root's rights: they would say nothing about the daemon's. */
static void become_user(const struct user *user)
{
    if (geteuid() != 0 || user->uid == 0)
        return;
    if (setgroups((size_t)user->n_groups, user->groups) < 0 ||
        setgid(user->n_groups > 0 ? user->groups[0] : (gid_t)-1) < 0 || setuid(user->uid) < 0)
        _exit(EXIT_ERROR);
}

/* The JSON that nvllmd prints; NULL for anything else, or *late: its timer has ended it. */
static json_t *run_nvllmd(const struct doctor *d, const char *const *argv, bool *late)
{
    int ms = d->ctl->deadline == INT64_MAX ? CHECK_MS
                                           : ctl_left_ms(d->ctl) + 1; /* 0 would be no timer */
    const struct itimerval timer = {.it_value = {ms / 1000, ms % 1000 * 1000}};
    struct nvllm_error err;
    json_t *found = NULL;
    int ends[2], status;
    pid_t child;
    char *text;
    size_t n;

    if (pipe2(ends, O_CLOEXEC) < 0)
        return NULL;
    fflush(stdout);
    child = fork();
    if (child == 0) {
        dup2(ends[1], STDOUT_FILENO);
        become_user(&d->user);
        signal(SIGALRM, SIG_DFL);
        setitimer(ITIMER_REAL, &timer, NULL); /* exec keeps it */
        execv(d->nvllmd, (char *const *)argv);
        _exit(EXIT_ERROR);
    }
    close(ends[1]);
    if (child > 0) {
        text = ctl_read_all(ends[0], &n);
        waitpid(child, &status, 0);
        *late = WIFSIGNALED(status) && WTERMSIG(status) == SIGALRM;
        found = ctl_json_parse(text, n, &err);
        free(text);
    }
    close(ends[0]);
    return found;
}

/* Neither root nor the daemon's user can tell what that user may do. */
static bool is_reliable(const struct doctor *d, const char *about)
{
    return geteuid() == 0 || geteuid() == d->user.uid || strcmp(about, "config") == 0 ||
           strcmp(about, "memory") == 0 || strcmp(about, "backend") == 0;
}

/* Adds one of nvllmd's findings; with its own path in the command, for a shell may not find it. */
static void say_finding(struct doctor *d, json_t *f)
{
    const char *name, *about, *text, *fix = NULL;
    enum level level;

    json_unpack(f, "{sssssss?s}", "level", &name, "about", &about, "text", &text, "mend", &fix);
    level = strcmp(name, "wrong") == 0 ? WRONG : strcmp(name, "note") == 0 ? NOTE : OK;
    if (fix && strncmp(fix, "nvllmd ", 7) == 0)
        fix = doctor_format(d, "%s %s", doctor_quote(d, d->nvllmd), fix + 7);
    d->about = about;
    doctor_say(d, level, fix, "%s", text);
}

bool doctor_say_model_findings(struct doctor *d)
{
    int before = d->n_wrong;
    json_t *f;
    size_t i;

    json_array_foreach(d->of_model, i, f) say_finding(d, f);
    return d->n_wrong == before;
}

/* The missing folder, or other file, of the socket: reported already, with a command for both. */
static bool is_of_socket(const struct doctor *d, const char *text)
{
    size_t n = strlen(d->ctl->socket_path);

    return strncmp(text, d->ctl->socket_path, n) == 0 &&
           (strstr(text + n, "folder does not exist") || strstr(text + n, "is no socket"));
}

/* All findings but those that are ok, which are checked here, too; except for the file itself. */
static void take_findings(struct doctor *d, json_t *findings)
{
    json_t *f;
    size_t i;

    json_array_foreach(findings, i, f)
    {
        const char *level, *about, *text;

        if (json_unpack(f, "{ssssss}", "level", &level, "about", &about, "text", &text) < 0 ||
            !is_reliable(d, about))
            continue;
        if (strcmp(level, "ok") == 0 && strcmp(about, "config") != 0)
            continue;
        if (strcmp(about, "model") == 0) {
            json_array_append(d->of_model, f);
            continue;
        }
        if (!d->has_config && strcmp(about, "memory") != 0)
            continue; /* of default options */
        if (!d->is_running && strcmp(about, "socket") == 0 && is_of_socket(d, text))
            continue;
        say_finding(d, f);
    }
}

static void compare_sockets(struct doctor *d, const char *configured)
{
    if (!configured || d->is_running || !d->has_config ||
        strcmp(configured, d->ctl->socket_path) == 0)
        return;
    d->about = "socket";
    doctor_say(d, NOTE, doctor_format(d, "export NVLLM_SOCKET=%s", doctor_quote(d, configured)),
               "nvllmd is configured for %s, but %s was tried", configured, d->ctl->socket_path);
}

/* Whether the daemon's user and the caller may read the file. nvllmd reports a missing one. */
static bool check_config_file(struct doctor *d)
{
    char *path = realpath(d->config, NULL);
    bool ok = true;

    if (!path && (errno != EACCES || d->config[0] != '/'))
        return true;
    ok = doctor_check_path(d, &d->user, path ? path : d->config, R_OK);
    if (ok && access(path, R_OK) < 0)
        ok = doctor_say(d, NOTE, doctor_again_command(d), "user %u may not read %s",
                        (unsigned)geteuid(), path);
    free(path);
    return ok;
}

void doctor_check_config(struct doctor *d)
{
    const char *argv[9] = {"nvllmd", "check-config", "--json"};
    const char *model;
    bool late = false;
    json_t *found;
    int n = 3;

    if (!d->nvllmd) {
        doctor_say(d, NOTE, NULL, "nvllmd is not installed here, so %s cannot be checked",
                   d->config);
        return;
    }
    if (!d->has_config && !d->given_model)
        return; /* the options are unknown */
    if (d->has_config && !check_config_file(d))
        return;
    argv[n++] = d->has_config ? "--config" : "--socket";
    argv[n++] = d->has_config ? d->config : d->ctl->socket_path;
    if (d->given_model) {
        argv[n++] = "--model";
        argv[n++] = d->given_model;
    }
    found = run_nvllmd(d, argv, &late);
    if (!json_is_object(found)) {
        doctor_say(d, NOTE, NULL, "%s has not checked %s%s", d->nvllmd, d->config,
                   late ? " in time" : ": is it of another version?");
    } else {
        take_findings(d, json_object_get(found, "findings"));
        compare_sockets(d, json_string_value(json_object_get(found, "socket")));
        model = json_string_value(json_object_get(found, "model"));
        if (model && !d->is_running && !d->given_model)
            d->model = doctor_format(d, "%s", model);
    }
    json_decref(found);
}
