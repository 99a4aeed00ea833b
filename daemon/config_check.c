/* config_check.c - see offline.h. Checks each step of a start with the module that does it. */
#include "daemon/offline.h"

#include <errno.h>
#include <libgen.h>
#include <pwd.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <jansson.h>

#include "daemon/backend_choice.h"
#include "daemon/accounts.h"
#include "daemon/listener.h"
#include "daemon/metrics.h"
#include "engine/cpu/cpu_backend.h"
#include "engine/drafter.h"
#include "engine/engine.h"
#include "engine/model/weights.h"
#include "proto/program.h"
#include "proto/utf8.h"

enum level { OK, NOTE, WRONG };

enum {
    PATH_ROOM = 4096,
    HEAD_ROOM = 1024,                     /* of a command without its last word */
    FIX_ROOM = HEAD_ROOM + 4 * PATH_ROOM, /* each letter of that a quote, at worst */
};

struct checking {
    const struct config_check *check;
    json_t *findings;
    int n_wrong;
    const char *about;  /* the model that is checked, or its draft model, for say_line() */
    const char *folder; /* of that */
    char fix[FIX_ROOM]; /* of command() */
};

/* ---- findings */

/* Prints or collects one finding. about is a word; fix is a command, or NULL. */
__attribute__((format(printf, 5, 6))) static void
say(struct checking *c, enum level level, const char *about, const char *fix, const char *fmt, ...)
{
    static const char *const names[] = {"ok", "note", "wrong"};
    char text[2 * PATH_ROOM];
    va_list args;
    json_t *o;

    va_start(args, fmt);
    vsnprintf(text, sizeof(text), fmt, args);
    va_end(args);
    utf8_clean(text); /* it may quote a file, and is shown on a terminal */
    c->n_wrong += level == WRONG;
    if (!c->check->json) {
        printf("%-5s  %-7s  %s\n", names[level], about, text);
        if (fix && !program_has_control(fix))
            printf("%16s%s\n", "", fix);
        return;
    }
    o = json_pack("{ssssss}", "level", names[level], "about", about, "text", text);
    if (fix)
        json_object_set_new(o, "fix", json_string(fix)); /* not UTF-8: it is left out */
    json_array_append_new(c->findings, o);
}

/* "sudo " if the user may not write to the path. */
static const char *sudo_for(const char *path)
{
    return access(path, W_OK) == 0 ? "" : "sudo ";
}

/* A command with a word to be quoted at its end; valid until the next. */
__attribute__((format(printf, 3, 4))) static const char *
command(struct checking *c, const char *word, const char *fmt, ...)
{
    va_list args;
    int n;

    va_start(args, fmt);
    n = vsnprintf(c->fix, HEAD_ROOM, fmt, args);
    va_end(args);
    if (n < 0 || (size_t)n >= HEAD_ROOM)
        return NULL;
    program_quote(c->fix + n, sizeof(c->fix) - (size_t)n, word);
    return c->fix;
}

/* The command that opens the file, at the line if it is known; without a file, --help. */
static const char *edit(struct checking *c, long line)
{
    const char *file = c->check->file;

    if (!file)
        return "nvllmd --help";
    if (line > 0)
        return command(c, file, "%s${EDITOR:-vi} +%ld ", sudo_for(file), line);
    return command(c, file, "%s${EDITOR:-vi} ", sudo_for(file));
}

/* ---- the steps */

/* Reports why the options are wrong. An error in a file begins with "file:line". */
static void say_why(struct checking *c)
{
    const char *file = c->check->file, *text = c->check->why->text;
    size_t n = file ? strlen(file) : 0;
    const char *fix;
    struct stat st;

    if (file && access(file, R_OK) < 0 && errno == EACCES && stat(file, &st) == 0)
        fix = command(c, file, "sudo chmod o+r ");
    else
        fix = edit(c, n && strncmp(text, file, n) == 0 && text[n] == ':'
                          ? strtol(text + n + 1, NULL, 10)
                          : 0);
    say(c, WRONG, "config", fix, "%s", text);
}

/* Whether a daemon serves the socket: it may have most of the device's memory. */
static bool is_served(const struct checking *c)
{
    const struct listener_options listener = listener_options_of(c->check->options, false);
    struct err e;

    return listener_check(&listener, &e) == -EADDRINUSE;
}

static void check_backend(struct checking *c, struct backend_choice *choice)
{
    const struct backend_options options = backend_options_of(c->check->options);
    struct err e;

    if (backend_choose(choice, c->check->options, &cpu_backend, "/dev", &e) < 0) {
        *choice = (struct backend_choice){0};
        say(c, WRONG, "backend", edit(c, 0), "%s", e.text);
    } else if (choice->ops->probe && !is_served(c) && choice->ops->probe(&options, &e) < 0) {
        say(c, WRONG, "backend", strncmp(e.text, "CUDA", 4) == 0 ? "nvidia-smi" : edit(c, 0), "%s",
            e.text);
    } else if (*choice->warning.text) {
        say(c, NOTE, "backend", NULL, "%s", choice->warning.text);
    } else {
        say(c, OK, "backend", NULL, "%s", choice->ops->name);
    }
}

