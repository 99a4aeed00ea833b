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

/* How the daemon is started here. */
static const char *start_command(char *out, size_t n, const struct doctor *d)
{
    if (access("/usr/lib/systemd/system/nvllmd.service", F_OK) == 0 ||
        access("/usr/local/lib/systemd/system/nvllmd.service", F_OK) == 0 ||
        access("/etc/systemd/system/nvllmd.service", F_OK) == 0)
        snprintf(out, n, "sudo systemctl start nvllmd");
    else
        snprintf(out, n, "nvllmd --model DIR --socket '%s'", d->ctl->socket_path);
    return out;
}

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
    char mend[200];

    if (!me || !group || !(st->st_mode & 020) || process_in_group(st->st_gid)) {
        doctor_say(d, DOCTOR_WRONG, ABOUT, "set daemon.socket_mode in nvllmd.conf",
                   "%s: this user may not connect (mode %04o)", path,
                   (unsigned)st->st_mode & 07777);
        return;
    }
    if (doctor_find_user(&user, me->pw_name) && doctor_in_group(&user, st->st_gid))
        snprintf(mend, sizeof(mend), "newgrp %s    (or log in anew)", group->gr_name);
    else
        snprintf(mend, sizeof(mend), "sudo usermod -aG %s %s    (and log in anew)", group->gr_name,
                 me->pw_name);
    doctor_say(d, DOCTOR_WRONG, ABOUT, mend, "%s is for members of group %s", path, group->gr_name);
    free(user.groups);
}

/* True: there is a socket that may be connected to. */
static bool look_at_file(struct doctor *d)
{
    const char *path = d->ctl->socket_path;
    char mend[4200], folder[4096];
    struct doctor_user me = {.uid = geteuid()};
    const struct passwd *found = getpwuid(me.uid);
    char *slash;
    struct stat st;
    bool ok;

    snprintf(folder, sizeof(folder), "%s", path);
    slash = strrchr(folder, '/');
    if (slash && slash != folder && path[0] == '/') {
        *slash = '\0';
        if (access(folder, F_OK) == 0 && found && doctor_find_user(&me, found->pw_name)) {
            ok = doctor_path(d, ABOUT, &me, folder, 1);
            free(me.groups);
            if (!ok)
                return false;
        }
    }
    if (lstat(path, &st) < 0) {
        int err = errno;

        d->not_running = err == ENOENT;
        doctor_say(d, DOCTOR_WRONG, ABOUT, start_command(mend, sizeof(mend), d),
                   "%s: %s; nvllmd makes it when it starts", path, strerror(err));
        return false;
    }
    if (!S_ISSOCK(st.st_mode)) {
        snprintf(mend, sizeof(mend), "rm '%s', and start nvllmd again", path);
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
    if (s->state == NVLLM_STATE_DRAINING)
        doctor_say(d, DOCTOR_NOTE, "daemon", "nvllmctl resume",
                   "%s takes no new requests: it drains", s->server);
    else if (s->state == NVLLM_STATE_FAILED)
        doctor_say(d, DOCTOR_WRONG, "daemon", "journalctl -u nvllmd -n 50", "%s has failed",
                   s->server);
    else
        doctor_say(d, DOCTOR_GOOD, "daemon", NULL, "%s is %s: %s on %s", s->server,
                   nvllm_state_name(s->state), s->model, s->device[0] ? s->device : s->backend);
    if (strcmp(s->server, "nvllmd/" NVLLM_VERSION) != 0)
        doctor_say(d, DOCTOR_NOTE, "daemon", "sudo systemctl restart nvllmd",
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

void doctor_socket(struct doctor *d)
{
    const struct nvllm_status *status;
    struct nvllm_client *client = NULL;
    struct nvllm_options options;
    struct nvllm_error err;
    char mend[4200];

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
        say_state(d, status);
        take_listener(d, nvllm_fd(client));
    } else if (err.code == NVLLM_E_NOT_RUNNING) {
        d->not_running = true;
        doctor_say(d, DOCTOR_WRONG, "daemon", start_command(mend, sizeof(mend), d),
                   "nobody listens at the socket");
    } else {
        d->is_running = true;
        doctor_say(d, DOCTOR_WRONG, "daemon", "journalctl -u nvllmd -n 50", "%s", err.message);
    }
    nvllm_close(client);
}
