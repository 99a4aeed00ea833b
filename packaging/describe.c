/* describe.c - writes what is generated from the programs' tables of commands and options.
 *
 * describe PROGRAM <TEMPLATE >OUT copies a template of a completion or a man page. @program@ is
 * replaced by the program's name, and a line that begins with "%" by rows of the tables:
 *
 *   %bash-options %bash-values %bash-words %zsh-commands %zsh-common %zsh-own
 *   %zsh-options %fish-options      lists for a shell
 *   %option NAME                    the entry of an option in a man page, of the commands that the
 *                                   section's title names, or a key of the configuration
 *
 * A man page may add text below an entry. It must have an entry for each option of the program, or
 * key of the configuration; one that is missing or not known ends the program with a message. Used
 * by the build alone. */
#include <ctype.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/ctl/commands.h"
#include "daemon/options.h"
#include "daemon/usage.h"

enum { MAX_ENTRIES = 512 };

struct page {
    const struct usage_program *program;
    char title[200];                               /* of the section, in lower case */
    const struct usage_option *named[MAX_ENTRIES]; /* [n_named] with an entry */
    size_t n_named;
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

/* ---- shells */

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
    [USAGE_ANY] = {":", "", ""},
    [USAGE_WORDS] = {"compgen -W '@' -- \"$cur\"", "(@)", "@"},
    [USAGE_FILE] = {"compgen -f -- \"$cur\"", "_files", "(__fish_complete_path (commandline -ct))"},
    [USAGE_FOLDER] = {"compgen -d -- \"$cur\"", "_files -/", "(__fish_complete_directories)"},
    [USAGE_USER] = {"compgen -u -- \"$cur\"", "_users", "(__fish_complete_users)"},
    [USAGE_REQUEST] = {"compgen -W \"$(_nvllmctl_requests)\" -- \"$cur\"", "_nvllmctl_requests",
                       "(__nvllmctl_requests)"},
    [USAGE_COMMAND] = {"compgen -W '@' -- \"$cur\"", "_nvllmctl_commands", "@"},
    [USAGE_KEY] = {"compgen -W '@' -- \"$cur\"", "(@)", "@"},
};

