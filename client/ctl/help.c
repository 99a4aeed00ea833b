/* help.c - help, from the table of commands and options. */
#include <stdio.h>
#include <string.h>

#include "client/ctl/ctl.h"

static void print_common(void)
{
    puts("\nOptions of every command:");
    usage_print_options(stdout, ctl_program.common);
}

static void print_overview(void)
{
    puts("usage: nvllmctl [--socket PATH] [--timeout SECONDS] COMMAND [OPTION…]\n");
    for (size_t i = 0; i < ctl_program.n_commands; i++)
        printf("  %-12s %s\n", ctl_program.commands[i].name, ctl_program.commands[i].about);
    print_common();
    puts("\nExit codes: 0 ok, 1 error, 2 usage, 3 not running, 4 refused or busy,\n"
         "5 deadline, 6 denied, 130 interrupted.");
}

void ctl_help_print(const struct usage_command *command)
{
    const char *head = "usage:";

    if (!command) {
        print_overview();
        return;
    }
    for (const char *line = command->synopsis; line; head = "      ") {
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
    print_common();
    if (command->examples)
        printf("\nExamples:\n%s", command->examples);
}
