/* doctor.c - nvllmctl doctor: finds what is broken, and the command that fixes it.
 *
 * It checks the socket, the folders and files of the model and the host itself; “nvllmd
 * check-config”, run with the rights of its user, says whether nvllmd would start. A check changes
 * nothing. Permissions are read from owner, group and mode; access lists are ignored. */
#include <errno.h>
#include <fcntl.h>
#include <fnmatch.h>
#include <glob.h>
#include <grp.h>
#include <inttypes.h>
#include <jansson.h>
#include <libgen.h>
#include <limits.h>
#include <obstack.h>
#include <pwd.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/types.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "client/ctl/ctl.h"
#include "client/ctl/json.h"
#include "client/ctl/show.h"
#include "client/lib/clock.h"
#include "proto/program.h"

#define SERVICE_USER  "nvllm"
#define BUNDLED_MODEL NVLLM_MODELS_DIR "/nvllm-tiny"

enum {
    CHECK_MS = 30000,
    CONNECT_MS = 3000,
    FAIR_MS = 1000,           /* a daemon with less time to answer is not called hanging */
    LFS_POINTER_BYTES = 1024, /* no pointer is larger, and no weights are smaller */
    FEW_DESCRIPTORS = 256,
    FEW_WAITING = 128, /* connections that wait to be accepted */
};

#define obstack_chunk_alloc malloc
#define obstack_chunk_free  free

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
    struct obstack texts;  /* what format() and quote() give */
};

static const struct {
    const char *name, *colour;
} levels[] = {
    [OK] = {"ok", COLOUR_GREEN},
    [NOTE] = {"note", COLOUR_YELLOW},
    [WRONG] = {"wrong", COLOUR_RED},
};

/* These give a string that lasts as long as d: a formatted one, or one quoted for a shell. */
__attribute__((format(printf, 2, 0))) static const char *vformat(struct doctor *d, const char *fmt,
                                                                 va_list args)
{
    obstack_vprintf(&d->texts, fmt, args);
    obstack_1grow(&d->texts, '\0');
    return obstack_finish(&d->texts);
}

__attribute__((format(printf, 2, 3))) static const char *format(struct doctor *d, const char *fmt,
                                                                ...)
{
    const char *text;
    va_list args;

    va_start(args, fmt);
    text = vformat(d, fmt, args);
    va_end(args);
    return text;
}

static const char *quote(struct doctor *d, const char *text)
{
    size_t n = 4 * strlen(text) + 3;

    return program_quote(obstack_alloc(&d->texts, n), n, text);
}

static const char *folder_of(struct doctor *d, const char *path)
{
    return dirname((char *)format(d, "%s", path));
}

/* Adds a finding on what is being checked and, unless NULL, the command that fixes it, which root
 * sees without “sudo ” at its beginning. True for OK. */
