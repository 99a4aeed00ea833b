/* id_map.h - a map from 64-bit ids to pointers: a sorted array, for thousands of entries at most.
 *
 * Owns no values. One thread. */
#ifndef NVLLM_ENGINE_UTIL_ID_MAP_H
#define NVLLM_ENGINE_UTIL_ID_MAP_H

#include <stddef.h>
#include <stdint.h>

struct id_map {
    struct id_map_entry {
        uint64_t id;
        void *value;
    } * entries; /* [n] in order of id */
    size_t cap, n;
};

/* A zeroed struct is an empty map. */
void id_map_deinit(struct id_map *m);

/* Adds an id that is not in the map. -ENOMEM. */
int id_map_put(struct id_map *m, uint64_t id, void *value);
void *id_map_get(const struct id_map *m, uint64_t id); /* or NULL */
void *id_map_take(struct id_map *m, uint64_t id);      /* removes; or NULL */

/* Iteration: the value at *at, which moves on; NULL at the end. The map must not change. */
void *id_map_next(const struct id_map *m, size_t *at);

#endif
