/* doctor_config.c - the daemon's configuration: whether it would start with it, in the words of
 * nvllmd itself, which is run for that with the rights of its user. */
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

#include "client/lib/clock.h"
#include "client/ctl/doctor.h"
#include "client/ctl/json.h"

#define ABOUT "config"

enum { CHECK_MS = 30000, MAX_FOUND_BYTES = 16 << 20 };

static bool is_program(const char *path)
{
    struct stat st;

    return stat(path, &st) == 0 && S_ISREG(st.st_mode) && access(path, X_OK) == 0;
}

/* Beside this program, as installed and as built, or where the shell looks for it and where root's
 * would. */
void doctor_find_program(struct doctor *d)
{
    static const char *const beside[] = {"nvllmd", "../sbin/nvllmd", "../daemon/nvllmd"};
    const char *path = getenv("PATH");
    char own[PATH_MAX], folders[4096], try[PATH_MAX + 32];
    ssize_t n = readlink("/proc/self/exe", own, sizeof(own) - 1);
    char *folder, *rest = folders;

    own[n > 0 ? n : 0] = '\0';
    if (strrchr(own, '/'))
        *strrchr(own, '/') = '\0';
    for (size_t i = 0; n > 0 && i < sizeof(beside) / sizeof(beside[0]); i++) {
        snprintf(try, sizeof(try), "%s/%s", own, beside[i]);
        if (is_program(try) && realpath(try, d->nvllmd))
            return;
    }
    snprintf(folders, sizeof(folders), "%s:/usr/local/sbin:/usr/sbin", path ? path : "");
    while ((folder = strsep(&rest, ":")) != NULL) {
        snprintf(try, sizeof(try), "%s/nvllmd", folder);
        if (folder[0] == '/' && is_program(try) && realpath(try, d->nvllmd))
            return;
    }
    d->nvllmd[0] = '\0';
}

/* In the child, which must not keep root's rights: what root may do says nothing of the daemon. */
static void become_user(const struct doctor_user *user)
{
    if (geteuid() != 0 || user->uid == 0)
        return;
    if (setgroups((size_t)user->n_groups, user->groups) < 0 ||
        setgid(user->n_groups > 0 ? user->groups[0] : (gid_t)-1) < 0 || setuid(user->uid) < 0)
        _exit(EXIT_ERROR);
}