/* systemd creates the folder of the default socket when it starts the service. */
static bool is_made_by_systemd(const char *path)
{
    return strncmp(path, "/run/nvllm/", 11) == 0 && !strchr(path + 11, '/') &&
           program_has_service();
}

/* Root's folders and those directly below / keep their owner. */
static bool may_be_given(const char *folder)
{
    struct stat st;

    return stat(folder, &st) == 0 && st.st_uid != 0 && strrchr(folder, '/') != folder;
}

/* The command that fixes an error of listener_check. */
static const char *fix_socket(struct checking *c, int code, const struct listener_options *l)
{
    struct passwd *me = getpwuid(geteuid());
    const char *name = me ? me->pw_name : "", *folder;
    char path[PATH_ROOM], group[HEAD_ROOM / 2];

    snprintf(path, sizeof(path), "%s", l->path);
    folder = dirname(path);
    if (code == -ENOENT && me)
        return command(c, folder, "%sinstall -d -o %s -m 0755 ", geteuid() == 0 ? "" : "sudo ",
                       name);
    if (code == -EACCES && me && may_be_given(folder))
        return command(c, folder, "sudo chown %s ", name);
    if (code == -ENOTSOCK)
        return command(c, l->path, "%srm -d ", sudo_for(folder));
    if (code == -EINVAL && *l->path && *l->group)
        return command(c, l->group, "sudo groupadd --system ");
    if (code == -EPERM && me)
        return command(c, name, "sudo usermod -aG %s ",
                       program_quote(group, sizeof(group), l->group));
    return edit(c, 0);
}

static void check_socket(struct checking *c, const char *about, const struct listener_options *l)
{
    struct err e;
    int r = listener_check(l, &e);

    if (r == 0)
        say(c, OK, about, NULL, "%s (mode %04o)", l->path, (unsigned)l->mode);
    else if (r == -EADDRINUSE)
        say(c, OK, about, NULL, "%s, where a daemon is running now", l->path);
    else if (r == -ENOENT && is_made_by_systemd(l->path))
        say(c, NOTE, about, NULL, "%s: systemd creates its folder when it starts nvllmd", l->path);
    else
        say(c, WRONG, about, fix_socket(c, r, l), "%s", e.text);
}

static void check_admins(struct checking *c)
{
    const struct options *o = c->check->options;
    const struct listener_options listener = listener_options_of(o, true);
    struct rights rights;
    struct err e;

    if (rights_init(&rights, o->admin_group, &e) < 0)
        say(c, WRONG, "admins", command(c, o->admin_group, "sudo groupadd --system "), "%s",
            e.text);
    else if (*o->admin_socket && strcmp(o->admin_socket, o->socket) == 0)
        say(c, WRONG, "admins", edit(c, 0), "daemon.admin_socket: %s is already daemon.socket",
            o->admin_socket);
    else if (*o->admin_socket)
        check_socket(c, "admins", &listener);
}

static void check_metrics(struct checking *c)
{
    const struct options *o = c->check->options;
    const struct listener_options place = {o->metrics_path, (mode_t)o->metrics_mode,
                                           o->metrics_group, "metrics.group"};
    struct err e;
    int r;

    if (!*o->metrics_path)
        return;
    if (strcmp(o->metrics_path, o->socket) == 0 || strcmp(o->metrics_path, o->admin_socket) == 0) {
        say(c, WRONG, "metrics", edit(c, 0), "metrics.path: %s is the socket of clients already",
            o->metrics_path);
        return;
    }
    r = metrics_check(o, &e);
    if (r == 0)
        say(c, OK, "metrics", NULL, "%s (mode %04o)", o->metrics_path, (unsigned)o->metrics_mode);
    else if (r == -EADDRINUSE)
        say(c, OK, "metrics", NULL, "%s, where a daemon is running now", o->metrics_path);
    else if (r == -ENOENT && is_made_by_systemd(o->metrics_path))
        say(c, NOTE, "metrics", NULL, "%s: systemd creates its folder when it starts nvllmd",
            o->metrics_path);
    else
        say(c, WRONG, "metrics", fix_socket(c, r, &place), "%s", e.text);
}

