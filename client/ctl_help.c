/* ctl_help.c - the help texts, and finding what a mistyped word may have meant. */
#include <stdio.h>
#include <string.h>

#include "client/ctl.h"

#define SAMPLING_HELP                                                                              \
    "  --max-tokens N            end after N tokens\n"                                             \
    "  --min-tokens N            do not end before N tokens\n"                                     \
    "  --temperature T           0 is greedy\n"                                                    \
    "  --top-k K                 draw from the K likeliest tokens only; 0 is off\n"                \
    "  --top-p P                 … from the likeliest that make up P of all\n"                   \
    "  --min-p P                 … from those at least P times as likely as the likeliest\n"     \
    "  --repetition-penalty X    --presence-penalty X    --frequency-penalty X\n"                  \
    "  --logit-bias ID:BIAS      make a token likelier or not (again and again)\n"                 \
    "  --seed N                  draw the same way each time\n"                                    \
    "  --stop TEXT               end before this text (again and again)\n"                         \
    "  --stop-token-id ID        end at this token (again and again)\n"                            \
    "  --ignore-eos              go on after the model's own end\n"                                \
    "  --logprobs K              the K likeliest tokens at each place (with --json)\n"             \
    "  -n, --n N                 N answers\n"                                                      \
    "  --priority low|normal|high\n"                                                               \
    "  --cache-salt TEXT         share the cached prompt only with the same salt\n"                \
    "  --deadline-ms MS          the daemon gives up then, queueing included (exit code 5)\n"      \
    "  --keep-special            special tokens show up in the text\n"                             \
    "What is not given is as the model's authors advise.\n"

#define COMMON_HELP                                                                                \
    "\nOptions of every command:\n"                                                                \
    "  --socket PATH             default: $NVLLM_SOCKET, else " NVLLM_DEFAULT_SOCKET "\n"          \
    "  --timeout SECONDS         give up after that long (exit code 5)\n"                          \
    "  --wait                    wait for nvllmd to be started\n"                                  \
    "  --no-wait                 do not wait while nvllmd loads its model (exit code 4)\n"

static const char overview[] =
    "usage: nvllmctl [--socket PATH] [--timeout SECONDS] COMMAND [OPTION…]\n\n"
    "  generate     text from a prompt, as it is made\n"
    "  batch        many prompts from a file, in parallel\n"
    "  tokenize     text to token ids\n"
    "  detokenize   token ids to text\n"
    "  render       chat messages to the text that the model sees\n"
    "  status       what nvllmd is doing\n"
    "  version      of this program\n"
    "  help         on a command\n" COMMON_HELP
    "\nExit codes: 0 ok, 1 error, 2 usage, 3 not running, 4 refused or busy, 5 deadline,\n"
    "6 denied, 130 interrupted.\n";

