/* prefix_cache_namespace.c - who may share with whom; see prefix_cache.h. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "engine/core/prefix_cache_impl.h"
#include "engine/util/checked.h"
#include "engine/util/must.h"
#include "engine/util/plant.h"

/* The same in every process with the same secret, but for private ones. */
static XXH128_hash_t namespace_digest(const struct prefix_cache *p, uint64_t client, bool private,
                                      struct text salt)
{
    struct {
        uint64_t client, private;
        XXH128_hash_t salt;
    } input = {client, private, {0, 0}};

    if (PLANT(PLANT_NO_NAMESPACE))
        return input.salt;
    if (salt.len)
        input.salt = XXH3_128bits_withSecret(salt.data, salt.len, p->secret, sizeof(p->secret));
    return XXH3_128bits_withSecret(&input, sizeof(input), p->secret, sizeof(p->secret));
}

static int namespace_new(struct cache_namespace **out, XXH128_hash_t digest, uint64_t client,
                         struct text salt)
{
    struct cache_namespace *ns;
    size_t bytes;

    if (!size_add(&bytes, sizeof(*ns), salt.len))
        return -ENOMEM;
    ns = calloc(1, bytes);
    if (!ns)
        return -ENOMEM;
    ns->root.ns = ns;
    ns->root.depth = -1;
    for (int t = 0; t < N_TIERS; t++)
        ns->root.location[t] = -1;
    list_init(&ns->root.children);
    ns->digest = digest;
    ns->client = client;
    ns->n_holders = 1;
    ns->salt_len = salt.len;
    if (salt.len)
        memcpy(ns->salt, salt.data, salt.len);
    *out = ns;
    return 0;
}

static bool is_namespace_of(const struct cache_namespace *ns, uint64_t client, struct text salt)
{
    return ns->client == client && ns->salt_len == salt.len &&
           (salt.len == 0 || memcmp(ns->salt, salt.data, salt.len) == 0);
}

struct cache_namespace *prefix_cache_find(const struct prefix_cache *p, uint64_t client,
                                          struct text salt)
{
    XXH128_hash_t digest = namespace_digest(p, client, false, salt);
    struct cache_namespace *ns = id_map_get(&p->namespaces, digest.low64);

    return ns && is_namespace_of(ns, client, salt) ? ns : NULL;
}

int prefix_cache_open(struct prefix_cache *p, struct cache_namespace **out, uint64_t client,
                      struct text salt)
{
    XXH128_hash_t digest = namespace_digest(p, client, false, salt);
    struct cache_namespace *ns = id_map_get(&p->namespaces, digest.low64);
    int rc;

    if (ns && !is_namespace_of(ns, client, salt))
        return prefix_cache_open_private(p, out); /* a collision shares nothing */
    if (ns) {
        ns->n_holders++;
        *out = ns;
        return 0;
    }
    rc = namespace_new(&ns, digest, client, salt);
    if (rc == 0)
        rc = id_map_put(&p->namespaces, digest.low64, ns);
    if (rc < 0)
        free(ns);
    else
        *out = ns;
    return rc;
}

int prefix_cache_open_private(struct prefix_cache *p, struct cache_namespace **out)
{
    XXH128_hash_t digest = namespace_digest(p, ++p->n_private, true, (struct text){NULL, 0});
    int rc = namespace_new(out, digest, 0, (struct text){NULL, 0});

    if (rc == 0)
        (*out)->private = true;
    return rc;
}

void namespace_drop_unused(struct prefix_cache *p, struct cache_namespace *ns)
{
    if (ns->n_holders > 0 || !list_empty(&ns->root.children))
        return;
    if (!ns->private)
        must(id_map_take(&p->namespaces, ns->digest.low64) == ns);
    free(ns);
}

void prefix_cache_close(struct prefix_cache *p, struct cache_namespace *ns)
{
    must(ns->n_holders > 0);
    /* The holder still counts, so that removing the last node does not free the namespace. */
    while (ns->private && !list_empty(&ns->root.children))
        node_remove(p, node_of_sibling(ns->root.children.next));
    ns->n_holders--;
    namespace_drop_unused(p, ns);
}

uint64_t prefix_cache_root(const struct cache_namespace *ns)
{
    return (uintptr_t)&ns->root;
}
