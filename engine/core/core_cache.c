/* core_cache.c - inspect requests about the prefix cache: list, clear, pin, explain a prompt; see
 * core_inspect.h. */
#include <errno.h>
#include <stdlib.h>

#include "engine/core/core_impl.h"
#include "engine/core/core_inspect.h"
#include "engine/util/must.h"
#include "engine/util/plant.h"

/* A cache that all clients share belongs to none of them. */
static bool may_touch(const struct core *c, const struct inspect_query *q)
{
    return q->all || (q->viewer == q->client && !c->options.share_all);
}

/* The longest beginning of a prompt that is on the device. */
struct found {
    uint64_t chain;
    int32_t n_blocks;
    int32_t n_pinned; /* of these, the first ones */
    int32_t last;     /* block id, where n_blocks > 0 */
};

static struct found find(const struct core *c, const struct cache_namespace *ns,
                         const int32_t *prompt, int32_t max_blocks)
{
    struct found f = {.chain = ns ? prefix_cache_root(ns) : 0};
    int32_t len = c->options.block_len;

    while (ns && f.n_blocks < max_blocks &&
           prefix_cache_peek(c->cache, &f.chain, prompt + f.n_blocks * len, &f.last)) {
        f.n_blocks++;
        f.n_pinned += prefix_cache_is_pinned(c->cache, f.last);
    }
    return f;
}

static struct cache_namespace *namespace_of(const struct core *c, const struct inspect_query *q)
{
    return prefix_cache_find(c->cache, c->options.share_all ? 0 : q->client, q->cache_salt);
}

static int list(const struct core *c, const struct inspect_query *q, struct inspect_report *out)
{
    bool own = !c->options.share_all; /* a client may see its own chains */
    struct cache_chain *chains;
    int32_t n;

    must(q->limit >= 1 && q->limit <= INSPECT_MAX_ENTRIES);
    out->evictions = prefix_cache_evictions(c->cache);
    out->pinned_blocks = prefix_cache_n_pinned(c->cache);
    if (!q->all && !own)
        return 0;
    if (prefix_cache_chains(c->cache, &chains, &n, q->limit, q->viewer, q->all, &out->total) < 0)
        return -ENOMEM;
    out->prefixes = calloc((size_t)n + 1, sizeof(*out->prefixes));
    if (!out->prefixes) {
        free(chains);
        return -ENOMEM;
    }
    out->n_prefixes = n;
    for (int32_t i = 0; i < out->n_prefixes; i++) {
        struct inspect_prefix *p = &out->prefixes[i];

        *p = (struct inspect_prefix){
            .client = chains[i].client,
            .tokens = chains[i].n_blocks * c->options.block_len,
            .blocks = chains[i].n_blocks,
            .hits = chains[i].hits,
            .written_us = chains[i].written_us,
            .used_us = chains[i].used_us,
            .holders = chains[i].holders,
            .pinned = chains[i].pinned,
        };
        if (own && p->client == q->viewer)
            p->n_head = prefix_cache_head(c->cache, chains[i].last, p->head);
    }
    free(chains);
    return 0;
}

static int clear(struct core *c, const struct inspect_query *q, struct inspect_report *out)
{
    bool all = q->clear_all || c->options.share_all;

    if (!may_touch(c, q) || (all && !q->all))
        return CORE_INSPECT_DENIED;
    out->changed_blocks = prefix_cache_clear(c->cache, q->client, all);
    out->changed_tokens = out->changed_blocks * c->options.block_len;
    /* A sequence that waits for a prefix now being computed would not find it. */
    for (int32_t i = 0; i < c->options.max_seqs; i++)
        if (c->slots[i])
            core_wake(c, c->slots[i], true);
    return 0;
}

int32_t core_pin_limit(const struct core *c)
{
    return c->options.n_blocks / 2;
}