static const struct topic {
    const char *name;
    const char *text;
} topics[] = {
    {"generate",
     "usage: nvllmctl generate [OPTION…] [TEXT|-]\n\n"
     "Prints what the model says to TEXT, or to stdin where TEXT is missing or “-”, as it is\n"
     "made. Ctrl-C cancels.\n\n"
     "  --chat                    TEXT is a user's message (the default where the model chats)\n"
     "  --raw                     TEXT is continued as it is\n"
     "  --system TEXT             begin the chat with a system message\n"
     "  --think, --no-think       let the model reason first, or not\n"
     "  --json                    print one JSON object at the end\n" SAMPLING_HELP COMMON_HELP},
    {"batch",
     "usage: nvllmctl batch --input FILE|- --output FILE|- [OPTION…]\n\n"
     "Each line of the input is a JSON object with prompt, prompt_ids or messages (and tools,\n"
     "enable_thinking, add_generation_prompt), any sampling field, and id. Each gives one line of\n"
     "output, in the same order. A line that fails gives an error, and the rest goes on.\n\n"
     "  --input FILE, --output FILE   “-” is stdin, stdout\n"
     "  --concurrency N           requests under way at a time (64)\n"
     "  --json                    the summary on stderr is JSON\n"
     "Sampling options stand for fields that a line does not have:\n" SAMPLING_HELP COMMON_HELP},
    {"tokenize",
     "usage: nvllmctl tokenize [OPTION…] [TEXT|-]\n\n"
     "Prints the token ids of TEXT, or of stdin where TEXT is missing or “-”.\n\n"
     "  --special                 match special tokens spelled out in the text\n"
     "  --json                    print {\"ids\", \"tokens\"}\n"
     "  --jsonl                   a JSON string a line in, an object a line out\n" COMMON_HELP},
    {"detokenize",
     "usage: nvllmctl detokenize [OPTION…] [ID…|-]\n\n"
     "Prints the text of token ids: those given, or from stdin a JSON array, an object with\n"
     "\"ids\", or plain numbers.\n\n"
     "  --skip-special            leave special tokens out\n"
     "  --json                    print {\"text\"}\n"
     "  --jsonl                   a JSON array a line in, an object a line out\n" COMMON_HELP},
    {"render",
     "usage: nvllmctl render [OPTION…] [JSON|-]\n\n"
     "Prints, byte for byte, what the model's chat template makes of one JSON object "
     "{\"messages\",\n"
     "\"tools\", \"add_generation_prompt\", \"enable_thinking\"}, from stdin where it is missing "
     "or “-”.\n\n"
     "  --json                    print {\"text\"}\n"
     "  --jsonl                   an object a line in, an object a line out\n" COMMON_HELP},
    {"status", "usage: nvllmctl status [OPTION…]\n\n"
               "Says what nvllmd is doing. With --wait, waits until it is ready.\n\n"
               "  --json                    print one JSON object\n" COMMON_HELP},
    {"version", "usage: nvllmctl version\n\nPrints the version of program and library.\n"},
    {"help", "usage: nvllmctl help [COMMAND]\n\nPrints help on a command, or on all.\n"},
};

const char *const ctl_command_names[] = {
    "generate", "batch", "tokenize", "detokenize", "render", "status", "version", "help",
};
const size_t ctl_n_commands = sizeof(ctl_command_names) / sizeof(ctl_command_names[0]);

bool ctl_help_print(const char *command)
{
    if (!command) {
        fputs(overview, stdout);
        return true;
    }
    for (size_t i = 0; i < sizeof(topics) / sizeof(topics[0]); i++) {
        if (strcmp(topics[i].name, command) == 0) {
            fputs(topics[i].text, stdout);
            return true;
        }
    }
    return false;
}

/* ---- did you mean */

enum { LONGEST_WORD = 32, FAR = 1000 };

/* How many letters must be changed, added or left out. */
static size_t distance(const char *a, const char *b)
{
    size_t row[LONGEST_WORD + 1];
    size_t n_a = strlen(a), n_b = strlen(b);

    if (n_a > LONGEST_WORD || n_b > LONGEST_WORD)
        return FAR;
    for (size_t j = 0; j <= n_b; j++)
        row[j] = j;
    for (size_t i = 1; i <= n_a; i++) {
        size_t diagonal = row[0];

        row[0] = i;
        for (size_t j = 1; j <= n_b; j++) {
            size_t best = diagonal + (a[i - 1] != b[j - 1]);

            diagonal = row[j];
            if (row[j] + 1 < best)
                best = row[j] + 1;
            if (row[j - 1] + 1 < best)
                best = row[j - 1] + 1;
            row[j] = best;
        }
    }
    return row[n_b];
}

const char *ctl_nearest(const char *word, const char *const *words, size_t n)
{
    size_t nearest = 1 + strlen(word) / 4; /* a slip or two */
    const char *found = NULL;

    for (size_t i = 0; i < n; i++) {
        size_t d = distance(word, words[i]);

        if (d <= nearest && (!found || d < nearest)) {
            nearest = d;
            found = words[i];
        }
    }
    return found;
}
