/* main.c - nvllmctl: takes the command line apart, prints help and runs the command. */
#include <assert.h>
#include <errno.h>
#include <jansson.h>
#include <math.h>
#include <pwd.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/ctl/ctl.h"
#include "client/lib/clock.h"
#include "proto/program.h"

static const struct {
    const char *name;
    ctl_run *run;
    bool needs_model; /* cache and explain: now and then */
} actions[] = {
    {"chat", ctl_chat, true},         {"generate", ctl_generate, true},
    {"batch", ctl_batch, true},       {"embed", ctl_embed, true},
    {"tokenize", ctl_tokenize, true}, {"detokenize", ctl_detokenize, true},
    {"render", ctl_render, true},     {"sessions", ctl_sessions, false},
    {"status", ctl_status, false},    {"requests", ctl_requests, false},
    {"blocks", ctl_blocks, false},    {"cache", ctl_cache, false},
    {"explain", ctl_explain, false},  {"top", ctl_top, false},
    {"trace", ctl_trace, false},      {"cancel", ctl_cancel, false},
    {"drain", ctl_drain, false},      {"resume", ctl_resume, false},
    {"reload", ctl_reload, false},    {"log-level", ctl_log_level, false},
    {"sleep", ctl_sleep, false},      {"wake", ctl_wake, false},
    {"stop", ctl_stop, false},        {"bench", ctl_bench, true},
    {"doctor", ctl_doctor, false},    {"list", ctl_list, false},
    {"version", ctl_version, false},  {"help", ctl_help, false},
};

/* ---- options */

const char *ctl_option(const struct ctl *ctl, const char *option)
{
    assert(usage_find_option(ctl->command->options, option));
    return usage_value(&ctl->line, option);
}

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

int64_t ctl_whole(const struct ctl *ctl, const char *option, int64_t fallback, int64_t min,
                  int64_t max)
{
    const char *text = ctl_option(ctl, option);

    return text ? ctl_number(ctl, option, text, min, max) : fallback;
}

static double read_real(const struct ctl *ctl, const char *option, const char *text, double min,
                        double max)
{
    char *end;
    double value = strtod(text, &end);

    if (end == text || *end != '\0' || !(value >= min && value <= max))
        ctl_usage(ctl, "--%s takes a number from %.10g to %.10g, not “%s”", option, min, max, text);
    return value;
}

bool ctl_parse_u64(uint64_t *out, const char *text)
{
    char *end;

    errno = 0;
    *out = strtoull(text, &end, 10);
    return text[0] >= '0' && text[0] <= '9' && *end == '\0' && errno == 0;
}

uint32_t ctl_user(const struct ctl *ctl, const char *text)
{
    const struct passwd *user = getpwnam(text);

    if (!user && !(text[0] >= '0' && text[0] <= '9'))
        ctl_usage(ctl, "there is no user “%s”", text);
    return user ? user->pw_uid : (uint32_t)ctl_number(ctl, "user", text, 0, UINT32_MAX);
}

uint64_t ctl_request_number(const struct ctl *ctl, const char *text)
{
    uint64_t number;

    if (!ctl_parse_u64(&number, text) || number == 0)
        ctl_usage(ctl, "“%s” is not the number of a request: see “nvllmctl requests”", text);
    return number;
}

double ctl_real(const struct ctl *ctl, const char *option, double fallback, double min, double max)
{
    const char *text = ctl_option(ctl, option);

    return text ? read_real(ctl, option, text, min, max) : fallback;
}

size_t ctl_word(const struct ctl *ctl, const char *word)
{
    char all[64], *rest = all;
    const char *words[sizeof(all)], *near;
    size_t n = 0;

    snprintf(all, sizeof(all), "%s", ctl->command->words);
    while (rest)
        words[n++] = strsep(&rest, "|");
    for (size_t i = 0; i < n; i++)
        if (strcmp(word, words[i]) == 0)
            return i;
    near = usage_nearest(word, words, n);
    if (near)
        ctl_usage(ctl, "there is no “%s %s”: did you mean “%s %s”?", ctl->command->name, word,
                  ctl->command->name, near);
    ctl_usage(ctl, "%s takes %s, not “%s”", ctl->command->name, ctl->command->words, word);
}

/* ---- help */

/* Without those that the command has of its own; NULL: all. */
static void print_common(const struct usage_command *command)
{
    puts("\nOptions of every command:");
    for (const struct usage_option *o = ctl_program.common; o->name; o++)
        if (!command || !usage_find_option(command->options, o->name))
            usage_print_options(stdout, (struct usage_option[]){*o, OPTIONS_END});
}

static void print_overview(void)
{
    puts("usage: nvllmctl [--socket PATH] [--timeout SECONDS] COMMAND [OPTION…]\n");
    for (size_t i = 0; i < ctl_program.n_commands; i++)
        printf("  %-12s %s\n", ctl_program.commands[i].name, ctl_program.commands[i].about);
    print_common(NULL);
    puts("\nExit codes: 0 ok, 1 error, 2 usage, 3 not running, 4 refused or busy,\n"
         "5 deadline, 6 denied, 130 interrupted.");
}

