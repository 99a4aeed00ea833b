/* main.c - nvllmctl: which command, and what all commands take. */
#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "client/lib/clock.h"
#include "client/ctl/ctl.h"
#include "proto/program.h"

static int run_help(struct ctl *ctl, int argc, char **argv);
static int run_version(struct ctl *ctl, int argc, char **argv);

static const struct ctl_command ctl_version = {
    .name = "version",
    .about = "of this program",
    .run = run_version,
    .help = "usage: nvllmctl version\n\nPrints the version of program and library.\n",
};

static const struct ctl_command ctl_help = {
    .name = "help",
    .about = "on a command",
    .run = run_help,
    .help = "usage: nvllmctl help [COMMAND]\n\nPrints help on a command, or on all.\n",
    .examples = "  nvllmctl help generate\n",
};

/* As people look for them: asking the model, looking at the daemon, changing it, the rest. */
const struct ctl_command *const ctl_commands[] = {
    &ctl_chat,   &ctl_generate, &ctl_batch,   &ctl_tokenize, &ctl_detokenize, &ctl_render,
    &ctl_status, &ctl_requests, &ctl_blocks,  &ctl_cache,    &ctl_explain,    &ctl_top,
    &ctl_cancel, &ctl_drain,    &ctl_resume,  &ctl_reload,   &ctl_log_level,  &ctl_stop,
    &ctl_bench,  &ctl_doctor,   &ctl_version, &ctl_help,
};
const size_t ctl_n_commands = sizeof(ctl_commands) / sizeof(ctl_commands[0]);

int64_t ctl_number(const struct ctl *ctl, const char *option, const char *text, int64_t min,
                   int64_t max)
{
    long long value;
    char *end;

    errno = 0;
    value = strtoll(text, &end, 10);
    if (end == text || *end != '\0' || errno != 0 || value < min || value > max)
        ctl_usage(ctl, "--%s takes a whole number from %lld to %lld, not “%s”", option,
                  (long long)min, (long long)max, text);
    return value;
}

static void set_timeout(struct ctl *ctl, const char *text)
{
    double seconds;
    char *end;

    seconds = strtod(text, &end);
    if (end == text || *end != '\0' || !isfinite(seconds) || seconds < 0 || seconds > 2000000)
        ctl_usage(ctl, "--timeout takes seconds, not “%s”", text);
    ctl->timeout_ms = (int)ceil(seconds * 1000);
    ctl->deadline = clock_ms() + ctl->timeout_ms;
}

/* The exit code, once what stdio still holds has been written. */
static int flushed(int rc)
{
    if (fflush(stdout) == 0 || rc != EXIT_OK)
        return rc;
    if (errno != EPIPE)
        ctl_message("cannot write to stdout: %s", strerror(errno));
    return EXIT_ERROR;
}

static bool take_common(struct ctl *ctl, int option)
{
    switch (option) {
    case OPT_SOCKET:
        if (optarg[0] == '\0')
            ctl_usage(ctl, "--socket takes the path of a socket");
        ctl->socket_path = optarg;
        return true;
    case OPT_TIMEOUT:
        set_timeout(ctl, optarg);
        return true;
    case OPT_WAIT:
        ctl->wait = true;
        return true;
    case OPT_NO_WAIT:
        ctl->no_wait = true;
        return true;
    case OPT_HELP:
        ctl_help_print(ctl->command);
        exit(flushed(EXIT_OK));
    default:
        return false;
    }
}

__attribute__((noreturn)) static void bad_option(const struct ctl *ctl, char **argv,
                                                 const struct option *options, int code)
{
    const char *names[128];
    const char *given = argv[optind - 1];
    char word[64];
    const char *near;
    size_t n = 0;

    if (code == ':')
        ctl_usage(ctl, "%s takes a value", given);
    if (strncmp(given, "--", 2) != 0)
        ctl_usage(ctl, "there is no option -%c (text that begins with “-” goes behind “--”)",
                  optopt);
    snprintf(word, sizeof(word), "%.*s", (int)strcspn(given + 2, "="), given + 2);
    while (options[n].name && n < sizeof(names) / sizeof(names[0])) {
        names[n] = options[n].name;
        n++;
    }
    near = ctl_nearest(word, names, n);
    if (near && strcmp(near, word) == 0)
        ctl_usage(ctl, "--%s takes no value", word);
    if (near)
        ctl_usage(ctl, "there is no option --%s: did you mean --%s?", word, near);
    if (!ctl->command)
        ctl_usage(ctl, "there is no option --%s before the command: its own go behind it", word);
    ctl_usage(ctl, "there is no option --%s, or the word is too short", word);
}

