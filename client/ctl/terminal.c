/* terminal.c - see terminal.h. */
#include "client/ctl/terminal.h"

#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

bool terminal_has_colours(int fd)
{
    const char *no = getenv("NO_COLOR");
    const char *kind = getenv("TERM");

    return isatty(fd) && !(no && no[0]) && kind && kind[0] && strcmp(kind, "dumb") != 0;
}

const char *terminal_colour(int fd, const char *colour)
{
    return terminal_has_colours(fd) ? colour : "";
}

void terminal_size(int fd, int *columns, int *rows)
{
    struct winsize size;

    *columns = 80;
    *rows = 24;
    if (ioctl(fd, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 && size.ws_row > 0) {
        *columns = size.ws_col;
        *rows = size.ws_row;
    }
}

int terminal_columns(int fd)
{
    int columns, rows;

    if (!isatty(fd))
        return 0;
    terminal_size(fd, &columns, &rows);
    return columns;
}
