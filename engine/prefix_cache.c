/* prefix_cache.c - see prefix_cache.h.
 *
 * Entries lie in an array by block id, chained by hash. All memory but that of namespaces is taken
 * at the start. */
#include "engine/prefix_cache.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "engine/checked.h"
#include "engine/id_map.h"
#include "engine/list.h"
#include "engine/must.h"
#include "engine/plant.h"

enum { NONE = -1 };

enum entry_state { ENTRY_NONE, ENTRY_PENDING, ENTRY_READY };

struct cache_namespace {
    uint64_t hash;
    struct cache_namespace *next; /* of the same hash */
    struct list entries;
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
    uint64_t hash;
    uint64_t serial;
    uint64_t parent;
    struct cache_namespace *ns;
    struct list in_ns;
};

struct prefix_cache {
    struct blocks *blocks;
    int32_t n_blocks;
    int32_t block_len;
    uint64_t hash_seed;
    uint64_t last_serial;
    uint64_t n_evicted;
    size_t n_buckets;         /* a power of two */
    int32_t *buckets;         /* [n_buckets] first block id, or NONE */
    struct entry *entries;    /* [n_blocks] */
    int32_t *tokens;          /* [n_blocks, block_len] of listed blocks */
    struct id_map namespaces; /* by hash, the first of it; private ones are not in it */
};

int prefix_cache_new(struct prefix_cache **out, struct blocks *blocks, int32_t n_blocks,
                     int32_t block_len, uint64_t hash_seed)
{
    struct prefix_cache *p;
    size_t n_slots;
    int rc = -ENOMEM;

    must(n_blocks > 0 && block_len > 0);
    p = calloc(1, sizeof(*p));
    if (!p)
        goto fail;
    if (!size_mul(&n_slots, (size_t)n_blocks, (size_t)block_len)) {
        rc = -EINVAL;
        goto fail;
    }
    p->blocks = blocks;
    p->n_blocks = n_blocks;
    p->block_len = block_len;
    p->hash_seed = hash_seed;
    p->n_buckets = 16;
    while (p->n_buckets < (size_t)n_blocks * 2)
        p->n_buckets *= 2;
    p->buckets = malloc(p->n_buckets * sizeof(*p->buckets));
    p->entries = calloc((size_t)n_blocks, sizeof(*p->entries));
    p->tokens = calloc(n_slots, sizeof(*p->tokens));
    if (!p->buckets || !p->entries || !p->tokens)
        goto fail;
    for (size_t i = 0; i < p->n_buckets; i++)
        p->buckets[i] = NONE;
    *out = p;
    return 0;
fail:
    prefix_cache_free(p);
    return rc;
}

void prefix_cache_free(struct prefix_cache *p)
{
    if (!p)
        return;
    for (int32_t i = 0; p->entries && i < p->n_blocks; i++)
        prefix_cache_remove(p, i); /* the last entry of a namespace frees it */
    free(p->buckets);
    free(p->entries);
    free(p->tokens);
    id_map_deinit(&p->namespaces);
    free(p);
}

static int namespace_new(struct prefix_cache *p, struct cache_namespace **out, uint64_t client,
                         struct text salt)
{
    struct cache_namespace *ns;
    size_t bytes;

    if (!size_add(&bytes, sizeof(*ns), salt.len))
        return -ENOMEM;
    ns = calloc(1, bytes);
    if (!ns)
        return -ENOMEM;
    list_init(&ns->entries);
    ns->root = PLANT(PLANT_NO_NAMESPACE) ? UINT64_MAX : ++p->last_serial;
    ns->client = client;
    ns->n_holders = 1;
    ns->salt_len = salt.len;
    if (salt.len)
        memcpy(ns->salt, salt.data, salt.len);
    *out = ns;
    return 0;
}

int prefix_cache_open(struct prefix_cache *p, struct cache_namespace **out, uint64_t client,
                      struct text salt)
{
    uint64_t hash =
        XXH3_64bits_withSeed(salt.len ? salt.data : "", salt.len, p->hash_seed ^ client);
    struct cache_namespace *first = id_map_get(&p->namespaces, hash);
    struct cache_namespace *ns;
    int rc;

