/* unit_check.c - see unit_check.h. The settings are taken as the unit's files and drop-ins have
 * them, in their order, since systemd-run reads the same spelling. */
#include "daemon/unit_check.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "daemon/options.h"

enum { MAX_ARGS = 512, MAX_WORD = 4096 };

/* Settings of when and how the daemon runs; all others say what it may do. */
static const char *const left_out[] = {
    "BusName",    "ExecCondition",  "ExecReload",   "ExecStart", "ExecStop",
    "FinalKill",  "FileDescriptor", "GuessMainPID", "Kill",      "NotifyAccess",
    "PIDFile",    "Remain",         "RemoveIPC",    "Restart",   "RuntimeDirectoryPreserve",
    "RuntimeMax", "SendSIG",        "Sockets",      "Standard",  "SuccessExitStatus",
    "Timeout",    "Type",           "Watchdog",
};

struct unit {
    char name[256];                /* with its suffix */
    char instance[256];            /* behind the “@”, or empty */
    char program[MAX_WORD];        /* of ExecStart=; empty: none */
    char *arguments[MAX_ARGS + 1]; /* [n_arguments] of it */
    size_t n_arguments;
    char *settings[MAX_ARGS + 1]; /* [n_settings] "--property=KEY=VALUE" */
    size_t n_settings;
};

const char *unit_check_asked(const struct usage_line *line)
{
    const char *unit = usage_value(line, "unit");

    if (unit || usage_value(line, "inside") || !program_has_service())
        return unit;
    for (size_t i = 0; i < line->n_given; i++) {
        const char *name = line->given[i].option->name, *value = line->given[i].value;

        if (strcmp(name, "json") != 0 &&
            (strcmp(name, "config") != 0 || strcmp(value, OPTIONS_DEFAULT_FILE) != 0))
            return NULL;
    }
    return UNIT_OF_SERVICE;
}

/* ---- its settings */

