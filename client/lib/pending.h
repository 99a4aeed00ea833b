/* pending.h - the requests of a connection that have no terminal answer yet, by id. */
#ifndef NVLLM_CLIENT_LIB_PENDING_H
#define NVLLM_CLIENT_LIB_PENDING_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "proto/nvllm.pb-c.h"

/* The event that answers an operation; for generate, its deltas. */
#define ANSWER(name) NVLLM__V1__SERVER_FRAME__EVENT_##name

struct pending_entry {
    uint64_t id;        /* 0: the place is free */
    int answer;         /* ANSWER(…) */
    uint32_t n_choices; /* of generate */
    bool open;          /* nvllm_next() returns its last event, and n_open counts it */
    bool abandoned;     /* answers are dropped */
    int64_t deadline;   /* of the monotonic clock, in ms; 0: none */
};

struct pending {
    struct pending_entry *entries; /* [cap] open addressing, a power of two */
    size_t cap;
    size_t n;
};

void pending_deinit(struct pending *p); /* zero-initialise to begin */

/* The id is non-zero and not in the map. -ENOMEM. */
int pending_add(struct pending *p, const struct pending_entry *entry);

/* Valid until the next add or remove. NULL: no such id. */
struct pending_entry *pending_find(const struct pending *p, uint64_t id);

void pending_remove(struct pending *p, uint64_t id);

#endif
