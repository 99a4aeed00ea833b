/* main.c - nvllmd: command line, then either a sub-command on a model folder or the daemon itself,
 * with a backend plugged into the engine. */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "daemon/backend_choice.h"
#include "daemon/crash.h"
#include "daemon/follower.h"
#include "daemon/launcher.h"
#include "daemon/listener.h"
#include "daemon/log.h"
#include "daemon/offline.h"
#include "daemon/options.h"
#include "daemon/server.h"
#include "daemon/unit_check.h"
#include "engine/cpu/cpu_backend.h"
#include "engine/model/converter.h"
#include "proto/program.h"
#include "proto/utf8.h"

enum { EXIT_USAGE = 2 }; /* or configuration: starting again would not help */

/* Bytes of events not yet taken by the loop, over which the engine pauses: some hundred thousand
 * tokens. Each tokenizer thread may add one answer of limits.output_bytes. */
enum { EVENT_BYTES = 64 << 20 };

struct command_line {
    const struct usage_command *command; /* NULL: the daemon */
    struct usage_line line;
    const char *config;     /* NULL: nobody has named a file */
    struct options options; /* all zero where they are wrong: loaded below 0, why says it */
    int loaded;
    struct err why;
    bool done; /* --help or --version was all */
};

static bool is_command(const struct command_line *c, const char *name)
{
    return c->command && strcmp(c->command->name, name) == 0;
}

static int usage_error(const char *text)
{
    fprintf(stderr, "nvllmd: %s\nSee “nvllmd --help”.\n", text);
    return -EINVAL;
}

static int complain(const struct err *e)
{
    fprintf(stderr, "nvllmd: %s\n", e->text);
    return EXIT_FAILURE;
}

/* ---- command line */

static int set_pair(struct options *o, const char *pair, struct err *e)
{
    const char *eq = strchr(pair, '=');
    char key[128];

    if (!eq || (size_t)(eq - pair) >= sizeof(key))
        return err_set(e, -EINVAL, "--set takes SECTION.KEY=VALUE, not “%s”", pair);
    memcpy(key, pair, (size_t)(eq - pair));
    key[eq - pair] = '\0';
    return options_set(o, key, eq + 1, e);
}

/* Applies the options of the command line, in their order, on top of the file. */
static int apply(const struct command_line *c, struct options *out, struct err *e)
{
    static const char *const keys[][2] = {{"model", "model.path"},
                                          {"chat-template", "model.chat_template"},
                                          {"socket", "daemon.socket"},
                                          {"backend", "daemon.backend"}};
    int r = 0;

    for (size_t i = 0; r == 0 && i < c->line.n_given; i++) {
        const char *name = c->line.given[i].option->name, *value = c->line.given[i].value;

        if (strcmp(name, "set") == 0)
            r = set_pair(out, value, e);
        for (size_t k = 0; r == 0 && k < sizeof(keys) / sizeof(*keys); k++)
            if (strcmp(name, keys[k][0]) == 0)
                r = options_set(out, keys[k][1], value, e);
    }
    return r;
}

/* Reads all options, at the start or for a reload: defaults, file, command line. */
static int load(void *arg, struct options *out, struct err *e)
{
    const struct command_line *c = arg;
    int r = options_init(out, e);

    if (r < 0)
        return r;
    r = options_read(out, c->config ? c->config : OPTIONS_DEFAULT_FILE, e);
    if (r == -ENOENT && !c->config)
        r = 0;
    if (r == 0)
        r = apply(c, out, e);
    if (r == 0 && (!c->command || is_command(c, "check-config") || is_command(c, "tune")))
        r = launcher_apply(out, e);
    if (r < 0)
        options_deinit(out);
    return r;
}

static int find_command(struct command_line *c, const char *name)
{
    const char *near = usage_nearest_command(&nvllmd_program, name);
    char text[160];

    c->command = usage_find_command(&nvllmd_program, name);
    if (c->command)
        return 0;
    snprintf(text, sizeof(text), "there is no command “%.40s”%s%s%s", name,
             near                ? ": did you mean “"
             : strchr(name, '/') ? ": give a model folder with --model"
                                 : "",
             near ? near : "", near ? "”?" : "");
    return usage_error(text);
}

/* Whether what the command line says is right, whatever is in the default file. */
static int check_given(const struct command_line *c, struct err *e)
{
    struct options o;
    int r = options_init(&o, e);

    if (r < 0)
        return r;
    r = apply(c, &o, e);
    options_deinit(&o);
    return r;
}

