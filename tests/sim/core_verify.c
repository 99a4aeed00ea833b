/* core_verify.c - see core_verify.h. */
#include "tests/sim/core_verify.h"

#include <string.h>

#include "engine/core/core_impl.h"

/* ---- blocks */

const char *blocks_verify(const struct blocks *b, const int32_t *refs)
{
    int32_t n_held = 0, n_free = b->n_blocks - b->n_touched, n_cached = 0, n_clean = 0;
    uint64_t released = 0;

    for (int32_t i = 0; i < b->n_blocks; i++) {
        n_held += refs[i] > 0;
        if (b->block[i].refs != refs[i] || (i >= b->n_touched && b->block[i].node))
            return "the references of a block are not as many as hold it";
    }
    LIST_EACH (const struct block, k, link, &b->free)
        if (n_free++ == b->n_free || k->node || refs[k - b->block])
            return "the free list has a block that is not free";
    LIST_EACH (const struct block, k, link, &b->cached) {
        if (n_cached++ == b->n_cached || !k->node || refs[k - b->block])
            return "the cached list has a block that is held or not listed";
        if (k->released <= released)
            return "cached blocks are not in order of release";
        released = k->released;
        n_clean += n_clean == n_cached - 1 && &k->link != b->dirty;
    }
    if (n_clean != b->n_clean || (n_clean == n_cached && b->dirty != &b->cached))
        return "the first dirty block is not behind as many as are clean";
    if (n_free != b->n_free || n_cached != b->n_cached)
        return "free and cached blocks are not as many as they are said to be";
    return n_held + n_free + n_cached == b->n_blocks ? NULL
                                                     : "a block without references is in no list";
}

/* ---- the prefix cache */

static bool is_same(const struct prefix_cache *p, const struct node *a, const struct node *b)
{
    return a->digest.low64 == b->digest.low64 && a->digest.high64 == b->digest.high64 &&
           a->parent == b->parent &&
           memcmp(prefix_cache_tokens(p, a), prefix_cache_tokens(p, b),
                  (size_t)p->block_len * sizeof(int32_t)) == 0;
}

static const char *verify_node(const struct prefix_cache *p, const struct node *n)
{
    const struct node *equal = p->buckets[n->digest.low64 & (p->n_buckets - 1)];
    int32_t n_pins = n->pinned;
    bool somewhere = false;

    if (!n->parent->ns || n->parent->ns != n->ns || n->depth != n->parent->depth + 1)
        return "a node does not continue the one before it";
    while (equal && equal != n && !is_same(p, equal, n))
        equal = equal->next;
    if (equal != n)
        return "a node is not found, or an equal one is";
    for (int t = 0; t < N_TIERS; t++) {
        if (n->location[t] < 0)
            continue;
        somewhere = true;
        if (blocks_node(p->tiers[t], n->location[t]) != n)
            return "a node names a block that is not its own";
    }
    if (!somewhere)
        return "a node is in no tier";
    if (p->n_pinned == 0)
        return n->n_pins > 0 || n->pinned ? "a block is pinned and not counted" : NULL;
    LIST_EACH (const struct node, behind, sibling, &n->children)
        n_pins += behind->n_pins;
    if (n_pins != n->n_pins)
        return "the pins that hold a block are not as many as it counts";
    return n_pins > 0 && n->location[TIER_DEVICE] < 0 ? "a pinned node has no device block" : NULL;
}

const char *prefix_cache_verify(const struct prefix_cache *p)
{
    const char *broken = NULL;
    int32_t n_pinned = 0;

    for (int32_t i = 0; !broken && i < p->n_nodes; i++) {
        if (!p->nodes[i].ns)
            continue;
        n_pinned += p->nodes[i].n_pins > 0;
        broken = verify_node(p, &p->nodes[i]);
    }
    return broken || n_pinned == p->n_pinned
               ? broken
               : "the pinned blocks are not as many as they are said to be";
}

/* ---- the core */

enum { MAX_BLOCKS = 1 << 16 }; /* of one tier */