/* Reads to the end; *late: that has not come in time. *text is to be freed. */
static bool read_in_time(int fd, int64_t deadline, char **text, size_t *n, bool *late)
{
    FILE *to = open_memstream(text, n);
    struct pollfd wait = {.fd = fd, .events = POLLIN};
    size_t total = 0;
    char part[4096];
    ssize_t k = -1;

    while (to && total <= MAX_FOUND_BYTES) {
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

/* What it prints; NULL: nothing that is to be understood, or, *late, not in time. */
static json_t *run_program(const struct doctor *d, const char *const *argv, bool *late)
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
        waitpid(child, NULL, *late ? WNOHANG : 0); /* a dead file system holds even the killed */
    free(text);
    return found;
}

/* Of somebody else's daemon one sees what the file says, not what its user may do. */
static bool is_of_use(const struct doctor *d, const char *about)
{
    if (geteuid() == 0 || geteuid() == d->user.uid)
        return true;
    return strcmp(about, "config") == 0 || strcmp(about, "memory") == 0 ||
           strcmp(about, "backend") == 0;
}

/* The command as it can be pasted: with the program's path, which need not be where a shell looks.
 */
static const char *with_path(char out[DOCTOR_COMMAND], const struct doctor *d, const char *mend)
{
    char program[4 * 4096];

    if (!mend || strncmp(mend, "nvllmd ", 7) != 0)
        return mend;
    snprintf(out, DOCTOR_COMMAND, "%s %s", program_quote(program, sizeof(program), d->nvllmd),
             mend + 7);
    return out;
}

bool doctor_take_model(struct doctor *d)
{
    char mend[DOCTOR_COMMAND];
    int before = d->n_wrong;
    const json_t *f;
    size_t i;

    json_array_foreach(d->of_model, i, f)
    {
        const char *level = json_string_value(json_object_get(f, "level"));

        if (strcmp(level, "ok") != 0)
            doctor_say(d, strcmp(level, "note") == 0 ? DOCTOR_NOTE : DOCTOR_WRONG, "model",
                       with_path(mend, d, json_string_value(json_object_get(f, "mend"))), "%s",
                       json_string_value(json_object_get(f, "text")));
    }
    return d->n_wrong == before;
}

/* Of the socket that was asked at, that its folder is missing, or that something else is there. */
static bool is_of_asked(const struct doctor *d, const char *text)
{
    size_t n = strlen(d->ctl->socket_path);

    return strncmp(text, d->ctl->socket_path, n) == 0 &&
           (strstr(text + n, "folder does not exist") || strstr(text + n, "is no socket"));
}

/* All that is not well; of what is well the file alone, for the rest is looked at here, too. */
static void take_findings(struct doctor *d, json_t *findings)
{
    json_t *f;
    size_t i;

    json_array_foreach(findings, i, f)
    {
        const char *level = json_string_value(json_object_get(f, "level"));
        const char *about = json_string_value(json_object_get(f, "about"));
        const char *text = json_string_value(json_object_get(f, "text"));
        const char *mend = json_string_value(json_object_get(f, "mend"));

        if (!level || !about || !text || !is_of_use(d, about))
            continue;
        if (strcmp(about, "model") == 0) {
            json_array_append(d->of_model, f);
            continue;
        }
        if (!d->has_config && strcmp(about, "memory") != 0)
            continue; /* of options that nobody has set */
        if (!d->is_running && strcmp(about, "socket") == 0 && is_of_asked(d, text))
            continue; /* that is said already, with a command that mends both */
        if (mend && strncmp(mend, "sudo ", 5) == 0)
            mend = doctor_as_root(mend); /* its rights are less than ours may be */
        if (strcmp(level, "wrong") == 0)
            doctor_say(d, DOCTOR_WRONG, about, mend, "%s", text);
        else if (strcmp(level, "note") == 0)
            doctor_say(d, DOCTOR_NOTE, about, mend, "%s", text);
        else if (strcmp(level, "ok") == 0 && strcmp(about, "config") == 0)
            doctor_say(d, DOCTOR_GOOD, about, NULL, "%s", text);
    }
}

/* Who asks elsewhere than the daemon listens finds nobody. */
static void compare_sockets(struct doctor *d, const char *configured)
{
    char mend[4 * 4096], quoted[4 * 4096];

    if (d->is_running || !d->has_config || strcmp(configured, d->ctl->socket_path) == 0)
        return;
    snprintf(mend, sizeof(mend), "export NVLLM_SOCKET=%s",
             program_quote(quoted, sizeof(quoted) - 32, configured));
    doctor_say(d, DOCTOR_NOTE, "socket", mend, "nvllmd is configured for %s, and %s was asked",
               configured, d->ctl->socket_path);
}

/* Whether the file may be read: by the daemon's user, and by who calls, who is to ask nvllmd. What
 * is not there is for nvllmd to say. */
static bool check_file(struct doctor *d)
{
    char *path = realpath(d->config, NULL), mend[DOCTOR_COMMAND];
    bool ok = true;

    if (!path && (errno != EACCES || d->config[0] != '/'))
        return true;
    ok = doctor_path(d, ABOUT, &d->user, path ? path : d->config, 4);
    if (ok && access(path, R_OK) < 0) {
        doctor_say(d, DOCTOR_NOTE, ABOUT, doctor_again(mend, d), "%s is not for user %u to read",
                   path, (unsigned)geteuid());
        ok = false;
    }
    free(path);
    return ok;
}

void doctor_config(struct doctor *d)
{
    const char *argv[9] = {"nvllmd", "check-config", "--json"};
    const char *configured, *model;
    bool late = false;
    json_t *found;
    int n = 3;

    d->has_config = d->given_config || access(d->config, F_OK) == 0;
    if (!d->nvllmd[0]) {
        doctor_say(d, DOCTOR_NOTE, ABOUT, NULL,
                   "nvllmd is not installed here: nobody can say what is wrong with %s", d->config);
        return;
    }
    if (!d->has_config && !d->given_model)
        return; /* a daemon whose options nobody knows */
    if (d->has_config && !check_file(d))
        return;
    if (d->has_config) {
        argv[n++] = "--config";
        argv[n++] = d->config;
    } else {
        argv[n++] = "--socket";
        argv[n++] = d->ctl->socket_path;
    }
    if (d->given_model) {
        argv[n++] = "--model";
        argv[n++] = d->given_model;
    }
    found = run_program(d, argv, &late);
    if (late) {
        doctor_say(d, DOCTOR_NOTE, ABOUT, NULL, "%s has not said in time what is wrong with %s",
                   d->nvllmd, d->config);
    } else if (!json_is_object(found)) {
        doctor_say(d, DOCTOR_NOTE, ABOUT, NULL, "%s does not say what is wrong with %s: %s",
                   d->nvllmd, d->config, "is it of another version?");
    } else {
        take_findings(d, json_object_get(found, "findings"));
        configured = json_string_value(json_object_get(found, "socket"));
        model = json_string_value(json_object_get(found, "model"));
        if (configured)
            compare_sockets(d, configured);
        if (model && !d->is_running && !d->given_model)
            snprintf(d->model, sizeof(d->model), "%s", model);
    }
    json_decref(found);
}