__attribute__((format(printf, 4, 5))) static bool say(struct doctor *d, enum level level,
                                                      const char *fix, const char *fmt, ...)
{
    const char *text;
    va_list args;
    json_t *o;

    va_start(args, fmt);
    text = vformat(d, fmt, args);
    va_end(args);
    d->n_wrong += level == WRONG;
    if (fix && geteuid() == 0 && strncmp(fix, "sudo ", 5) == 0)
        fix += 5;
    if (d->findings) {
        o = json_pack("{ssssso}", "level", levels[level].name, "about", d->about, "text",
                      ctl_json_text(nvllm_str(text)));
        if (fix)
            json_object_set_new(o, "mend", ctl_json_text(nvllm_str(fix)));
        json_array_append_new(d->findings, o);
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

static bool has_service(void)
{
    return access("/run/systemd/system", F_OK) == 0 &&
           (access("/usr/lib/systemd/system/nvllmd.service", F_OK) == 0 ||
            access("/usr/local/lib/systemd/system/nvllmd.service", F_OK) == 0 ||
            access("/etc/systemd/system/nvllmd.service", F_OK) == 0);
}

/* systemd knows the service, and no other process listens. */
static bool is_service(const struct doctor *d)
{
    return has_service() && !d->not_service;
}

static const char *start_command(struct doctor *d)
{
    const char *program = d->nvllmd ? quote(d, d->nvllmd) : "nvllmd";
    const char *socket = quote(d, d->ctl->socket_path);
    const char *model = d->given_model ? d->given_model : d->model;

    if (is_service(d))
        return format(d, "%ssystemctl start nvllmd", sudo_for(0));
    if (!d->given_model && access(d->config, R_OK) == 0)
        return format(d, "%s --config %s --socket %s", program, quote(d, d->config), socket);
    if (!model && access(BUNDLED_MODEL, F_OK) == 0)
        model = BUNDLED_MODEL;
    return format(d, "%s --model %s --socket %s", program, model ? quote(d, model) : "DIR", socket);
}

/* "nvllmctl WORDS", by the path of this program, with --socket unless that is the default. */
static const char *own_command(struct doctor *d, const char *sudo, const char *words)
{
    const char *path = d->ctl->socket_path;
    const char *option = strcmp(path, NVLLM_DEFAULT_SOCKET) != 0 ? " --socket " : "";

    return format(d, "%s%s%s%s %s", sudo, quote(d, d->own), option, *option ? quote(d, path) : "",
                  words);
}

static const char *again_command(struct doctor *d)
{
    static const char *const options[] = {"config", "model", "user"};
    const char *command = own_command(d, sudo_for(0), "doctor");

    for (size_t i = 0; i < sizeof(options) / sizeof(options[0]); i++) {
        const char *value = ctl_option(d->ctl, options[i]);

        if (value)
            command = format(d, "%s --%s %s", command, options[i], quote(d, value));
    }
    return command;
}

static const char *restart_command(struct doctor *d)
{
    if (is_service(d))
        return "sudo systemctl restart nvllmd";
    return format(d, "%s && %s", own_command(d, sudo_for(d->user.uid), "stop --wait"),
                  start_command(d));
}

static const char *log_command(struct doctor *d)
{
    if (is_service(d))
        return "sudo journalctl -u nvllmd -n 50";
    if (!d->nvllmd || access(d->config, R_OK) != 0)
        return restart_command(d);
    return format(d, "%s check-config --config %s", quote(d, d->nvllmd), quote(d, d->config));
}

static const char *edit_command(struct doctor *d)
{
    return format(d, "%s${EDITOR:-vi} %s", access(d->config, W_OK) == 0 ? "" : "sudo ",
                  quote(d, d->config));
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
        denied ? again_command(d) : format(d, "ls -la %s", quote(d, folder_of(d, part)));

    return say(d, denied && user->uid != geteuid() ? NOTE : WRONG, fix, "%s: %s", part,
               strerror(why));
}

/* Whether the user may enter each folder above path and do `want`, as access(), with path itself.
 */
static bool check_path(struct doctor *d, const struct user *user, const char *path, int want)
{
    size_t n = strlen(path);

    if (path[0] != '/')
        return say(d, WRONG, edit_command(d), "%s is not an absolute path", path);
    for (size_t at = 0, end; at < n; at = end) {
        const char *part;
        unsigned bits = 1;
        struct stat st;
        int class;

        end = at + 1 + strcspn(path + at + 1, "/");
        part = format(d, "%.*s", (int)end, path);
        if (end == n)
            bits = (unsigned)want;
        if (stat(part, &st) < 0) /* ENOTDIR: what is above it is not a folder */
            return say_missing(d, user, part, errno);
        class = user->uid == st.st_uid ? 0 : is_in_group(user, st.st_gid) ? 1 : 2;
        if (user->uid == 0 || ((st.st_mode >> (6 - 3 * class)) & bits) == bits)
            continue;
        return say(d, WRONG,
                   format(d, "%schmod %c+%s%s%s %s", sudo_for(st.st_uid), "ugo"[class],
                          bits & 4 ? "r" : "", bits & 2 ? "w" : "", bits & 1 ? "x" : "",
                          quote(d, part)),
                   "user %s may not %s %s (mode %04o)", user->name,
                   bits & 2   ? "write to"
                   : bits & 4 ? "read"
                              : "enter",
                   part, (unsigned)st.st_mode & 07777);
    }
    return true;
}

/* The first bytes of a file, without a newline at their end; false if it is unreadable or empty. */
static bool read_start(char *text, size_t n, const char *path)
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
        fix = format(d, "%schmod o+w %s   # until the next start; see daemon.socket_mode",
                     sudo_for(st->st_uid), quote(d, path));
        return say(d, WRONG, fix, "%s: this user may not connect (mode %04o)", path,
                   (unsigned)st->st_mode & 07777);
    }
    if (is_in_group(&d->me, st->st_gid))
        fix = format(d, "newgrp %s   # or log in again", group->gr_name);
    else
        fix = format(d, "sudo usermod -aG %s %s   # and log in again", group->gr_name, d->me.name);
    return say(d, WRONG, fix, "%s is for members of group %s", path, group->gr_name);
}

