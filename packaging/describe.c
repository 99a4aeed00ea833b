/* describe.c - writes what is generated from the programs' tables of commands and options.
 *
 * describe PROGRAM <TEMPLATE >OUT copies a template of a completion or a man page. Lines between
 * %commands, %words (commands that take known words), %own, %flags or %values (options without and
 * with a value; those of the command inside %commands, else the common ones) and %end are repeated
 * for each; in any line @program@, @command@, @about@, @option@, @help@, … are replaced, see
 * put_word(). “%option NAME” is the entry of an option in a man page, of the commands that the
 * section's title names, or a key of the configuration.
 *
 * A man page may add text below an entry. It must have an entry for each option of the program, or
 * key of the configuration; one that is missing or not known ends the program with a message. Used
 * by the build alone. */
#include <ctype.h>
#include <search.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/ctl/ctl.h"
#include "daemon/options.h"
#include "daemon/usage.h"

enum { MAX_LINES = 4096 };

struct page {
    const struct usage_program *program;
    const struct usage_command *command; /* of the block; NULL: none */
    const struct usage_option *option;   /* likewise */
    char *lines[MAX_LINES];              /* [n_lines] of the template */
    size_t n_lines;
    char title[200]; /* of the section, in lower case */
    void *named;     /* options with an entry: a tree of tsearch() */
    bool has_keys[OPTIONS_MAX], any_key;
};

__attribute__((format(printf, 1, 2), noreturn)) static void die(const char *fmt, ...)
{
    va_list args;

    va_start(args, fmt);
    fputs("describe: ", stderr);
    vfprintf(stderr, fmt, args);
    fputc('\n', stderr);
    va_end(args);
    exit(1);
}

/* ---- words */

/* Text between single quotes. */
static void put_quoted(const char *text)
{
    for (; *text; text++)
        if (*text == '\'')
            fputs("’", stdout);
        else
            putchar(*text);
}

enum shell { BASH, ZSH, FISH, N_SHELLS };

/* What a shell offers for a kind of value; words and keys stand for "@". */
static const char *const offers[][N_SHELLS] = {
    [USAGE_ANY] = {":", " ", ""},
    [USAGE_WORDS] = {"compgen -W '@' -- \"$cur\"", "(@)", "@"},
    [USAGE_FILE] = {"compgen -f -- \"$cur\"", "_files", "(__fish_complete_path (commandline -ct))"},
    [USAGE_FOLDER] = {"compgen -d -- \"$cur\"", "_files -/", "(__fish_complete_directories)"},
    [USAGE_USER] = {"compgen -u -- \"$cur\"", "_users", "(__fish_complete_users)"},
    [USAGE_REQUEST] = {"compgen -W \"$(_nvllmctl_requests)\" -- \"$cur\"", "_nvllmctl_requests",
                       "(__nvllmctl_requests)"},
    [USAGE_COMMAND] = {"compgen -W '@' -- \"$cur\"", "_nvllmctl_commands", "@"},
    [USAGE_KEY] = {"compgen -W '@' -- \"$cur\"", "(@)", "@"},
};

/* For the value of the option, else for an argument of the command, else for a command. */
static void put_offer(const struct page *page, enum shell shell)
{
    const struct usage_program *p = page->program;
    const struct usage_command *c = page->command;
    const struct usage_option *o = page->option;
    const enum usage_values kind = o ? o->values : c ? c->values : USAGE_COMMAND;
    const char *words = o ? o->value : c ? c->words : NULL; /* "a|b" */
    struct options_row row;

    for (const char *at = offers[kind][shell]; *at; at++) {
        if (*at != '@') {
            putchar(*at);
            continue;
        }
        for (size_t i = 0; kind == USAGE_COMMAND && i < p->n_commands; i++)
            printf("%s%s", i ? " " : "", p->commands[i].name);
        for (int i = 0; kind == USAGE_KEY && options_row(&row, i); i++)
            printf("%s%s=", i ? " " : "", row.key);
        for (; kind == USAGE_WORDS && *words; words++)
            putchar(*words == '|' ? ' ' : *words);
    }
}

