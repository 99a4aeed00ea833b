/* ctl_doctor_socket.c - the socket, its group, and whether a daemon answers. */
#include <errno.h>
#include <grp.h>
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "client/ctl_doctor.h"

enum { CONNECT_MS = 3000 };

#define ABOUT "socket"

/* The process has the groups of its login; the database may know more by now. */
static bool process_in_group(gid_t group)
{
    gid_t groups[256];
    int n = getgroups(256, groups);

    for (int i = 0; i < n; i++)
        if (groups[i] == group)
            return true;
    return getegid() == group;
}

static void explain_denied(struct doctor *d, const struct stat *st)
{
    const struct passwd *me = getpwuid(geteuid());
    const struct group *group = getgrgid(st->st_gid);
    const char *path = d->ctl->socket_path;
    struct doctor_user user = {0};
    char mend[DOCTOR_COMMAND], quoted[4 * 4096];

    if (!me || !group || !(st->st_mode & 020) || process_in_group(st->st_gid)) {
        snprintf(mend, sizeof(mend), "%schmod o+w %s   # until the next start: daemon.socket_mode",
                 doctor_sudo(st->st_uid), program_quote(quoted, sizeof(quoted), path));
        doctor_say(d, DOCTOR_WRONG, ABOUT, mend, "%s: this user may not connect (mode %04o)", path,
                   (unsigned)st->st_mode & 07777);
        return;
    }
    if (doctor_find_user(&user, me->pw_name) && doctor_in_group(&user, st->st_gid))
        snprintf(mend, sizeof(mend), "newgrp %s   # or log in anew", group->gr_name);
    else
        snprintf(mend, sizeof(mend), "%susermod -aG %s %s   # and log in anew", doctor_sudo(0),
                 group->gr_name, me->pw_name);
    doctor_say(d, DOCTOR_WRONG, ABOUT, mend, "%s is for members of group %s", path, group->gr_name);
    free(user.groups);
}

/* Nothing is there: nobody has started the daemon, or it has no folder to make a socket in. */
static void say_none(struct doctor *d, const char *folder, int why)
{
    char mend[DOCTOR_COMMAND], start[DOCTOR_COMMAND], quoted[4 * 1024];
    const struct passwd *me = getpwuid(geteuid());

    doctor_start(mend, d);
    if (why == ENOENT && folder[0] && access(folder, F_OK) < 0 && !doctor_has_service() && me)
        snprintf(mend, sizeof(mend), "%sinstall -d -o %s -m 0755 %s && %s", doctor_sudo(0),
                 me->pw_name, program_quote(quoted, sizeof(quoted), folder),
                 doctor_start(start, d));
    d->not_running = why == ENOENT;
    doctor_say(d, DOCTOR_WRONG, ABOUT, mend, "%s: %s; nvllmd makes it when it starts",
               d->ctl->socket_path, strerror(why));
}

/* True: there is a socket that may be connected to. */
static bool look_at_file(struct doctor *d)
{
    const char *path = d->ctl->socket_path;
    char mend[DOCTOR_COMMAND], start[DOCTOR_COMMAND], quoted[4 * 1024], folder[4096];
    struct doctor_user me = {.uid = geteuid()};
    const struct passwd *found = getpwuid(me.uid);
    char *slash;
    struct stat st;
    bool ok;

    if (strlen(path) >= sizeof(((struct sockaddr_un *)NULL)->sun_path)) {
        doctor_say(d, DOCTOR_WRONG, ABOUT, "export NVLLM_SOCKET=" NVLLM_DEFAULT_SOCKET,
                   "%s: a socket's path has at most %zu bytes", path,
                   sizeof(((struct sockaddr_un *)NULL)->sun_path) - 1);
        return false;
    }
    snprintf(folder, sizeof(folder), "%s", path);
    slash = strrchr(folder, '/');
    if (slash)
        *slash = '\0';
    if (slash && folder[0] == '/' && access(folder, F_OK) == 0 && found &&
        doctor_find_user(&me, found->pw_name)) {
        ok = doctor_path(d, ABOUT, &me, folder, 1);
        free(me.groups);
        if (!ok)
            return false;
    }
    if (lstat(path, &st) < 0) {
        say_none(d, slash ? folder : "", errno);
        return false;
    }
    if (!S_ISSOCK(st.st_mode)) {
        snprintf(mend, sizeof(mend), "%srm -d %s && %s", doctor_sudo(st.st_uid),
                 program_quote(quoted, sizeof(quoted), path), doctor_start(start, d));
        doctor_say(d, DOCTOR_WRONG, ABOUT, mend, "%s is no socket", path);
        return false;
    }
    if (access(path, W_OK) < 0) {
        explain_denied(d, &st);
        return false;
    }
    doctor_say(d, DOCTOR_GOOD, ABOUT, NULL, "%s (mode %04o)", path, (unsigned)st.st_mode & 07777);
    return true;
}

