/* core_cache.c - queries about the prefix cache: list, clear, pin, explain a prompt; see core.h. */
#include <errno.h>
#include <stdlib.h>

#include "engine/core/core_impl.h"

/* A cache that all clients share belongs to none of them. */
static bool may_touch(const struct core *c, const struct inspect_query *q)
{
    return q->all || (q->viewer == q->client && !c->options.share_all);
}

/* The longest beginning of a prompt that is cached. */
struct found {
    struct node *last; /* or the root; NULL: there is no such namespace */
    int32_t n_blocks;
    int32_t n_pinned;      /* of these, the first ones */
    int32_t n_in[N_TIERS]; /* of these, those whose highest copy is there */
};

static struct found find(const struct core *c, struct cache_namespace *ns, const int32_t *prompt,
                         int32_t max_blocks)
{
    struct found f = {.last = ns ? &ns->root : NULL};
    struct node *n;

    while (ns && f.n_blocks < max_blocks &&
           (n = prefix_cache_lookup(c->cache, prefix_cache_chain(c->cache, f.last),
                                    prompt + f.n_blocks * c->options.block_len))) {
        f.last = n;
        f.n_blocks++;
        f.n_pinned += n->n_pins > 0;
        f.n_in[prefix_cache_highest(n)]++;
    }
    return f;
}

static struct cache_namespace *namespace_of(const struct core *c, const struct inspect_query *q)
{
    return prefix_cache_find(c->cache, c->options.share_all ? 0 : q->client, q->cache_salt);
}

/* ---- listing */

/* A chain is listed by its last node: one that has none behind it, or at which a pin ends. The one
 * used last comes first; of those used together, any fixed order will do. */
static int compare_chains(const void *a, const void *b)
{
    const struct node *x = *(struct node *const *)a, *y = *(struct node *const *)b;

    if (x->used_us != y->used_us)
        return x->used_us < y->used_us ? 1 : -1;
    return x < y ? -1 : x > y;
}

static void fill_prefix(const struct core *c, const struct node *last, bool with_head,
                        struct inspect_prefix *out)
{
    const int32_t id = last->location[TIER_DEVICE], len = c->options.block_len;

    out->client = last->ns->client;
    out->blocks = last->depth + 1;
    out->tokens = out->blocks * len;
    if (with_head)
        out->n_head = min_i32(out->tokens, INSPECT_HEAD_IDS);
    for (const struct node *n = last; n->depth >= 0; n = n->parent) {
        out->found_in[prefix_cache_highest(n)]++;
        for (int32_t i = 0, at = n->depth * len; i < len && at < out->n_head; i++, at++)
            out->head[at] = prefix_cache_tokens(c->cache, n)[i];
    }
    out->hits = prefix_cache_first(last)->hits;
    out->written_us = last->written_us;
    out->used_us = last->used_us;
    out->holders = id < 0 ? 0 : blocks_refs(c->blocks, id) - (last->n_pins > 0);
    out->pinned = last->pinned;
}

/* The chains of the viewer, or of all. */
static int list(const struct core *c, const struct inspect_query *q, struct inspect_report *out)
{
    const struct prefix_cache *p = c->cache;
    const bool own = !c->options.share_all; /* a client may see its own chains */
    const struct node **chains;

    must(q->limit >= 1 && q->limit <= INSPECT_MAX_ENTRIES);
    out->evictions = p->n_evicted;
    out->pinned_blocks = p->n_pinned;
    if (!q->all && !own)
        return 0;
    chains = calloc((size_t)p->n_nodes + 1, sizeof(*chains));
    if (!chains)
        return -ENOMEM;
    for (int32_t i = 0; i < p->n_nodes; i++)
        if (prefix_cache_is_in_reach(&p->nodes[i], q->viewer, q->all) &&
            (list_empty(&p->nodes[i].children) || p->nodes[i].pinned))
            chains[out->total++] = &p->nodes[i];
    qsort(chains, (size_t)out->total, sizeof(*chains), compare_chains);
    out->n_prefixes = min_i32(out->total, q->limit);
    out->prefixes = calloc((size_t)out->n_prefixes + 1, sizeof(*out->prefixes));
    for (int32_t i = 0; out->prefixes && i < out->n_prefixes; i++)
        fill_prefix(c, chains[i], own && chains[i]->ns->client == q->viewer, &out->prefixes[i]);
    free(chains);
    return out->prefixes ? 0 : -ENOMEM;
}

/* ---- clear and pin */