/* Replaces the n letters of a word between two “@”. */
static void put_word(const struct page *page, const char *word, size_t n)
{
    const struct usage_command *c = page->command;
    const struct usage_option *o = page->option;
    const struct {
        const char *name, *text;
        int shell; /* what it offers, where text is NULL */
    } words[] = {
        {"program", page->program->name, 0},
        {"command", c ? c->name : "*", 0},
        {"about", c ? c->about : "", 0},
        {"arguments", c && (c->max_words == 1 || c->words) ? "1" : "*", 0},
        {"option", o ? o->name : "", 0},
        {"help", o ? o->help : "", 0},
        {"repeats", o && o->repeats ? "*" : "", 0},
        {"bash-offer", NULL, BASH},
        {"zsh-offer", NULL, ZSH},
        {"fish-offer", NULL, FISH},
    };
    size_t i = 0;

    while (strlen(words[i].name) != n || strncmp(words[i].name, word, n) != 0)
        if (++i == sizeof(words) / sizeof(words[0]))
            die("there is no word @%.*s@", (int)n, word);
    if (words[i].text)
        put_quoted(words[i].text);
    else
        put_offer(page, (enum shell)words[i].shell);
}

/* ---- man pages */

/* Text for scdoc, as a sentence. */
static void put_sentence(const char *text)
{
    putchar(toupper((unsigned char)*text));
    for (text++; *text; text++) {
        if (strchr("_*\\", *text))
            putchar('\\');
        putchar(*text);
    }
    putchar('.');
}

static void put_key(struct page *page, const char *key)
{
    struct options_row row;
    int i = 0;

    while (options_row(&row, i) && strcmp(row.key, key) != 0)
        i++;
    if (!options_row(&row, i))
        die("there is no option %s", key);
    page->has_keys[i] = page->any_key = true;
    printf("*%s* (%s; default %s)\n\t", key, row.allowed, row.fallback);
    put_sentence(row.help);
    putchar('\n');
}

static void put_entry_of(const struct usage_option *o)
{
    if (o->letter)
        printf("*-%c*, ", o->letter);
    printf("*--%s*", o->name);
    if (o->value && o->values == USAGE_WORDS)
        printf(" %s", o->value);
    else if (o->value)
        printf(" _%s_", o->value);
    fputs("\n\t", stdout);
    put_sentence(o->help);
    putchar('\n');
}

/* Whether the section's title names the command; “Options” names all of them. */
static bool is_titled(const struct page *page, const struct usage_command *c)
{
    char padded[sizeof(page->title) + 8], word[64];

    snprintf(padded, sizeof(padded), ", %s,", page->title);
    snprintf(word, sizeof(word), " %s,", c->name);
    return strcmp(page->title, "options") == 0 || strstr(padded, word);
}

static int by_address(const void *a, const void *b)
{
    return (a > b) - (a < b);
}

/* Of each command that the title names; of no command, a common option. */
static void put_entry(struct page *page, const char *name)
{
    const struct usage_option *const common[] = {page->program->common, NULL};
    const struct usage_option *o, *first = NULL;

    if (strchr(name, '.')) {
        put_key(page, name);
        return;
    }
    for (size_t i = 0; i < page->program->n_commands; i++) {
        const struct usage_command *c = &page->program->commands[i];

        if (!is_titled(page, c) || !(o = usage_find_option(c->options, name)))
            continue;
        tsearch(o, &page->named, by_address);
        first = first ? first : o;
    }
    if (!first && (first = usage_find_option(common, name)))
        tsearch(first, &page->named, by_address);
    if (!first)
        die("section “%s”: there is no option --%s", page->title, name);
    put_entry_of(first);
}

static void check_named(const struct page *page, const struct usage_option *group)
{
    for (const struct usage_option *o = group; o->name; o++)
        if (!tfind(o, &page->named, by_address))
            die("--%s has no entry", o->name);
}

static void check_page(const struct page *page)
{
    const struct usage_program *p = page->program;
    struct options_row row;

    for (int i = 0; page->any_key && options_row(&row, i); i++)
        if (!page->has_keys[i])
            die("%s has no entry", row.key);
    if (!page->named)
        return;
    check_named(page, p->common);
    for (size_t i = 0; i < p->n_commands; i++)
        for (size_t g = 0; p->commands[i].options[g]; g++)
            check_named(page, p->commands[i].options[g]);
}

