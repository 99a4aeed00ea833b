/* terminal.h - what is at the other end of a descriptor: colours, width. */
#ifndef NVLLM_CLIENT_CTL_TERMINAL_H
#define NVLLM_CLIENT_CTL_TERMINAL_H

#include <stdbool.h>

#define COLOUR_RED    "\033[31m"
#define COLOUR_GREEN  "\033[32m"
#define COLOUR_YELLOW "\033[33m"
#define COLOUR_DIM    "\033[2m"
#define COLOUR_BOLD   "\033[1m"
#define COLOUR_END    "\033[0m"

/* A terminal that knows colours, of somebody who has not said NO_COLOR. */
bool terminal_has_colours(int fd);

/* The colour where fd has colours, else nothing. */
const char *terminal_colour(int fd, const char *colour);

/* Columns and rows; 80 and 24 where nobody knows. */
void terminal_size(int fd, int *columns, int *rows);

/* How wide a table may be that fd gets: as the terminal, or 0, as wide as it is, for anything else.
 */
int terminal_columns(int fd);

#endif
