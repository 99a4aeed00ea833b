/* doctor_config.c - the daemon's configuration: “nvllmd check-config”, run with the rights of the
 * daemon's user, says whether it would start. */
#include <errno.h>
#include <grp.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "client/ctl/doctor.h"
#include "client/ctl/json.h"
#include "client/lib/clock.h"

#define ABOUT "config"

enum { CHECK_MS = 30000, MAX_OUTPUT_BYTES = 16 << 20 };

static bool try_program(struct doctor *d, const char *folder, const char *name)
{
    char real[PATH_MAX];
    struct stat st;

    if (!realpath(doctor_text(d, "%s/%s", folder, name), real) || stat(real, &st) < 0 ||
        !S_ISREG(st.st_mode) || access(real, X_OK) < 0)
        return false;
    d->nvllmd = doctor_text(d, "%s", real);
    return true;
}

/* Beside this program, as installed and as built, or in the PATH of the shell or of root. */
void doctor_find_program(struct doctor *d)
{
    const char *path = getenv("PATH");
    char own[PATH_MAX];
    ssize_t n = readlink("/proc/self/exe", own, sizeof(own) - 1);
    char *folder, *rest, *folders;

    own[n > 0 ? n : 0] = '\0';
    if (strrchr(own, '/'))
        *strrchr(own, '/') = '\0';
    if (n > 0 && (try_program(d, own, "nvllmd") || try_program(d, own, "../sbin/nvllmd") ||
                  try_program(d, own, "../daemon/nvllmd")))
        return;
    if (asprintf(&folders, "%s:/usr/local/sbin:/usr/sbin", path ? path : "") < 0)
        ctl_no_memory();
    rest = folders;
    while (!d->nvllmd && (folder = strsep(&rest, ":")) != NULL)
        if (folder[0] == '/')
            try_program(d, folder, "nvllmd");
    free(folders);
}

/* In the child, which drops root's rights: they would say nothing about the daemon's. */
static void become_user(const struct doctor_user *user)
{
    if (geteuid() != 0 || user->uid == 0)
        return;
    if (setgroups((size_t)user->n_groups, user->groups) < 0 ||
        setgid(user->n_groups > 0 ? user->groups[0] : (gid_t)-1) < 0 || setuid(user->uid) < 0)
        _exit(EXIT_ERROR);
}

/* Reads to the end; *late: that did not come in time. *text is to be freed. */
static bool read_in_time(int fd, int64_t deadline, char **text, size_t *n, bool *late)
{
    FILE *to = open_memstream(text, n);
    struct pollfd wait = {.fd = fd, .events = POLLIN};
    size_t total = 0;
    char part[4096];
    ssize_t k = -1;

    while (to && total <= MAX_OUTPUT_BYTES) {
        int r = poll(&wait, 1, clock_left_ms(deadline));

        *late = r == 0;
        k = r > 0 ? read(fd, part, sizeof(part)) : -1;
        if (k > 0)
            total += fwrite(part, 1, (size_t)k, to);
        else if (k == 0 || *late || errno != EINTR)
            break;
    }
    return to && fclose(to) == 0 && k == 0;
}

/* The JSON that nvllmd prints; NULL for anything else, or *late. */
static json_t *run_nvllmd(const struct doctor *d, const char *const *argv, bool *late)
{
    int64_t deadline = d->ctl->deadline < 0 ? clock_deadline(CHECK_MS) : d->ctl->deadline;
    struct nvllm_error err;
    json_t *found = NULL;
    char *text = NULL;
    int ends[2];
    pid_t child;
    size_t n;

    if (pipe(ends) < 0)
        return NULL;
    fflush(stdout);
    child = fork();
    if (child == 0) {
        dup2(ends[1], STDOUT_FILENO);
        close(ends[0]);
        close(ends[1]);
        become_user(&d->user);
        execv(d->nvllmd, (char *const *)argv);
        _exit(EXIT_ERROR);
    }
    close(ends[1]);
    if (child > 0 && read_in_time(ends[0], deadline, &text, &n, late))
        found = ctl_json_parse(text, n, &err);
    else if (child > 0)
        kill(child, SIGKILL);
    close(ends[0]);
    if (child > 0)
        waitpid(child, NULL, *late ? WNOHANG : 0); /* a dead file system blocks even SIGKILL */
    free(text);
    return found;
}

