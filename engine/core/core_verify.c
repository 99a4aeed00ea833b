/* core_verify.c - the invariants of core.h, looked at from outside the code that keeps them. */
#include <string.h>

#include "engine/core/core_impl.h"
#include "engine/util/plant.h"

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
    for (int32_t b = (int32_t)core_full_blocks(c, s->n_written); b < s->n_table; b++) {
        if (blocks_refs(c->blocks, s->table[b]) != 1)
            return "a block that is still written to is shared";
        if (blocks_node(c->blocks, s->table[b]))
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

        for (int32_t i = 0; i < st->n_entries; i++) {
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
        if (core_blocks_at_most(c, q->n_prompt, q->max_tokens) >
            c->options.n_blocks - n_pinned + core_pinned_prefix(c, q->ns, q->prompt, q->n_prompt))
            return "a request can never run beside what is pinned";
    return NULL;
}

/* Each choice is in one list by its state, and counted once. */
static const char *verify_counts(const struct core *c, int32_t n_waiters)
{
    const int32_t n_loading = list_length(&c->loading, SEQ_LOADING, SEQ_LOADING);
    int32_t n[SEQ_ENDED + 1] = {0}, n_slots = 0, n_queued = 0, n_running = 0;
    int64_t n_queued_tokens = 0;

    LIST_EACH (struct request, q, in_core, &c->all) {
        for (int32_t i = 0; i < q->n; i++) {
            const enum sequence_state state = q->choices[i].state;

            n[state]++;
            if (state == SEQ_WAITING || state == SEQ_LOADING || state == SEQ_WAITING_PREFIX)
                n_queued_tokens += sequence_n_tokens(&q->choices[i]);
        }
    }
    for (int32_t i = 0; i < c->options.max_seqs; i++)
        n_slots += c->slots[i] != NULL;
    FAIR_EACH (u, &c->fair) {
        n_queued += u->n_waiting;
        n_running += u->n_running;
    }
    if (n_queued_tokens != c->n_queued_tokens)
        return "the tokens of those that wait are not as many as they are said to be";
    if (list_length(&c->prefilling, SEQ_PREFILL, SEQ_PREFILL) != c->n_prefilling ||
        list_length(&c->decoding, SEQ_DECODE, SEQ_DECODE) != c->n_decoding ||
        list_length(&c->draining, SEQ_PREEMPTED, SEQ_ENDED) != c->n_draining)
        return "a list of sequences is not as long as it is said to be";
    if (n_slots != core_n_running(c) + c->n_draining ||
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

    memset(c->block_refs, 0, (size_t)c->options.n_blocks * sizeof(*c->block_refs));
    for (int32_t i = 0; i < c->options.max_seqs; i++) {
        const struct sequence *s = c->slots[i];

        if (!s)
            continue;
        for (int32_t b = 0; b < s->n_table; b++)
            c->block_refs[s->table[b]]++;
    }
    for (int32_t i = 0; c->cache->n_pinned > 0 && i < c->options.n_blocks; i++)
        c->block_refs[i] += prefix_cache_is_pinned(c->cache, i);
    broken = core_verify_tiers(c);
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
