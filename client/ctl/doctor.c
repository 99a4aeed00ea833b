/* doctor.c - nvllmctl doctor: finds what is broken, and the command that fixes it.
 *
 * It checks the socket, the folders and files of the model and the host itself; “nvllmd
 * check-config”, run with the rights of its user, and for root in the service's sandbox, says
 * whether nvllmd would start. A check changes nothing. Permissions are read from owner, group and
 * mode; access lists are ignored. */
#include <errno.h>
#include <grp.h>
#include <libgen.h>
#include <limits.h>
#include <pwd.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "client/ctl/doctor.h"
#include "client/ctl/json.h"
#include "client/ctl/show.h"
#include "client/lib/clock.h"
#include "proto/program.h"

#define SERVICE_USER  "nvllm"
#define BUNDLED_MODEL NVLLM_MODELS_DIR "/nvllm-tiny"

enum {
    CONNECT_MS = 3000,
    FAIR_MS = 1000, /* a daemon with less time to answer is not called hanging */
};

#define obstack_chunk_alloc malloc
#define obstack_chunk_free  free

static const struct {
    const char *name, *colour;
} levels[] = {
    [OK] = {"ok", COLOUR_GREEN},
    [NOTE] = {"note", COLOUR_YELLOW},
    [WRONG] = {"wrong", COLOUR_RED},
};

__attribute__((format(printf, 2, 0))) static const char *vformat(struct doctor *d, const char *fmt,
                                                                 va_list args)
{
    obstack_vprintf(&d->texts, fmt, args);
    obstack_1grow(&d->texts, '\0');
    return obstack_finish(&d->texts);
}

const char *doctor_format(struct doctor *d, const char *fmt, ...)
{
    const char *text;
    va_list args;

    va_start(args, fmt);
    text = vformat(d, fmt, args);
    va_end(args);
    return text;
}

const char *doctor_quote(struct doctor *d, const char *text)
{
    size_t n = 4 * strlen(text) + 3;

    return program_quote(obstack_alloc(&d->texts, n), n, text);
}

const char *doctor_folder_of(struct doctor *d, const char *path)
{
    return dirname((char *)doctor_format(d, "%s", path));
}

bool doctor_say(struct doctor *d, enum level level, const char *fix, const char *fmt, ...)
{
    const char *text;
    va_list args;

    va_start(args, fmt);
    text = vformat(d, fmt, args);
    va_end(args);
    d->n_wrong += level == WRONG;
    if (fix && geteuid() == 0 && strncmp(fix, "sudo ", 5) == 0)
        fix += 5;
    if (d->findings) {
        json_array_append_new(d->findings,
                              json_pack("{ssssso so*}", "level", levels[level].name, "about",
                                        d->about, "text", ctl_json_text(nvllm_str(text)), "fix",
                                        fix ? ctl_json_text(nvllm_str(fix)) : NULL));
    } else {
        printf("%s%-5s%s  %-7s  ", show_colour(STDOUT_FILENO, levels[level].colour),
               levels[level].name, show_colour(STDOUT_FILENO, COLOUR_END), d->about);
        ctl_put_line(stdout, text, 0);
        putchar('\n');
        if (fix && !program_has_control(fix))
            printf("%16s%s\n", "", fix);
    }
    return level == OK;
}

/* ---- commands that fix something, complete so that they can be pasted */

/* "sudo " if it takes root's rights to change what belongs to the owner. */
static const char *sudo_for(uid_t owner)
{
    return geteuid() == 0 || geteuid() == owner ? "" : "sudo ";
}

/* systemd knows the service, and no other process listens. */
static bool is_service(const struct doctor *d)
{
    return program_has_service() && !d->not_service;
}

bool doctor_is_of_service(const struct doctor *d)
{
    return geteuid() == 0 && is_service(d) && !ctl_option(d->ctl, "user") && !d->given_model &&
           strcmp(d->config, NVLLM_CONFIG_DIR "/nvllmd.conf") == 0;
}

