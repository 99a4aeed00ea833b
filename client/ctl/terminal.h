/* terminal.h - colours and size of a terminal. */
#ifndef NVLLM_CLIENT_CTL_TERMINAL_H
#define NVLLM_CLIENT_CTL_TERMINAL_H

#include <stdbool.h>

#define COLOUR_RED    "\033[31m"
#define COLOUR_GREEN  "\033[32m"
#define COLOUR_YELLOW "\033[33m"
#define COLOUR_DIM    "\033[2m"
#define COLOUR_BOLD   "\033[1m"
#define COLOUR_END    "\033[0m"

/* fd is a terminal with colours, and NO_COLOR is not set. */
bool terminal_has_colours(int fd);

/* The colour if fd has colours, or "". */
const char *terminal_colour(int fd, const char *colour);

/* Columns and rows; 80 and 24 if unknown. */
void terminal_size(int fd, int *columns, int *rows);

/* The width for a table on fd: the terminal's, or 0, unlimited, for anything else. */
int terminal_columns(int fd);

#endif