/* Nothing is there: the daemon was not started, or has no folder to create a socket in. */
static bool say_none(struct doctor *d, const char *folder, int why)
{
    const char *fix = start_command(d);

    if (why == ENOENT && access(folder, F_OK) < 0 && !has_service())
        fix =
            format(d, "sudo install -d -o %s -m 0755 %s && %s", d->me.name, quote(d, folder), fix);
    d->not_running = why == ENOENT;
    return say(d, WRONG, fix, "%s: %s; nvllmd creates it when it starts", d->ctl->socket_path,
               strerror(why));
}

/* True if there is a socket that may be connected to. */
static bool check_socket_file(struct doctor *d)
{
    const size_t max = sizeof(((struct sockaddr_un *)NULL)->sun_path) - 1;
    const char *path = d->ctl->socket_path, *folder = folder_of(d, path), *fix;
    struct stat st;

    if (strlen(path) > max)
        return say(d, WRONG, "export NVLLM_SOCKET=" NVLLM_DEFAULT_SOCKET,
                   "%s: the path of a socket has at most %zu bytes", path, max);
    if (folder[0] == '/' && access(folder, F_OK) == 0 && d->me.n_groups > 0 &&
        !check_path(d, &d->me, folder, X_OK))
        return false;
    if (lstat(path, &st) < 0)
        return say_none(d, folder, errno);
    fix = format(d, "%srm -d %s && %s", sudo_for(st.st_uid), quote(d, path), start_command(d));
    if (!S_ISSOCK(st.st_mode))
        return say(d, WRONG, fix, "%s is no socket", path);
    if (access(path, W_OK) < 0)
        return explain_denied(d, &st);
    return say(d, OK, NULL, "%s (mode %04o)", path, (unsigned)st.st_mode & 07777);
}

static void say_state(struct doctor *d, const struct nvllm_status *s)
{
    if (s->state == NVLLM_STATE_DRAINING)
        say(d, NOTE, own_command(d, sudo_for(d->user.uid), "resume"),
            "%s is draining: it takes no new requests", s->server);
    else if (s->state == NVLLM_STATE_FAILED)
        say(d, WRONG, log_command(d), "%s has failed", s->server);
    else
        say(d, OK, NULL, "%s is %s: %s on %s", s->server, nvllm_state_name(s->state), s->model,
            s->device[0] ? s->device : s->backend);
    if (strcmp(s->server, "nvllmd/" NVLLM_VERSION) != 0)
        say(d, NOTE, restart_command(d), "%s answers, but this is nvllmctl " NVLLM_VERSION,
            s->server);
}

/* systemd itself listens for the service until that is started. Where the process cannot be seen,
 * the socket's path decides. */
