/* id_map.h - a hash map from 64-bit ids to pointers.
 *
 * Owns no values. One thread. */
#ifndef NVLLM_ENGINE_UTIL_ID_MAP_H
#define NVLLM_ENGINE_UTIL_ID_MAP_H

#include <stddef.h>
#include <stdint.h>

struct id_map_slot {
    uint64_t id;
    void *value; /* NULL: empty */
};

struct id_map {
    struct id_map_slot *slots; /* [cap], a power of two; NULL while empty */
    size_t cap, n;
};

/* A zeroed struct is an empty map. */
void id_map_deinit(struct id_map *m);

/* Adds an id that is not in the map; value is not NULL. -ENOMEM. */
int id_map_put(struct id_map *m, uint64_t id, void *value);
void *id_map_get(const struct id_map *m, uint64_t id); /* or NULL */
void *id_map_take(struct id_map *m, uint64_t id);      /* removes; or NULL */

/* Iteration: the next value from slot *at on, NULL at the end. The map must not change. */
void *id_map_next(const struct id_map *m, size_t *at);

#endif