/* words is "a|b". */
static void put_offer(const struct usage_program *p, enum shell shell, enum usage_values kind,
                      const char *words)
{
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

typedef void put_option(const struct usage_program *p, const struct usage_command *c,
                        const struct usage_option *o);

/* Calls put for each option of a command that is not common to all; c NULL: for the common ones. */
static void each_option(const struct usage_program *p, const struct usage_command *c,
                        put_option *put)
{
    const struct usage_option *const common[] = {p->common, NULL};

    for (const struct usage_option *const *group = c ? c->options : common; *group; group++)
        for (const struct usage_option *o = *group; o->name; o++)
            if (!c || !usage_find_option(common, o->name))
                put(p, c, o);
}

static void bash_option(const struct usage_program *p, const struct usage_command *c,
                        const struct usage_option *o)
{
    (void)p, (void)c;
    printf(" --%s", o->name);
}

static void bash_options(const struct usage_program *p)
{
    for (size_t i = 0; i < p->n_commands; i++) {
        printf("        %s) echo '", p->commands[i].name);
        each_option(p, &p->commands[i], bash_option);
        puts("' ;;");
    }
    fputs("    esac\n    echo '", stdout);
    each_option(p, NULL, bash_option);
    puts("'");
}

/* Where commands share an option's name the first row of a case counts. */
static void bash_value(const struct usage_program *p, const struct usage_command *c,
                       const struct usage_option *o)
{
    (void)c;
    if (!o->value)
        return;
    printf("        %s:--%s) ", c ? c->name : "*", o->name);
    put_offer(p, BASH, o->values, o->value);
    puts(" ;;");
}

static void bash_values(const struct usage_program *p)
{
    each_option(p, NULL, bash_value);
    for (size_t i = 0; i < p->n_commands; i++)
        each_option(p, &p->commands[i], bash_value);
}

static void bash_words(const struct usage_program *p)
{
    for (size_t i = 0; i < p->n_commands; i++) {
        if (p->commands[i].values == USAGE_ANY)
            continue;
        printf("        %s) ", p->commands[i].name);
        put_offer(p, BASH, p->commands[i].values, p->commands[i].words);
        puts(" ;;");
    }
    fputs("        '') ", stdout);
    put_offer(p, BASH, USAGE_COMMAND, NULL);
    puts(" ;;");
}

static void zsh_option(const struct usage_program *p, const struct usage_command *c,
                       const struct usage_option *o)
{
    printf("%s'%s--%s%s[", c ? "                " : "        ", o->repeats ? "*" : "", o->name,
           o->value ? "=" : "");
    put_quoted(o->help);
    putchar(']');
    if (o->value) {
        fputs(":value:", stdout);
        put_offer(p, ZSH, o->values, o->value);
    }
    puts(c ? "' \\" : "'");
}

static void zsh_commands(const struct usage_program *p)
{
    for (size_t i = 0; i < p->n_commands; i++) {
        printf("        '%s:", p->commands[i].name);
        put_quoted(p->commands[i].about);
        puts("'");
    }
}

static void zsh_options(const struct usage_program *p)
{
    for (size_t i = 0; i < p->n_commands; i++) {
        const struct usage_command *c = &p->commands[i];

        printf("        %s)\n            _arguments $common \\\n", c->name);
        each_option(p, c, zsh_option);
        printf("                '%s: :", c->max_words == 1 || c->words ? "1" : "*");
        put_offer(p, ZSH, c->values, c->words);
        puts(c->values == USAGE_ANY ? " '\n            ;;" : "'\n            ;;");
    }
}

static void zsh_common(const struct usage_program *p)
{
    each_option(p, NULL, zsh_option);
}

static void zsh_own(const struct usage_program *p)
{
    for (const struct usage_option *o = p->own; o && o->name; o++)
        printf("        '--%s[%s]' \\\n", o->name, o->help);
}

static void fish_offer(const struct usage_program *p, enum usage_values kind, const char *words)
{
    if (kind == USAGE_ANY)
        return;
    fputs(" -a '", stdout);
    put_offer(p, FISH, kind, words);
    putchar('\'');
}

static void fish_option(const struct usage_program *p, const struct usage_command *c,
                        const struct usage_option *o)
{
    printf("complete -c %s", p->name);
    if (c)
        printf(" -n '__fish_seen_subcommand_from %s'", c->name);
    printf(" -l %s%s", o->name, o->value ? " -x" : "");
    fish_offer(p, o->values, o->value);
    fputs(" -d '", stdout);
    put_quoted(o->help);
    puts("'");
}

static void fish_options(const struct usage_program *p)
{
    each_option(p, NULL, fish_option);
    for (const struct usage_option *o = p->own; o && o->name; o++)
        printf("complete -c %s -n __fish_use_subcommand -l %s -d '%s'\n", p->name, o->name,
               o->help);
    for (size_t i = 0; i < p->n_commands; i++) {
        const struct usage_command *c = &p->commands[i];

        printf("complete -c %s -n __fish_use_subcommand -f -a %s -d '", p->name, c->name);
        put_quoted(c->about);
        puts("'");
        each_option(p, c, fish_option);
        if (c->values == USAGE_ANY)
            continue;
        printf("complete -c %s -n '__fish_seen_subcommand_from %s' -f", p->name, c->name);
        fish_offer(p, c->values, c->words);
        putchar('\n');
    }
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

/* Of each command that the title names; of no command, a common option. */
static void put_entry(struct page *page, const char *name)
{
    const struct usage_option *const common[] = {page->program->common, NULL};
    const struct usage_option *first = NULL;

    if (strchr(name, '.')) {
        put_key(page, name);
        return;
    }
    for (size_t i = 0; i <= page->program->n_commands; i++) {
        const struct usage_command *c =
            i < page->program->n_commands ? &page->program->commands[i] : NULL;
        const struct usage_option *o = usage_find_option(c ? c->options : common, name);
        char padded[sizeof(page->title) + 8], word[64];

        snprintf(padded, sizeof(padded), ", %s,", page->title);
        snprintf(word, sizeof(word), " %s,", c ? c->name : "");
        if (!o || (c && strcmp(page->title, "options") != 0 && !strstr(padded, word)))
            continue;
        if (!c && first)
            continue;
        if (page->n_named == MAX_ENTRIES)
            die("too many entries");
        page->named[page->n_named++] = o;
        first = first ? first : o;
    }
    if (!first)
        die("section “%s”: there is no option --%s", page->title, name);
    put_entry_of(first);
}

static bool is_named(const struct page *page, const struct usage_option *o)
{
    for (size_t i = 0; i < page->n_named; i++)
        if (page->named[i] == o)
            return true;
    return false;
}

static void check_page(const struct page *page)
{
    const struct usage_program *p = page->program;
    struct options_row row;

    for (int i = 0; page->any_key && options_row(&row, i); i++)
        if (!page->has_keys[i])
            die("%s has no entry", row.key);
    for (const struct usage_option *o = p->common; page->n_named && o->name; o++)
        if (!is_named(page, o))
            die("--%s has no entry", o->name);
    for (size_t i = 0; page->n_named && i < p->n_commands; i++)
        for (size_t g = 0; p->commands[i].options[g]; g++)
            for (const struct usage_option *o = p->commands[i].options[g]; o->name; o++)
                if (!is_named(page, o))
                    die("--%s of %s has no entry", o->name, p->commands[i].name);
}

/* ---- templates */

static void put_list(const struct usage_program *p, const char *name)
{
    static const struct {
        const char *name;
        void (*put)(const struct usage_program *p);
    } lists[] = {
        {"bash-options", bash_options}, {"bash-values", bash_values},
        {"bash-words", bash_words},     {"zsh-commands", zsh_commands},
        {"zsh-common", zsh_common},     {"zsh-options", zsh_options},
        {"zsh-own", zsh_own},           {"fish-options", fish_options},
    };
    size_t i = 0;

    while (strcmp(name, lists[i].name) != 0)
        if (++i == sizeof(lists) / sizeof(lists[0]))
            die("there is no list %s", name);
    lists[i].put(p);
}

static void put_line(struct page *page, const char *line)
{
    static const char mark[] = "@program@";
    const char *at;

    if (strncmp(line, "# ", 2) == 0) {
        snprintf(page->title, sizeof(page->title), "%s", line + 2);
        for (char *p = page->title; *p; p++)
            *p = (char)tolower((unsigned char)*p);
    }
    if (strncmp(line, "%option ", 8) == 0) {
        put_entry(page, line + 8);
        return;
    }
    if (line[0] == '%') {
        put_list(page->program, line + 1);
        return;
    }
    for (; (at = strstr(line, mark)) != NULL; line = at + sizeof(mark) - 1)
        printf("%.*s%s", (int)(at - line), line, page->program->name);
    puts(line);
}

int main(int argc, char **argv)
{
    struct page page = {.program = &ctl_program};
    char *line = NULL;
    size_t cap = 0;
    ssize_t n;

    if (argc != 2)
        die("usage: describe nvllmctl|nvllmd <TEMPLATE");
    if (strcmp(argv[1], nvllmd_program.name) == 0)
        page.program = &nvllmd_program;
    while ((n = getline(&line, &cap, stdin)) > 0) {
        if (line[n - 1] == '\n')
            line[n - 1] = '\0';
        put_line(&page, line);
    }
    free(line);
    check_page(&page);
    return fflush(stdout) == 0 ? 0 : 1;
}
