/* doctor.c - nvllmctl doctor: findings, permissions, and the commands that fix what is broken. */
#include "client/ctl/doctor.h"

#include <errno.h>
#include <grp.h>
#include <limits.h>
#include <pwd.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "client/ctl/json.h"
#include "client/ctl/show.h"

#define SERVICE_USER  "nvllm"
#define BUNDLED_MODEL NVLLM_MODELS_DIR "/nvllm-tiny"

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

/* What cannot be looked at: because of permissions, or because it does not exist. */
static void say_missing(struct doctor *d, const char *about, const struct doctor_user *user,
                        const char *part, int why)
{
    size_t n = (size_t)(strrchr(part, '/') - part);

    if (why == EACCES)
        doctor_say(d, user->uid != geteuid() ? DOCTOR_NOTE : DOCTOR_WRONG, about, doctor_again(d),
                   "%s: %s", part, strerror(why));
    else
        doctor_say(d, DOCTOR_WRONG, about,
                   doctor_text(d, "ls -la %s",
                               doctor_quote(d, n ? doctor_text(d, "%.*s", (int)n, part) : "/")),
                   "%s: %s", part, strerror(why));
}

bool doctor_path(struct doctor *d, const char *about, const struct doctor_user *user,
                 const char *path, int want)
{
    static const struct {
        const char *letter; /* for chmod */
        unsigned shift;
    } classes[] = {{"u", 6}, {"g", 3}, {"o", 0}};
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
        if (stat(part, &st) < 0) { /* ENOTDIR: what is above it is not a folder */
            say_missing(d, about, user, part, errno);
            return false;
        }
        class = user->uid == st.st_uid ? 0 : doctor_in_group(user, st.st_gid) ? 1 : 2;
        if (user->uid == 0 || ((st.st_mode >> classes[class].shift) & bits) == bits)
            continue;
        return doctor_say(d, DOCTOR_WRONG, about,
                          doctor_text(d, "%schmod %s+%s%s%s %s", doctor_sudo(st.st_uid),
                                      classes[class].letter, bits & 4 ? "r" : "",
                                      bits & 2 ? "w" : "", bits & 1 ? "x" : "",
                                      doctor_quote(d, part)),
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
    bool ok = true;

    obstack_init(&d.texts);
    d.has_config = config || access(d.config, F_OK) == 0;
    choose_user(&d, ctl_option(ctl, "user"));
    doctor_find_program(&d);
    doctor_socket(&d);
    doctor_config(&d);
    doctor_model(&d);
    doctor_host(&d);
    if (d.json)
        ok = ctl_json_print(STDOUT_FILENO,
                            json_pack("{sOsi}", "findings", d.findings, "wrong", d.n_wrong));
    else if (d.n_wrong == 0)
        puts("No problems found.");
    else
        printf("%d problem%s found; below each is the command that fixes it.\n", d.n_wrong,
               d.n_wrong == 1 ? "" : "s");
    json_decref(d.findings);
    json_decref(d.of_model);
    obstack_free(&d.texts, NULL);
    if (ok && d.n_wrong == 1 && d.not_running)
        return EXIT_NOT_RUNNING;
    return ok && d.n_wrong == 0 ? EXIT_OK : EXIT_ERROR;
}
