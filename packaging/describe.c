/* describe.c - writes what is generated from the programs' tables of commands and options.
 *
 * describe PROGRAM <TEMPLATE >OUT copies a template of a completion or a man page. Lines between
 * %commands, %words (commands that take known words), %own, %flags or %values (options without and
 * with a value; those of the command inside %commands, else the common ones) and %end are repeated
 * for each; in any line @program@, @command@, @about@, @option@, @help@, … are replaced, see
 * put_word(). “%option NAME” is the entry of an option in a man page, of the commands that the
 * title of the section or subsection names, or a key of the configuration.
 *
 * A man page may add text below an entry. It must have an entry for each option of the program, or
 * key of the configuration; one that is missing or not known ends the program with a message. Used
 * by the build alone. */
#include <ctype.h>
#include <err.h>
#include <search.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/ctl/ctl.h"
#include "client/openai/usage.h"
#include "daemon/options.h"

enum { MAX_LINES = 4096 };

struct page {
    const struct usage_program *program;
    const struct usage_command *command; /* of the block; NULL: none */
    const struct usage_option *option;   /* likewise */
    char *lines[MAX_LINES];              /* [n_lines] of the template */
    size_t n_lines;
    char section[100], subsection[100]; /* their titles, in lower case */
    bool skipping;                      /* to the end of a block, without output */
    void *options, *keys;               /* that have an entry: trees of tsearch() */
};

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
    [USAGE_SESSION] = {"compgen -W \"$(_nvllmctl_sessions)\" -- \"$cur\"", "_nvllmctl_sessions",
                       "(__nvllmctl_sessions)"},
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
            errx(1, "there is no word @%.*s@", (int)n, word);
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

static int by_address(const void *a, const void *b)
{
    return (a > b) - (a < b);
}

static void put_key(struct page *page, const char *key)
{
    struct options_row row;
    int i = 0;

    while (options_row(&row, i) && strcmp(row.key, key) != 0)
        i++;
    if (!options_row(&row, i))
        errx(1, "there is no option %s", key);
    tsearch(row.key, &page->keys, by_address);
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

/* Whether a title names the command; “Options” names all of them. */
static bool is_titled(const struct page *page, const struct usage_command *c)
{
    char padded[sizeof(page->section) + sizeof(page->subsection) + 8], word[64];

    snprintf(padded, sizeof(padded), ", %s, %s,", page->section, page->subsection);
    snprintf(word, sizeof(word), " %s,", c->name);
    return strcmp(page->section, "options") == 0 || strstr(padded, word);
}

/* Of each command that a title names; of no command, a common option. */
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
        tsearch(o, &page->options, by_address);
        first = first ? first : o;
    }
    if (!first && (first = usage_find_option(common, name)))
        tsearch(first, &page->options, by_address);
    if (!first)
        errx(1, "section “%s”, “%s”: there is no option --%s", page->section, page->subsection,
             name);
    put_entry_of(first);
}

static void check_named(const struct page *page, const struct usage_option *group)
{
    for (const struct usage_option *o = group; o->name; o++)
        if (!tfind(o, &page->options, by_address))
            errx(1, "--%s has no entry", o->name);
}

static void check_page(const struct page *page)
{
    const struct usage_program *p = page->program;
    struct options_row row;

    for (int i = 0; page->keys && options_row(&row, i); i++)
        if (!tfind(row.key, &page->keys, by_address))
            errx(1, "%s has no entry", row.key);
    if (!page->options)
        return;
    check_named(page, p->common);
    for (size_t i = 0; i < p->n_commands; i++)
        for (size_t g = 0; p->commands[i].options[g]; g++)
            check_named(page, p->commands[i].options[g]);
}

/* ---- templates */

static void take_title(char out[100], const char *text)
{
    snprintf(out, 100, "%s", text);
    for (; *out; out++)
        *out = (char)tolower((unsigned char)*out);
}

static void put_line(struct page *page, const char *line)
{
    if (strncmp(line, "# ", 2) == 0) {
        take_title(page->section, line + 2);
        take_title(page->subsection, "");
    } else if (strncmp(line, "## ", 3) == 0) {
        take_title(page->subsection, line + 3);
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

static size_t put_lines(struct page *page, size_t i);

/* Repeats the lines between %NAME, line i, and its %end, whose number it returns. */
static size_t put_block(struct page *page, size_t i)
{
    const char *name = page->lines[i] + 1;
    const bool own = strcmp(name, "own") == 0, skipping = page->skipping;
    const struct usage_program *p = page->program;
    const struct usage_command *c = page->command;
    const struct usage_option *const common[] = {p->common, NULL}, *const owns[] = {p->own, NULL};
    const struct usage_option *const *groups = own ? owns : c ? c->options : common;
    size_t end;

    page->skipping = true;
    end = put_lines(page, i + 1);
    page->skipping = skipping;
    if (end == page->n_lines)
        errx(1, "%%%s has no %%end", name);
    if (skipping)
        return end;
    if (strcmp(name, "commands") == 0 || strcmp(name, "words") == 0) {
        for (page->command = p->commands; page->command < p->commands + p->n_commands;
             page->command++)
            if (*name == 'c' || page->command->values != USAGE_ANY)
                put_lines(page, i + 1);
        page->command = NULL;
        return end;
    }
    if (!own && strcmp(name, "flags") != 0 && strcmp(name, "values") != 0)
        errx(1, "there is no block %%%s", name);
    for (; *groups; groups++)
        for (page->option = *groups; page->option->name; page->option++)
            if (own || (!(c && usage_find_option(common, page->option->name)) &&
                        (page->option->value != NULL) == (*name == 'v')))
                put_lines(page, i + 1);
    page->option = NULL;
    return end;
}

/* From line i to the end of its block, whose number it returns. */
static size_t put_lines(struct page *page, size_t i)
{
    for (; i < page->n_lines && strcmp(page->lines[i], "%end") != 0; i++)
        if (*page->lines[i] == '%' && strncmp(page->lines[i], "%option ", 8) != 0)
            i = put_block(page, i);
        else if (!page->skipping)
            put_line(page, page->lines[i]);
    return i;
}

int main(int argc, char **argv)
{
    static struct page page = {.program = &ctl_program};
    char *text = NULL, *rest;
    size_t cap = 0;

    if (argc != 2)
        errx(1, "usage: describe nvllmctl|nvllmd|nvllm-openai <TEMPLATE");
    if (strcmp(argv[1], nvllmd_program.name) == 0)
        page.program = &nvllmd_program;
    else if (strcmp(argv[1], openai_program.name) == 0)
        page.program = &openai_program;
    if (getdelim(&text, &cap, '\0', stdin) < 0)
        errx(1, "there is no template");
    for (rest = text; rest && *rest; page.lines[page.n_lines++] = strsep(&rest, "\n"))
        if (page.n_lines == MAX_LINES)
            errx(1, "the template is too long");
    if (put_lines(&page, 0) < page.n_lines)
        errx(1, "%%end without a block");
    free(text);
    check_page(&page);
    return fflush(stdout) == 0 ? 0 : 1;
}