int ctl_getopt(struct ctl *ctl, int argc, char **argv, const struct option *options)
{
    for (;;) {
        int c, index = -1;

        opterr = 0;
        /* Outside of the command's own options, those before the command end at it ("+"). */
        c = getopt_long(argc, argv, ctl->command ? ":hn:" : "+:hn:", options, &index);
        ctl->option = index >= 0 ? options[index].name : "n";
        if (c == 'h')
            c = OPT_HELP;
        if (c == '?' || c == ':')
            bad_option(ctl, argv, options, c);
        if (!take_common(ctl, c))
            return c;
    }
}

/* NULL: there is none of that name, which is said. */
static const struct ctl_command *find_command(const char *name)
{
    const char *names[sizeof(ctl_commands) / sizeof(ctl_commands[0])];
    const char *near;

    for (size_t i = 0; i < ctl_n_commands; i++) {
        names[i] = ctl_commands[i]->name;
        if (strcmp(name, names[i]) == 0)
            return ctl_commands[i];
    }
    near = ctl_nearest(name, names, ctl_n_commands);
    if (near)
        ctl_message("there is no command “%s”: did you mean “%s”?", name, near);
    else
        ctl_message("there is no command “%s”: “nvllmctl help” lists them", name);
    return NULL;
}

const struct option ctl_no_options[] = {CTL_COMMON_OPTIONS, {NULL, 0, NULL, 0}};

static int run_help(struct ctl *ctl, int argc, char **argv)
{
    const struct ctl_command *about = NULL;

    ctl_getopt(ctl, argc, argv, ctl_no_options);
    if (argc - optind > 1)
        ctl_usage(ctl, "help is on one command at a time");
    if (optind < argc && !(about = find_command(argv[optind])))
        return EXIT_USAGE;
    ctl_help_print(about);
    return EXIT_OK;
}

static int run_version(struct ctl *ctl, int argc, char **argv)
{
    ctl_getopt(ctl, argc, argv, ctl_no_options);
    if (optind < argc)
        ctl_usage(ctl, "version takes nothing");
    printf("nvllmctl %s (libnvllm-client %s)\n", NVLLM_VERSION, nvllm_client_version());
    return EXIT_OK;
}

static int run(struct ctl *ctl, int argc, char **argv)
{
    ctl->command = find_command(argv[0]);
    if (!ctl->command)
        return EXIT_USAGE;
    optind = 0; /* getopt begins anew */
    return ctl->command->run(ctl, argc, argv);
}

int main(int argc, char **argv)
{
    static const struct option options[] = {
        CTL_COMMON_OPTIONS,
        {"version", no_argument, NULL, 'V'},
        {NULL, 0, NULL, 0},
    };
    struct ctl ctl = {.timeout_ms = -1, .deadline = -1};
    const char *from_environment = getenv("NVLLM_SOCKET");
    int c;

    program_hold_streams();
    ctl.socket_path =
        from_environment && from_environment[0] ? from_environment : NVLLM_DEFAULT_SOCKET;
    while ((c = ctl_getopt(&ctl, argc, argv, options)) != -1) {
        if (c != 'V')
            ctl_usage(&ctl, "-%c belongs behind the command", c);
        printf("nvllmctl %s\n", NVLLM_VERSION);
        return flushed(EXIT_OK);
    }
    if (optind == argc) {
        ctl_message("no command: “nvllmctl help” lists them");
        return EXIT_USAGE;
    }
    return flushed(run(&ctl, argc - optind, argv + optind));
}
