/* prefix_cache.c - see prefix_cache.h.
 *
 * Entries lie in an array by block id, chained by hash. All memory but that of namespaces is taken
 * at the start. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "engine/util/checked.h"
#include "engine/util/must.h"
#include "engine/util/plant.h"
#include "engine/core/prefix_cache_impl.h"

enum { NONE = PREFIX_CACHE_NONE };

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
    while (1ll << p->id_bits <= n_blocks)
        p->id_bits++;
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

/* Never the same twice: 2^44 blocks of a pool of 2^20 may be listed in one life. */
static uint64_t new_serial(struct prefix_cache *p, uint64_t block_id)
{
    must(++p->n_serials < UINT64_MAX >> p->id_bits);
    return p->n_serials << p->id_bits | block_id;
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
    list_init(&ns->firsts);
    ns->root = PLANT(PLANT_NO_NAMESPACE) ? UINT64_MAX : new_serial(p, (1ull << p->id_bits) - 1);
    ns->client = client;
    ns->n_holders = 1;
    ns->salt_len = salt.len;
    if (salt.len)
        memcpy(ns->salt, salt.data, salt.len);
    *out = ns;
    return 0;
}

static uint64_t namespace_hash(const struct prefix_cache *p, uint64_t client, struct text salt)
{
    return XXH3_64bits_withSeed(salt.len ? salt.data : "", salt.len, p->hash_seed ^ client);
}

struct cache_namespace *prefix_cache_find(const struct prefix_cache *p, uint64_t client,
                                          struct text salt)
{
    struct cache_namespace *ns = id_map_get(&p->namespaces, namespace_hash(p, client, salt));

    for (; ns; ns = ns->next)
        if (ns->client == client && ns->salt_len == salt.len &&
            (salt.len == 0 || memcmp(ns->salt, salt.data, salt.len) == 0))
            break;
    return ns;
}

int prefix_cache_open(struct prefix_cache *p, struct cache_namespace **out, uint64_t client,
                      struct text salt)
{
    struct cache_namespace *ns = prefix_cache_find(p, client, salt);
    struct cache_namespace *first;
    int rc;