/* Loads the options. check-config goes on where they are wrong. list and convert need none, and go
 * on where the default file is wrong, which the user may not even be able to read. */
static int load_options(struct command_line *c)
{
    const bool needs_none = is_command(c, "list") || is_command(c, "convert");

    c->loaded = load(c, &c->options, &c->why);
    if (c->loaded < 0)
        memset(&c->options, 0, sizeof(c->options));
    if (is_command(c, "check-config") || (needs_none && c->loaded == 0))
        return 0;
    if (needs_none && !c->config && check_given(c, &c->why) == 0)
        return 0;
    if (c->loaded < 0) {
        complain(&c->why);
        return c->loaded;
    }
    if (is_command(c, "render") && *c->options.chat_template)
        return 0;
    if (!*c->options.model_path)
        return usage_error("no model: give --model DIR, or set path in section [model] of the "
                           "configuration");
    return 0;
}

static int parse(struct command_line *c, int argc, char **argv)
{
    const struct usage_option *groups[USAGE_MAX_GROUPS + 2] = {nvllmd_program.common};
    int max_words;
    char why[USAGE_WHY];

    if (argc > 1 && argv[1][0] != '-') {
        if (find_command(c, argv[1]) < 0)
            return -EINVAL;
        memcpy(groups + 1, c->command->options, sizeof(c->command->options));
        argc--;
        argv++;
    }
    if (usage_parse(&c->line, why, argc, argv, groups, false) < 0)
        return usage_error(why);
    c->done = usage_value(&c->line, "help") || usage_value(&c->line, "version");
    if (usage_value(&c->line, "help"))
        nvllmd_usage_print();
    else if (c->done)
        puts("nvllmd " NVLLM_VERSION);
    if (c->done)
        return 0;
    max_words = c->command ? c->command->max_words : 0;
    if (c->line.n_words > max_words) {
        snprintf(why, sizeof(why), "“%.40s” is one argument too many%s", c->line.words[max_words],
                 !c->command || is_command(c, "check") ? ": give a model folder with --model"
                 : max_words == 1                      ? ": put all of them in quotes"
                                                       : "");
        return usage_error(why);
    }
    c->config = usage_value(&c->line, "config");
    return load_options(c);
}

static int check_config(const struct command_line *c)
{
    const char *usual = access(OPTIONS_DEFAULT_FILE, F_OK) == 0 ? OPTIONS_DEFAULT_FILE : NULL;
    const char *unit = unit_check_asked(&c->line);
    struct config_check check = {
        .file = c->config ? c->config : usual,
        .options = c->loaded < 0 ? NULL : &c->options,
        .why = &c->why,
        .unit = usage_value(&c->line, "inside"),
        .json = usage_value(&c->line, "json"),
    };
    struct err e;

    if (unit) {
        unit_check_run(unit, &c->line, &e); /* returns if it fails */
        if (usage_value(&c->line, "unit"))
            return complain(&e);
        check.not_in_unit = &e;
    }
    return config_check_run(&check);
}

static void print_progress(void *ctx, double done)
{
    int *percent = ctx;

    if ((int)(done * 100.0) == *percent)
        return;
    *percent = (int)(done * 100.0);
    fprintf(stderr, "\r%3d %%", *percent);
}

/* Exit status. A terminal sees how far it is. */
static int convert(const struct command_line *c)
{
    static const struct {
        const char *name;
        enum dtype dtype;
    } targets[] = {{"fp8", DTYPE_E4M3}, {"int4", DTYPE_INT4}, {"bf16", DTYPE_BF16}};
    const char *to = usage_value(&c->line, "to");
    enum dtype dtype = N_DTYPES;
    int percent = -1, r;
    struct err e;

    for (size_t i = 0; to && i < sizeof(targets) / sizeof(targets[0]); i++)
        if (strcmp(to, targets[i].name) == 0)
            dtype = targets[i].dtype;
    if (c->line.n_words != 2 || dtype == N_DTYPES) {
        usage_error("convert takes --to fp8, int4 or bf16, a model folder and a new one");
        return EXIT_USAGE;
    }
    if (!*c->line.words[0] || !*c->line.words[1]) {
        usage_error(*c->line.words[0] ? "OUT is empty: it must be the name of a new folder"
                                      : "IN is empty: it must be the name of a model folder");
        return EXIT_USAGE;
    }
    r = model_convert(c->line.words[0], c->line.words[1], dtype,
                      isatty(STDERR_FILENO) ? print_progress : NULL, &percent, &e);
    if (percent >= 0)
        fputc('\n', stderr);
    return r < 0 ? complain(&e) : EXIT_SUCCESS;
}

