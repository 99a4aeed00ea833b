/* id_map.c - see id_map.h. New ids are mostly the greatest, so few entries move. */
#include "engine/util/id_map.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "engine/util/checked.h"
#include "engine/util/must.h"

/* The first entry with this id or a greater one. */
static size_t find(const struct id_map *m, uint64_t id)
{
    size_t from = 0, to = m->n;

    while (from < to) {
        const size_t middle = from + (to - from) / 2;

        if (m->entries[middle].id < id)
            from = middle + 1;
        else
            to = middle;
    }
    return from;
}

void id_map_deinit(struct id_map *m)
{
    free(m->entries);
    *m = (struct id_map){0};
}

int id_map_put(struct id_map *m, uint64_t id, void *value)
{
    const size_t i = find(m, id);
    struct id_map_entry *at;

    must(i == m->n || m->entries[i].id != id);
    if (!array_reserve(&m->entries, &m->cap, m->n + 1, sizeof(*at)))
        return -ENOMEM;
    at = &m->entries[i];
    memmove(at + 1, at, (m->n++ - i) * sizeof(*at));
    *at = (struct id_map_entry){id, value};
    return 0;
}

void *id_map_get(const struct id_map *m, uint64_t id)
{
    const size_t i = find(m, id);

    return i < m->n && m->entries[i].id == id ? m->entries[i].value : NULL;
}

void *id_map_take(struct id_map *m, uint64_t id)
{
    const size_t i = find(m, id);
    void *value = id_map_get(m, id);

    if (value)
        memmove(&m->entries[i], &m->entries[i + 1], (--m->n - i) * sizeof(*m->entries));
    return value;
}

void *id_map_next(const struct id_map *m, size_t *at)
{
    return *at < m->n ? m->entries[(*at)++].value : NULL;
}
