/* held.h - tokens for a client that does not read now, gathered: of each choice of a request one
 * delta, which takes a small part of what many frames would.
 *
 * Owned by the request; loop thread only. */
#ifndef NVLLM_DAEMON_HELD_H
#define NVLLM_DAEMON_HELD_H

#include <stddef.h>

#include "engine/engine.h"

struct held;

/* Adds a delta to that of its choice in the list; copies. *bytes grows by the memory taken.
 * -ENOMEM: nothing was added. */
int held_add(struct held **list, const struct engine_event *delta, size_t *bytes);

/* The delta of the first of the list: an event of type ENGINE_DELTA. */
const struct engine_event *held_delta(const struct held *first);

size_t held_bytes(const struct held *first);

/* Frees the first. */
void held_pop(struct held **list);

#endif
