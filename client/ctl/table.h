/* table.h - tables for people: a narrow terminal gets fewer columns. */
#ifndef NVLLM_CLIENT_CTL_TABLE_H
#define NVLLM_CLIENT_CTL_TABLE_H

#include <stdio.h>

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

#endif