static void print_help(const struct usage_command *command)
{
    const char *head = "usage:", *line;

    if (!command) {
        print_overview();
        return;
    }
    for (line = command->synopsis ? command->synopsis : "[OPTION…]"; line; head = "      ") {
        size_t n = strcspn(line, "\n");

        printf("%s nvllmctl %s%s%.*s\n", head, command->name, n ? " " : "", (int)n, line);
        line = line[n] ? line + n + 1 : NULL;
    }
    printf("\n%s", command->text);
    for (size_t i = 0; command->options[i]; i++) {
        if (i == 0)
            putchar('\n');
        usage_print_options(stdout, command->options[i]);
    }
    print_common(command);
    if (command->examples)
        printf("\nExamples:\n%s", command->examples);
}

/* ---- the command line */

/* The exit code, after what stdio still holds has been written. */
static int flushed(int rc)
{
    if (fflush(stdout) == 0 || rc != EXIT_OK)
        return rc;
    if (errno != EPIPE)
        ctl_message("cannot write to stdout: %s", strerror(errno));
    return EXIT_ERROR;
}

/* The value of an option of every command, unless the command has its own of that name. */
static const char *common_option(const struct ctl *ctl, const char *name)
{
    bool is_own = ctl->command && usage_find_option(ctl->command->options, name);

    return is_own ? NULL : usage_value(&ctl->line, name);
}

/* Takes the options apart, and acts on the common ones. Before the command there are no others. */
static void parse(struct ctl *ctl, int argc, char **argv)
{
    const struct usage_option *groups[USAGE_MAX_GROUPS + 2] = {ctl_program.own};
    size_t n = ctl->command ? 0 : 1;
    char why[USAGE_WHY];
    const char *value;

    for (; ctl->command && ctl->command->options[n]; n++)
        groups[n] = ctl->command->options[n];
    groups[n] = ctl_program.common;
    if (usage_parse(&ctl->line, why, argc, argv, groups, !ctl->command) < 0)
        ctl_usage(ctl, "%s%s", why,
                  ctl->command || strchr(why, '?') ? "" : "; a command's own options go after it");
    if (common_option(ctl, "help")) {
        print_help(ctl->command);
        exit(flushed(EXIT_OK));
    }
    if ((value = common_option(ctl, "socket")) != NULL)
        ctl->socket_path = value;
    if ((value = common_option(ctl, "timeout")) != NULL)
        ctl->deadline = clock_ms() + (int64_t)ceil(read_real(ctl, "timeout", value, 0, 2e6) * 1000);
    ctl->wait = ctl->wait || common_option(ctl, "wait");
    ctl->no_wait = ctl->no_wait || common_option(ctl, "no-wait");
    if (ctl->socket_path[0] == '\0')
        ctl_usage(ctl, "--socket takes the path of a socket");
}

/* NULL, after a message, if there is none of that name. */
static const struct usage_command *find_command(const char *name)
{
    const struct usage_command *command = usage_find_command(&ctl_program, name);
    const char *near = strcmp(name, "run") == 0  ? "chat" /* as other programs call it */
                       : strcmp(name, "ps") == 0 ? "requests"
                                                 : usage_nearest_command(&ctl_program, name);

    if (!command && near)
        ctl_message("there is no command “%s”: did you mean “%s”?", name, near);
    else if (!command)
        ctl_message("there is no command “%s”: “nvllmctl help” lists them", name);
    return command;
}

int ctl_help(struct ctl *ctl)
{
    const struct usage_command *about = NULL;

    if (ctl->line.n_words > 0 && !(about = find_command(ctl->line.words[0])))
        return EXIT_USAGE;
    print_help(about);
    return EXIT_OK;
}

int ctl_version(struct ctl *ctl)
{
    (void)ctl;
    printf("nvllmctl %s (libnvllm-client %s)\n", NVLLM_VERSION, nvllm_client_version());
    return EXIT_OK;
}

static int run(struct ctl *ctl, int argc, char **argv)
{
    size_t i = 0;
    int max, rc;

    ctl->command = find_command(argv[0]);
    if (!ctl->command)
        return EXIT_USAGE;
    while (strcmp(actions[i].name, argv[0]) != 0)
        i++;
    ctl->needs_model = actions[i].needs_model;
    parse(ctl, argc, argv);
    max = ctl->command->max_words;
    if (max >= 0 && ctl->line.n_words > max)
        ctl_usage(ctl,
                  max ? "%s takes one argument, and “%s” is a second: put text in quotes"
                      : "%s takes no argument “%s”",
                  ctl->command->name, ctl->line.words[max]);
    rc = actions[i].run(ctl);
    return ctl_interrupted() ? ctl_interrupted() : rc;
}

/* For jansson, where a missing value would look like one that the user did not give. */
static void *alloc_json(size_t n)
{
    return ctl_alloc(n, 1);
}

int main(int argc, char **argv)
{
    struct ctl ctl = {.deadline = INT64_MAX};
    char **words;
    int n, rc;

    program_hold_streams();
    json_set_alloc_funcs(alloc_json, free);
    signal(SIGXFSZ, SIG_IGN); /* a file that grows too large is a write error */
    ctl.socket_path = program_socket(NVLLM_DEFAULT_SOCKET);
    parse(&ctl, argc, argv);
    if (usage_value(&ctl.line, "version")) {
        printf("nvllmctl %s\n", NVLLM_VERSION);
        return flushed(EXIT_OK);
    }
    words = ctl.line.words;
    n = ctl.line.n_words;
    usage_line_deinit(&ctl.line);
    if (n == 0) {
        print_help(NULL);
        return flushed(EXIT_USAGE);
    }
    rc = flushed(run(&ctl, n, words));
    nvllm_close(ctl.client);
    usage_line_deinit(&ctl.line);
    return rc;
}