/* NULL: no model is known that nvllmd could be started with. */
static const char *start_command(struct doctor *d)
{
    const char *program = d->nvllmd ? doctor_quote(d, d->nvllmd) : "nvllmd";
    const char *socket = doctor_quote(d, d->ctl->socket_path);
    const char *model = d->given_model ? d->given_model : d->model;

    if (is_service(d))
        return doctor_format(d, "%ssystemctl start nvllmd", sudo_for(0));
    if (!d->given_model && access(d->config, R_OK) == 0)
        return doctor_format(d, "%s --config %s --socket %s", program, doctor_quote(d, d->config),
                             socket);
    if (!model && access(BUNDLED_MODEL, F_OK) == 0)
        model = BUNDLED_MODEL;
    if (!model)
        return NULL;
    return doctor_format(d, "%s --model %s --socket %s", program, doctor_quote(d, model), socket);
}

/* The command, and another start after it where one is known. */
static const char *and_start(struct doctor *d, const char *command)
{
    const char *start = start_command(d);

    return start ? doctor_format(d, "%s && %s", command, start) : command;
}

/* "nvllmctl WORDS", by the path of this program, with --socket unless that is the default. */
static const char *own_command(struct doctor *d, const char *sudo, const char *words)
{
    const char *path = d->ctl->socket_path;
    const char *option = strcmp(path, NVLLM_DEFAULT_SOCKET) != 0 ? " --socket " : "";

    return doctor_format(d, "%s%s%s%s %s", sudo, doctor_quote(d, d->own), option,
                         *option ? doctor_quote(d, path) : "", words);
}

const char *doctor_again_command(struct doctor *d)
{
    static const char *const options[] = {"config", "model", "user"};
    const char *command = own_command(d, sudo_for(0), "doctor");

    for (size_t i = 0; i < sizeof(options) / sizeof(options[0]); i++) {
        const char *value = ctl_option(d->ctl, options[i]);

        if (value)
            command = doctor_format(d, "%s --%s %s", command, options[i], doctor_quote(d, value));
    }
    return command;
}

static const char *restart_command(struct doctor *d)
{
    if (is_service(d))
        return "sudo systemctl restart nvllmd";
    return and_start(d, own_command(d, sudo_for(d->user.uid), "stop --wait"));
}

static const char *log_command(struct doctor *d)
{
    if (is_service(d))
        return "sudo journalctl -u nvllmd -n 50";
    if (!d->nvllmd || access(d->config, R_OK) != 0)
        return restart_command(d);
    return doctor_format(d, "%s check-config --config %s", doctor_quote(d, d->nvllmd),
                         doctor_quote(d, d->config));
}

const char *doctor_edit_command(struct doctor *d)
{
    return doctor_format(d, "%s${EDITOR:-vi} %s", access(d->config, W_OK) == 0 ? "" : "sudo ",
                         doctor_quote(d, d->config));
}

/* ---- users and paths */

/* Fills *user from an entry of the database; false for NULL. */
static bool take_user(struct user *user, const struct passwd *entry)
{
    int n = sizeof(user->groups) / sizeof(user->groups[0]);

    if (!entry)
        return false;
    snprintf(user->name, sizeof(user->name), "%s", entry->pw_name);
    user->uid = entry->pw_uid;
    user->n_groups = n;
    if (getgrouplist(entry->pw_name, entry->pw_gid, user->groups, &n) >= 0)
        user->n_groups = n;
    return true;
}

static bool is_in_group(const struct user *user, gid_t group)
{
    for (int i = 0; i < user->n_groups; i++)
        if (user->groups[i] == group)
            return true;
    return false;
}

/* What cannot be looked at: because of permissions, or because it does not exist. False. */
static bool say_missing(struct doctor *d, const struct user *user, const char *part, int why)
{
    bool denied = why == EACCES;
    const char *fix =
        denied ? doctor_again_command(d)
               : doctor_format(d, "ls -la %s", doctor_quote(d, doctor_folder_of(d, part)));

    return doctor_say(d, denied && user->uid != geteuid() ? NOTE : WRONG, fix, "%s: %s", part,
                      strerror(why));
}