/* References that the blocks of each tier should have: from tables, pins and copies under way. */
static const char *verify_refs(const struct core *c)
{
    static int32_t refs[MAX_BLOCKS];
    const char *broken = NULL;
    int32_t n_copies = 0;

    for (int t = TIER_DEVICE; !broken && t < N_TIERS; t++) {
        const struct blocks *b = c->tiers[t];

        if (!b)
            continue;
        must(b->n_blocks <= MAX_BLOCKS);
        memset(refs, 0, (size_t)b->n_blocks * sizeof(*refs));
        for (int32_t i = 0; t < TIER_DISK && i < c->options.max_seqs; i++)
            for (int32_t k = 0;
                 c->slots[i] && (int)c->slots[i]->request->home == t && k < c->slots[i]->n_table;
                 k++)
                refs[c->slots[i]->table[k]]++;
        for (int32_t i = 0; t == TIER_DEVICE && c->cache->n_pinned > 0 && i < b->n_blocks; i++)
            refs[i] += blocks_node(b, i) && blocks_node(b, i)->n_pins > 0;
        for (int32_t i = 0; c->n_copies > 0 && i < c->max_copies; i++) {
            const struct core_copy *k = &c->copies[i];

            if (k->from_tier == k->to_tier)
                continue;
            if (k->from_tier == t)
                refs[k->from]++;
            if (k->to_tier != t)
                continue;
            n_copies++;
            refs[k->to]++;
            if (blocks_node(b, k->to))
                return "a block is found before the copy into it is done";
        }
        broken = blocks_verify(b, refs);
    }
    return broken || n_copies == c->n_copies
               ? broken
               : "copies under way are not as many as they are said to be";
}

/* How many sequences are in a list; -1: one of them is in a state that does not belong there. */
static int32_t list_length(const struct list *head, enum sequence_state a, enum sequence_state b)
{
    int32_t n = 0;

    SEQUENCE_EACH (s, head) {
        if (s->state != a && s->state != b)
            return -1;
        n++;
    }
    return n;
}

static const char *verify_waiters(const struct core *c, const struct sequence *s,
                                  int32_t *n_waiters)
{
    SEQUENCE_EACH (w, &s->waiters) {
        ++*n_waiters;
        if (w->state != SEQ_WAITING_PREFIX)
            return "a sequence waits for another and does not know";
        if ((int64_t)w->prefix_blocks * c->options.block_len <= s->n_written)
            return "a sequence waits for a prefix that is there";
    }
    return NULL;
}

/* Blocks not written in full yet belong to one sequence alone and are found by nobody. */
static const char *verify_unwritten(const struct core *c, const struct sequence *s)
{
    for (int32_t b = s->n_written / c->options.block_len; b < s->n_table; b++) {
        if (blocks_refs(core_blocks_of(c, s), s->table[b]) != 1)
            return "a block that is still written to is shared";
        if (blocks_node(core_blocks_of(c, s), s->table[b]))
            return "a block is found before the step that wrote it is committed";
    }
    return NULL;
}

static const char *verify_sequence(const struct core *c, const struct sequence *s, int32_t slot,
                                   int32_t *n_waiters)
{
    const char *broken;

    if (s->slot != slot ||
        (!sequence_runs(s) && s->state != SEQ_PREEMPTED && s->state != SEQ_ENDED))
        return "a sequence has a slot that it should not have";
    if (!sequence_runs(s) && s->last_step <= c->committed)
        return "a sequence that ended keeps its blocks when no step uses them";
    if (s->n_written > s->n_planned || core_blocks_for(c, s->n_planned) > s->n_table ||
        s->n_table > c->max_blocks)
        return "a table does not cover what is planned";
    if (s->n_sampling < 0 || s->n_sampling > core_in_flight(c))
        return "more rows are sampled than steps are in flight";
    if (s->last_step <= c->committed && s->n_written != s->n_planned)
        return "a sequence in no step in flight has positions unwritten";
    broken = verify_unwritten(c, s);
    return broken ? broken : verify_waiters(c, s, n_waiters);
}

static const char *verify_steps(const struct core *c)
{
    for (uint64_t n = c->committed + 1; n <= c->planned; n++) {
        const struct step *st = &c->steps[n % BACKEND_IN_FLIGHT];

        for (int32_t i = 0; i < st->head.n_seqs; i++) {
            const struct step_entry *e = &st->entries[i];
            const struct sequence *s = e->sequence;

            if (s->slot < 0 || c->slots[s->slot] != s || s->last_step < n ||
                s->n_table < core_blocks_for(c, e->start + e->n))
                return "a step in flight uses blocks that were given back";
        }
    }
    return NULL;
}