static bool is_other_process(const struct doctor *d, pid_t listener)
{
    char path[64], groups[4096];

    if (listener == 1)
        return false;
    snprintf(path, sizeof(path), "/proc/%d/cgroup", (int)listener);
    if (!read_start(groups, sizeof(groups), path))
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

/* A daemon that hangs is not asked to stop, since it would not answer. Only a process that is known
 * to be nvllmd may be killed: anything may listen there. */
static void say_silent(struct doctor *d, const struct ucred *who, const char *text)
{
    char path[64], name[64];
    const char *fix;
    bool seen;

    snprintf(path, sizeof(path), "/proc/%d/comm", (int)who->pid);
    seen = read_start(name, sizeof(name), path);
    if (is_service(d))
        fix = restart_command(d);
    else if (!seen || who->pid == 1) /* it may have exited, and left the socket to another */
        fix = format(d, "sudo ss -xlp | grep -F %s", quote(d, d->ctl->socket_path));
    else if (strcmp(name, "nvllmd") == 0)
        fix =
            format(d, "%skill -KILL %d && %s", sudo_for(who->uid), (int)who->pid, start_command(d));
    else
        fix = format(d, "ps -fp %d", (int)who->pid);
    say(d, WRONG, fix, "%s", text);
}

static void say_failure(struct doctor *d, int64_t asked_ms, const struct nvllm_error *err)
{
    int64_t had_ms = clock_ms() - asked_ms;
    struct ucred who;

    if (err->code == NVLLM_E_NOT_RUNNING) {
        d->not_running = true;
        say(d, WRONG, start_command(d), "nobody listens at the socket");
        return;
    }
    d->is_running = true;
    if (err->code == NVLLM_E_TIMEOUT && had_ms < FAIR_MS) {
        say(d, NOTE, NULL, "nvllmd had only %d ms to answer: give --timeout more", (int)had_ms);
        return;
    }
    who = find_listener(d);
    if (err->code == NVLLM_E_TIMEOUT)
        say_silent(d, &who, err->message);
    else
        say(d, WRONG, log_command(d), "%s", err->message);
}

static void check_socket(struct doctor *d)
{
    int left_ms = d->ctl->deadline == INT64_MAX ? CONNECT_MS : ctl_left_ms(d->ctl);
    int64_t asked_ms = clock_ms(), deadline = clock_deadline(left_ms);
    const struct nvllm_status *status;
    struct nvllm_client *client = NULL;
    struct nvllm_options options;
    struct nvllm_error err;
    struct ucred who;

    if (!check_socket_file(d))
        return;
    d->about = "daemon";
    nvllm_options_init(&options);
    options.socket_path = d->ctl->socket_path;
    options.name = "nvllmctl/" NVLLM_VERSION;
    options.timeout_ms = left_ms;
    if (nvllm_connect(&client, &options, &err) == NVLLM_OK &&
        nvllm_get_status(client, clock_left_ms(deadline), &status, &err) == NVLLM_OK) {
        d->is_running = true;
        d->model = format(d, "%s", status->model_folder);
        who = find_listener(d);
        if (who.pid > 1 && !ctl_option(d->ctl, "user")) /* 1: systemd, which passes the socket on */
            take_user(&d->user, getpwuid(who.uid));
        say_state(d, status);
    } else {
        say_failure(d, asked_ms, &err);
    }
    nvllm_close(client);
}

/* ---- what nvllmd finds */

/* Beside this program, as installed and as built, or in the PATH of the shell or of root. */
static void find_program(struct doctor *d)
{
    const char *path = getenv("PATH"), *own = folder_of(d, d->own);
    char *rest = (char *)format(d, "%s:%s/../sbin:%s/../daemon:%s:/usr/local/sbin:/usr/sbin", own,
                                own, own, path ? path : "");
    char *folder, real[PATH_MAX];
    struct stat st;

    while (!d->nvllmd && (folder = strsep(&rest, ":")) != NULL)
        if (folder[0] == '/' && realpath(format(d, "%s/nvllmd", folder), real) &&
            stat(real, &st) == 0 && S_ISREG(st.st_mode) && access(real, X_OK) == 0)
            d->nvllmd = format(d, "%s", real);
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
        fix = format(d, "%s %s", quote(d, d->nvllmd), fix + 7);
    d->about = about;
    say(d, level, fix, "%s", text);
}

static bool say_model_findings(struct doctor *d)
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
    say(d, NOTE, format(d, "export NVLLM_SOCKET=%s", quote(d, configured)),
        "nvllmd is configured for %s, but %s was tried", configured, d->ctl->socket_path);
}

/* Whether the daemon's user and the caller may read the file. nvllmd reports a missing one. */
static bool check_config_file(struct doctor *d)
{
    char *path = realpath(d->config, NULL);
    bool ok = true;

    if (!path && (errno != EACCES || d->config[0] != '/'))
        return true;
    ok = check_path(d, &d->user, path ? path : d->config, R_OK);
    if (ok && access(path, R_OK) < 0)
        ok = say(d, NOTE, again_command(d), "user %u may not read %s", (unsigned)geteuid(), path);
    free(path);
    return ok;
}

static void check_config(struct doctor *d)
{
    const char *argv[9] = {"nvllmd", "check-config", "--json"};
    const char *model;
    bool late = false;
    json_t *found;
    int n = 3;

    if (!d->nvllmd) {
        say(d, NOTE, NULL, "nvllmd is not installed here, so %s cannot be checked", d->config);
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
        say(d, NOTE, NULL, "%s has not checked %s%s", d->nvllmd, d->config,
            late ? " in time" : ": is it of another version?");
    } else {
        take_findings(d, json_object_get(found, "findings"));
        compare_sockets(d, json_string_value(json_object_get(found, "socket")));
        model = json_string_value(json_object_get(found, "model"));
        if (model && !d->is_running && !d->given_model)
            d->model = format(d, "%s", model);
    }
    json_decref(found);
}

/* ---- the model */

