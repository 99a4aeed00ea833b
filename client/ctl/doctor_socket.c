/* doctor_socket.c - the socket, its group, and whether a daemon answers. */
#include <errno.h>
#include <grp.h>
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "client/ctl/doctor.h"
#include "client/lib/clock.h"

enum {
    CONNECT_MS = 3000,
    FAIR_MS = 1000, /* a daemon with less time to answer is not called hanging */
};

#define ABOUT "socket"

/* The process has the groups of its login; the user may have joined others since. */
static bool process_in_group(gid_t group)
{
    struct doctor_user process = {.n_groups = getgroups(256, process.groups)};

    return doctor_in_group(&process, group) || getegid() == group;
}

static void explain_denied(struct doctor *d, const struct stat *st)
{
    const struct passwd *me = getpwuid(geteuid());
    const struct group *group = getgrgid(st->st_gid);
    const char *path = d->ctl->socket_path;
    struct doctor_user user = {0};
    const char *fix;

    if (!me || !group || !(st->st_mode & 020) || process_in_group(st->st_gid)) {
        fix = doctor_text(d, "%schmod o+w %s   # until the next start; see daemon.socket_mode",
                          doctor_sudo(st->st_uid), doctor_quote(d, path));
        doctor_say(d, DOCTOR_WRONG, ABOUT, fix, "%s: this user may not connect (mode %04o)", path,
                   (unsigned)st->st_mode & 07777);
        return;
    }
    if (doctor_find_user(&user, me->pw_name) && doctor_in_group(&user, st->st_gid))
        fix = doctor_text(d, "newgrp %s   # or log in again", group->gr_name);
    else
        fix = doctor_text(d, "%susermod -aG %s %s   # and log in again", doctor_sudo(0),
                          group->gr_name, me->pw_name);
    doctor_say(d, DOCTOR_WRONG, ABOUT, fix, "%s is for members of group %s", path, group->gr_name);
}

/* Nothing is there: the daemon was not started, or has no folder to create a socket in. */
static void say_none(struct doctor *d, const char *folder, int why)
{
    const struct passwd *me = getpwuid(geteuid());
    const char *fix = doctor_start(d);

    if (why == ENOENT && folder && access(folder, F_OK) < 0 && !doctor_has_service() && me)
        fix = doctor_text(d, "%sinstall -d -o %s -m 0755 %s && %s", doctor_sudo(0), me->pw_name,
                          doctor_quote(d, folder), fix);
    d->not_running = why == ENOENT;
    doctor_say(d, DOCTOR_WRONG, ABOUT, fix, "%s: %s; nvllmd creates it when it starts",
               d->ctl->socket_path, strerror(why));
}

/* True if there is a socket that may be connected to. */
static bool check_file(struct doctor *d)
{
    const size_t max = sizeof(((struct sockaddr_un *)NULL)->sun_path) - 1;
    const char *path = d->ctl->socket_path, *slash = strrchr(path, '/'), *folder = NULL;
    struct doctor_user me = {.uid = geteuid()};
    const struct passwd *found = getpwuid(me.uid);
    struct stat st;

    if (strlen(path) > max) {
        doctor_say(d, DOCTOR_WRONG, ABOUT, "export NVLLM_SOCKET=" NVLLM_DEFAULT_SOCKET,
                   "%s: the path of a socket has at most %zu bytes", path, max);
        return false;
    }
    if (slash && slash > path)
        folder = doctor_text(d, "%.*s", (int)(slash - path), path);
    if (folder && folder[0] == '/' && access(folder, F_OK) == 0 && found &&
        doctor_find_user(&me, found->pw_name) && !doctor_path(d, ABOUT, &me, folder, X_OK))
        return false;
    if (lstat(path, &st) < 0) {
        say_none(d, folder, errno);
        return false;
    }
    if (!S_ISSOCK(st.st_mode)) {
        doctor_say(d, DOCTOR_WRONG, ABOUT,
                   doctor_text(d, "%srm -d %s && %s", doctor_sudo(st.st_uid), doctor_quote(d, path),
                               doctor_start(d)),
                   "%s is no socket", path);
        return false;
    }
    if (access(path, W_OK) < 0) {
        explain_denied(d, &st);
        return false;
    }
    doctor_say(d, DOCTOR_OK, ABOUT, NULL, "%s (mode %04o)", path, (unsigned)st.st_mode & 07777);
    return true;
}

static void say_state(struct doctor *d, const struct nvllm_status *s)
{
    if (s->state == NVLLM_STATE_DRAINING)
        doctor_say(d, DOCTOR_NOTE, "daemon", doctor_ask(d, "resume"),
                   "%s is draining: it takes no new requests", s->server);
    else if (s->state == NVLLM_STATE_FAILED)
        doctor_say(d, DOCTOR_WRONG, "daemon", doctor_log(d), "%s has failed", s->server);
    else
        doctor_say(d, DOCTOR_OK, "daemon", NULL, "%s is %s: %s on %s", s->server,
                   nvllm_state_name(s->state), s->model, s->device[0] ? s->device : s->backend);
    if (strcmp(s->server, "nvllmd/" NVLLM_VERSION) != 0)
        doctor_say(d, DOCTOR_NOTE, "daemon", doctor_restart(d),
                   "%s answers, but this is nvllmctl " NVLLM_VERSION, s->server);
}