    if (ns) {
        ns->n_holders++;
        *out = ns;
        return 0;
    }
    rc = namespace_new(p, &ns, client, salt);
    if (rc < 0)
        return rc;
    ns->hash = namespace_hash(p, client, salt);
    first = id_map_get(&p->namespaces, ns->hash);
    if (first) {
        ns->next = first->next;
        first->next = ns;
    } else {
        rc = id_map_put(&p->namespaces, ns->hash, ns);
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
    if (ns->n_holders > 0 || !list_empty(&ns->firsts))
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
        while (!list_empty(&ns->firsts)) {
            struct entry *e = CONTAINER_OF(ns->firsts.next, struct entry, sibling);

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

static int32_t find_hash(const struct prefix_cache *p, uint64_t hash, uint64_t parent,
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
            memcmp(cache_tokens(p, i), tokens, bytes) == 0)
            break;
    }
    return i;
}

int32_t cache_find(const struct prefix_cache *p, uint64_t parent, const int32_t *tokens)
{
    return find_hash(p, hash_of(p, parent, tokens), parent, tokens);
}

bool prefix_cache_peek(const struct prefix_cache *p, uint64_t *parent, const int32_t *tokens,
                       int32_t *block_id)
{
    int32_t i = cache_find(p, *parent, tokens);

    if (i == NONE || (p->entries[i].state != ENTRY_READY && !PLANT(PLANT_EARLY_VISIBLE)))
        return false;
    *parent = p->entries[i].serial;
    *block_id = i;
    return true;
}

bool prefix_cache_hold(struct prefix_cache *p, uint64_t *parent, const int32_t *tokens,
                       int32_t *block_id)
{
    if (!prefix_cache_peek(p, parent, tokens, block_id))
        return false;
    if (!PLANT(PLANT_SHARE_NO_REF) || blocks_refs(p->blocks, *block_id) == 0)
        blocks_ref(p->blocks, *block_id);
    p->entries[*block_id].used_us = p->now_us;
    return true;
}

int32_t prefix_cache_pending(const struct prefix_cache *p, uint64_t parent, const int32_t *tokens)
{
    int32_t i = cache_find(p, parent, tokens);

    return i != NONE && p->entries[i].state == ENTRY_PENDING ? p->entries[i].owner : -1;
}

/* Whether a chain can go on after parent; *before is the block, or NONE at a root. */
static bool is_listed(const struct prefix_cache *p, uint64_t parent, int32_t *before)
{
    uint64_t id = parent & ((1ull << p->id_bits) - 1);

    *before = id < (uint64_t)p->n_blocks ? (int32_t)id : NONE;
    return *before == NONE ||
           (p->entries[id].state != ENTRY_NONE && p->entries[id].serial == parent);
}

void prefix_cache_insert(struct prefix_cache *p, struct cache_namespace *ns, uint64_t *parent,
                         int32_t block_id, const int32_t *tokens, int32_t owner)
{
    uint64_t hash = hash_of(p, *parent, tokens);
    int32_t equal = find_hash(p, hash, *parent, tokens);
    int32_t *bucket = &p->buckets[hash & (p->n_buckets - 1)];
    struct entry *e = &p->entries[block_id];
    int32_t before;

    if (equal != NONE) {
        *parent = p->entries[equal].serial;
        return;
    }
    if (!is_listed(p, *parent, &before))
        return;
    must(e->state == ENTRY_NONE);
    blocks_set_listed(p->blocks, block_id, true);
    *e = (struct entry){
        .state = owner == PREFIX_CACHE_READY ? ENTRY_READY : ENTRY_PENDING,
        .owner = owner,
        .next = *bucket,
        .depth = before == NONE ? 0 : p->entries[before].depth + 1,
        .hash = hash,
        .serial = new_serial(p, (uint64_t)block_id),
        .parent = *parent,
        .ns = ns,
        .written_us = p->now_us,
        .used_us = p->now_us,
    };
    e->head =
        (int64_t)e->depth * p->block_len < PREFIX_CACHE_HEAD ? block_id : p->entries[before].head;
    list_init(&e->children);
    list_append(before == NONE ? &ns->firsts : &p->entries[before].children, &e->sibling);
    memcpy(p->tokens + (size_t)block_id * (size_t)p->block_len, tokens,
           (size_t)p->block_len * sizeof(*tokens));
    *bucket = block_id;
    *parent = e->serial;
}

void prefix_cache_set_ready(struct prefix_cache *p, int32_t block_id)
{
    struct entry *e = &p->entries[block_id];

    if (e->state != ENTRY_PENDING)
        return;
    e->state = ENTRY_READY;
    e->written_us = e->used_us = p->now_us;
}

/* Unlists one that has nothing behind it. */
static void remove_last(struct prefix_cache *p, int32_t block_id)
{
    struct entry *e = &p->entries[block_id];
    int32_t *at = &p->buckets[e->hash & (p->n_buckets - 1)];

    while (*at != block_id) {
        must(*at != NONE);
        at = &p->entries[*at].next;
    }
    *at = e->next;
    e->state = ENTRY_NONE;
    list_remove(&e->sibling);
    blocks_set_listed(p->blocks, block_id, false);
    if (e->n_pins > 0) {
        p->n_pinned--;
        blocks_unref(p->blocks, block_id);
    }
    namespace_drop_unused(p, e->ns);
    e->ns = NULL;
}

int32_t prefix_cache_remove(struct prefix_cache *p, int32_t block_id)
{
    int32_t n = 0, at = block_id;

    if (p->entries[block_id].state == ENTRY_NONE)
        return 0;
    cache_forget_pins(p, block_id);
    for (;;) { /* from the ends of chains on */
        struct entry *e = &p->entries[at];
        int32_t before = cache_parent(p, at);

        if (!list_empty(&e->children)) {
            e = CONTAINER_OF(e->children.next, struct entry, sibling);
            at = (int32_t)(e - p->entries);
            continue;
        }
        remove_last(p, at);
        n++;
        if (at == block_id)
            return n;
        at = before;
    }
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

void prefix_cache_set_time(struct prefix_cache *p, uint64_t now_us)
{
    p->now_us = now_us;
}

bool prefix_cache_is_ready(const struct prefix_cache *p, int32_t block_id)
{
    return p->entries[block_id].state == ENTRY_READY;
}

uint64_t prefix_cache_evictions(const struct prefix_cache *p)
{
    return p->n_evicted;
}

static const char *verify_pins(const struct entry *e)
{
    int32_t n = e->pinned;

    for (const struct list *l = e->children.next; l != &e->children; l = l->next)
        n += CONTAINER_OF(l, struct entry, sibling)->n_pins;
    return n == e->n_pins ? NULL : "the pins that hold a block are not as many as it counts";
}

const char *prefix_cache_verify(const struct prefix_cache *p)
{
    int32_t n_pinned = 0;

    for (int32_t i = 0; i < p->n_blocks; i++) {
        const struct entry *e = &p->entries[i];
        int32_t before;

        if (e->state == ENTRY_NONE)
            continue;
        n_pinned += e->n_pins > 0;
        if (verify_pins(e))
            return verify_pins(e);
        if (e->state == ENTRY_PENDING && blocks_refs(p->blocks, i) == 0)
            return "a block that is not written yet is held by nobody";
        if (e->parent >= e->serial && !PLANT(PLANT_NO_NAMESPACE))
            return "a block is older than the one before it in its chain";
        if (!is_listed(p, e->parent, &before))
            return "a block is listed that nothing can find";
        if (before != NONE && p->entries[before].depth != e->depth - 1)
            return "a block is not as far from its chain's beginning as it is said to be";
        if (find_hash(p, e->hash, e->parent, cache_tokens(p, i)) != i)
            return "a listed block is not found, or an equal one is listed too";
    }
    if (n_pinned != p->n_pinned)
        return "the pinned blocks are not as many as they are said to be";
    return NULL;
}