/* The folder of the cache's files, and the secret in it. */
static void check_cache(struct checking *c)
{
    const struct options *o = c->check->options;
    const char *folder = options_state_folder(o), *fix = edit(c, 0);
    char file[PATH_ROOM];
    struct err e;
    int r;

    if (!folder && o->disk && program_has_service())
        say(c, NOTE, "cache", NULL, "systemd names its folder when it starts nvllmd");
    else if (!folder && o->disk)
        say(c, WRONG, "cache", fix, "cache.disk: there is no folder; set cache.folder");
    if (!folder)
        return;
    r = cache_secret_check(folder, &e);
    snprintf(file, sizeof(file), "%s/cache-secret", folder);
    if (r == -ENOENT)
        fix = command(c, folder, "%sinstall -d -m 0700 ", geteuid() == 0 ? "" : "sudo ");
    else if (r == -EPERM)
        fix = command(c, file, "%schmod go= ", sudo_for(file));
    else if (r == -EINVAL)
        fix = command(c, file, "%srm -d ", sudo_for(folder));
    if (r == 0)
        say(c, OK, "cache", NULL, "%s", folder);
    else
        say(c, WRONG, "cache", fix, "%s", e.text);
}

/* Reports a line of “nvllmd check” that is more than right. */
static void say_line(void *arg, const char *level, const char *text)
{
    const bool denied = strstr(text, strerror(EACCES)) != NULL;
    struct checking *c = arg;

    if (strcmp(level, "wrong") == 0)
        say(c, WRONG, c->about,
            command(c, c->folder, denied ? "sudo chmod -R o+rX " : "nvllmd check --model "), "%s",
            text);
    else if (strcmp(level, "note") == 0)
        say(c, NOTE, c->about, NULL, "%s", text);
}

/* Of several ranks: what each holds of the weights. */
static void say_ranks(struct checking *c, const struct model *model, int32_t tp_size)
{
    static const struct weights_layout layout = {.vectors = DTYPE_BF16,
                                                 .k_align = 1,
                                                 .align = 1,
                                                 .piece_elements = INT64_MAX};
    uint64_t most = 0, bytes;
    struct err e;

    for (int32_t i = 0; i < tp_size; i++) {
        if (weights_measure(&bytes, model_config(model), (struct shard){i, tp_size}, &layout, &e) <
            0) {
            say(c, WRONG, "ranks", edit(c, 0), "%s", e.text);
            return;
        }
        most = bytes > most ? bytes : most;
    }
    say(c, NOTE, "ranks", NULL, "%d ranks, each with at most %.1f MiB of weights", tp_size,
        (double)most / 0x1p20);
}

/* The folder of homes that the sandbox hides and the path is in; NULL: there is none. */
static const char *hidden_home(const char *path)
{
    static const char *const homes[] = {"/home", "/root", "/run/user"};
    struct stat st;

    for (size_t i = 0; i < sizeof(homes) / sizeof(*homes); i++) {
        const size_t n = strlen(homes[i]);

        /* systemd puts an empty folder there that nobody may enter. */
        if (strncmp(path, homes[i], n) == 0 && path[n] == '/' && stat(homes[i], &st) == 0 &&
            (st.st_mode & 07777) == 0)
            return homes[i];
    }
    return NULL;
}

/* Whether the user may enter each folder above the model's, and that. */
static bool check_reach(struct checking *c, const char *path)
{
    const char *home = c->check->unit ? hidden_home(path) : NULL;
    char part[PATH_ROOM];
    bool last;

    if (home) {
        snprintf(c->fix, sizeof(c->fix),
                 "sudo mkdir -p /etc/systemd/system/%s.d && printf "
                 "'[Service]\\nProtectHome=read-only\\n' | sudo tee "
                 "/etc/systemd/system/%s.d/home.conf && sudo systemctl daemon-reload",
                 c->check->unit, c->check->unit);
        say(c, WRONG, c->about, c->fix, "%s: %s is hidden from %s (ProtectHome=)", path, home,
            c->check->unit);
        return false;
    }
    for (size_t at = 1; path[0] == '/' && at < sizeof(part) && path[at - 1]; at++) {
        at += strcspn(path + at, "/");
        snprintf(part, sizeof(part), "%.*s", (int)at, path);
        last = !path[at];
        if (access(part, last ? R_OK | X_OK : X_OK) == 0 || errno != EACCES)
            continue;
        say(c, WRONG, c->about, command(c, part, "sudo chmod %s ", last ? "-R o+rX" : "o+x"),
            "%s: the user that runs nvllmd may not enter %s", path, part);
        return false;
    }
    return true;
}

