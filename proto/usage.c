/* usage.c - see usage.h. */
#include "proto/usage.h"

#include <errno.h>
#include <getopt.h>
#include <stdlib.h>
#include <string.h>

#include "proto/program.h"

/* getopt's view of the groups. */
struct parser {
    struct option options[USAGE_MAX_OPTIONS + 1];
    const struct usage_option *rows[USAGE_MAX_OPTIONS];
    const char *names[USAGE_MAX_OPTIONS];
    char letters[2 * USAGE_MAX_OPTIONS + 3];
    size_t n;
};

static const struct usage_option *find(const struct usage_option *group, const char *name)
{
    for (; group && group->name; group++)
        if (strcmp(group->name, name) == 0)
            return group;
    return NULL;
}

const struct usage_option *usage_find_option(const struct usage_option *const *groups,
                                             const char *name)
{
    const struct usage_option *found = NULL;

    while (!found && *groups)
        found = find(*groups++, name);
    return found;
}

const struct usage_command *usage_find_command(const struct usage_program *program,
                                               const char *name)
{
    for (size_t i = 0; i < program->n_commands; i++)
        if (strcmp(program->commands[i].name, name) == 0)
            return &program->commands[i];
    return NULL;
}

const char *usage_nearest(const char *word, const char *const *words, size_t n)
{
    int nearest = 1 + (int)(strnlen(word, PROGRAM_FAR) / 4); /* a slip or two */
    const char *found = NULL;

    if (!word[0] || !word[1])
        return NULL; /* any other letter is one slip away */
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

const char *usage_nearest_command(const struct usage_program *program, const char *word)
{
    const char *names[USAGE_MAX_OPTIONS];
    size_t n = 0;

    while (n < program->n_commands && n < USAGE_MAX_OPTIONS) {
        names[n] = program->commands[n].name;
        n++;
    }
    return usage_nearest(word, names, n);
}

static void build(struct parser *p, const struct usage_option *const *groups, bool first_word)
{
    char *letter = p->letters;

    if (first_word)
        *letter++ = '+';
    *letter++ = ':';
    for (; *groups; groups++) {
        for (const struct usage_option *o = *groups; o->name && p->n < USAGE_MAX_OPTIONS; o++) {
            int argument = o->value ? required_argument : no_argument;
            bool known = false;

            for (size_t i = 0; i < p->n; i++)
                known = known || strcmp(p->names[i], o->name) == 0;
            if (known)
                continue;
            p->options[p->n] = (struct option){o->name, argument, NULL, 1000 + (int)p->n};
            p->names[p->n] = o->name;
            p->rows[p->n++] = o;
            if (o->letter)
                *letter++ = o->letter;
            if (o->letter && o->value)
                *letter++ = ':';
        }
    }
    *letter = '\0';
}

static int refuse(const struct parser *p, char why[USAGE_WHY], const char *given, int code)
{
    const char *near;
    char word[64];

    if (strncmp(given, "--", 2) != 0) {
        snprintf(why, USAGE_WHY,
                 code == ':' ? "-%c takes a value"
                             : "there is no option -%c (put “--” before text that begins with “-”)",
                 optopt);
        return -EINVAL;
    }
    snprintf(word, sizeof(word), "%.*s", (int)strcspn(given + 2, "="), given + 2);
    near = usage_nearest(word, p->names, p->n);
    if (code == ':')
        snprintf(why, USAGE_WHY, "--%s takes a value", word);
    else if (near && strcmp(near, word) == 0)
        snprintf(why, USAGE_WHY, "--%s takes no value", word);
    else if (near)
        snprintf(why, USAGE_WHY, "there is no option --%s: did you mean “--%s”?", word, near);
    else
        snprintf(why, USAGE_WHY, "there is no option --%s", word);
    return -EINVAL;
}

int usage_parse(struct usage_line *line, char why[USAGE_WHY], int argc, char **argv,
                const struct usage_option *const *groups, bool first_word)
{
    struct parser p = {0};
    int c;

    build(&p, groups, first_word);
    *line = (struct usage_line){.given = calloc((size_t)argc + 1, sizeof(*line->given))};
    if (!line->given) {
        snprintf(why, USAGE_WHY, "out of memory");
        return -ENOMEM;
    }
    opterr = 0;
    optind = 0; /* getopt starts afresh */
    while ((c = getopt_long(argc, argv, p.letters, p.options, NULL)) != -1) {
        const struct usage_option *o = NULL;

        if (c == '?' || c == ':') {
            usage_line_deinit(line);
            return refuse(&p, why, argv[optind - 1], c);
        }
        for (size_t i = 0; i < p.n; i++)
            if (c == 1000 + (int)i || c == p.rows[i]->letter)
                o = p.rows[i];
        line->given[line->n_given].option = o;
        line->given[line->n_given++].value = o->value ? optarg : "";
    }
    line->words = argv + optind;
    line->n_words = argc - optind;
    return 0;
}

void usage_line_deinit(struct usage_line *line)
{
    free(line->given);
    *line = (struct usage_line){0};
}

const char *usage_value(const struct usage_line *line, const char *option)
{
    for (size_t i = line->n_given; i > 0; i--)
        if (strcmp(line->given[i - 1].option->name, option) == 0)
            return line->given[i - 1].value;
    return NULL;
}

void usage_print_wrapped(FILE *to, const char *text, int indent)
{
    enum { COLUMNS = 80 };

    for (int column = indent; *text; column++) {
        int n = (int)strcspn(text, " "), width = 0;

        for (int i = 0; i < n; i++)
            width += ((unsigned char)text[i] & 0xc0) != 0x80; /* characters, not bytes */
        if (column > indent && column + width >= COLUMNS)
            column = fprintf(to, "\n%*s", indent, "") - 1;
        fprintf(to, "%s%.*s", column > indent ? " " : "", n, text);
        column += width;
        text += n + strspn(text + n, " ");
    }
    fputc('\n', to);
}

void usage_print_options(FILE *to, const struct usage_option *group)
{
    enum { INDENT = 28 };

    for (; group && group->name; group++) {
        int column = fprintf(to, "  ");

        if (group->letter)
            column += fprintf(to, "-%c, ", group->letter);
        column += fprintf(to, "--%s%s%s", group->name, group->value ? " " : "",
                          group->value ? group->value : "");
        if (column > INDENT - 2) {
            fputc('\n', to);
            column = 0;
        }
        fprintf(to, "%*s", INDENT - column, "");
        usage_print_wrapped(to, group->help, INDENT);
    }
}
