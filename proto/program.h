/* program.h - what nvllmd, nvllmctl and nvllm-openai share as programs: the command line, and
 * helpers.
 *
 * Tables describe each command and option once: what getopt accepts, what --help prints, what
 * shells complete and what the man pages list. No state; any thread, but for usage_parse(), which
 * uses getopt's globals. */
#ifndef NVLLM_PROTO_PROGRAM_H
#define NVLLM_PROTO_PROGRAM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

/* What a shell offers for a value. */
enum usage_values {
    USAGE_ANY,
    USAGE_WORDS, /* those that the row spells out, as in "low|normal|high" */
    USAGE_FILE,
    USAGE_FOLDER,
    USAGE_USER,
    USAGE_REQUEST, /* a number that “nvllmctl requests” shows */
    USAGE_SESSION, /* a name that “nvllmctl sessions” shows */
    USAGE_COMMAND, /* of the same program */
    USAGE_KEY,     /* of the configuration, with "=" behind it */
};

struct usage_option {
    const char *name;  /* without "--" */
    const char *value; /* as help shows it: "N", "low|normal|high"; NULL: a flag */
    const char *help;  /* a phrase, lower case and without a full stop */
    enum usage_values values;
    char letter; /* short form, or 0 */
    bool repeats;
};

#define OPTION(name_, value_, help_, ...)                                                          \
    {                                                                                              \
        .name = name_, .value = value_, .help = help_, ##__VA_ARGS__                               \
    }
#define OPTIONS_END                                                                                \
    {                                                                                              \
        .name = NULL                                                                               \
    }

#define COMMAND(name_, about_, ...)                                                                \
    {                                                                                              \
        .name = name_, .about = about_, ##__VA_ARGS__                                              \
    }

/* Arrays of options end with OPTIONS_END, lists of arrays with NULL. */
enum { USAGE_MAX_GROUPS = 5, USAGE_MAX_OPTIONS = 64 };
typedef const struct usage_option *usage_groups[USAGE_MAX_GROUPS + 1];

struct usage_command {
    const char *name;
    const char *about;    /* a phrase, for the list of all commands */
    const char *synopsis; /* lines of usage, each without program and command; NULL: "[OPTION…]" */
    const char *text;     /* paragraphs of help; NULL: none */
    usage_groups options;     /* without the common ones */
    const char *words;        /* that it takes as an argument: "show|clear"; with USAGE_WORDS */
    enum usage_values values; /* of its arguments */
    int max_words;
    const char *examples; /* lines that can be typed; NULL: none */
};

struct usage_program {
    const char *name;
    const struct usage_command *commands; /* [n_commands] */
    size_t n_commands;
    const struct usage_option *common; /* options of every command */
    const struct usage_option *own;    /* options before the command alone; NULL: none */
};

/* A command line, taken apart. */
struct usage_line {
    struct {
        const struct usage_option *option;
        const char *value;
    } * given; /* [n_given] options in their order */
    size_t n_given;
    char **words; /* [n_words] what is not an option */
    int n_words;
};

/* Takes apart argv, whose first element is skipped; where options of several groups share a name
 * the first group has it. With first_word it stops at the first argument that is not an option. 0,
 * -ENOMEM, or -EINVAL with a message in why. Permutes argv, into which *line points. */
enum { USAGE_WHY = 160 };
int usage_parse(struct usage_line *line, char why[USAGE_WHY], int argc, char **argv,
                const struct usage_option *const *groups, bool first_word);
void usage_line_deinit(struct usage_line *line);

/* The last value given to an option ("" for a flag), or NULL. */
const char *usage_value(const struct usage_line *line, const char *option);

const struct usage_option *usage_find_option(const struct usage_option *const *groups,
                                             const char *name);
const struct usage_command *usage_find_command(const struct usage_program *program,
                                               const char *name);

/* The word that a mistyped one most likely stands for, or NULL if none is close. */
const char *usage_nearest(const char *word, const char *const *words, size_t n);
const char *usage_nearest_command(const struct usage_program *program, const char *word);

/* Prints text from column indent on, in lines of a terminal's usual width. */
void usage_print_wrapped(FILE *to, const char *text, int indent);

/* Prints the options of a group, likewise. */
void usage_print_options(FILE *to, const struct usage_option *group);

/* ---- helpers */

/* The edit distance of two words; PROGRAM_FAR for words that are too long. */
enum { PROGRAM_LONGEST_WORD = 63, PROGRAM_FAR = 1000 };
int program_distance(const char *a, const char *b);

/* The next whole number in a list separated by spaces or commas, from *at on, which moves past it;
 * numbers over 2^31 are given as some number over 2^31. PROGRAM_NONE: something else is at *at. */
enum { PROGRAM_NUMBER, PROGRAM_END, PROGRAM_NONE };
int program_next_number(int64_t *number, const char *text, size_t n, size_t *at);

/* Quotes text for a shell; what does not fit is left out. n is at least 3. Returns out. */
const char *program_quote(char *out, size_t n, const char *text);

/* Whether it holds a control character, which would move a terminal. */
bool program_has_control(const char *text);

/* Whether systemd runs here and knows nvllmd.service. */
bool program_has_service(void);

/* The socket of nvllmd for a program that is not told: $NVLLM_SOCKET, or the service's if it
 * exists, or that of packaging/quickstart if it exists, or the service's. Valid until the next
 * call. */
const char *program_socket(const char *service);

/* Opens standard streams that are closed, as descriptors that can neither be read nor written:
 * otherwise a socket could take their number, and receive what is printed. */
void program_hold_streams(void);

#endif