    for (ns = first; ns; ns = ns->next) {
        if (ns->client == client && ns->salt_len == salt.len &&
            (salt.len == 0 || memcmp(ns->salt, salt.data, salt.len) == 0)) {
            ns->n_holders++;
            *out = ns;
            return 0;
        }
    }
    rc = namespace_new(p, &ns, client, salt);
    if (rc < 0)
        return rc;
    ns->hash = hash;
    if (first) {
        ns->next = first->next;
        first->next = ns;
    } else {
        rc = id_map_put(&p->namespaces, hash, ns);
        if (rc < 0) {
            free(ns);
            return rc;
        }
    }
    *out = ns;
    return 0;
}

int prefix_cache_open_private(struct prefix_cache *p, struct cache_namespace **out)
{
    int rc = namespace_new(p, out, 0, (struct text){NULL, 0});

    if (rc == 0)
        (*out)->private = true;
    return rc;
}

static void namespace_unlink(struct prefix_cache *p, struct cache_namespace *ns)
{
    struct cache_namespace *first = id_map_get(&p->namespaces, ns->hash);

    if (first == ns) {
        must(id_map_take(&p->namespaces, ns->hash) == ns);
        if (ns->next) /* into the room just made */
            must(id_map_put(&p->namespaces, ns->hash, ns->next) == 0);
        return;
    }
    while (first->next != ns)
        first = first->next;
    first->next = ns->next;
}

/* Nobody holds it and nothing is in it: nothing can ever be found in it. */
static void namespace_drop_unused(struct prefix_cache *p, struct cache_namespace *ns)
{
    if (ns->n_holders > 0 || !list_empty(&ns->entries))
        return;
    if (!ns->private)
        namespace_unlink(p, ns);
    free(ns);
}

void prefix_cache_close(struct prefix_cache *p, struct cache_namespace *ns)
{
    must(ns->n_holders > 0);
    if (ns->private) {
        /* the holder is still counted, so that removing the last entry does not free it */
        while (!list_empty(&ns->entries)) {
            struct entry *e = CONTAINER_OF(ns->entries.next, struct entry, in_ns);

            prefix_cache_remove(p, (int32_t)(e - p->entries));
        }
    }
    ns->n_holders--;
    namespace_drop_unused(p, ns);
}

uint64_t prefix_cache_root(const struct cache_namespace *ns)
{
    return ns->root;
}

static uint64_t hash_of(const struct prefix_cache *p, uint64_t parent, const int32_t *tokens)
{
    uint64_t seed = XXH3_64bits_withSeed(&parent, sizeof(parent), p->hash_seed);
    uint64_t h = XXH3_64bits_withSeed(tokens, (size_t)p->block_len * sizeof(*tokens), seed);

    if (PLANT(PLANT_NO_COMPARE) || PLANT(PLANT_SHORT_HASH) || PLANT(PLANT_NO_PARENT))
        return h & 15;
    return h;
}

static int32_t find(const struct prefix_cache *p, uint64_t hash, uint64_t parent,
                    const int32_t *tokens)
{
    size_t bytes = (size_t)p->block_len * sizeof(*tokens);
    int32_t i = p->buckets[hash & (p->n_buckets - 1)];

    for (; i != NONE; i = p->entries[i].next) {
        const struct entry *e = &p->entries[i];

        if (e->hash != hash)
            continue;
        if (PLANT(PLANT_NO_COMPARE))
            break;
        if ((e->parent == parent || PLANT(PLANT_NO_PARENT)) &&
            memcmp(p->tokens + (size_t)i * (size_t)p->block_len, tokens, bytes) == 0)
            break;
    }
    return i;
}

bool prefix_cache_pin(struct prefix_cache *p, uint64_t *parent, const int32_t *tokens,
                      int32_t *block_id)
{
    int32_t i = find(p, hash_of(p, *parent, tokens), *parent, tokens);

    if (i == NONE || (p->entries[i].state != ENTRY_READY && !PLANT(PLANT_EARLY_VISIBLE)))
        return false;
    if (!PLANT(PLANT_SHARE_NO_REF) || blocks_refs(p->blocks, i) == 0)
        blocks_ref(p->blocks, i);
    *parent = p->entries[i].serial;
    *block_id = i;
    return true;
}