static void say_state(struct doctor *d, const struct nvllm_status *s)
{
    char mend[DOCTOR_COMMAND];

    if (s->state == NVLLM_STATE_DRAINING)
        doctor_say(d, DOCTOR_NOTE, "daemon", doctor_ask(mend, d, "resume"),
                   "%s takes no new requests: it drains", s->server);
    else if (s->state == NVLLM_STATE_FAILED)
        doctor_say(d, DOCTOR_WRONG, "daemon", doctor_log(mend, d), "%s has failed", s->server);
    else
        doctor_say(d, DOCTOR_GOOD, "daemon", NULL, "%s is %s: %s on %s", s->server,
                   nvllm_state_name(s->state), s->model, s->device[0] ? s->device : s->backend);
    if (strcmp(s->server, "nvllmd/" NVLLM_VERSION) != 0)
        doctor_say(d, DOCTOR_NOTE, "daemon", doctor_restart(mend, d),
                   "%s answers, and this is nvllmctl " NVLLM_VERSION, s->server);
}

/* Who listens is whom the model is for, unless that is systemd, which passes the socket on. */
static void take_listener(struct doctor *d, int fd)
{
    struct ucred who;
    socklen_t n = sizeof(who);
    struct doctor_user user = {0};
    const struct passwd *found;

    if (d->user_given || getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &who, &n) < 0 || who.pid <= 1)
        return;
    found = getpwuid(who.uid);
    if (found && doctor_find_user(&user, found->pw_name)) {
        free(d->user.groups);
        d->user = user;
    }
}

/* Who listens at a socket that does not answer; pid 0: nobody knows. */
static struct ucred find_listener(const char *path)
{
    struct sockaddr_un addr = {.sun_family = AF_UNIX};
    struct ucred who = {0};
    socklen_t n = sizeof(who);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

    snprintf(addr.sun_path, sizeof(addr.sun_path), "%s", path);
    if (fd < 0 || connect(fd, (const struct sockaddr *)&addr, sizeof(addr)) < 0 ||
        getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &who, &n) < 0)
        who.pid = 0;
    if (fd >= 0)
        close(fd);
    return who;
}

/* It is asked for nothing, not even to end: it would not answer. */
static void say_silent(struct doctor *d, const char *text)
{
    struct ucred who = find_listener(d->ctl->socket_path);
    char mend[DOCTOR_COMMAND], start[DOCTOR_COMMAND];

    if (doctor_has_service() || who.pid <= 1)
        doctor_restart(mend, d);
    else
        snprintf(mend, sizeof(mend), "%skill -KILL %d && %s", doctor_sudo(who.uid), (int)who.pid,
                 doctor_start(start, d));
    doctor_say(d, DOCTOR_WRONG, "daemon", mend, "%s", text);
}

void doctor_socket(struct doctor *d)
{
    const struct nvllm_status *status;
    struct nvllm_client *client = NULL;
    struct nvllm_options options;
    struct nvllm_error err;
    char mend[DOCTOR_COMMAND];

    if (!look_at_file(d))
        return;
    nvllm_options_init(&options);
    options.socket_path = d->ctl->socket_path;
    options.name = "nvllmctl/" NVLLM_VERSION;
    options.timeout_ms = d->ctl->deadline < 0 ? CONNECT_MS : ctl_left_ms(d->ctl);
    if (nvllm_connect(&client, &options, &err) == NVLLM_OK &&
        nvllm_get_status(client, options.timeout_ms, &status, &err) == NVLLM_OK) {
        d->is_running = true;
        snprintf(d->model, sizeof(d->model), "%s", status->model_folder);
        take_listener(d, nvllm_fd(client));
        say_state(d, status);
    } else if (err.code == NVLLM_E_NOT_RUNNING) {
        d->not_running = true;
        doctor_say(d, DOCTOR_WRONG, "daemon", doctor_start(mend, d),
                   "nobody listens at the socket");
    } else {
        d->is_running = true;
        if (err.code == NVLLM_E_TIMEOUT)
            say_silent(d, err.message);
        else
            doctor_say(d, DOCTOR_WRONG, "daemon", doctor_log(mend, d), "%s", err.message);
    }
    nvllm_close(client);
}