/* The folder that is given, that the daemon has, or that it is configured for. */
static bool find_folder(struct doctor *d)
{
    const char *given = d->given_model;
    char path[PATH_MAX];

    /* A given one is relative to the current folder, whatever the daemon has. */
    if (given && realpath(given, path))
        d->model = format(d, "%s", path);
    else if (given && given[0] != '/' && getcwd(path, sizeof(path)))
        d->model = format(d, "%s/%s", path, given);
    else if (given)
        d->model = given;
    if (!d->model && !d->has_config)
        say(d, NOTE, NULL, "%s does not exist, so the model is unknown: give --model DIR",
            d->config);
    return d->model && d->model[0];
}

/* What is wrong with the folder, and whether there is room to download what is missing. */
static const char *check_command(struct doctor *d)
{
    const char *folder = quote(d, d->model);

    return format(d, "%s check --model %s; df -h %s   # then download it again",
                  d->nvllmd ? quote(d, d->nvllmd) : "nvllmd", folder, folder);
}

static bool check_model_file(struct doctor *d, const char *name)
{
    const char *path = format(d, "%s/%s", d->model, name);
    char start[64];
    struct stat st;

    if (strchr(name, '/'))
        return say(d, WRONG, check_command(d), "the index names %s, which is no file beside it",
                   name);
    if (stat(path, &st) < 0)
        return say(d, WRONG, check_command(d), "%s: %s", path, strerror(errno));
    if (!check_path(d, &d->user, path, R_OK))
        return false;
    if (st.st_size < LFS_POINTER_BYTES && read_start(start, sizeof(start), path) &&
        strncmp(start, "version https://git-lfs", 23) == 0)
        return say(d, WRONG, format(d, "git -C %s lfs pull", quote(d, d->model)),
                   "%s is a pointer of Git LFS, not the file itself", path);
    if (strstr(name, ".safetensors") && !strstr(name, ".json"))
        d->weight_bytes += (uint64_t)st.st_size;
    return true;
}

/* Adds the files that the index names to the members of *files, each once. */
static bool read_index(struct doctor *d, json_t *files, const char *path)
{
    json_error_t where;
    json_t *index = json_load_file(path, 0, &where), *file;
    const char *tensor;

    if (!index)
        return say(d, WRONG, check_command(d), "%s: %s", path, where.text);
    json_object_foreach(json_object_get(index, "weight_map"), tensor, file)
    {
        if (json_is_string(file))
            json_object_set_new(files, json_string_value(file), json_null());
    }
    json_decref(index);
    return true;
}

static bool check_files(struct doctor *d)
{
    static const char index[] = "model.safetensors.index.json";
    const char *path = format(d, "%s/%s", d->model, index), *name;
    json_t *files, *unused;
    bool ok = true;

    if (!check_path(d, &d->user, d->model, R_OK | X_OK))
        return false;
    files = json_pack("{snsn}", "config.json", "tokenizer.json");
    if (access(path, F_OK) < 0)
        json_object_set_new(files, "model.safetensors", json_null());
    else
        ok = check_model_file(d, index) && read_index(d, files, path);
    json_object_foreach(files, name, unused) ok = check_model_file(d, name) && ok;
    json_decref(files);
    return ok;
}

/* Whether the daemon may read all files is reported before what it finds in them. */
static void check_model(struct doctor *d)
{
    if (!find_folder(d))
        say_model_findings(d);
    else if (d->model[0] != '/' && d->is_running)
        say(d, OK, NULL, "%s, relative to where nvllmd was started", d->model);
    else if (check_files(d) && say_model_findings(d) && access(d->model, R_OK | X_OK) == 0 &&
             d->weight_bytes > 0)
        say(d, OK, NULL, "%s: %.1f MiB of weights, readable by user %s", d->model,
            show_mib(d->weight_bytes), d->user.name);
}

/* ---- devices */

/* NVIDIA display and 3D controllers on the PCI bus. */
static int count_gpus(void)
{
    glob_t devices = {0};
    char kind[128];
    int n = 0;

    glob("/sys/bus/pci/devices/*/modalias", 0, NULL, &devices);
    for (size_t i = 0; i < devices.gl_pathc; i++)
        n += read_start(kind, sizeof(kind), devices.gl_pathv[i]) &&
             fnmatch("pci:v000010DEd*bc03sc*", kind, 0) == 0;
    globfree(&devices);
    return n;
}