int32_t core_pinned_prefix(const struct core *c, const struct cache_namespace *ns,
                           const int32_t *prompt, int32_t n_prompt)
{
    return find(c, ns, prompt, (n_prompt - 1) / c->options.block_len).n_pinned;
}

/* Blocks that the largest request under way may come to hold. */
static int64_t most_needed(const struct core *c)
{
    int64_t most = 0;

    for (const struct list *l = c->all.next; l != &c->all; l = l->next) {
        const struct request *q = CONTAINER_OF(l, struct request, in_core);
        int64_t n = core_blocks_at_most(c, q->n_prompt, q->max_tokens);

        most = n > most ? n : most;
    }
    return most;
}

static int pin(struct core *c, const struct inspect_query *q, const int32_t *prompt,
               int32_t n_prompt, struct inspect_report *out)
{
    int32_t n = n_prompt / c->options.block_len, n_pinned;
    struct found f;

    if (!may_touch(c, q))
        return CORE_INSPECT_DENIED;
    if (!c->options.prefix_cache)
        return CORE_INSPECT_NO_CACHE;
    if (n == 0)
        return CORE_INSPECT_SHORT;
    f = find(c, namespace_of(c, q), prompt, n);
    n_pinned = prefix_cache_n_pinned(c->cache) + n - f.n_pinned;
    out->prompt_tokens = n_prompt;
    out->cached_tokens = f.n_blocks * c->options.block_len;
    if (q->unpin) {
        if (f.n_blocks < n || !prefix_cache_unpin(c->cache, f.last))
            return 0;
    } else {
        if (n_pinned > core_pin_limit(c) && !PLANT(PLANT_PIN_NO_LIMIT))
            return CORE_INSPECT_PIN_LIMIT;
        if (most_needed(c) > c->options.n_blocks - n_pinned && !PLANT(PLANT_PIN_NO_LIMIT))
            return CORE_INSPECT_PIN_BUSY;
        if (f.n_blocks < n)
            return CORE_INSPECT_ABSENT;
        prefix_cache_pin(c->cache, f.last);
    }
    out->changed_blocks = n;
    out->changed_tokens = n * c->options.block_len;
    return 0;
}

/* What a generate would find now, and how much further some cached prompt agrees with this one. The
 * latter is withheld where that prompt may be another client's: it could be guessed token by token.
 */
static int explain(const struct core *c, const struct inspect_query *q, const int32_t *prompt,
                   int32_t n_prompt, struct inspect_report *out)
{
    const struct cache_namespace *ns = namespace_of(c, q);
    int32_t len = c->options.block_len;
    struct found f;
    int32_t at;

    if (!q->all && q->viewer != q->client)
        return CORE_INSPECT_DENIED;
    f = find(c, ns, prompt, n_prompt / len);
    at = f.n_blocks * len;
    out->prompt_tokens = n_prompt;
    out->cached_tokens = f.n_blocks > (n_prompt - 1) / len ? at - len : at;
    out->same_tokens = out->cached_tokens;
    out->next_id = -1;
    out->compared = may_touch(c, q);
    if (!out->compared)
        return 0;
    if (ns)
        at += prefix_cache_compare(c->cache, f.chain, prompt + at, n_prompt - at, out->other,
                                   INSPECT_OTHER_IDS, &out->n_other);
    out->same_tokens = at;
    out->next_id = at < n_prompt ? prompt[at] : -1;
    return 0;
}

int core_cache_answer(struct core *c, const struct inspect_query *q, const int32_t *prompt,
                      int32_t n_prompt, struct inspect_report *out)
{
    switch (q->kind) {
    case INSPECT_CACHE_CLEAR:
        return clear(c, q, out);
    case INSPECT_CACHE_PIN:
        return pin(c, q, prompt, n_prompt, out);
    case INSPECT_EXPLAIN_PROMPT:
        return explain(c, q, prompt, n_prompt, out);
    default:
        must(q->kind == INSPECT_CACHE);
        return list(c, q, out);
    }
}