/* Beside what is pinned each request can run, alone at least. */
static const char *verify_pins(const struct core *c)
{
    int32_t n_pinned = c->cache->n_pinned;

    if (n_pinned == 0 || PLANT(PLANT_PIN_NO_LIMIT))
        return NULL;
    if (n_pinned > core_pin_limit(c))
        return "more is pinned than may be";
    LIST_EACH (struct request, q, in_core, &c->all)
        if (q->home == TIER_DEVICE &&
            core_blocks_at_most(c, q) > c->options.n_blocks - n_pinned +
                                            core_pinned_prefix(c, q->ns, q->prompt, q->n_prompt))
            return "a request can never run beside what is pinned";
    return NULL;
}

/* Each choice is in one list by its state, and counted once. */
static const char *verify_counts(const struct core *c, int32_t n_waiters)
{
    const int32_t n_draining = list_length(&c->draining, SEQ_PREEMPTED, SEQ_ENDED);
    const int32_t n_loading = list_length(&c->loading, SEQ_LOADING, SEQ_LOADING);
    int32_t n[SEQ_ENDED + 1] = {0}, n_slots = 0, n_queued = 0, n_running = 0, n_offloaded = 0;
    int64_t n_queued_tokens = 0;

    LIST_EACH (struct request, q, in_core, &c->all) {
        for (int32_t i = 0; i < q->n; i++) {
            const enum sequence_state state = q->choices[i].state;

            n[state]++;
            if (state == SEQ_WAITING || state == SEQ_LOADING || state == SEQ_WAITING_PREFIX)
                n_queued_tokens += sequence_n_tokens(&q->choices[i]);
        }
    }
    for (int32_t i = 0; i < c->options.max_seqs; i++) {
        n_slots += c->slots[i] != NULL;
        n_offloaded += c->slots[i] && core_is_offloaded(c->slots[i]);
    }
    if (n_offloaded != c->n_offloaded || n_offloaded > 1)
        return "more sequences are offloaded than are said to be, or than one";
    FAIR_EACH (u, &c->fair) {
        n_queued += u->n_waiting;
        n_running += u->n_running;
    }
    if (n_queued_tokens != c->n_queued_tokens)
        return "the tokens of those that wait are not as many as they are said to be";
    if (list_length(&c->prefilling, SEQ_PREFILL, SEQ_PREFILL) != c->n_prefilling ||
        list_length(&c->decoding, SEQ_DECODE, SEQ_DECODE) != c->n_decoding || n_draining < 0)
        return "a list of sequences is not as long as it is said to be";
    if (n_slots != core_n_running(c) + n_draining ||
        c->n_free_slots != c->options.max_seqs - n_slots)
        return "slots held and free are not all slots";
    if (n[SEQ_WAITING_PREFIX] != n_waiters || n[SEQ_LOADING] != n_loading ||
        n[SEQ_PREFILL] != c->n_prefilling || n[SEQ_DECODE] != c->n_decoding ||
        c->n_alive != n[SEQ_WAITING] + n[SEQ_WAITING_PREFIX] + n[SEQ_LOADING] + n[SEQ_PREFILL] +
                          n[SEQ_DECODE] + n[SEQ_PREEMPTED])
        return "a choice neither waits nor runs";
    if ((size_t)c->n_requests != c->requests.n || (c->n_requests == 0) != (c->n_alive == 0))
        return "requests and their choices do not agree";
    if (n_queued != n[SEQ_WAITING] || n_running != core_n_running(c))
        return "users do not have as many sequences as there are";
    if (n_loading > 0 && c->n_copies == 0)
        return "a sequence waits for copies and there are none";
    if (c->n_requests == 0 && core_in_flight(c) == 0 && c->n_copies == 0 &&
        blocks_n_used(c->blocks) != c->cache->n_pinned)
        return "no request, but used blocks that are not pinned";
    return NULL;
}

const char *core_verify(const struct core *c)
{
    const char *broken;
    int32_t n_waiters = 0;

    broken = verify_refs(c);
    if (!broken)
        broken = prefix_cache_verify(c->cache);
    for (int32_t i = 0; !broken && i < c->options.max_seqs; i++)
        if (c->slots[i])
            broken = verify_sequence(c, c->slots[i], i, &n_waiters);
    if (!broken)
        broken = verify_steps(c);
    if (!broken)
        broken = verify_pins(c);
    return broken ? broken : verify_counts(c, n_waiters);
}