bool doctor_check_path(struct doctor *d, const struct user *user, const char *path, int want)
{
    size_t n = strlen(path);

    if (path[0] != '/')
        return doctor_say(d, WRONG, doctor_edit_command(d), "%s is not an absolute path", path);
    for (size_t at = 0, end; at < n; at = end) {
        const char *part;
        unsigned bits = 1;
        struct stat st;
        int class;

        end = at + 1 + strcspn(path + at + 1, "/");
        part = doctor_format(d, "%.*s", (int)end, path);
        if (end == n)
            bits = (unsigned)want;
        if (stat(part, &st) < 0) /* ENOTDIR: what is above it is not a folder */
            return say_missing(d, user, part, errno);
        class = user->uid == st.st_uid ? 0 : is_in_group(user, st.st_gid) ? 1 : 2;
        if (user->uid == 0 || ((st.st_mode >> (6 - 3 * class)) & bits) == bits)
            continue;
        return doctor_say(d, WRONG,
                          doctor_format(d, "%schmod %c+%s%s%s %s", sudo_for(st.st_uid),
                                        "ugo"[class], bits & 4 ? "r" : "", bits & 2 ? "w" : "",
                                        bits & 1 ? "x" : "", doctor_quote(d, part)),
                          "user %s may not %s %s (mode %04o)", user->name,
                          bits & 2   ? "write to"
                          : bits & 4 ? "read"
                                     : "enter",
                          part, (unsigned)st.st_mode & 07777);
    }
    return true;
}

bool doctor_read_start(char *text, size_t n, const char *path)
{
    FILE *file = fopen(path, "re");
    size_t k = file ? fread(text, 1, n - 1, file) : 0;

    if (file)
        fclose(file);
    text[k > 0 && text[k - 1] == '\n' ? k - 1 : k] = '\0';
    return k > 0;
}

/* ---- the socket */

static bool explain_denied(struct doctor *d, const struct stat *st)
{
    const struct group *group = getgrgid(st->st_gid);
    const char *path = d->ctl->socket_path, *fix;

    /* The process has the groups of its login; the user may have joined others since. */
    if (d->me.n_groups == 0 || !group || !(st->st_mode & 020) || group_member(st->st_gid) ||
        getegid() == st->st_gid) {
        fix = doctor_format(d, "%schmod o+w %s   # until the next start; see daemon.socket_mode",
                            sudo_for(st->st_uid), doctor_quote(d, path));
        return doctor_say(d, WRONG, fix, "%s: this user may not connect (mode %04o)", path,
                          (unsigned)st->st_mode & 07777);
    }
    if (is_in_group(&d->me, st->st_gid))
        fix = doctor_format(d, "newgrp %s   # or log in again", group->gr_name);
    else
        fix = doctor_format(d, "sudo usermod -aG %s %s   # and log in again", group->gr_name,
                            d->me.name);
    return doctor_say(d, WRONG, fix, "%s: only group %s may connect", path, group->gr_name);
}

/* What the user has to add where no command can say it all. */
static const char *start_advice(struct doctor *d)
{
    return start_command(d) ? "" : ": start it with --socket, and a model folder for --model";
}

/* Nothing is there: the daemon was not started, or has no folder to create a socket in. */
static bool say_none(struct doctor *d, const char *folder, int why)
{
    const char *fix = start_command(d);

    if (why == ENOENT && access(folder, F_OK) < 0 && !program_has_service())
        fix = and_start(d, doctor_format(d, "sudo install -d -o %s -m 0755 %s", d->me.name,
                                         doctor_quote(d, folder)));
    d->not_running = why == ENOENT;
    return doctor_say(d, WRONG, fix, "%s: %s; nvllmd creates it when it starts%s",
                      d->ctl->socket_path, strerror(why), start_advice(d));
}

/* Root may enter every folder; whether others may, whom the socket's mode admits, is a question of
 * its own. True: they may not, which may be on purpose. */
static bool say_out_of_reach(struct doctor *d, const struct stat *of_socket)
{
    const char *folder = d->ctl->socket_path;
    struct stat st;

    if (geteuid() != 0 || !(of_socket->st_mode & S_IWOTH))
        return false;
    do {
        folder = doctor_folder_of(d, folder);
        if (stat(folder, &st) == 0 && !(st.st_mode & S_IXOTH)) {
            doctor_say(d, NOTE, doctor_format(d, "chmod o+x %s", doctor_quote(d, folder)),
                       "%s (mode %04o) is for all users, but they may not enter %s (mode %04o)",
                       d->ctl->socket_path, (unsigned)of_socket->st_mode & 07777, folder,
                       (unsigned)st.st_mode & 07777);
            return true;
        }
    } while (strcmp(folder, "/") != 0 && strcmp(folder, ".") != 0);
    return false;
}