/* The draft model, beside a model that is right. */
static void check_draft(struct checking *c, const struct backend_ops *ops,
                        const struct backend_options *backend)
{
    const struct options *o = c->check->options;
    struct problems problems = {.line = say_line, .arg = c};
    struct tokenizer *tokenizer = NULL;
    int32_t vocab_size;
    struct err e;
    int r;

    c->about = "draft";
    c->folder = o->draft;
    if (!check_reach(c, c->folder))
        return;
    model_check(&vocab_size, o->draft, &problems);
    if (problems.n > 0)
        return;
    r = drafter_check_options(backend, o->speculation != 0, &e);
    if (r == 0 && ops)
        r = drafter_check_model(o->draft, ops, backend, &e);
    if (r == 0)
        r = tokenizer_load(&tokenizer, o->model_path, &e);
    if (r == 0)
        r = drafter_check_vocabulary(o->draft, tokenizer, &e);
    tokenizer_free(tokenizer);
    if (r < 0)
        say(c, WRONG, c->about, edit(c, 0), "%s", e.text);
    else
        say(c, OK, "draft", NULL, "%s", o->draft);
}

/* By a backend, with a negative errno. */
static const char *blamed(int r)
{
    return r == -ENOMEM ? "memory" : r == -EINVAL ? "config" : "model";
}

static void check_model(struct checking *c, const struct backend_choice *choice)
{
    const struct options *o = c->check->options;
    const struct backend_options backend = backend_options_of(o);
    struct problems problems = {.line = say_line, .arg = c};
    struct model *model = NULL;
    struct err e;
    int r;

    if (!*o->model_path) {
        say(c, WRONG, "model", edit(c, 0),
            "no model: set path in section [model], or give --model DIR");
        return;
    }
    c->about = "model";
    c->folder = o->model_path;
    if (!check_reach(c, c->folder))
        return;
    offline_check_folder(o->model_path, *o->chat_template ? o->chat_template : NULL, &problems);
    if (problems.n > 0)
        return;
    say(c, OK, "model", NULL, "%s", o->model_path);
    if (model_open(&model, o->model_path, &e) < 0)
        say(c, WRONG, "model", NULL, "%s", e.text); /* it has changed since */
    else if (model_quantize(model, options_quantize(o), &e) < 0)
        say(c, WRONG, "config", edit(c, 0), "%s", e.text);
    else if (engine_check_options(&backend, model, &e) < 0)
        say(c, WRONG, "config", edit(c, 0), "%s", e.text);
    else if (choice->ops && choice->ops->check && (r = choice->ops->check(model, &backend, &e)) < 0)
        say(c, WRONG, blamed(r), edit(c, 0), "%s", e.text);
    else if (backend.tp_size > 1)
        say_ranks(c, model, backend.tp_size);
    model_close(model);
    if (*o->draft)
        check_draft(c, choice->ops, &backend);
}

/* Which process of which cluster this would be. */
static void say_cluster(struct checking *c)
{
    const struct options *o = c->check->options;

    if (o->world_size > 1)
        say(c, NOTE, "cluster", NULL, "process %d of 0 to %d, %s; they meet at %s",
            (int)o->cluster_rank, (int)o->world_size - 1,
            o->cluster_rank == 0 ? "which serves" : "which follows number 0",
            *o->rendezvous ? o->rendezvous : "$NCCL_COMM_ID");
}

static void check_options(struct checking *c)
{
    const struct options *o = c->check->options;
    const struct listener_options listener = listener_options_of(o, false);
    struct backend_choice choice;

    if (c->check->file)
        say(c, OK, "config", NULL, "%s", c->check->file);
    else
        say(c, NOTE, "config", NULL, "no file: only the defaults and the command line apply");
    if (c->check->not_in_unit)
        say(c, NOTE, "unit", NULL, "not checked in the sandbox of the service: %s",
            c->check->not_in_unit->text);
    say_cluster(c);
    check_backend(c, &choice);
    if (o->cluster_rank == 0) { /* the others serve nobody */
        check_socket(c, "socket", &listener);
        check_admins(c);
        check_metrics(c);
        check_cache(c);
    }
    check_model(c, &choice);
}

int config_check_run(const struct config_check *check)
{
    struct checking c = {.check = check, .findings = json_array()};
    const struct options *o = check->options;
    json_t *all;

    if (o)
        check_options(&c);
    else
        say_why(&c);
    if (check->json) {
        all = json_pack("{sOsi}", "findings", c.findings, "wrong", c.n_wrong);
        if (o) { /* left out if not UTF-8 */
            json_object_set_new(all, "socket", json_string(o->socket));
            json_object_set_new(all, "model", json_string(o->model_path));
        }
        json_dumpf(all, stdout, JSON_COMPACT);
        putchar('\n');
        json_decref(all);
    } else if (c.n_wrong == 0) {
        puts("nvllmd would start with this configuration.");
    } else {
        printf("nvllmd would not start: %d problem%s; below each is the command that fixes it.\n",
               c.n_wrong, c.n_wrong == 1 ? "" : "s");
    }
    json_decref(c.findings);
    return c.n_wrong > 0;
}
