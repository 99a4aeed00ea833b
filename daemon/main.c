/* main.c - nvllmd: command line, then either a sub-command on a model folder or the daemon itself,
 * with a backend plugged into the engine. */
#include <errno.h>
#include <getopt.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "daemon/backend_choice.h"
#include "daemon/config_check.h"
#include "daemon/listener.h"
#include "daemon/log.h"
#include "daemon/offline.h"
#include "daemon/options.h"
#include "daemon/rights.h"
#include "daemon/server.h"
#include "daemon/service.h"
#include "daemon/shares.h"
#include "engine/cpu/cpu_backend.h"
#include "proto/program.h"
#include "proto/utf8.h"

enum { EXIT_USAGE = 2 };

/* Of events that the loop has not come to, over which the engine rests until it has: some hundred
 * thousand tokens. Each thread of the tokenizer may add one answer, of limits.output_bytes. */
enum { EVENT_BYTES = 64 << 20 };

static const char usage[] =
    "usage: nvllmd [options]                      serve a model on a socket\n"
    "       nvllmd check-config [options]         whether it would start, and why not\n"
    "       nvllmd check [options]                what is wrong with a model folder\n"
    "       nvllmd tokenize [options] [TEXT|-]    text to token ids\n"
    "       nvllmd detokenize [options] [IDS|-]   token ids to text\n"
    "       nvllmd render [options] [JSON|-]      a chat to the model's prompt\n"
    "\n"
    "  --config FILE             configuration file; default, if it is there:\n"
    "                            " OPTIONS_DEFAULT_FILE "\n"
    "  --set SECTION.KEY=VALUE   one option, over those of the file\n"
    "  --model DIR               model.path\n"
    "  --socket PATH             daemon.socket\n"
    "  --backend auto|cpu|cuda   daemon.backend\n"
    "  --help, --version\n"
    "\n"
    "of tokenize, detokenize and render, which need no weights:\n"
    "  --json                    one JSON object out; of check-config, too\n"
    "  --jsonl                   one JSON value a line in, one object a line out\n"
    "  --special                 tokenize: special tokens are matched\n"
    "  --skip-special            detokenize: special tokens are left out\n"
    "\n"
    "exit status: 0 ok, 1 error, 2 wrong usage\n";

static const struct command {
    const char *name;
    int (*run)(const struct offline_options *o); /* NULL: check-config, which needs all options */
} commands[] = {
    {"check-config", NULL},     {"tokenize", offline_tokenize}, {"detokenize", offline_detokenize},
    {"render", offline_render}, {"check", offline_check},
};

struct command_line {
    const struct command *command; /* NULL: the daemon */
    int argc;                      /* without the command */
    char **argv;
    const char *config;     /* NULL: nobody has named a file */
    struct options options; /* of no use where they are wrong: loaded below 0, why says it */
    int loaded;
    struct err why;
    struct offline_options offline;
    bool done; /* --help or --version was all */
};

static int usage_error(const char *text)
{
    fprintf(stderr, "nvllmd: %s\nnvllmd: --help says more\n", text);
    return -EINVAL;
}

/* ---- command line */

enum {
    OPT_CONFIG = 1,
    OPT_SET,
    OPT_MODEL,
    OPT_SOCKET,
    OPT_BACKEND,
    OPT_JSON,
    OPT_JSONL,
    OPT_SPECIAL,
    OPT_SKIP_SPECIAL,
    OPT_HELP,
    OPT_VERSION
};

static const struct option long_options[] = {
    {"config", required_argument, NULL, OPT_CONFIG},
    {"set", required_argument, NULL, OPT_SET},
    {"model", required_argument, NULL, OPT_MODEL},
    {"socket", required_argument, NULL, OPT_SOCKET},
    {"backend", required_argument, NULL, OPT_BACKEND},
    {"json", no_argument, NULL, OPT_JSON},
    {"jsonl", no_argument, NULL, OPT_JSONL},
    {"special", no_argument, NULL, OPT_SPECIAL},
    {"skip-special", no_argument, NULL, OPT_SKIP_SPECIAL},
    {"help", no_argument, NULL, OPT_HELP},
    {"version", no_argument, NULL, OPT_VERSION},
    {NULL, 0, NULL, 0},
};

static int set_pair(struct options *o, const char *pair, struct err *e)
{
    const char *eq = strchr(pair, '=');
    char key[128];

    if (!eq || (size_t)(eq - pair) >= sizeof(key))
        return err_set(e, -EINVAL, "--set %s: section.key=value is wanted", pair);
    memcpy(key, pair, (size_t)(eq - pair));
    key[eq - pair] = '\0';
    return options_set(o, key, eq + 1, e);
}