/* Measures as cuda.tune = before_ready does, without a daemon. */
static int tune(const struct options *o, struct err *e)
{
    struct backend_options options = backend_options_of(o);
    struct backend_choice choice;
    struct backend *backend;
    struct model *model;
    int r = backend_choose(&choice, o, &cpu_backend, "/dev", e);

    if (r < 0)
        return r;
    if (!choice.ops->idle)
        return err_set(e, -ENOTSUP, "the %s backend has nothing to tune", choice.ops->name);
    if (o->cluster_rank > 0)
        return err_set(e, -EINVAL,
                       "cluster.rank: number 0 of a cluster measures; start the others as usual");
    if (!options.cache_folder)
        return err_set(e, -EINVAL, "cuda.cache_folder is not set: tune writes to it");
    options.tune = true;
    r = model_open(&model, o->model_path, e);
    if (r < 0)
        return r;
    if (options.max_seq_len == 0)
        options.max_seq_len = model_config(model)->max_seq_len;
    r = model_quantize(model, options_quantize(o), e);
    if (r == 0)
        r = choice.ops->open(&backend, model, &options, e);
    if (r == 0)
        choice.ops->close(backend);
    model_close(model);
    return r;
}

/* ---- daemon */

/* The last component of the folder's real path: what clients are told. NULL with *e: no memory. */
static char *model_name_of(const char *path, struct err *e)
{
    char *real = realpath(path, NULL), *name;
    const char *last = basename(real ? real : path);

    name = strdup(*last ? last : path);
    free(real);
    if (name)
        utf8_clean(name);
    else
        err_set(e, -ENOMEM, "out of memory");
    return name;
}

static void warn_of_disk(const char *text)
{
    log_text(LOG_LEVEL_WARNING, "cache_disk", text, "%s", "");
}

static int start_engine(struct engine **out, const struct options *o,
                        const struct backend_choice *choice, struct err *e)
{
    struct engine_options options = {
        .model_folder = o->model_path,
        .quantize = options_quantize(o),
        .chat_template = *o->chat_template ? o->chat_template : NULL,
        .backend = choice->ops,
        .backend_options = backend_options_of(o),
        .max_preemptions = (int32_t)o->max_preemptions,
        .max_step_ms = (int32_t)o->max_step_ms,
        .idle_sleep_s = (int32_t)o->idle_sleep_s,
        .prefix_cache = o->prefix_cache != 0,
        .speculate = o->speculation != 0,
        .draft_folder = *o->draft ? o->draft : NULL,
        .share_all = o->scope == OPTION_SCOPE_ALL,
        .disk_bytes = (uint64_t)o->disk,
        .warn = warn_of_disk,
        .n_tokenizer_threads = (int32_t)o->tokenizer_threads,
        .event_bytes = EVENT_BYTES,
    };
    const char *folder = options_state_folder(o);
    int r = 0;

    options.disk_folder = folder;
    if (options.disk_bytes && !folder)
        r = err_set(e, -EINVAL, "cache.disk: there is no folder; set cache.folder");
    if (r == 0)
        r = cache_secret_load(options.cache_secret, folder, e);
    if (r == 0)
        r = engine_new(out, &options, e);
    if (r < 0)
        return r;
    return engine_set_shares(*out, o->shares.list, o->shares.n) < 0
               ? err_set(e, -ENOMEM, "scheduler.shares: out of memory")
               : 0;
}

static int open_listeners(struct listener *out[N_LISTENERS], const struct options *o, struct err *e)
{
    const struct listener_options clients = listener_options_of(o, false);
    const struct listener_options admins = listener_options_of(o, true);
    int r = listener_inherit(&out[FOR_CLIENTS], e);

    if (r == 0 && !out[FOR_CLIENTS])
        r = listener_open(&out[FOR_CLIENTS], &clients, e);
    return r == 0 && *o->admin_socket ? listener_open(&out[FOR_ADMINS], &admins, e) : r;
}