static int take_name(struct unit *u, const char *name, struct err *e)
{
    static const char suffix[] = ".service";
    const size_t n = strlen(name), n_suffix = sizeof(suffix) - 1;
    const bool is_whole = n > n_suffix && strcmp(name + n - n_suffix, suffix) == 0;
    const char *at;

    /* It becomes a word of a shell. */
    if (n == 0 || n > 200 || name[0] == '-' ||
        strspn(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789@_.:-") != n)
        return err_set(e, -EINVAL, "“%.200s” is not the name of a unit", name);
    snprintf(u->name, sizeof(u->name), "%s%s", name, is_whole ? "" : suffix);
    at = strchr(u->name, '@');
    if (at)
        snprintf(u->instance, sizeof(u->instance), "%.*s",
                 (int)(strlen(at + 1) - strlen(".service")), at + 1);
    return 0;
}

/* Replaces the specifiers of an instance. False: there are others, or it is too long. */
static bool expand(char out[MAX_WORD], const struct unit *u, const char *text)
{
    size_t n = 0;

    for (; *text && n < MAX_WORD - 1; text++) {
        const char *value = u->instance;

        if (*text != '%') {
            out[n++] = *text;
            continue;
        }
        if (*++text == '%')
            value = "%";
        else if (*text != 'i' && *text != 'I')
            return false;
        n += (size_t)snprintf(out + n, MAX_WORD - n, "%s", value);
        if (n >= MAX_WORD)
            return false;
    }
    out[n] = '\0';
    return *text == '\0';
}

static int add(char **list, size_t *n, const char *text, struct err *e)
{
    if (*n >= MAX_ARGS)
        return err_set(e, -E2BIG, "the unit has more than %d settings", MAX_ARGS);
    list[*n] = strdup(text);
    return list[*n] ? (*n += 1, 0) : err_set(e, -ENOMEM, "out of memory");
}

static int take_command(struct unit *u, char *command, struct err *e)
{
    const char *word;
    int r = 0;

    while (u->n_arguments > 0)
        free(u->arguments[--u->n_arguments]);
    u->program[0] = '\0';
    if (*command && (*command != '/' || strpbrk(command, "\"'\\$;")))
        return err_set(e, -EINVAL, "%s: its ExecStart= is more than a program and plain words",
                       u->name);
    while (r == 0 && (word = strsep(&command, " \t")) != NULL)
        if (*word && !u->program[0])
            snprintf(u->program, sizeof(u->program), "%s", word);
        else if (*word)
            r = add(u->arguments, &u->n_arguments, word, e);
    return r;
}

static int take_setting(struct unit *u, const char *key, const char *value, struct err *e)
{
    char text[2 * MAX_WORD], expanded[MAX_WORD];

    const bool is_command = strcmp(key, "ExecStart") == 0;

    for (size_t i = 0; !is_command && i < sizeof(left_out) / sizeof(*left_out); i++)
        if (strncmp(key, left_out[i], strlen(left_out[i])) == 0)
            return 0;
    if (!expand(expanded, u, value))
        return err_set(e, -EINVAL, "%s: a specifier of %s=%.200s is not known here", u->name, key,
                       value);
    if (is_command)
        return take_command(u, expanded, e);
    snprintf(text, sizeof(text), "--property=%s=%s", key, expanded);
    return add(u->settings, &u->n_settings, text, e);
}

/* A line of the file without its blanks at both ends, joined with those that continue it; NULL:
 * there are no more. */
static char *next_line(char **line, size_t *cap, FILE *in)
{
    char *part = NULL, *start;
    size_t part_cap = 0, n;
    ssize_t got = getline(line, cap, in);

    while (got > 0) {
        n = strcspn(*line, "\n");
        (*line)[n] = '\0';
        if (n == 0 || (*line)[n - 1] != '\\')
            break;
        (*line)[n - 1] = ' ';
        got = getline(&part, &part_cap, in);
        if (got > 0) {
            char *joined = NULL;

            if (asprintf(&joined, "%s%s", *line, part) < 0)
                break;
            free(*line);
            *line = joined;
            *cap = strlen(joined) + 1;
        }
    }
    free(part);
    if (got <= 0)
        return NULL;
    start = *line + strspn(*line, " \t");
    for (n = strlen(start); n > 0 && strchr(" \t", start[n - 1]); n--)
        start[n - 1] = '\0';
    return start;
}

static int read_unit(struct unit *u, struct err *e)
{
    char command[300], *line = NULL, *text, *value;
    bool in_service = false;
    size_t cap = 0;
    FILE *in;
    int r = 0;

    snprintf(command, sizeof(command), "systemctl --no-pager cat -- %s 2>/dev/null", u->name);
    in = popen(command, "re");
    if (!in)
        return err_set(e, -errno, "cannot run systemctl: %s", strerror(errno));
    while (r == 0 && (text = next_line(&line, &cap, in)) != NULL) {
        value = strchr(text, '=');
        if (*text == '[')
            in_service = strcmp(text, "[Service]") == 0;
        if (!in_service || !value || *text == '#' || *text == ';')
            continue;
        *value++ = '\0';
        text[strcspn(text, " \t")] = '\0';
        r = take_setting(u, text, value + strspn(value, " \t"), e);
    }
    free(line);
    pclose(in);
    if (r == 0 && !u->program[0])
        r = err_set(e, -EINVAL, "%s: there is no such unit, or it starts nothing", u->name);
    else if (r == 0 && strcmp(basename(u->program), "nvllmd") != 0)
        r = err_set(e, -EINVAL, "%s starts %s, not nvllmd", u->name, u->program);
    return r;
}

/* ---- the check */

/* The unit's command line as a check, and the caller's options. */
static int add_command(struct unit *u, char **argv, size_t n, const struct usage_line *line,
                       struct err *e)
{
    int r = add(argv, &n, u->program, e);

    if (r == 0)
        r = add(argv, &n, "check-config", e);
    if (r == 0)
        r = add(argv, &n, "--inside", e);
    if (r == 0)
        r = add(argv, &n, u->name, e);
    for (size_t i = 0; r == 0 && i < u->n_arguments; i++)
        r = add(argv, &n, u->arguments[i], e);
    for (size_t i = 0; r == 0 && i < line->n_given; i++) {
        const struct usage_option *o = line->given[i].option;
        char option[64];

        if (strcmp(o->name, "unit") == 0)
            continue;
        snprintf(option, sizeof(option), "--%s", o->name);
        r = add(argv, &n, option, e);
        if (r == 0 && o->value)
            r = add(argv, &n, line->given[i].value, e);
    }
    return r;
}

int unit_check_run(const char *unit, const struct usage_line *line, struct err *e)
{
    static const char *const head[] = {"systemd-run", "--quiet", "--wait", "--pipe", "--collect",
                                       "--service-type=exec",
                                       /* The folder may be that of a running daemon. */
                                       "--property=RuntimeDirectoryPreserve=yes"};
    struct unit *u = calloc(1, sizeof(*u));
    char **argv = calloc(MAX_ARGS + 2, sizeof(*argv));
    size_t n = 0;
    int r = u && argv ? take_name(u, unit, e) : err_set(e, -ENOMEM, "out of memory");

    if (r == 0 && geteuid() != 0)
        r = err_set(e, -EPERM, "only root can run a check as %s", u->name);
    if (r == 0)
        r = read_unit(u, e);
    for (size_t i = 0; r == 0 && i < sizeof(head) / sizeof(*head); i++)
        r = add(argv, &n, head[i], e);
    for (size_t i = 0; r == 0 && i < u->n_settings; i++)
        r = add(argv, &n, u->settings[i], e);
    if (r == 0)
        r = add(argv, &n, "--", e);
    if (r == 0)
        r = add_command(u, argv, n, line, e);
    if (r == 0) {
        execvp(argv[0], argv);
        r = err_set(e, -errno, "cannot run systemd-run: %s", strerror(errno));
    }
    for (size_t i = 0; argv && argv[i]; i++)
        free(argv[i]);
    free(argv);
    for (size_t i = 0; u && i < u->n_settings; i++)
        free(u->settings[i]);
    for (size_t i = 0; u && i < u->n_arguments; i++)
        free(u->arguments[i]);
    free(u);
    return r;
}