/* True if there is a socket that may be connected to. */
static bool check_socket_file(struct doctor *d)
{
    const size_t max = sizeof(((struct sockaddr_un *)NULL)->sun_path) - 1;
    const char *path = d->ctl->socket_path, *folder = doctor_folder_of(d, path), *fix;
    struct stat st;

    if (strlen(path) > max)
        return doctor_say(d, WRONG, "export NVLLM_SOCKET=" NVLLM_DEFAULT_SOCKET,
                          "%s: the path of a socket has at most %zu bytes", path, max);
    if (folder[0] == '/' && (access(folder, F_OK) == 0 || errno == EACCES) && d->me.n_groups > 0 &&
        !doctor_check_path(d, &d->me, folder, X_OK))
        return false;
    if (lstat(path, &st) < 0)
        return say_none(d, folder, errno);
    fix = and_start(d, doctor_format(d, "%srm -d %s", sudo_for(st.st_uid), doctor_quote(d, path)));
    if (!S_ISSOCK(st.st_mode))
        return doctor_say(d, WRONG, fix, "%s is not a socket", path);
    if (access(path, W_OK) < 0)
        return explain_denied(d, &st);
    if (say_out_of_reach(d, &st))
        return true;
    return doctor_say(d, OK, NULL, "%s (mode %04o)", path, (unsigned)st.st_mode & 07777);
}

static void say_state(struct doctor *d, const struct nvllm_status *s)
{
    if (s->state == NVLLM_STATE_DRAINING)
        doctor_say(d, NOTE, own_command(d, sudo_for(d->user.uid), "resume"),
                   "%s is draining: it accepts no new requests", s->server);
    else if (s->state == NVLLM_STATE_FAILED)
        doctor_say(d, WRONG, log_command(d), "%s has failed", s->server);
    else
        doctor_say(d, OK, NULL, "%s is %s: %s on %s", s->server, nvllm_state_name(s->state),
                   s->model, s->device[0] ? s->device : s->backend);
    if (strcmp(s->server, "nvllmd/" NVLLM_VERSION) != 0)
        doctor_say(d, NOTE, restart_command(d),
                   "%s is running, but this is nvllmctl " NVLLM_VERSION, s->server);
}

/* systemd itself listens for the service until that is started. Where the process cannot be seen,
 * the socket's path decides. */
static bool is_other_process(const struct doctor *d, pid_t listener)
{
    char path[64], groups[4096];

    if (listener == 1)
        return false;
    snprintf(path, sizeof(path), "/proc/%d/cgroup", (int)listener);
    if (!doctor_read_start(groups, sizeof(groups), path))
        return strcmp(d->ctl->socket_path, NVLLM_DEFAULT_SOCKET) != 0;
    return strstr(groups, "/nvllmd.service") == NULL;
}

/* The process that listens, also at a socket that does not answer; pid 0 if unknown. */
static struct ucred find_listener(struct doctor *d)
{
    struct sockaddr_un addr = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    struct ucred who = {0};
    socklen_t n = sizeof(who);

    snprintf(addr.sun_path, sizeof(addr.sun_path), "%s", d->ctl->socket_path);
    if (fd >= 0 && connect(fd, (const struct sockaddr *)&addr, sizeof(addr)) == 0)
        getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &who, &n);
    if (fd >= 0)
        close(fd);
    d->not_service = is_other_process(d, who.pid);
    return who;
}

/* A daemon that hangs, or speaks another protocol, is not asked to stop, since it would not answer.
 * Only a process that is known to be nvllmd may be killed: anything may listen there. */
static void say_silent(struct doctor *d, const struct ucred *who, const char *kill,
                       const char *text)
{
    char path[64], name[64];
    const char *fix;
    bool seen;

    snprintf(path, sizeof(path), "/proc/%d/comm", (int)who->pid);
    seen = doctor_read_start(name, sizeof(name), path);
    if (is_service(d))
        fix = restart_command(d);
    else if (!seen || who->pid == 1) /* it may have exited, and left the socket to another */
        fix = doctor_format(d, "sudo ss -xlp | grep -F %s", doctor_quote(d, d->ctl->socket_path));
    else if (strcmp(name, "nvllmd") == 0)
        fix = and_start(d, doctor_format(d, "%s%s %d", sudo_for(who->uid), kill, (int)who->pid));
    else
        fix = doctor_format(d, "ps -fp %d", (int)who->pid);
    doctor_say(d, WRONG, fix, "%s", text);
}