static int clear(struct core *c, const struct inspect_query *q, struct inspect_report *out)
{
    bool all = q->clear_all || c->options.share_all;

    if (!may_touch(c, q) || (all && !q->all))
        return CORE_INSPECT_DENIED;
    out->changed_blocks = prefix_cache_clear(c->cache, q->client, all);
    out->changed_tokens = out->changed_blocks * c->options.block_len;
    /* What is being computed is not listed either: who waits for it would not find it. */
    for (int32_t i = 0; i < c->options.max_seqs; i++) {
        struct sequence *s = c->slots[i];

        if (!s || !prefix_cache_is_in_reach(&s->request->ns->root, q->client, all))
            continue;
        s->chain = 0;
        core_wake(c, s, true);
    }
    return 0;
}

int32_t core_pin_limit(const struct core *c)
{
    return c->options.n_blocks / 2;
}

int32_t core_pinned_prefix(const struct core *c, struct cache_namespace *ns, const int32_t *prompt,
                           int32_t n_prompt)
{
    return find(c, ns, prompt, (n_prompt - 1) / c->options.block_len).n_pinned;
}

/* Blocks that the largest request under way may come to hold. */
static int32_t most_needed(const struct core *c)
{
    int32_t most = 0;

    LIST_EACH (const struct request, q, in_core, &c->all)
        if (q->home == TIER_DEVICE && core_blocks_at_most(c, q) > most)
            most = core_blocks_at_most(c, q);
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
    n_pinned = c->cache->n_pinned + n - f.n_pinned;
    out->prompt_tokens = n_prompt;
    out->cached_tokens = f.n_blocks * c->options.block_len;
    if (q->unpin) {
        if (f.n_blocks < n || !f.last->pinned)
            return 0;
    } else {
        if (n_pinned > core_pin_limit(c) && !PLANT(PLANT_PIN_NO_LIMIT))
            return CORE_INSPECT_PIN_LIMIT;
        if (most_needed(c) > c->options.n_blocks - n_pinned && !PLANT(PLANT_PIN_NO_LIMIT))
            return CORE_INSPECT_PIN_BUSY;
        if (f.n_in[TIER_DEVICE] < n)
            return CORE_INSPECT_ABSENT;
    }
    prefix_cache_set_pin(c->cache, f.last, !q->unpin);
    out->changed_blocks = n;
    out->changed_tokens = n * c->options.block_len;
    return 0;
}

/* ---- explaining a prompt */

/* How many of tokens [n] the block behind a node begins with that agrees longest, and the tokens by
 * which such blocks go on instead. */
static int32_t compare(const struct core *c, const struct node *node, const int32_t *tokens,
                       int32_t n, struct inspect_report *out)
{
    const int32_t len = c->options.block_len;
    int32_t most = 0;

    LIST_EACH (struct node, behind, sibling, &node->children) {
        const int32_t *there = prefix_cache_tokens(c->cache, behind);
        int32_t same = 0, k = 0;

        while (same < n && same < len && there[same] == tokens[same])
            same++;
        if (same < most)
            continue;
        if (same > most)
            out->n_other = 0;
        most = same;
        while (same < len && k < out->n_other && out->other[k] != there[same])
            k++;
        if (same < len && k == out->n_other && k < INSPECT_OTHER_IDS)
            out->other[out->n_other++] = there[same];
    }
    return most;
}

/* What a generate would find now, and how much further some cached prompt agrees with this one,
 * unless that may be another client's: it could be guessed token by token. */
static int explain(const struct core *c, const struct inspect_query *q, const int32_t *prompt,
                   int32_t n_prompt, struct inspect_report *out)
{
    int32_t len = c->options.block_len;
    struct found f;
    int32_t at;

    if (!q->all && q->viewer != q->client)
        return CORE_INSPECT_DENIED;
    f = find(c, namespace_of(c, q), prompt, n_prompt / len);
    at = f.n_blocks * len;
    out->prompt_tokens = n_prompt;
    out->cached_tokens = f.n_blocks > (n_prompt - 1) / len ? at - len : at;
    out->same_tokens = out->cached_tokens;
    for (int t = 0; t < N_TIERS; t++)
        out->found_in[t] = f.n_in[t] * len;
    if (out->cached_tokens < at)
        out->found_in[prefix_cache_highest(f.last)] -= len;
    out->compared = may_touch(c, q);
    if (!out->compared)
        return 0;
    if (f.last)
        at += compare(c, f.last, prompt + at, n_prompt - at, out);
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
