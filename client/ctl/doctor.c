/* doctor.c - nvllmctl doctor: findings, permissions, the commands that fix what is broken, and what
 * nvllmd finds: “nvllmd check-config”, run with the rights of its user, says whether it would
 * start.
 */
#include "client/ctl/doctor.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <limits.h>
#include <pwd.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include "client/ctl/json.h"
#include "client/ctl/show.h"
#include "client/lib/clock.h"

#define SERVICE_USER  "nvllm"
#define BUNDLED_MODEL NVLLM_MODELS_DIR "/nvllm-tiny"

enum { CHECK_MS = 30000 };

static const struct {
    const char *name, *colour;
} levels[] = {
    [DOCTOR_OK] = {"ok", COLOUR_GREEN},
    [DOCTOR_NOTE] = {"note", COLOUR_YELLOW},
    [DOCTOR_WRONG] = {"wrong", COLOUR_RED},
};

const char *doctor_text(struct doctor *d, const char *fmt, ...)
{
    va_list args;

    va_start(args, fmt);
    obstack_vprintf(&d->texts, fmt, args);
    va_end(args);
    obstack_1grow(&d->texts, '\0');
    return obstack_finish(&d->texts);
}

const char *doctor_quote(struct doctor *d, const char *text)
{
    size_t n = 4 * strlen(text) + 3;

    return program_quote(obstack_alloc(&d->texts, n), n, text);
}

bool doctor_say(struct doctor *d, enum doctor_level level, const char *about, const char *fix,
                const char *fmt, ...)
{
    char *text;
    va_list args;
    json_t *o;

    va_start(args, fmt);
    if (vasprintf(&text, fmt, args) < 0)
        ctl_no_memory();
    va_end(args);
    d->n_wrong += level == DOCTOR_WRONG;
    if (fix && geteuid() == 0 && strncmp(fix, "sudo ", 5) == 0)
        fix += 5;
    if (d->json) {
        o = json_pack("{ssssso}", "level", levels[level].name, "about", about, "text",
                      ctl_json_text(nvllm_str(text)));
        if (fix)
            json_object_set_new(o, "mend", ctl_json_text(nvllm_str(fix)));
        json_array_append_new(d->findings, o);
    } else {
        printf("%s%-5s%s  %-7s  ", show_colour(STDOUT_FILENO, levels[level].colour),
               levels[level].name, show_colour(STDOUT_FILENO, COLOUR_END), about);
        ctl_put_line(stdout, text, 0);
        putchar('\n');
        if (fix && !program_has_control(fix))
            printf("%16s%s\n", "", fix);
    }
    free(text);
    return level == DOCTOR_OK;
}

/* ---- users and paths */

bool doctor_find_user(struct doctor_user *user, const char *name)
{
    const struct passwd *found = getpwnam(name);
    int n = sizeof(user->groups) / sizeof(user->groups[0]);

    if (!found)
        return false;
    snprintf(user->name, sizeof(user->name), "%s", name);
    user->uid = found->pw_uid;
    user->n_groups = n;
    if (getgrouplist(name, found->pw_gid, user->groups, &n) >= 0)
        user->n_groups = n;
    return true;
}

bool doctor_in_group(const struct doctor_user *user, gid_t group)
{
    for (int i = 0; i < user->n_groups; i++)
        if (user->groups[i] == group)
            return true;
    return false;
}

/* What cannot be looked at: because of permissions, or because it does not exist. False. */
static bool say_missing(struct doctor *d, const char *about, const struct doctor_user *user,
                        const char *part, int why)
{
    int n = (int)(strrchr(part, '/') - part);
    const char *folder = doctor_quote(d, n > 0 ? doctor_text(d, "%.*s", n, part) : "/");

    if (why == EACCES)
        return doctor_say(d, user->uid != geteuid() ? DOCTOR_NOTE : DOCTOR_WRONG, about,
                          doctor_again(d), "%s: %s", part, strerror(why));
    return doctor_say(d, DOCTOR_WRONG, about, doctor_text(d, "ls -la %s", folder), "%s: %s", part,
                      strerror(why));
}

