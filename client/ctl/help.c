/* help.c - help, put together from the commands' own texts, and finding what a mistyped word
 * may have meant. */
#include <stdio.h>
#include <string.h>

#include "client/ctl/ctl.h"
#include "proto/program.h"

static const char sampling[] =
    "  --max-tokens N            end after N tokens\n"
    "  --min-tokens N            do not end before N tokens\n"
    "  --temperature T           0 is greedy\n"
    "  --top-k K                 draw from the K likeliest tokens only; 0 is off\n"
    "  --top-p P                 … from the likeliest that make up P of all\n"
    "  --min-p P                 … those at least P times as likely as the likeliest\n"
    "  --repetition-penalty X    --presence-penalty X    --frequency-penalty X\n"
    "  --logit-bias ID:BIAS      make a token likelier or not (again and again)\n"
    "  --seed N                  draw the same way each time\n"
    "  --stop TEXT               end before this text (again and again)\n"
    "  --stop-token-id ID        end at this token (again and again)\n"
    "  --ignore-eos              go on after the model's own end\n"
    "  --priority low|normal|high   high is for admins\n"
    "  --cache-salt TEXT         share the cached prompt only with the same salt\n"
    "  --deadline-ms MS          end then, time in the queue included (exit code 5)\n"
    "  --keep-special            special tokens show up in the text\n";

/* Not of a chat, which goes on from its one answer. */
static const char answers[] =
    "  --logprobs K              the K likeliest tokens at each place, in JSON\n"
    "  -n, --n N                 N answers\n";

static const char advice[] = "What is not given is as the model's authors advise.\n";

static const char common[] =
    "\nOptions of every command:\n"
    "  --socket PATH             default: $NVLLM_SOCKET, else " NVLLM_DEFAULT_SOCKET "\n"
    "  --timeout SECONDS         give up after that long (exit code 5)\n"
    "  --wait                    wait for nvllmd to be started\n"
    "  --no-wait                 fail while nvllmd loads its model (exit code 4)\n";

static void print_overview(void)
{
    puts("usage: nvllmctl [--socket PATH] [--timeout SECONDS] COMMAND [OPTION…]\n");
    for (size_t i = 0; i < ctl_n_commands; i++)
        printf("  %-12s %s\n", ctl_commands[i]->name, ctl_commands[i]->about);
    fputs(common, stdout);
    puts("\nExit codes: 0 ok, 1 error, 2 usage, 3 not running, 4 refused or busy,\n"
         "5 deadline, 6 denied, 130 interrupted.");
}

void ctl_help_print(const struct ctl_command *command)
{
    if (!command) {
        print_overview();
        return;
    }
    fputs(command->help, stdout);
    if (command->takes_sampling) {
        fputs(sampling, stdout);
        if (!command->one_answer)
            fputs(answers, stdout);
        fputs(advice, stdout);
    }
    fputs(common, stdout);
    if (command->examples)
        printf("\nExamples:\n%s", command->examples);
}

/* ---- did you mean */

const char *ctl_nearest(const char *word, const char *const *words, size_t n)
{
    int nearest = 1 + (int)(strnlen(word, PROGRAM_FAR) / 4); /* a slip or two */
    const char *found = NULL;

    if (!word[0] || !word[1])
        return NULL; /* each other letter is near to one */
    for (size_t i = 0; i < n; i++) {
        int d = program_distance(word, words[i]);

        if (d <= nearest && (!found || d < nearest)) {
            nearest = d;
            found = words[i];
        }
    }
    for (size_t i = 0; i < n && !found; i++)
        if (strncmp(word, words[i], strlen(word)) == 0)
            found = words[i]; /* its beginning */
    return found;
}