/* Neither root nor the daemon's user can tell what that user may do. */
static bool is_reliable(const struct doctor *d, const char *about)
{
    return geteuid() == 0 || geteuid() == d->user.uid || strcmp(about, "config") == 0 ||
           strcmp(about, "memory") == 0 || strcmp(about, "backend") == 0;
}

/* Adds one of nvllmd's findings; with its own path in the command, for a shell may not find it. */
static void say_finding(struct doctor *d, const char *about, const json_t *f)
{
    const char *level = json_string_value(json_object_get(f, "level"));
    const char *fix = json_string_value(json_object_get(f, "mend"));

    if (fix && strncmp(fix, "nvllmd ", 7) == 0)
        fix = doctor_text(d, "%s %s", doctor_quote(d, d->nvllmd), fix + 7);
    doctor_say(d,
               strcmp(level, "wrong") == 0  ? DOCTOR_WRONG
               : strcmp(level, "note") == 0 ? DOCTOR_NOTE
                                            : DOCTOR_OK,
               about, fix, "%s", json_string_value(json_object_get(f, "text")));
}

bool doctor_take_model(struct doctor *d)
{
    int before = d->n_wrong;
    const json_t *f;
    size_t i;

    json_array_foreach(d->of_model, i, f) say_finding(d, "model", f);
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
        const char *level = json_string_value(json_object_get(f, "level"));
        const char *about = json_string_value(json_object_get(f, "about"));
        const char *text = json_string_value(json_object_get(f, "text"));

        if (!level || !about || !text || !is_reliable(d, about))
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
        say_finding(d, about, f);
    }
}

static void compare_sockets(struct doctor *d, const char *configured)
{
    if (!configured || d->is_running || !d->has_config ||
        strcmp(configured, d->ctl->socket_path) == 0)
        return;
    doctor_say(d, DOCTOR_NOTE, "socket",
               doctor_text(d, "export NVLLM_SOCKET=%s", doctor_quote(d, configured)),
               "nvllmd is configured for %s, but %s was tried", configured, d->ctl->socket_path);
}

/* Whether the daemon's user and the caller, who runs nvllmd, may read the file. nvllmd reports a
 * missing one. */
static bool check_file(struct doctor *d)
{
    char *path = realpath(d->config, NULL);
    bool ok = true;

    if (!path && (errno != EACCES || d->config[0] != '/'))
        return true;
    ok = doctor_path(d, ABOUT, &d->user, path ? path : d->config, R_OK);
    if (ok && access(path, R_OK) < 0) {
        doctor_say(d, DOCTOR_NOTE, ABOUT, doctor_again(d), "user %u may not read %s",
                   (unsigned)geteuid(), path);
        ok = false;
    }
    free(path);
    return ok;
}

void doctor_config(struct doctor *d)
{
    const char *argv[9] = {"nvllmd", "check-config", "--json"};
    const char *model;
    bool late = false;
    json_t *found;
    int n = 3;

    if (!d->nvllmd) {
        doctor_say(d, DOCTOR_NOTE, ABOUT, NULL,
                   "nvllmd is not installed here, so %s cannot be checked", d->config);
        return;
    }
    if (!d->has_config && !d->given_model)
        return; /* the options are unknown */
    if (d->has_config && !check_file(d))
        return;
    argv[n++] = d->has_config ? "--config" : "--socket";
    argv[n++] = d->has_config ? d->config : d->ctl->socket_path;
    if (d->given_model) {
        argv[n++] = "--model";
        argv[n++] = d->given_model;
    }
    found = run_nvllmd(d, argv, &late);
    if (!json_is_object(found)) {
        doctor_say(d, DOCTOR_NOTE, ABOUT, NULL, "%s has not checked %s%s", d->nvllmd, d->config,
                   late ? " in time" : ": is it of another version?");
    } else {
        take_findings(d, json_object_get(found, "findings"));
        compare_sockets(d, json_string_value(json_object_get(found, "socket")));
        model = json_string_value(json_object_get(found, "model"));
        if (model && !d->is_running && !d->given_model)
            d->model = doctor_text(d, "%s", model);
    }
    json_decref(found);
}
