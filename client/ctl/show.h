/* show.h - names, times, colours and tables for people. */
#ifndef NVLLM_CLIENT_CTL_SHOW_H
#define NVLLM_CLIENT_CTL_SHOW_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "client/lib/nvllm_client.h"

/* The user's name, or the number if there is none. */
const char *show_user(char *out, size_t n, uint32_t uid);

/* 0 where the whole is 0. */
double show_percent(uint64_t part, uint64_t whole);

double show_mib(uint64_t bytes);

/* "3 ms", "12.3 s", "5 min", "2 h", "3 d"; needs 16 bytes. */
const char *show_duration(char *out, size_t n, uint64_t us);

/* ---- the terminal */

#define COLOUR_RED    "\033[31m"
#define COLOUR_GREEN  "\033[32m"
#define COLOUR_YELLOW "\033[33m"
#define COLOUR_DIM    "\033[2m"
#define COLOUR_BOLD   "\033[1m"
#define COLOUR_END    "\033[0m"

/* The colour if fd is a terminal with colours and NO_COLOR is not set, or "". */
const char *show_colour(int fd, const char *colour);

/* Columns and, unless NULL, rows of a terminal; 80 and 24 if unknown. */
int show_columns(int fd, int *rows);

/* The width for a table on fd: the terminal's, or 0, unlimited, for anything else. */
int show_width(int fd);

/* ---- tables: a narrow terminal gets fewer columns */

enum { TABLE_MAX_COLUMNS = 11, TABLE_CELL_BYTES = 33 };

struct table_column {
    const char *head;
    int width; /* below 0: left-aligned, and longer cells are cut */
    int drop;  /* the column with the lowest goes first where there is no room; 0: always shown */
};

struct table {
    const struct table_column *columns; /* [n] */
    int n;
    int widths[TABLE_MAX_COLUMNS];                   /* 0: not shown */
    int total;                                       /* of a row */
    char cells[TABLE_MAX_COLUMNS][TABLE_CELL_BYTES]; /* of the next row; the heads at first */
};

/* A table of at most room columns of the terminal; 0: as wide as it is. */
void table_init(struct table *t, const struct table_column *columns, int n, int room);

/* Prints the row that cells hold, without an end of line. */
void table_print(const struct table *t, FILE *to);

/* Prints at most `rows` requests, and how many more there are, in a table of at most `columns`
 * columns of the terminal; 0: as wide as it is. */
void show_requests(FILE *to, const struct nvllm_request_list *list, size_t rows, int columns);

#endif
