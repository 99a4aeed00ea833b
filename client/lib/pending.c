/* pending.c - open addressing with linear probing; ids are sequential, so the id itself is a good
 * hash. */
#include "client/lib/pending.h"

#include <errno.h>
#include <stdlib.h>

void pending_deinit(struct pending *p)
{
    free(p->entries);
    *p = (struct pending){0};
}

static size_t place_of(const struct pending *p, uint64_t id)
{
    size_t i = id & (p->cap - 1);

    while (p->entries[i].id != 0 && p->entries[i].id != id)
        i = (i + 1) & (p->cap - 1);
    return i;
}

static int grow(struct pending *p)
{
    struct pending bigger = {.cap = p->cap ? p->cap * 2 : 16, .n = p->n};

    bigger.entries = calloc(bigger.cap, sizeof(*bigger.entries));
    if (!bigger.entries)
        return -ENOMEM;
    for (size_t i = 0; i < p->cap; i++)
        if (p->entries[i].id != 0)
            bigger.entries[place_of(&bigger, p->entries[i].id)] = p->entries[i];
    free(p->entries);
    *p = bigger;
    return 0;
}

int pending_add(struct pending *p, const struct pending_entry *entry)
{
    if (p->n * 2 >= p->cap && grow(p) != 0)
        return -ENOMEM;
    p->entries[place_of(p, entry->id)] = *entry;
    p->n++;
    return 0;
}

struct pending_entry *pending_find(const struct pending *p, uint64_t id)
{
    struct pending_entry *e;

    if (p->n == 0 || id == 0)
        return NULL;
    e = &p->entries[place_of(p, id)];
    return e->id == id ? e : NULL;
}

void pending_remove(struct pending *p, uint64_t id)
{
    struct pending_entry *e = pending_find(p, id);
    size_t mask = p->cap - 1;
    size_t hole, i;

    if (!e)
        return;
    /* Entries after the hole move up, so that no search stops at it. */
    hole = (size_t)(e - p->entries);
    for (i = (hole + 1) & mask; p->entries[i].id != 0; i = (i + 1) & mask) {
        size_t home = p->entries[i].id & mask;

        if (((i - home) & mask) >= ((i - hole) & mask)) {
            p->entries[hole] = p->entries[i];
            hole = i;
        }
    }
    p->entries[hole].id = 0;
    p->n--;
}
