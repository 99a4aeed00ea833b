/* doctor.c - nvllmctl doctor: what is broken, and the command that mends it. */
#include "client/ctl/doctor.h"

#include <errno.h>
#include <grp.h>
#include <libgen.h>
#include <pwd.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "client/ctl/json.h"
#include "client/ctl/terminal.h"

#define SERVICE_USER "nvllm"

static const struct {
    const char *name, *colour;
} levels[] = {
    [DOCTOR_GOOD] = {"ok", COLOUR_GREEN},
    [DOCTOR_NOTE] = {"note", COLOUR_YELLOW},
    [DOCTOR_WRONG] = {"wrong", COLOUR_RED},
};

void doctor_say(struct doctor *d, enum doctor_level level, const char *about, const char *mend,
                const char *fmt, ...)
{
    char text[1024];
    va_list args;
    json_t *o;

    va_start(args, fmt);
    vsnprintf(text, sizeof(text), fmt, args);
    va_end(args);
    d->n_wrong += level == DOCTOR_WRONG;
    if (d->json) {
        o = json_pack("{ssssso}", "level", levels[level].name, "about", about, "text",
                      ctl_json_text(text, strlen(text)));
        if (mend)
            json_object_set_new(o, "mend", ctl_json_text(mend, strlen(mend)));
        json_array_append_new(d->findings, o);
        return;
    }
    printf("%s%-5s%s  %-7s  ", terminal_colour(STDOUT_FILENO, levels[level].colour),
           levels[level].name, terminal_colour(STDOUT_FILENO, COLOUR_END), about);
    for (const char *p = text; *p; p++)
        putchar((unsigned char)*p < 0x20 || *p == 0x7f ? '?' : *p);
    putchar('\n');
    if (mend && !program_has_control(mend))
        printf("%16s%s\n", "", mend);
}

/* ---- users and paths */

bool doctor_find_user(struct doctor_user *user, const char *name)
{
    const struct passwd *found = getpwnam(name);
    int n = 0;

    if (!found)
        return false;
    snprintf(user->name, sizeof(user->name), "%s", name);
    user->uid = found->pw_uid;
    getgrouplist(name, found->pw_gid, NULL, &n);
    user->groups = calloc((size_t)n + 1, sizeof(gid_t));
    if (!user->groups) {
        ctl_message("out of memory");
        exit(EXIT_ERROR);
    }
    getgrouplist(name, found->pw_gid, user->groups, &n);
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

/* want as the three bits of one class of a mode. */
static bool may(const struct doctor_user *user, const struct stat *st, unsigned want)
{
    unsigned shift = user->uid == st->st_uid ? 6 : doctor_in_group(user, st->st_gid) ? 3 : 0;

    return user->uid == 0 || ((st->st_mode >> shift) & want) == want;
}

/* The command that lets the user in: by the class that it is in. */
static void mend_mode(char *out, size_t n, const struct doctor_user *user, const struct stat *st,
                      unsigned want, const char *path)
{
    const char *class = user->uid == st->st_uid             ? "u"
                        : doctor_in_group(user, st->st_gid) ? "g"
                                                            : "o";

    char quoted[4 * 4096];

    snprintf(out, n, "%schmod %s+%s%s%s %s", doctor_sudo(st->st_uid), class, want & 4 ? "r" : "",
             want & 2 ? "w" : "", want & 1 ? "x" : "", program_quote(quoted, sizeof(quoted), path));
}

/* What cannot be looked at: who may look, or what there is beside it. */
static void say_missing(struct doctor *d, const char *about, const struct doctor_user *user,
                        char *part, int why)
{
    char mend[DOCTOR_COMMAND], quoted[4 * 4096], *slash = strrchr(part, '/');

    if (why == EACCES) {
        doctor_say(d, user->uid != geteuid() ? DOCTOR_NOTE : DOCTOR_WRONG, about,
                   doctor_again(mend, d), "%s: %s", part, strerror(why));
        return;
    }
    *slash = '\0';
    snprintf(mend, sizeof(mend), "ls -la %s",
             program_quote(quoted, sizeof(quoted), slash == part ? "/" : part));
    *slash = '/';
    doctor_say(d, DOCTOR_WRONG, about, mend, "%s: %s", part, strerror(why));
}

bool doctor_path(struct doctor *d, const char *about, const struct doctor_user *user,
                 const char *path, int want)
{
    char part[4096], mend[DOCTOR_COMMAND];
    size_t n = strlen(path), at = 0;

    if (n >= sizeof(part) || path[0] != '/') {
        doctor_say(d, DOCTOR_WRONG, about, doctor_edit(mend, d), "%s is no absolute path", path);
        return false;
    }
    while (at < n) {
        size_t end = at + 1 + strcspn(path + at + 1, "/");
        bool last = end >= n;
        unsigned bits = last ? (unsigned)want : 1;
        struct stat st;

        memcpy(part, path, end ? end : 1);
        part[end] = '\0';
        if (stat(part, &st) < 0) { /* ENOTDIR: what is above it is no folder */
            say_missing(d, about, user, part, errno);
            return false;
        }
        if (!may(user, &st, bits)) {
            mend_mode(mend, sizeof(mend), user, &st, bits, part);
            doctor_say(d, DOCTOR_WRONG, about, mend, "user %s may not %s %s (mode %04o)",
                       user->name,
                       bits & 2   ? "write to"
                       : bits & 4 ? "read"
                                  : "go through",
                       part, (unsigned)st.st_mode & 07777);
            return false;
        }
        at = end;
    }
    return true;
}

/* ---- the command */

/* The daemon's user: the one given, else the service's where there is one, else who calls. */
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

static int finish(struct doctor *d)
{
    bool ok = true;

    if (d->json)
        ok = ctl_json_print(STDOUT_FILENO,
                            json_pack("{sOsi}", "findings", d->findings, "wrong", d->n_wrong));
    else if (d->n_wrong == 0)
        puts("Nothing is broken.");
    else
        printf("%d %s broken; below each stands what mends it.\n", d->n_wrong,
               d->n_wrong == 1 ? "thing is" : "things are");
    if (!ok)
        return EXIT_ERROR;
    if (d->n_wrong == 1 && d->not_running)
        return EXIT_NOT_RUNNING;
    return d->n_wrong == 0 ? EXIT_OK : EXIT_ERROR;
}

int ctl_doctor(struct ctl *ctl)
{
    const char *config = ctl_option(ctl, "config");
    struct doctor d = {
        .ctl = ctl,
        .json = ctl_option(ctl, "json"),
        .config = config ? config : NVLLM_CONFIG_DIR "/nvllmd.conf",
        .given_config = config,
        .given_model = ctl_option(ctl, "model"),
        .findings = json_array(),
        .of_model = json_array(),
    };
    int rc;

    choose_user(&d, ctl_option(ctl, "user"));
    doctor_find_program(&d);
    doctor_socket(&d);
    doctor_config(&d);
    doctor_model(&d);
    doctor_host(&d);
    rc = finish(&d);
    json_decref(d.findings);
    json_decref(d.of_model);
    free(d.user.groups);
    return rc;
}
