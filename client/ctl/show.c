/* show.c - see show.h. */
#include "client/ctl/show.h"

#include <pwd.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

const char *show_user(char *out, size_t n, uint32_t uid)
{
    const struct passwd *user = getpwuid(uid);

    if (user)
        snprintf(out, n, "%s", user->pw_name);
    else
        snprintf(out, n, "%u", uid);
    return out;
}

double show_percent(uint64_t part, uint64_t whole)
{
    return whole ? 100.0 * (double)part / (double)whole : 0;
}

double show_mib(uint64_t bytes)
{
    return (double)bytes / (1 << 20);
}

const char *show_duration(char *out, size_t n, uint64_t us)
{
    double s = (double)us / 1e6;

    if (s < 1)
        snprintf(out, n, "%.0f ms", s * 1000);
    else if (s < 60)
        snprintf(out, n, "%.1f s", s);
    else if (s < 3600)
        snprintf(out, n, "%.0f min", s / 60);
    else if (s < 2 * 86400)
        snprintf(out, n, "%.0f h", s / 3600);
    else
        snprintf(out, n, "%.0f d", s / 86400);
    return out;
}

const char *show_colour(int fd, const char *colour)
{
    const char *no = getenv("NO_COLOR");
    const char *kind = getenv("TERM");
    bool has = isatty(fd) && !(no && no[0]) && kind && kind[0] && strcmp(kind, "dumb") != 0;

    return has ? colour : "";
}

int show_columns(int fd, int *rows)
{
    struct winsize size = {0};

    if (ioctl(fd, TIOCGWINSZ, &size) < 0 || size.ws_col == 0 || size.ws_row == 0)
        size = (struct winsize){.ws_col = 80, .ws_row = 24};
    if (rows)
        *rows = size.ws_row;
    return size.ws_col;
}

int show_width(int fd)
{
    return isatty(fd) ? show_columns(fd, NULL) : 0;
}

/* The shown column to leave out next; -1: the rest is always shown. */
static int first_dropped(const struct table *t)
{
    int found = -1;

    for (int i = 0; i < t->n; i++)
        if (t->widths[i] && t->columns[i].drop &&
            (found < 0 || t->columns[i].drop < t->columns[found].drop))
            found = i;
    return found;
}

void table_init(struct table *t, const struct table_column *columns, int n, int room)
{
    int i;

    t->columns = columns;
    t->n = n;
    t->total = -1;
    for (i = 0; i < n; i++) {
        t->widths[i] = columns[i].width;
        t->total += abs(columns[i].width) + 1;
        snprintf(t->cells[i], TABLE_CELL_BYTES, "%s", columns[i].head);
    }
    while (room > 0 && t->total > room && (i = first_dropped(t)) >= 0) {
        t->total -= abs(t->widths[i]) + 1;
        t->widths[i] = 0;
    }
}

void table_print(const struct table *t, FILE *to)
{
    const char *gap = "";

    for (int i = 0; i < t->n; i++) {
        int width = t->widths[i];

        if (width == 0)
            continue;
        fprintf(to, "%s%*.*s", gap, width, width < 0 ? -width : TABLE_CELL_BYTES, t->cells[i]);
        gap = " ";
    }
}