/* ---- templates */

static void put_line(struct page *page, const char *line)
{
    if (strncmp(line, "# ", 2) == 0) {
        snprintf(page->title, sizeof(page->title), "%s", line + 2);
        for (char *p = page->title; *p; p++)
            *p = (char)tolower((unsigned char)*p);
    }
    if (strncmp(line, "%option ", 8) == 0) {
        put_entry(page, line + 8);
        return;
    }
    while (*line) {
        size_t n = *line == '@' ? strspn(line + 1, "abcdefghijklmnopqrstuvwxyz-") : 0;

        if (n && line[n + 1] == '@') {
            put_word(page, line + 1, n);
            line += n + 2;
        } else {
            putchar(*line++);
        }
    }
    putchar('\n');
}

static void put_lines(struct page *page, size_t from, size_t to);

/* Repeats lines for the options of the command that are not common to all, or the common ones. */
static void each_option(struct page *page, bool with_value, size_t from, size_t to)
{
    const struct usage_option *const common[] = {page->program->common, NULL};
    const struct usage_command *c = page->command;

    for (const struct usage_option *const *group = c ? c->options : common; *group; group++)
        for (const struct usage_option *o = *group; o->name; o++) {
            if ((c && usage_find_option(common, o->name)) || (o->value != NULL) != with_value)
                continue;
            page->option = o;
            put_lines(page, from, to);
        }
    page->option = NULL;
}

static void each_command(struct page *page, bool with_words, size_t from, size_t to)
{
    for (size_t i = 0; i < page->program->n_commands; i++) {
        page->command = &page->program->commands[i];
        if (!with_words || page->command->values != USAGE_ANY)
            put_lines(page, from, to);
    }
    page->command = NULL;
}

static void put_block(struct page *page, const char *name, size_t from, size_t to)
{
    if (strcmp(name, "commands") == 0 || strcmp(name, "words") == 0) {
        each_command(page, *name == 'w', from, to);
    } else if (strcmp(name, "flags") == 0 || strcmp(name, "values") == 0) {
        each_option(page, *name == 'v', from, to);
    } else if (strcmp(name, "own") == 0) {
        for (page->option = page->program->own; page->option && page->option->name; page->option++)
            put_lines(page, from, to);
        page->option = NULL;
    } else {
        die("there is no block %%%s", name);
    }
}

static bool begins_block(const char *line)
{
    return *line == '%' && strncmp(line, "%option ", 8) != 0 && strcmp(line, "%end") != 0;
}

static void put_lines(struct page *page, size_t from, size_t to)
{
    for (size_t i = from; i < to; i++) {
        const char *line = page->lines[i];
        const size_t first = i + 1;

        if (!begins_block(line)) {
            put_line(page, line);
            continue;
        }
        for (int depth = 1; depth > 0;) {
            if (++i == to)
                die("%s has no %%end", line);
            depth += begins_block(page->lines[i]) - (strcmp(page->lines[i], "%end") == 0);
        }
        put_block(page, line + 1, first, i);
    }
}

int main(int argc, char **argv)
{
    static struct page page = {.program = &ctl_program};
    size_t cap = 0;
    ssize_t n;

    if (argc != 2)
        die("usage: describe nvllmctl|nvllmd <TEMPLATE");
    if (strcmp(argv[1], nvllmd_program.name) == 0)
        page.program = &nvllmd_program;
    for (; (n = getline(&page.lines[page.n_lines], &cap, stdin)) > 0; cap = 0) {
        char *line = page.lines[page.n_lines++];

        line[strcspn(line, "\n")] = '\0';
        if (page.n_lines == MAX_LINES)
            die("the template is too long");
    }
    put_lines(&page, 0, page.n_lines);
    for (size_t i = 0; i <= page.n_lines; i++)
        free(page.lines[i]);
    check_page(&page);
    return fflush(stdout) == 0 ? 0 : 1;
}
