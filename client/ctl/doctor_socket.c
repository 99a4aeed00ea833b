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

#include "client/lib/clock.h"
#include "client/ctl/doctor.h"

enum {
    CONNECT_MS = 3000,
    FAIR_MS = 1000, /* who has had less to answer is not called silent */
};

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

/* What /proc has of a process, of one line without its end; false: that is not to be known. */
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

/* systemd itself listens for the service until that is started; of whom nothing is to be seen, the
 * socket must tell. */
static bool is_by_hand(const struct doctor *d, pid_t listener)
{
    char groups[4096];

    if (listener == 1)
        return false;
    if (!read_process(groups, sizeof(groups), listener, "cgroup"))
        return strcmp(d->ctl->socket_path, NVLLM_DEFAULT_SOCKET) != 0;
    return strstr(groups, "/nvllmd.service") == NULL;
}

/* Who listens; pid 0: nobody knows. */
static struct ucred listener_of(int fd)
{
    struct ucred who = {0};
    socklen_t n = sizeof(who);

    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &who, &n) < 0)
        who.pid = 0;
    return who;
}

/* At a socket that does not answer. */
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

/* Who listens is whom the model is for, unless that is systemd, which passes the socket on. */
static void take_listener(struct doctor *d, const struct ucred *who)
{
    struct doctor_user user = {0};
    const struct passwd *found;

    if (d->user_given || who->pid <= 1)
        return;
    found = getpwuid(who->uid);
    if (found && doctor_find_user(&user, found->pw_name)) {
        free(d->user.groups);
        d->user = user;
    }
}

/* It is asked for nothing, not even to end: it would not answer. Only what is surely nvllmd is to
 * be killed, for anything may listen there. */
static void say_silent(struct doctor *d, const struct ucred *who, const char *text)
{
    char mend[DOCTOR_COMMAND], start[DOCTOR_COMMAND], quoted[4 * 1024], name[64];
    bool seen = read_process(name, sizeof(name), who->pid, "comm");

    if (doctor_is_by_service(d))
        doctor_restart(mend, d);
    else if (!seen || who->pid == 1) /* it may have ended, and left the socket to another */
        snprintf(mend, sizeof(mend), "%sss -xlp | grep -F %s", doctor_sudo(0),
                 program_quote(quoted, sizeof(quoted), d->ctl->socket_path));
    else if (strcmp(name, "nvllmd") == 0)
        snprintf(mend, sizeof(mend), "%skill -KILL %d && %s", doctor_sudo(who->uid), (int)who->pid,
                 doctor_start(start, d));
    else
        snprintf(mend, sizeof(mend), "ps -fp %d", (int)who->pid);
    doctor_say(d, DOCTOR_WRONG, "daemon", mend, "%s", text);
}

/* Nobody may ask for longer than --timeout, and a daemon that does well takes its time, too. */
static int left_ms(const struct doctor *d)
{
    return d->ctl->deadline < 0 ? CONNECT_MS : ctl_left_ms(d->ctl);
}

static void say_failure(struct doctor *d, const struct nvllm_client *client, int64_t asked_ms,
                        const struct nvllm_error *err)
{
    int64_t had_ms = clock_ms() - asked_ms;
    char mend[DOCTOR_COMMAND];
    struct ucred who;

    if (err->code == NVLLM_E_NOT_RUNNING) {
        d->not_running = true;
        doctor_say(d, DOCTOR_WRONG, "daemon", doctor_start(mend, d),
                   "nobody listens at the socket");
        return;
    }
    d->is_running = true;
    if (err->code == NVLLM_E_TIMEOUT && had_ms < FAIR_MS) {
        doctor_say(d, DOCTOR_NOTE, "daemon", NULL,
                   "nvllmd has had %d ms to answer, too few to judge by: give --timeout more",
                   (int)had_ms);
        return;
    }
    who = client ? listener_of(nvllm_fd(client)) : find_listener(d->ctl->socket_path);
    d->by_hand = is_by_hand(d, who.pid);
    if (err->code == NVLLM_E_TIMEOUT)
        say_silent(d, &who, err->message);
    else
        doctor_say(d, DOCTOR_WRONG, "daemon", doctor_log(mend, d), "%s", err->message);
}

void doctor_socket(struct doctor *d)
{
    const struct nvllm_status *status;
    struct nvllm_client *client = NULL;
    struct nvllm_options options;
    struct nvllm_error err;
    struct ucred who;
    int64_t asked_ms;

    if (!look_at_file(d))
        return;
    nvllm_options_init(&options);
    options.socket_path = d->ctl->socket_path;
    options.name = "nvllmctl/" NVLLM_VERSION;
    options.timeout_ms = left_ms(d);
    asked_ms = clock_ms();
    if (nvllm_connect(&client, &options, &err) == NVLLM_OK &&
        nvllm_get_status(client, left_ms(d), &status, &err) == NVLLM_OK) {
        d->is_running = true;
        snprintf(d->model, sizeof(d->model), "%s", status->model_folder);
        who = listener_of(nvllm_fd(client));
        d->by_hand = is_by_hand(d, who.pid);
        take_listener(d, &who);
        say_state(d, status);
    } else {
        say_failure(d, client, asked_ms, &err);
    }
    nvllm_close(client);
}