static void say_failure(struct doctor *d, int64_t asked_ms, const struct nvllm_error *err)
{
    int64_t had_ms = clock_ms() - asked_ms;
    struct ucred who;

    if (err->code == NVLLM_E_NOT_RUNNING) {
        d->not_running = true;
        doctor_say(d, WRONG, start_command(d), "no process is listening on the socket%s",
                   start_advice(d));
        return;
    }
    d->is_running = true;
    if (err->code == NVLLM_E_TIMEOUT && had_ms < FAIR_MS) {
        doctor_say(d, NOTE, NULL, "nvllmd had only %d ms to answer: give a longer --timeout",
                   (int)had_ms);
        return;
    }
    who = find_listener(d);
    if (err->code == NVLLM_E_TIMEOUT)
        say_silent(d, &who, "kill -KILL", err->message);
    else if (err->code == NVLLM_E_PROTOCOL || err->code == NVLLM_E_UNSUPPORTED)
        say_silent(d, &who, "kill", err->message);
    else
        doctor_say(d, WRONG, log_command(d), "%s", err->message);
}

static void check_socket(struct doctor *d)
{
    struct ctl asking = *d->ctl;
    int64_t asked_ms = clock_ms();
    const struct nvllm_status *status;
    struct ucred who;

    if (!check_socket_file(d))
        return;
    d->about = "daemon";
    asking.wait = false;
    if (asking.deadline == INT64_MAX)
        asking.deadline = clock_deadline(CONNECT_MS);
    if (ctl_try_connect(&asking) == NVLLM_OK &&
        nvllm_get_status(asking.client, ctl_left_ms(&asking), &status, &asking.err) == NVLLM_OK) {
        d->is_running = true;
        d->model = doctor_format(d, "%s", status->model_folder);
        who = find_listener(d);
        if (who.pid > 1 && !ctl_option(d->ctl, "user")) /* 1: systemd, which passes the socket on */
            take_user(&d->user, getpwuid(who.uid));
        say_state(d, status);
    } else {
        say_failure(d, asked_ms, &asking.err);
    }
    nvllm_close(asking.client);
}

/* ---- the command */

/* The daemon's user: the given one, else the service's if there is one, else the caller. */
static void choose_user(struct doctor *d)
{
    const char *given = ctl_option(d->ctl, "user");

    if (!take_user(&d->me, getpwuid(geteuid()))) {
        snprintf(d->me.name, sizeof(d->me.name), "%u", (unsigned)geteuid());
        d->me.uid = geteuid();
    }
    d->user = d->me;
    if (!take_user(&d->user, getpwnam(given ? given : SERVICE_USER)) && given)
        ctl_usage(d->ctl, "there is no user “%s”", given);
}

int ctl_doctor(struct ctl *ctl)
{
    static const struct {
        const char *about;
        void (*run)(struct doctor *d);
    } checks[] = {
        {"socket", check_socket},        {"config", doctor_check_config},
        {"model", doctor_check_model},   {"device", doctor_check_devices},
        {"memory", doctor_check_memory}, {"limits", doctor_check_limits},
    };
    const char *config = ctl_option(ctl, "config");
    char own[PATH_MAX], nvllmd[PATH_MAX];
    struct doctor d = {
        .ctl = ctl,
        .config = config ? config : NVLLM_CONFIG_DIR "/nvllmd.conf",
        .given_model = ctl_option(ctl, "model"),
        .findings = ctl_option(ctl, "json") ? json_array() : NULL,
        .of_model = json_array(),
    };

    obstack_init(&d.texts);
    d.own = realpath("/proc/self/exe", own) && access(own, X_OK) == 0 ? own : "nvllmctl";
    d.nvllmd = ctl_find_nvllmd(nvllmd) ? nvllmd : NULL;
    d.has_config = config || access(d.config, F_OK) == 0;
    choose_user(&d);
    for (size_t i = 0; i < sizeof(checks) / sizeof(checks[0]); i++) {
        d.about = checks[i].about;
        checks[i].run(&d);
    }
    if (d.findings)
        ctl_json_print(STDOUT_FILENO,
                       json_pack("{sosi}", "findings", d.findings, "wrong", d.n_wrong));
    else if (d.n_wrong == 0)
        puts("No problems found.");
    else
        printf("%d problem%s found; below each is the command that fixes it.\n", d.n_wrong,
               d.n_wrong == 1 ? "" : "s");
    json_decref(d.of_model);
    obstack_free(&d.texts, NULL);
    if (d.n_wrong == 1 && d.not_running)
        return EXIT_NOT_RUNNING;
    return d.n_wrong == 0 ? EXIT_OK : EXIT_ERROR;
}