/* What the options of the command line set, in their order, over the file's. */
static int apply(const struct command_line *c, struct options *out, struct err *e)
{
    int opt, r = 0;

    optind = 1;
    while (r == 0 && (opt = getopt_long(c->argc, c->argv, "", long_options, NULL)) != -1) {
        switch (opt) {
        case OPT_SET:
            r = set_pair(out, optarg, e);
            break;
        case OPT_MODEL:
            r = options_set(out, "model.path", optarg, e);
            break;
        case OPT_SOCKET:
            r = options_set(out, "daemon.socket", optarg, e);
            break;
        case OPT_BACKEND:
            r = options_set(out, "daemon.backend", optarg, e);
            break;
        }
    }
    return r;
}

/* The nearest of the options or commands, "" where none is near. */
static const char *hint(char buf[64], const char *word, bool option)
{
    const char *near = NULL;
    int least = 3; /* a slip or two */

    for (size_t i = 0;
         option ? long_options[i].name != NULL : i < sizeof(commands) / sizeof(*commands); i++) {
        const char *name = option ? long_options[i].name : commands[i].name;
        int d = program_distance(word, name);

        if (d < least) {
            least = d;
            near = name;
        }
    }
    buf[0] = '\0';
    if (near)
        snprintf(buf, 64, ": did you mean “%s%s”?", option ? "--" : "", near);
    return buf;
}

static int bad_option(char *const *argv, int opt)
{
    const char *given = argv[optind - 1];
    char text[128], near[64], word[64];

    if (opt == ':')
        snprintf(text, sizeof(text), "%.60s takes a value", given);
    else if (strncmp(given, "--", 2) != 0)
        snprintf(text, sizeof(text), "there is no option -%c", optopt);
    else if (strchr(given, '=') && optopt)
        snprintf(text, sizeof(text), "%.*s takes no value", (int)strcspn(given, "="), given);
    else {
        snprintf(word, sizeof(word), "%.*s", (int)strcspn(given + 2, "="), given + 2);
        snprintf(text, sizeof(text), "there is no option --%.40s%s", word, hint(near, word, true));
    }
    return usage_error(text);
}

/* First pass: the command, its switches, which file. */
static int scan(struct command_line *c)
{
    const bool converts = c->command && c->command->run && c->command->run != offline_check;
    bool switches = false;
    int opt;

    opterr = 0;
    while ((opt = getopt_long(c->argc, c->argv, ":", long_options, NULL)) != -1) {
        switch (opt) {
        case OPT_CONFIG:
            c->config = optarg;
            break;
        case OPT_JSON:
            c->offline.json = true;
            switches = switches || !c->command || c->command->run;
            break;
        case OPT_JSONL:
            c->offline.jsonl = switches = true;
            break;
        case OPT_SPECIAL:
            c->offline.special = switches = true;
            break;
        case OPT_SKIP_SPECIAL:
            c->offline.skip_special = switches = true;
            break;
        case OPT_HELP:
            printf("%s\noptions of the configuration file and --set:\n", usage);
            options_print(stdout);
            c->done = true;
            return 0;
        case OPT_VERSION:
            puts("nvllmd " NVLLM_VERSION);
            c->done = true;
            return 0;
        case '?':
        case ':':
            return bad_option(c->argv, opt);
        }
    }
    if (switches && !converts)
        return usage_error("--json, --jsonl, --special and --skip-special belong to tokenize, "
                           "detokenize and render, --json to check-config, too");
    if (c->argc - optind > (converts ? 1 : 0))
        return usage_error("more arguments than there is use for");
    if (optind < c->argc && strcmp(c->argv[optind], "-") != 0)
        c->offline.input = c->argv[optind];
    return 0;
}

/* All options: defaults, the file, the command line. Also for reading them anew: *out is made on
 * success only. */
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
    if (r < 0)
        options_deinit(out);
    return r;
}

static int parse(struct command_line *c, int argc, char **argv)
{
    char text[160], near[64];
    int r;

    if (argc > 1 && argv[1][0] != '-') {
        for (size_t i = 0; i < sizeof(commands) / sizeof(*commands); i++)
            if (strcmp(commands[i].name, argv[1]) == 0)
                c->command = &commands[i];
        if (!c->command) {
            snprintf(text, sizeof(text), "there is no command “%.40s”%s", argv[1],
                     hint(near, argv[1], false));
            return usage_error(text);
        }
        argv[1] = argv[0];
        argc--;
        argv++;
    }
    c->argc = argc;
    c->argv = argv;
    r = scan(c);
    if (r < 0 || c->done)
        return r;
    c->loaded = load(c, &c->options, &c->why);
    if (c->loaded < 0)
        memset(&c->options, 0, sizeof(c->options));
    if (c->command && !c->command->run)
        return 0;
    if (c->loaded < 0)
        return usage_error(c->why.text);
    if (!*c->options.model_path)
        return usage_error("no model: --model DIR, or path in section [model] of the file");
    c->offline.model = c->options.model_path;
    return 0;
}

static int check_config(const struct command_line *c)
{
    const char *usual = access(OPTIONS_DEFAULT_FILE, F_OK) == 0 ? OPTIONS_DEFAULT_FILE : NULL;
    const struct config_check check = {
        .file = c->config ? c->config : usual,
        .options = c->loaded < 0 ? NULL : &c->options,
        .why = &c->why,
        .cpu = &cpu_backend,
        .check_cpu = cpu_backend_check,
        .json = c->offline.json,
    };

    return config_check_run(&check);
}