/* A file of a process in /proc, without the newline at its end; false if it cannot be read. */
static bool read_process(char *text, size_t n, pid_t pid, const char *what)
{
    char path[64];
    FILE *file;
    size_t k;

    snprintf(path, sizeof(path), "/proc/%d/%s", (int)pid, what);
    file = pid > 0 ? fopen(path, "re") : NULL;
    if (!file)
        return false;
    k = fread(text, 1, n - 1, file);
    fclose(file);
    text[k > 0 && text[k - 1] == '\n' ? k - 1 : k] = '\0';
    return k > 0;
}

/* systemd itself listens for the service until that is started. Where the process cannot be seen,
 * the socket's path decides. */
static bool is_other_process(const struct doctor *d, pid_t listener)
{
    char groups[4096];

    if (listener == 1)
        return false;
    if (!read_process(groups, sizeof(groups), listener, "cgroup"))
        return strcmp(d->ctl->socket_path, NVLLM_DEFAULT_SOCKET) != 0;
    return strstr(groups, "/nvllmd.service") == NULL;
}

/* The process that listens; pid 0 if unknown. */
static struct ucred listener_of(int fd)
{
    struct ucred who = {0};
    socklen_t n = sizeof(who);

    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &who, &n) < 0)
        who.pid = 0;
    return who;
}

/* The same at a socket that does not answer. */
static struct ucred find_listener(const char *path)
{
    struct sockaddr_un addr = {.sun_family = AF_UNIX};
    struct ucred who = {0};
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

    snprintf(addr.sun_path, sizeof(addr.sun_path), "%s", path);
    if (fd >= 0 && connect(fd, (const struct sockaddr *)&addr, sizeof(addr)) == 0)
        who = listener_of(fd);
    if (fd >= 0)
        close(fd);
    return who;
}

/* A daemon that hangs is not asked to stop, since it would not answer. Only a process that is known
 * to be nvllmd may be killed: anything may listen there. */
static void say_silent(struct doctor *d, const struct ucred *who, const char *text)
{
    char name[64];
    bool seen = read_process(name, sizeof(name), who->pid, "comm");
    const char *fix;

    if (doctor_is_service(d))
        fix = doctor_restart(d);
    else if (!seen || who->pid == 1) /* it may have exited, and left the socket to another */
        fix = doctor_text(d, "%sss -xlp | grep -F %s", doctor_sudo(0),
                          doctor_quote(d, d->ctl->socket_path));
    else if (strcmp(name, "nvllmd") == 0)
        fix = doctor_text(d, "%skill -KILL %d && %s", doctor_sudo(who->uid), (int)who->pid,
                          doctor_start(d));
    else
        fix = doctor_text(d, "ps -fp %d", (int)who->pid);
    doctor_say(d, DOCTOR_WRONG, "daemon", fix, "%s", text);
}

static void say_failure(struct doctor *d, const struct nvllm_client *client, int64_t asked_ms,
                        const struct nvllm_error *err)
{
    int64_t had_ms = clock_ms() - asked_ms;
    struct ucred who;

    if (err->code == NVLLM_E_NOT_RUNNING) {
        d->not_running = true;
        doctor_say(d, DOCTOR_WRONG, "daemon", doctor_start(d), "nobody listens at the socket");
        return;
    }
    d->is_running = true;
    if (err->code == NVLLM_E_TIMEOUT && had_ms < FAIR_MS) {
        doctor_say(d, DOCTOR_NOTE, "daemon", NULL,
                   "nvllmd had only %d ms to answer: give --timeout more", (int)had_ms);
        return;
    }
    who = client ? listener_of(nvllm_fd(client)) : find_listener(d->ctl->socket_path);
    d->not_service = is_other_process(d, who.pid);
    if (err->code == NVLLM_E_TIMEOUT)
        say_silent(d, &who, err->message);
    else
        doctor_say(d, DOCTOR_WRONG, "daemon", doctor_log(d), "%s", err->message);
}

/* The listening process is the model's user, unless it is systemd, which passes the socket on. */
static void take_listener(struct doctor *d, const struct ucred *who)
{
    const struct passwd *found;

    d->not_service = is_other_process(d, who->pid);
    if (d->user_given || who->pid <= 1)
        return;
    found = getpwuid(who->uid);
    if (found)
        doctor_find_user(&d->user, found->pw_name);
}

void doctor_socket(struct doctor *d)
{
    int left_ms = d->ctl->deadline < 0 ? CONNECT_MS : ctl_left_ms(d->ctl);
    int64_t asked_ms = clock_ms(), deadline = clock_deadline(left_ms);
    const struct nvllm_status *status;
    struct nvllm_client *client = NULL;
    struct nvllm_options options;
    struct nvllm_error err;
    struct ucred who;

    if (!check_file(d))
        return;
    nvllm_options_init(&options);
    options.socket_path = d->ctl->socket_path;
    options.name = "nvllmctl/" NVLLM_VERSION;
    options.timeout_ms = left_ms;
    if (nvllm_connect(&client, &options, &err) == NVLLM_OK &&
        nvllm_get_status(client, clock_left_ms(deadline), &status, &err) == NVLLM_OK) {
        d->is_running = true;
        d->model = doctor_text(d, "%s", status->model_folder);
        who = listener_of(nvllm_fd(client));
        take_listener(d, &who);
        say_state(d, status);
    } else {
        say_failure(d, client, asked_ms, &err);
    }
    nvllm_close(client);
}
