/* pending.h - the requests of a connection that have no terminal answer yet, by id. */
#ifndef NVLLM_CLIENT_LIB_PENDING_H
#define NVLLM_CLIENT_LIB_PENDING_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum pending_kind {
    PENDING_GENERATE,
    PENDING_CANCEL,
    PENDING_TOKENIZE,
    PENDING_DETOKENIZE,
    PENDING_RENDER,
    PENDING_STATUS,
    PENDING_REQUESTS,
    PENDING_BLOCKS,
    PENDING_CACHE,
    PENDING_CACHE_CHANGE, /* clear, pin */
    PENDING_EXPLAIN,
    PENDING_CHANGE, /* drain, resume, log level, shutdown */
    PENDING_RELOAD,
};

struct pending_entry {
    uint64_t id; /* 0: the place is free */
    enum pending_kind kind;
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
