/* prefix_cache_impl.h - the prefix cache's own state: for prefix_cache*.c alone.
 *
 * The entries of a namespace are a forest: each has its parent listed, or is a first block. So
 * removing one removes all behind it, which nothing could find any more. */
#ifndef NVLLM_ENGINE_CORE_PREFIX_CACHE_IMPL_H
#define NVLLM_ENGINE_CORE_PREFIX_CACHE_IMPL_H

#include "engine/util/id_map.h"
#include "engine/util/list.h"
#include "engine/core/prefix_cache.h"

enum { PREFIX_CACHE_NONE = -1 };

enum entry_state { ENTRY_NONE, ENTRY_PENDING, ENTRY_READY };

struct cache_namespace {
    uint64_t hash;
    struct cache_namespace *next; /* of the same hash */
    struct list firsts;           /* entries without a parent */
    uint64_t root;
    uint64_t client;
    int64_t n_holders;
    bool private;
    size_t salt_len;
    char salt[];
};

struct entry {
    enum entry_state state;
    int32_t owner; /* while pending */
    int32_t next;  /* in its bucket */
    int32_t depth; /* blocks before it */
    uint64_t hash;
    uint64_t serial;
    uint64_t parent;
    struct cache_namespace *ns;
    struct list sibling;  /* in the parent's children or the namespace's firsts */
    struct list children; /* any order */
    int32_t head;         /* the block of its chain that the first tokens told end in */
    int32_t n_pins;       /* that end here or behind: with one at least the block is held */
    bool pinned;          /* a pin ends here */
    uint64_t hits;        /* of a first block: sequences that began with it */
    uint64_t written_us, used_us;
};

struct prefix_cache {
    struct blocks *blocks;
    int32_t n_blocks;
    int32_t block_len;
    uint64_t hash_seed;
    int id_bits; /* the low bits of a serial are the block's id; all ones: a root */
    uint64_t n_serials;
    uint64_t n_evicted;
    uint64_t now_us;
    int32_t n_pinned;         /* blocks held by pins */
    size_t n_buckets;         /* a power of two */
    int32_t *buckets;         /* [n_buckets] first block id, or NONE */
    struct entry *entries;    /* [n_blocks] */
    int32_t *tokens;          /* [n_blocks, block_len] of listed blocks */
    struct id_map namespaces; /* by hash, the first of it; private ones are not in it */
};

static inline const int32_t *cache_tokens(const struct prefix_cache *p, int32_t block_id)
{
    return p->tokens + (size_t)block_id * (size_t)p->block_len;
}

/* The listed block before it, or NONE for a first one. */
static inline int32_t cache_parent(const struct prefix_cache *p, int32_t block_id)
{
    uint64_t id = p->entries[block_id].parent & ((1ull << p->id_bits) - 1);

    return id < (uint64_t)p->n_blocks ? (int32_t)id : PREFIX_CACHE_NONE;
}

/* prefix_cache.c: the listed block of tokens after parent, whatever its state, or NONE. */
int32_t cache_find(const struct prefix_cache *p, uint64_t parent, const int32_t *tokens);

/* prefix_cache_pin.c: the block is about to be listed no more, with all behind it: takes the pins
 * that end there from the count of those before it. */
void cache_forget_pins(struct prefix_cache *p, int32_t block_id);

#endif