/* ---- daemon */

/* The last component of the folder's real path: what clients are told. */
static char *model_name_of(const char *path)
{
    char *real = realpath(path, NULL), *name;
    const char *last;

    if (real)
        path = real;
    last = strrchr(path, '/');
    name = strdup(last && last[1] ? last + 1 : path);
    free(real);
    if (name)
        utf8_clean(name);
    return name;
}

static int start_engine(struct engine **out, const struct options *o,
                        const struct backend_choice *choice, struct err *e)
{
    struct engine_options options = {
        .model_folder = o->model_path,
        .backend = choice->ops,
        .backend_options = backend_options_of(o),
        .max_preemptions = (int32_t)o->max_preemptions,
        .max_step_ms = (int32_t)o->max_step_ms,
        .prefix_cache = o->prefix_cache != 0,
        .share_all = o->scope == OPTION_SCOPE_ALL,
        .n_tokenizer_threads = (int32_t)o->tokenizer_threads,
        .event_bytes = EVENT_BYTES,
    };
    struct shares shares;
    int r;

    if (getrandom(&options.hash_seed, sizeof(options.hash_seed), 0) !=
        (ssize_t)sizeof(options.hash_seed))
        return err_set(e, -errno, "getrandom: %s", strerror(errno));
    r = shares_parse(&shares, o->shares, e);
    if (r == 0)
        r = engine_new(out, &options, e);
    if (r < 0)
        return r;
    return engine_set_shares(*out, shares.list, shares.n) < 0
               ? err_set(e, -ENOMEM, "scheduler.shares: out of memory")
               : 0;
}

static int open_admin_listener(struct listener **out, const struct options *o, struct err *e)
{
    const struct listener_options options = listener_options_of_admins(o);

    return *o->admin_socket ? listener_open(out, &options, e) : 0;
}

static int open_listener(struct listener **out, const struct options *o, struct err *e)
{
    const struct listener_options options = listener_options_of(o);
    int r = listener_inherit(out, e);

    return r < 0 || *out ? r : listener_open(out, &options, e);
}

static void prepare_process(const struct options *o)
{
    signal(SIGPIPE, SIG_IGN);
    server_catch_signals();
    umask(077);
    log_init((enum log_level)o->log_level);
    server_raise_descriptors(o);
}

static int serve(struct command_line *c)
{
    struct options *o = &c->options;
    struct backend_choice choice;
    struct server_parts parts = {.options = o, .reread = load, .reread_arg = c};
    struct server *server = NULL;
    enum server_end end = SERVER_FAILED;
    char *name = NULL;
    struct err e;

    prepare_process(o);
    name = model_name_of(o->model_path);
    if (!name || backend_choose(&choice, (enum option_backend)o->backend, &cpu_backend,
                                o->backend_module, "/dev", &e) < 0)
        goto fail;
    if (*choice.warning.text)
        log_text(LOG_LEVEL_WARNING, "backend_fell_to_cpu", choice.warning.text, "%s",
                 "backend=cpu");
    parts.model = name;
    parts.backend = choice.ops->name;
    if (rights_init(&parts.rights, o->admin_group, &e) < 0 ||
        open_listener(&parts.listener, o, &e) < 0 ||
        open_admin_listener(&parts.admin_listener, o, &e) < 0 ||
        start_engine(&parts.engine, o, &choice, &e) < 0 || server_new(&server, &parts, &e) < 0)
        goto fail;
    end = server_run(server);
    listener_free(parts.listener);
    listener_free(parts.admin_listener);
    /* Threads that load, hang or have failed are not waited for: the process ends under them, and
     * what they still refer to stays. */
    if (end != SERVER_ENDED)
        _exit(end == SERVER_FAILED ? EXIT_FAILURE : EXIT_SUCCESS);
    server_free(server);
    engine_free(parts.engine);
    free(name);
    return EXIT_SUCCESS;
fail:
    log_text(LOG_LEVEL_ERROR, "cannot_start", name ? e.text : "out of memory", "%s", "");
    service_failed(name ? e.text : "out of memory");
    server_free(server);
    engine_free(parts.engine);
    listener_free(parts.listener);
    listener_free(parts.admin_listener);
    free(name);
    return EXIT_FAILURE;
}

static int flush_output(void)
{
    if (fflush(stdout) == 0)
        return EXIT_SUCCESS;
    fprintf(stderr, "nvllmd: stdout: cannot be written\n");
    return EXIT_FAILURE;
}

int main(int argc, char **argv)
{
    struct command_line c = {0};
    int status = EXIT_USAGE;

    program_hold_streams();
    if (parse(&c, argc, argv) == 0) {
        if (c.done)
            status = flush_output();
        else
            status = !c.command       ? serve(&c)
                     : c.command->run ? c.command->run(&c.offline)
                                      : check_config(&c);
    }
    options_deinit(&c.options);
    return status;
}