static void check_devices(struct doctor *d)
{
    static const char *const nodes[] = {"/dev/nvidiactl", "/dev/nvidia-uvm"};
    char version[200];
    int n = count_gpus();
    bool ok = true;

    if (access(nodes[0], F_OK) != 0 && n == 0) {
        say(d, OK, NULL, "there is no NVIDIA GPU: nvllmd runs on the CPU");
        return;
    }
    if (access(nodes[0], F_OK) != 0) {
        say(d, WRONG, "sudo sh -c 'modprobe nvidia && nvidia-modprobe -u -c 0'",
            "%d NVIDIA GPU%s found, but no %s: the driver is not loaded", n, n == 1 ? "" : "s",
            nodes[0]);
        return;
    }
    for (size_t i = 0; i < sizeof(nodes) / sizeof(nodes[0]); i++) {
        if (access(nodes[i], F_OK) != 0)
            ok = say(d, WRONG, "sudo nvidia-modprobe -u -c 0", "%s: %s", nodes[i], strerror(errno));
        else
            ok = check_path(d, &d->user, nodes[i], 6) && ok;
    }
    if (!read_start(version, sizeof(version), "/proc/driver/nvidia/version"))
        snprintf(version, sizeof(version), "NVIDIA driver of unknown version");
    if (ok)
        say(d, OK, NULL, "%.*s", (int)strcspn(version, "\n"), version);
}

/* ---- memory */

/* The number behind a field of a file, or at its beginning if that is ""; 0 if it is missing. */
static uint64_t read_number(const char *path, const char *field)
{
    char text[4096];
    const char *at = read_start(text, sizeof(text), path) ? strstr(text, field) : NULL;

    return at ? strtoull(at + strlen(field), NULL, 10) : 0;
}

/* Weights pass through the host's memory, and stay there on the CPU backend. */
static void check_memory(struct doctor *d)
{
    uint64_t free_bytes = read_number("/proc/meminfo", "MemAvailable:") << 10;
    uint64_t total = read_number("/proc/meminfo", "MemTotal:") << 10;
    uint64_t limit = read_number("/sys/fs/cgroup/memory.max", "");
    bool on_cpu = access("/dev/nvidiactl", F_OK) != 0, never;

    if (limit > 0 && limit < total)
        total = limit;
    never = d->weight_bytes > total;
    if (on_cpu && (never || (!d->is_running && d->weight_bytes > free_bytes)))
        say(d, WRONG, never ? edit_command(d) : "ps -eo pid,rss,comm --sort=-rss | head",
            "%.1f MiB of weights, but only %.1f MiB of memory%s", show_mib(d->weight_bytes),
            show_mib(never ? total : free_bytes), never ? "" : " available");
    else
        say(d, OK, NULL, "%.1f MiB of %.1f MiB available", show_mib(free_bytes), show_mib(total));
    if (read_number("/proc/sys/vm/overcommit_memory", "") == 2)
        say(d, NOTE, "sudo sysctl vm.overcommit_memory=0",
            "overcommit is off: the whole KV cache counts as used at once");
}

/* ---- limits */

static void check_limits(struct doctor *d)
{
    uint64_t waiting = read_number("/proc/sys/net/core/somaxconn", "");
    struct rlimit files = {0};
    bool ok = true;

    getrlimit(RLIMIT_NOFILE, &files);
    if (files.rlim_max < FEW_DESCRIPTORS)
        ok = say(d, WRONG, "sudo prlimit --pid $$ --nofile=65536:65536",
                 "at most %" PRIu64 " open files: each client needs one", files.rlim_max);
    if (waiting > 0 && waiting < FEW_WAITING)
        ok = say(d, WRONG, "sudo sysctl net.core.somaxconn=4096",
                 "net.core.somaxconn is %" PRIu64 ": clients that connect at once are refused",
                 waiting);
    if (ok)
        say(d, OK, NULL, "%" PRIu64 " open files, %" PRIu64 " waiting connections", files.rlim_max,
            waiting);
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
        {"socket", check_socket},  {"config", check_config}, {"model", check_model},
        {"device", check_devices}, {"memory", check_memory}, {"limits", check_limits},
    };
    const char *config = ctl_option(ctl, "config");
    char own[PATH_MAX];
    struct doctor d = {
        .ctl = ctl,
        .config = config ? config : NVLLM_CONFIG_DIR "/nvllmd.conf",
        .given_model = ctl_option(ctl, "model"),
        .findings = ctl_option(ctl, "json") ? json_array() : NULL,
        .of_model = json_array(),
    };

    obstack_init(&d.texts);
    d.own = realpath("/proc/self/exe", own) && access(own, X_OK) == 0 ? own : "nvllmctl";
    d.has_config = config || access(d.config, F_OK) == 0;
    choose_user(&d);
    find_program(&d);
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
