/* table.c - see table.h. */
#include "client/ctl/table.h"

#include <stdlib.h>

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