int32_t prefix_cache_pending(const struct prefix_cache *p, uint64_t parent, const int32_t *tokens)
{
    int32_t i = find(p, hash_of(p, parent, tokens), parent, tokens);

    return i != NONE && p->entries[i].state == ENTRY_PENDING ? p->entries[i].owner : -1;
}

void prefix_cache_insert(struct prefix_cache *p, struct cache_namespace *ns, uint64_t *parent,
                         int32_t block_id, const int32_t *tokens, int32_t owner)
{
    uint64_t hash = hash_of(p, *parent, tokens);
    int32_t equal = find(p, hash, *parent, tokens);
    int32_t *bucket = &p->buckets[hash & (p->n_buckets - 1)];
    struct entry *e = &p->entries[block_id];

    if (equal != NONE) {
        *parent = p->entries[equal].serial;
        return;
    }
    must(e->state == ENTRY_NONE);
    blocks_set_listed(p->blocks, block_id, true);
    e->state = owner == PREFIX_CACHE_READY ? ENTRY_READY : ENTRY_PENDING;
    e->owner = owner;
    e->hash = hash;
    e->parent = *parent;
    e->serial = ++p->last_serial;
    e->ns = ns;
    list_append(&ns->entries, &e->in_ns);
    memcpy(p->tokens + (size_t)block_id * (size_t)p->block_len, tokens,
           (size_t)p->block_len * sizeof(*tokens));
    e->next = *bucket;
    *bucket = block_id;
    *parent = e->serial;
}

void prefix_cache_set_ready(struct prefix_cache *p, int32_t block_id)
{
    if (p->entries[block_id].state == ENTRY_PENDING)
        p->entries[block_id].state = ENTRY_READY;
}

void prefix_cache_remove(struct prefix_cache *p, int32_t block_id)
{
    struct entry *e = &p->entries[block_id];
    int32_t *at = &p->buckets[e->hash & (p->n_buckets - 1)];

    if (e->state == ENTRY_NONE)
        return;
    while (*at != block_id) {
        must(*at != NONE);
        at = &p->entries[*at].next;
    }
    *at = e->next;
    e->state = ENTRY_NONE;
    list_remove(&e->in_ns);
    blocks_set_listed(p->blocks, block_id, false);
    namespace_drop_unused(p, e->ns);
    e->ns = NULL;
}

int prefix_cache_take(struct prefix_cache *p, int32_t *block_id)
{
    int32_t oldest;

    if (blocks_take(p->blocks, block_id) == BLOCKS_OK)
        return BLOCKS_OK;
    oldest = blocks_oldest_cached(p->blocks);
    if (oldest == NONE)
        return BLOCKS_E_EMPTY;
    prefix_cache_remove(p, oldest);
    p->n_evicted++;
    return blocks_take(p->blocks, block_id);
}

bool prefix_cache_is_ready(const struct prefix_cache *p, int32_t block_id)
{
    return p->entries[block_id].state == ENTRY_READY;
}

uint64_t prefix_cache_evictions(const struct prefix_cache *p)
{
    return p->n_evicted;
}

const char *prefix_cache_verify(const struct prefix_cache *p)
{
    for (int32_t i = 0; i < p->n_blocks; i++) {
        const struct entry *e = &p->entries[i];

        if (e->state == ENTRY_NONE)
            continue;
        if (e->state == ENTRY_PENDING && blocks_refs(p->blocks, i) == 0)
            return "a block that is not written yet is held by nobody";
        if (e->parent >= e->serial && !PLANT(PLANT_NO_NAMESPACE))
            return "a block is older than the one before it in its chain";
        if (find(p, e->hash, e->parent, p->tokens + (size_t)i * (size_t)p->block_len) != i)
            return "a listed block is not found, or an equal one is listed too";
    }
    return NULL;
}
