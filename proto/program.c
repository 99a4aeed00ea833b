/* program.c - see program.h. */
#include "proto/program.h"

#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* getopt's view of the groups. */
struct parser {
    struct option options[USAGE_MAX_OPTIONS + 1];
    const struct usage_option *rows[USAGE_MAX_OPTIONS];
    const char *names[USAGE_MAX_OPTIONS];
    char letters[2 * USAGE_MAX_OPTIONS + 3];
    size_t n;
};

const struct usage_option *usage_find_option(const struct usage_option *const *groups,
                                             const char *name)
{
    for (; *groups; groups++)
        for (const struct usage_option *o = *groups; o->name; o++)
            if (strcmp(o->name, name) == 0)
                return o;
    return NULL;
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

    for (; n < program->n_commands && n < USAGE_MAX_OPTIONS; n++)
        names[n] = program->commands[n].name;
    return usage_nearest(word, names, n);
}

static void build(struct parser *p, const struct usage_option *const *groups, bool first_word)
{
    const struct usage_option *const *all = groups;
    char *letter = p->letters;

    if (first_word)
        *letter++ = '+';
    *letter++ = ':';
    for (; *groups; groups++) {
        for (const struct usage_option *o = *groups; o->name && p->n < USAGE_MAX_OPTIONS; o++) {
            int argument = o->value ? required_argument : no_argument;

            if (usage_find_option(all, o->name) != o)
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

/* ---- helpers */

/* The Levenshtein distance, row by row. */
int program_distance(const char *a, const char *b)
{
    int row[PROGRAM_LONGEST_WORD + 1];
    int n_a = (int)strnlen(a, PROGRAM_FAR), n_b = (int)strnlen(b, PROGRAM_FAR);

    if (n_a > PROGRAM_LONGEST_WORD || n_b > PROGRAM_LONGEST_WORD)
        return PROGRAM_FAR;
    for (int j = 0; j <= n_b; j++)
        row[j] = j;
    for (int i = 1; i <= n_a; i++) {
        int diagonal = row[0];

        row[0] = i;
        for (int j = 1; j <= n_b; j++) {
            int best = diagonal + (a[i - 1] != b[j - 1]);

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

int program_next_number(int64_t *number, const char *text, size_t n, size_t *at)
{
    const int64_t enough = INT64_C(1) << 31;
    int64_t value = 0;
    size_t i = *at;

    while (i < n && memchr(" \t\r\n,", text[i], 5))
        i++;
    *at = i;
    if (i == n)
        return PROGRAM_END;
    for (; i < n && text[i] >= '0' && text[i] <= '9'; i++)
        value = value >= enough ? value : value * 10 + (text[i] - '0');
    if (i == *at)
        return PROGRAM_NONE;
    *at = i;
    *number = value;
    return PROGRAM_NUMBER;
}

/* A quote ends the quoted part, stands escaped, and begins the next part. */
const char *program_quote(char *out, size_t n, const char *text)
{
    size_t at = 0;

    out[at++] = '\'';
    for (; *text; text++) {
        const char *piece = *text == '\'' ? "'\\''" : text;
        size_t length = *text == '\'' ? 4 : 1;

        if (at + length + 2 > n)
            break;
        memcpy(out + at, piece, length);
        at += length;
    }
    out[at++] = '\'';
    out[at] = '\0';
    return out;
}

bool program_has_control(const char *text)
{
    for (; *text; text++)
        if ((unsigned char)*text < 0x20 || *text == 0x7f)
            return true;
    return false;
}

bool program_has_service(void)
{
    return access("/run/systemd/system", F_OK) == 0 &&
           (access("/usr/lib/systemd/system/nvllmd.service", F_OK) == 0 ||
            access("/usr/local/lib/systemd/system/nvllmd.service", F_OK) == 0 ||
            access("/etc/systemd/system/nvllmd.service", F_OK) == 0);
}

/* The quick start's socket, in a folder that is the user's alone; NULL: there is none. */
static const char *quick_start_socket(void)
{
    static char path[128];
    const char *runtime = getenv("XDG_RUNTIME_DIR");
    struct stat st;

    if (runtime && strlen(runtime) < 80 && stat(runtime, &st) == 0 && S_ISDIR(st.st_mode) &&
        st.st_uid == getuid())
        snprintf(path, sizeof(path), "%s/nvllm", runtime);
    else
        snprintf(path, sizeof(path), "/tmp/nvllm-%u", (unsigned)getuid());
    if (lstat(path, &st) < 0 || !S_ISDIR(st.st_mode) || st.st_uid != getuid() ||
        (st.st_mode & 077) != 0)
        return NULL;
    strcat(path, "/nvllmd.sock");
    return access(path, F_OK) == 0 ? path : NULL;
}

const char *program_socket(const char *service)
{
    const char *given = getenv("NVLLM_SOCKET");
    const char *own = access(service, F_OK) == 0 ? NULL : quick_start_socket();

    if (given && given[0])
        return given;
    return own ? own : service;
}

void program_hold_streams(void)
{
    int fd;

    do
        fd = open("/dev/null", O_PATH);
    while (fd >= 0 && fd <= STDERR_FILENO);
    if (fd >= 0)
        close(fd);
}