bool doctor_path(struct doctor *d, const char *about, const struct doctor_user *user,
                 const char *path, int want)
{
    size_t n = strlen(path);

    if (path[0] != '/')
        return doctor_say(d, DOCTOR_WRONG, about, doctor_edit(d), "%s is not an absolute path",
                          path);
    for (size_t at = 0, end; at < n; at = end) {
        const char *part;
        unsigned bits = 1;
        struct stat st;
        int class;

        end = at + 1 + strcspn(path + at + 1, "/");
        part = doctor_text(d, "%.*s", (int)end, path);
        if (end == n)
            bits = (unsigned)want;
        if (stat(part, &st) < 0) /* ENOTDIR: what is above it is not a folder */
            return say_missing(d, about, user, part, errno);
        class = user->uid == st.st_uid ? 0 : doctor_in_group(user, st.st_gid) ? 1 : 2;
        if (user->uid == 0 || ((st.st_mode >> (6 - 3 * class)) & bits) == bits)
            continue;
        return doctor_say(d, DOCTOR_WRONG, about,
                          doctor_text(d, "%schmod %c+%s%s%s %s", doctor_sudo(st.st_uid),
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

/* ---- commands */

const char *doctor_sudo(uid_t owner)
{
    return geteuid() == 0 || geteuid() == owner ? "" : "sudo ";
}

bool doctor_has_service(void)
{
    return access("/run/systemd/system", F_OK) == 0 &&
           (access("/usr/lib/systemd/system/nvllmd.service", F_OK) == 0 ||
            access("/usr/local/lib/systemd/system/nvllmd.service", F_OK) == 0 ||
            access("/etc/systemd/system/nvllmd.service", F_OK) == 0);
}

bool doctor_is_service(const struct doctor *d)
{
    return doctor_has_service() && !d->not_service;
}

const char *doctor_start(struct doctor *d)
{
    const char *program = d->nvllmd ? doctor_quote(d, d->nvllmd) : "nvllmd";
    const char *socket = doctor_quote(d, d->ctl->socket_path);
    const char *model = d->given_model ? d->given_model : d->model;

    if (doctor_is_service(d))
        return doctor_text(d, "%ssystemctl start nvllmd", doctor_sudo(0));
    if (!d->given_model && access(d->config, R_OK) == 0)
        return doctor_text(d, "%s --config %s --socket %s", program, doctor_quote(d, d->config),
                           socket);
    if (!model && access(BUNDLED_MODEL, F_OK) == 0)
        model = BUNDLED_MODEL;
    return doctor_text(d, "%s --model %s --socket %s", program,
                       model ? doctor_quote(d, model) : "DIR", socket);
}

/* This program, with --socket unless that is the default. */
static const char *this_program(struct doctor *d, const char *sudo)
{
    const char *path = d->ctl->socket_path;
    char own[PATH_MAX];
    ssize_t n = readlink("/proc/self/exe", own, sizeof(own) - 1);

    own[n > 0 ? n : 0] = '\0';
    return doctor_text(d, "%s%s%s%s", sudo,
                       doctor_quote(d, access(own, X_OK) == 0 ? own : "nvllmctl"),
                       strcmp(path, NVLLM_DEFAULT_SOCKET) != 0 ? " --socket " : "",
                       strcmp(path, NVLLM_DEFAULT_SOCKET) != 0 ? doctor_quote(d, path) : "");
}

const char *doctor_ask(struct doctor *d, const char *words)
{
    return doctor_text(d, "%s %s", this_program(d, doctor_sudo(d->user.uid)), words);
}

const char *doctor_again(struct doctor *d)
{
    static const char *const options[] = {"config", "model", "user"};
    const char *command = doctor_text(d, "%s doctor", this_program(d, doctor_sudo(0)));

    for (size_t i = 0; i < sizeof(options) / sizeof(options[0]); i++) {
        const char *value = ctl_option(d->ctl, options[i]);

        if (value)
            command = doctor_text(d, "%s --%s %s", command, options[i], doctor_quote(d, value));
    }
    return command;
}

const char *doctor_restart(struct doctor *d)
{
    if (doctor_is_service(d))
        return "sudo systemctl restart nvllmd";
    return doctor_text(d, "%s && %s", doctor_ask(d, "stop --wait"), doctor_start(d));
}

const char *doctor_log(struct doctor *d)
{
    if (doctor_is_service(d))
        return "sudo journalctl -u nvllmd -n 50";
    if (!d->nvllmd || access(d->config, R_OK) != 0)
        return doctor_restart(d);
    return doctor_text(d, "%s check-config --config %s", doctor_quote(d, d->nvllmd),
                       doctor_quote(d, d->config));
}

const char *doctor_edit(struct doctor *d)
{
    return doctor_text(d, "%s${EDITOR:-vi} %s", access(d->config, W_OK) == 0 ? "" : "sudo ",
                       doctor_quote(d, d->config));
}

/* ---- what nvllmd finds */

/* Beside this program, as installed and as built, or in the PATH of the shell or of root. */
static void find_program(struct doctor *d)
{
    const char *path = getenv("PATH");
    char own[PATH_MAX], real[PATH_MAX];
    ssize_t n = readlink("/proc/self/exe", own, sizeof(own) - 1);
    char *folders, *folder, *rest;
    struct stat st;

    own[n > 0 ? n : 0] = '\0';
    if (strrchr(own, '/'))
        *strrchr(own, '/') = '\0';
    if (asprintf(&folders, "%s:%s/../sbin:%s/../daemon:%s:/usr/local/sbin:/usr/sbin", own, own, own,
                 path ? path : "") < 0)
        ctl_no_memory();
    rest = folders;
    while (!d->nvllmd && (folder = strsep(&rest, ":")) != NULL)
        if (folder[0] == '/' && realpath(doctor_text(d, "%s/nvllmd", folder), real) &&
            stat(real, &st) == 0 && S_ISREG(st.st_mode) && access(real, X_OK) == 0)
            d->nvllmd = doctor_text(d, "%s", real);
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

/* The JSON that nvllmd prints; NULL for anything else, or *late: its timer has ended it. */
static json_t *run_nvllmd(const struct doctor *d, const char *const *argv, bool *late)
{
    int ms = d->ctl->deadline < 0 ? CHECK_MS : ctl_left_ms(d->ctl) + 1; /* 0 would be no timer */
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
    ok = doctor_path(d, "config", &d->user, path ? path : d->config, R_OK);
    if (ok && access(path, R_OK) < 0) {
        doctor_say(d, DOCTOR_NOTE, "config", doctor_again(d), "user %u may not read %s",
                   (unsigned)geteuid(), path);
        ok = false;
    }
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
        doctor_say(d, DOCTOR_NOTE, "config", NULL,
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
        doctor_say(d, DOCTOR_NOTE, "config", NULL, "%s has not checked %s%s", d->nvllmd, d->config,
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

/* ---- the command */

/* The daemon's user: the given one, else the service's if there is one, else the caller. */
static void choose_user(struct doctor *d, const char *given)
{
    const struct passwd *me;

    d->user_given = given != NULL;
    if (given && !doctor_find_user(&d->user, given))
        ctl_usage(d->ctl, "there is no user “%s”", given);
    if (given || doctor_find_user(&d->user, SERVICE_USER))
        return;
    me = getpwuid(geteuid());
    if (!me || !doctor_find_user(&d->user, me->pw_name)) {
        snprintf(d->user.name, sizeof(d->user.name), "%u", (unsigned)geteuid());
        d->user.uid = geteuid();
    }
}

int ctl_doctor(struct ctl *ctl)
{
    const char *config = ctl_option(ctl, "config");
    struct doctor d = {
        .ctl = ctl,
        .json = ctl_option(ctl, "json"),
        .config = config ? config : NVLLM_CONFIG_DIR "/nvllmd.conf",
        .given_model = ctl_option(ctl, "model"),
        .findings = json_array(),
        .of_model = json_array(),
    };

    obstack_init(&d.texts);
    d.has_config = config || access(d.config, F_OK) == 0;
    choose_user(&d, ctl_option(ctl, "user"));
    find_program(&d);
    doctor_socket(&d);
    check_config(&d);
    doctor_model(&d);
    doctor_host(&d);
    if (d.json)
        ctl_json_print(STDOUT_FILENO,
                       json_pack("{sOsi}", "findings", d.findings, "wrong", d.n_wrong));
    else if (d.n_wrong == 0)
        puts("No problems found.");
    else
        printf("%d problem%s found; below each is the command that fixes it.\n", d.n_wrong,
               d.n_wrong == 1 ? "" : "s");
    json_decref(d.findings);
    json_decref(d.of_model);
    obstack_free(&d.texts, NULL);
    if (d.n_wrong == 1 && d.not_running)
        return EXIT_NOT_RUNNING;
    return d.n_wrong == 0 ? EXIT_OK : EXIT_ERROR;
}
