/* id_map.c - see id_map.h. Linear probing; removal closes the gap, so there are no tombstones. */
#include "engine/util/id_map.h"

#include <errno.h>
#include <stdlib.h>

#include "engine/util/must.h"

static size_t home(const struct id_map *m, uint64_t id)
{
    /* Fibonacci hashing spreads ids that are mostly consecutive. */
    return (size_t)((id * 0x9e3779b97f4a7c15u) >> 32) & (m->cap - 1);
}

static size_t find(const struct id_map *m, uint64_t id)
{
    size_t i = home(m, id);

    while (m->slots[i].value && m->slots[i].id != id)
        i = (i + 1) & (m->cap - 1);
    return i;
}

void id_map_deinit(struct id_map *m)
{
    free(m->slots);
    *m = (struct id_map){0};
}

static int grow(struct id_map *m)
{
    struct id_map bigger = {.cap = m->cap ? m->cap * 2 : 64, .n = m->n};

    bigger.slots = calloc(bigger.cap, sizeof(*bigger.slots));
    if (!bigger.slots)
        return -ENOMEM;
    for (size_t i = 0; i < m->cap; i++)
        if (m->slots[i].value)
            bigger.slots[find(&bigger, m->slots[i].id)] = m->slots[i];
    free(m->slots);
    *m = bigger;
    return 0;
}

int id_map_put(struct id_map *m, uint64_t id, void *value)
{
    size_t i;

    must(value);
    if (m->n * 2 >= m->cap) {
        int r = grow(m);

        if (r < 0)
            return r;
    }
    i = find(m, id);
    must(!m->slots[i].value);
    m->slots[i] = (struct id_map_slot){.id = id, .value = value};
    m->n++;
    return 0;
}

void *id_map_get(const struct id_map *m, uint64_t id)
{
    return m->cap ? m->slots[find(m, id)].value : NULL;
}

void *id_map_take(struct id_map *m, uint64_t id)
{
    size_t hole, i;
    void *value;

    if (!m->cap)
        return NULL;
    hole = i = find(m, id);
    value = m->slots[hole].value;
    if (!value)
        return NULL;
    for (;;) {
        size_t want;

        i = (i + 1) & (m->cap - 1);
        if (!m->slots[i].value)
            break;
        want = home(m, m->slots[i].id);
        /* Moves into the gap unless its home lies cyclically in (hole, i]. */
        if (((i - want) & (m->cap - 1)) >= ((i - hole) & (m->cap - 1))) {
            m->slots[hole] = m->slots[i];
            hole = i;
        }
    }
    m->slots[hole].value = NULL;
    m->n--;
    return value;
}

void *id_map_next(const struct id_map *m, size_t *at)
{
    while (*at < m->cap) {
        void *value = m->slots[(*at)++].value;

        if (value)
            return value;
    }
    return NULL;
}