/* What a start that failed with a negative errno exits with. */
static int status_of(int r)
{
    static const int lasting[] = {EINVAL,  ENOENT,  EACCES,       EPERM,
                                  ENOTSUP, ENOTDIR, ENAMETOOLONG, ENOTSOCK};

    for (size_t i = 0; i < sizeof(lasting) / sizeof(lasting[0]); i++)
        if (r == -lasting[i])
            return EXIT_USAGE;
    return EXIT_FAILURE;
}

/* In place of serve(). */
_Noreturn static void follow(const struct options *o, const struct backend_choice *choice,
                             const char *name)
{
    struct err e;
    const int r = follower_run(o, choice, name, &e);

    if (r < 0) {
        log_text(LOG_LEVEL_ERROR, "engine_failed", e.text, "%s", "");
        server_tell_failure(r, e.text);
    }
    _exit(r < 0 ? status_of(r) : EXIT_SUCCESS);
}

static int serve(struct command_line *c)
{
    struct options *o = &c->options;
    struct backend_choice choice;
    struct server_parts parts = {.options = o, .reread = load, .reread_arg = c};
    struct server *server = NULL;
    enum server_end end = SERVER_FAILED;
    struct engine_status status;
    char *name;
    struct err e;
    int r = -ENOMEM;

    server_hold_signals(SIG_BLOCK);
    umask(077);
    crash_init();
    log_init((enum log_level)o->log_level);
    server_raise_descriptors(o);
    name = model_name_of(o->model_path, &e);
    if (!name || (r = backend_choose(&choice, o, &cpu_backend, "/dev", &e)) < 0)
        goto out;
    if (*choice.warning.text)
        log_text(LOG_LEVEL_WARNING, "backend_fell_to_cpu", choice.warning.text, "%s",
                 "backend=cpu");
    if (o->cluster_rank > 0)
        follow(o, &choice, name);
    parts.model = name;
    parts.backend = choice.ops->name;
    parts.session_folder = o->disk ? options_state_folder(o) : NULL;
    if ((r = rights_init(&parts.rights, o->admin_group, &e)) < 0 ||
        (r = open_listeners(parts.listeners, o, &e)) < 0 ||
        (r = start_engine(&parts.engine, o, &choice, &e)) < 0 ||
        (r = server_new(&server, &parts, &e)) < 0)
        goto out;
    end = server_run(server);
    engine_status(parts.engine, &status);
out:
    if (!server) {
        log_text(LOG_LEVEL_ERROR, "cannot_start", e.text, "%s", "");
        server_tell_failure(r, e.text);
    }
    listener_free(parts.listeners[FOR_CLIENTS]);
    listener_free(parts.listeners[FOR_ADMINS]);
    /* Threads that load, hang or have failed are not waited for: the process ends under them, and
     * what they still refer to stays. */
    if (server && end != SERVER_ENDED)
        _exit(end == SERVER_FAILED ? status_of(status.failure_code) : EXIT_SUCCESS);
    engine_free(parts.engine); /* first: its requests and its pool refer to the server's clients */
    server_free(server);
    free(name);
    return server ? EXIT_SUCCESS : status_of(r);
}

int main(int argc, char **argv)
{
    struct command_line c = {0};
    int r, status;

    program_hold_streams();
    signal(SIGPIPE, SIG_IGN);
    signal(SIGXFSZ, SIG_IGN); /* a log or output over RLIMIT_FSIZE is a failed write */
    r = parse(&c, argc, argv);
    if (r < 0)
        status = r == -ENOMEM ? EXIT_FAILURE : EXIT_USAGE;
    else if (c.done)
        status = EXIT_SUCCESS;
    else if (!c.command)
        status = serve(&c);
    else if (is_command(&c, "check-config"))
        status = check_config(&c);
    else if (is_command(&c, "list"))
        status =
            model_list_run(c.line.n_words > 0 ? c.line.words[0] : NULL,
                           c.loaded < 0 ? NULL : &c.options, &c.why, usage_value(&c.line, "json"));
    else if (is_command(&c, "convert"))
        status = convert(&c);
    else if (is_command(&c, "tune"))
        status = tune(&c.options, &c.why) < 0 ? complain(&c.why) : EXIT_SUCCESS;
    else
        status = offline_run(c.command->name, &c.options, &c.line);
    if (fflush(stdout) != 0 || ferror(stdout)) {
        fprintf(stderr, "nvllmd: cannot write to stdout\n");
        status = EXIT_FAILURE;
    }
    usage_line_deinit(&c.line);
    options_deinit(&c.options);
    return status;
}
