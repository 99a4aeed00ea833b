/* core.c - requests in and out: admission, cancel, deadlines, events; see core.h.
 *
 * What a step does is in schedule.c, what its result does in commit.c. */
#include "engine/core/core.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "engine/core/core_impl.h"

static struct request *request_of_deadline(const struct heap_node *n)
{
    return CONTAINER_OF(n, struct request, by_deadline);
}

static bool deadline_less(const struct heap_node *a, const struct heap_node *b)
{
    return request_of_deadline(a)->deadline_us < request_of_deadline(b)->deadline_us;
}

static bool options_are_valid(const struct core_options *o)
{
    return o->n_blocks > 0 && o->block_len >= 1 && (o->block_len & (o->block_len - 1)) == 0 &&
           o->n_blocks <= INT32_MAX / o->block_len && o->max_batch_tokens > 0 && o->max_seqs > 0 &&
           o->max_seq_len > 0 && o->max_preemptions >= 0 && o->mask_words >= 0;
}

static int alloc_arrays(struct core *c)
{
    const struct core_options *o = &c->options;
    size_t n_seqs = (size_t)o->max_seqs;
    const struct batch max = {
        .n_tokens = o->max_batch_tokens,
        .n_seqs = min_i32(o->max_seqs, o->max_batch_tokens),
        .max_blocks = c->max_blocks,
        .n_history = o->max_seq_len,
        .n_copies = c->max_copies,
    };

    c->slots = calloc(n_seqs, sizeof(*c->slots));
    c->free_slots = calloc(n_seqs, sizeof(*c->free_slots));
    c->tables = calloc(n_seqs, (size_t)c->max_blocks * sizeof(*c->tables));
    c->block_tokens = calloc((size_t)o->block_len * 2, sizeof(*c->block_tokens));
    c->block_refs = calloc((size_t)o->n_blocks, sizeof(*c->block_refs));
    if (!c->slots || !c->free_slots || !c->tables || !c->block_tokens || !c->block_refs)
        return -ENOMEM;
    for (int i = 0; i < BACKEND_IN_FLIGHT; i++)
        if (step_init(&c->steps[i], &max) < 0)
            return -ENOMEM;
    for (int32_t i = 0; i < o->max_seqs; i++)
        c->free_slots[c->n_free_slots++] = o->max_seqs - 1 - i; /* state 0 goes out first */
    return 0;
}

int core_new(struct core **out, const struct core_options *options)
{
    struct core *c;
    int rc;

    if (!options_are_valid(options))
        return -EINVAL;
    c = calloc(1, sizeof(*c));
    if (!c)
        return -ENOMEM;
    c->options = *options;
    c->model_acceptance = core_first_acceptance;
    if (options->tier_blocks[TIER_HOST] > INT32_MAX / options->block_len - options->n_blocks)
        c->options.offload = false; /* slots are int32 */
    c->max_blocks =
        min_i32(core_blocks_for(c, options->max_seq_len),
                core_host_room(c) > options->n_blocks ? core_host_room(c) : options->n_blocks);
    list_init(&c->all);
    list_init(&c->prefilling);
    list_init(&c->decoding);
    list_init(&c->draining);
    heap_init(&c->deadlines, deadline_less);
    fair_init(&c->fair);
    rc = core_tiers_init(c);
    if (rc == 0)
        rc = prefix_cache_new(&c->cache, c->tiers, options->block_len, options->cache_secret);
    if (rc == 0)
        rc = alloc_arrays(c);
    if (rc < 0) {
        core_free(c);
        return rc;
    }
    *out = c;
    return 0;
}

void core_set_cost(struct core *c, const struct step_cost *cost)
{
    c->cost = *cost;
}

static void trace_queued(struct trace *t, const struct request *q)
{
    const struct core_usage *u = &q->usage;

    trace_add(t, &(struct trace_record){.kind = TRACE_QUEUED,
                                        .request = q->id,
                                        .at_us = u->queued_us,
                                        .took_us = u->queued_us - u->arrival_us});
}

void core_set_trace(struct core *c, struct trace *trace)
{
    c->trace = trace;
    LIST_EACH (const struct request, q, in_core, &c->all) {
        trace_queued(trace, q);
        if (q->usage.start_us)
            trace_request(trace, TRACE_STARTED, q->id, q->usage.start_us);
        if (q->usage.first_us)
            trace_request(trace, TRACE_FIRST_TOKEN, q->id, q->usage.first_us);
    }
}

void core_set_shares(struct core *c, struct fair_share *shares, int32_t n)
{
    fair_set_shares(&c->fair, shares, n);
}

/* Everything goes, requests under way too; steps in flight must be over. */
void core_free(struct core *c)
{
    if (!c)
        return;
    while (!list_empty(&c->all))
        core_end_request(c, CONTAINER_OF(c->all.next, struct request, in_core),
                         CORE_REASON_CANCELLED, 0);
    while (!list_empty(&c->draining))
        core_drained(c, sequence_of(c->draining.next));
    for (int i = 0; i < BACKEND_IN_FLIGHT; i++)
        step_deinit(&c->steps[i]);
    prefix_cache_free(c->cache);
    core_tiers_deinit(c);
    fair_deinit(&c->fair);
    id_map_deinit(&c->requests);
    free(c->slots);
    free(c->free_slots);
    free(c->tables);
    free(c->block_tokens);
    free(c->block_refs);
    free(c->events);
    free(c);
}

/* Room for n more events than are untaken. */
static int reserve_events(struct core *c, int64_t n)
{
    const int64_t need = c->n_events + n, max = need + need / 2;
    struct core_event *p;

    if (need <= c->max_events)
        return 0;
    if (max > INT32_MAX)
        return -ENOMEM;
    p = reallocarray(c->events, (size_t)max, sizeof(*p));
    if (!p)
        return -ENOMEM;
    c->events = p;
    c->max_events = (int32_t)max;
    return 0;
}

/* Has room: core_admit reserved what a call can tell, if events are taken after each. */
void core_emit(struct core *c, const struct core_event *e)
{
    must(reserve_events(c, 1) == 0);
    c->events[c->n_events++] = *e;
}

const struct core_event *core_events(struct core *c, int32_t *n)
{
    *n = c->n_events;
    c->n_events = 0;
    return c->events;
}

void core_enqueue(struct sequence *s)
{
    s->state = SEQ_WAITING;
    fair_push(s);
}

void core_unqueue(struct sequence *s)
{
    if (s->state == SEQ_WAITING)
        fair_remove(s);
    else
        list_remove(&s->link);
}

void core_hold_back(struct sequence *s, enum sequence_state state, struct list *waiters)
{
    core_unqueue(s);
    s->state = state;
    list_append(waiters, &s->link);
}

void core_set_offload(struct core *c, bool may)
{
    c->no_offload = !may;
}

static int32_t room_on_device(const struct core *c, const struct core_request *r)
{
    int32_t n_pinned = c->cache->n_pinned;
    struct cache_namespace *ns;

    if (n_pinned == 0 || r->pooling == CORE_POOL_ALL) /* it shares no cached block */
        return c->options.n_blocks - n_pinned;
    ns = prefix_cache_find(c->cache, c->options.share_all ? 0 : r->client, r->cache_salt);
    return c->options.n_blocks - n_pinned + core_pinned_prefix(c, ns, r->prompt, r->n_prompt);
}

/* Where the blocks of a request are to be: on the device if it has room. */
static enum tier home_of(const struct core *c, const struct core_request *r)
{
    const int64_t longest = (int64_t)r->n_prompt + r->max_tokens - 1;
    const int32_t on_device = room_on_device(c, r);

    return longest > (int64_t)on_device * c->options.block_len && core_host_room(c) > on_device
               ? TIER_HOST
               : TIER_DEVICE;
}

int32_t core_room(const struct core *c, const struct core_request *r)
{
    return home_of(c, r) == TIER_HOST ? core_host_room(c) : room_on_device(c, r);
}

uint64_t core_request_bytes(int32_t n, int32_t n_bias, int32_t n_stop_ids)
{
    const uint64_t request = sizeof(struct request) + sizeof(struct core_event);
    const uint64_t choice = sizeof(struct sequence) + sizeof(struct core_event);

    must(n >= 1 && n_bias >= 0 && n_stop_ids >= 0); /* three 31-bit counts: no sum overflows */
    return request + (uint64_t)n * choice + (uint64_t)n_bias * sizeof(struct logit_bias) +
           (uint64_t)n_stop_ids * sizeof(int32_t);
}

/* No step in flight has a row of it: nothing of it can be listed any more. */
static void drop_request(struct core *c, struct request *q)
{
    if (q->user)
        fair_leave(&c->fair, q->user);
    if (q->ns)
        prefix_cache_close(c->cache, q->ns);
    request_free(q);
}

int core_fits(const struct core *c, const struct core_request *r)
{
    const int64_t longest = (int64_t)r->n_prompt + r->max_tokens;
    const bool samples = r->pooling == CORE_POOL_NONE; /* else no token follows the prompt */

    if (longest - !samples > c->options.max_seq_len)
        return CORE_E_TOO_LONG;
    return core_blocks_for(c, (int32_t)longest - 1) > core_room(c, r) ? CORE_E_NEVER_FITS : CORE_OK;
}

int core_admit(struct core *c, const struct core_request *r, uint64_t now_us)
{
    struct request *q;
    int64_t n_owed = c->n_alive + r->n + c->n_requests + 1; /* terminal events, with these */
    const int fits = core_fits(c, r);

    must(r->n_prompt >= 1 && r->max_tokens >= 1 && r->n >= 1);
    must(r->arrival_us <= now_us);
    must(r->priority >= 0 && r->priority < CORE_N_PRIORITIES);
    must(!id_map_get(&c->requests, r->id));
    must(!r->masks || c->options.mask_words > 0);
    must(r->pooling == CORE_POOL_NONE || (r->max_tokens == 1 && r->n == 1 && !r->masks));
    if (fits != CORE_OK)
        return fits;
    if (reserve_events(c, n_owed + 2 * (int64_t)c->options.max_seqs) < 0)
        return -ENOMEM;
    q = request_new(r, c->last_order + 1, now_us);
    if (!q)
        return -ENOMEM;
    if (prefix_cache_open(c->cache, &q->ns, c->options.share_all ? 0 : r->client, r->cache_salt,
                          !c->options.prefix_cache) < 0 ||
        fair_join(&c->fair, &q->user, r->client) < 0 || id_map_put(&c->requests, q->id, q) < 0) {
        drop_request(c, q);
        return -ENOMEM;
    }
    q->home = home_of(c, r);
    list_append(&c->all, &q->in_core);
    if (q->deadline_us)
        heap_insert(&c->deadlines, &q->by_deadline);
    for (int32_t i = 0; i < q->n; i++)
        core_enqueue(&q->choices[i]);
    c->n_queued_tokens += (int64_t)q->n * q->n_prompt;
    c->last_order += (uint64_t)q->n;
    c->n_requests++;
    c->n_alive += q->n;
    trace_queued(c->trace, q);
    return CORE_OK;
}

void core_wake(struct core *c, struct sequence *writer, bool all)
{
    /* From the last one on: each is then queued before those already there, in constant time. */
    for (struct list *l = writer->waiters.prev, *before; l != &writer->waiters; l = before) {
        struct sequence *s = sequence_of(l);

        before = l->prev;
        if (!all && (PLANT(PLANT_LOST_WAKE) ||
                     (int64_t)s->prefix_blocks * c->options.block_len > writer->n_written))
            continue;
        core_unqueue(s);
        core_enqueue(s);
    }
}

void core_halt(struct core *c, struct sequence *s, enum sequence_state state)
{
    must(sequence_runs(s));
    if (s->state == SEQ_PREFILL)
        c->n_prefilling--;
    else
        c->n_decoding--;
    list_remove(&s->link);
    list_remove(&s->in_plan);
    free(s->lookup);
    s->lookup = NULL;
    s->state = state;
    if (--s->request->n_running == 0)
        c->n_requests_running--;
    s->request->user->n_running--;
    s->request->user->n_blocks -= s->n_taken;
    s->n_taken = 0;
    s->n_returning = 0;
    for (int32_t i = 0; i < s->n_table && !core_is_offloaded(s); i++)
        s->n_returning += blocks_refs(c->blocks, s->table[i]) == 1;
    c->n_returning += s->n_returning;
    s->request->n_draining++;
    list_append(&c->draining, &s->link);
    if (PLANT(PLANT_FREE_IN_FLIGHT))
        while (s->n_table > 0)
            blocks_unref(core_blocks_of(c, s), s->table[--s->n_table]);
    if (!PLANT(PLANT_LOST_WAKE))
        core_wake(c, s, true);
    if (s->last_step <= c->committed)
        core_drained(c, s);
}

void core_drained(struct core *c, struct sequence *s)
{
    struct request *q = s->request;

    must(s->n_sampling == 0 || core_in_flight(c) > 0);
    must(list_empty(&s->waiters) || PLANT(PLANT_LOST_WAKE));
    list_remove(&s->link);
    c->n_returning -= s->n_returning;
    while (s->n_table > 0) /* from the end on: of a chain the tail is reused first */
        blocks_unref(core_blocks_of(c, s), s->table[--s->n_table]);
    c->n_offloaded -= core_is_offloaded(s);
    s->table = NULL;
    c->slots[s->slot] = NULL;
    c->free_slots[c->n_free_slots++] = s->slot;
    s->slot = -1;
    q->n_draining--;
    if (s->state == SEQ_PREEMPTED) {
        core_enqueue(s);
        c->n_queued_tokens += sequence_n_tokens(s);
    } else if (q->n_alive == 0 && q->n_draining == 0) {
        drop_request(c, q);
    }
}

/* The request's last event; it is forgotten when no step in flight has a row of it. */
static void finish_request(struct core *c, struct request *q, uint64_t now_us)
{
    struct core_event e = {
        .request = q->id,
        .type = CORE_FINISHED,
        .reason = q->reason,
    };

    q->usage.end_us = now_us;
    trace_add(c->trace, &(struct trace_record){.kind = TRACE_ENDED,
                                               .request = q->id,
                                               .reason = (int32_t)q->reason,
                                               .since = q->usage.first_us   ? TRACE_FIRST_TOKEN
                                                        : q->usage.start_us ? TRACE_STARTED
                                                                            : TRACE_QUEUED,
                                               .at_us = now_us});
    e.usage = q->usage;
    core_emit(c, &e);
    must(id_map_take(&c->requests, q->id) == q);
    list_remove(&q->in_core);
    if (q->deadline_us)
        heap_remove(&c->deadlines, &q->by_deadline);
    fair_leave(&c->fair, q->user);
    q->user = NULL;
    c->n_requests--;
    if (q->n_draining == 0)
        drop_request(c, q);
}

/* After this the sequence, and with its last choice the request, may be gone. */
void core_end_choice(struct core *c, struct sequence *s, enum core_reason reason, uint64_t now_us)
{
    struct request *q = s->request;

    must(s->state != SEQ_ENDED);
    if (sequence_runs(s)) {
        core_halt(c, s, SEQ_ENDED);
        c->watermark -= (c->watermark + 7) / 8; /* its room is free for good */
    } else if (s->state != SEQ_PREEMPTED) {     /* which goes on draining */
        core_unqueue(s);
        c->n_queued_tokens -= sequence_n_tokens(s);
    }
    s->state = SEQ_ENDED;
    if (s->choice == 0)
        q->reason = reason;
    c->n_alive--;
    if (--q->n_alive == 0)
        finish_request(c, q, now_us);
}

static void end_choice_without_token(struct core *c, struct sequence *s, enum core_reason reason,
                                     uint64_t now_us)
{
    struct core_event e = {
        .request = s->request->id,
        .type = CORE_CHOICE_DONE,
        .choice = s->choice,
        .reason = reason,
    };

    core_emit(c, &e);
    core_end_choice(c, s, reason, now_us);
}

void core_end_request(struct core *c, struct request *q, enum core_reason reason, uint64_t now_us)
{
    int32_t n_alive = q->n_alive;

    for (int32_t i = 0; n_alive > 0; i++) {
        if (q->choices[i].state == SEQ_ENDED)
            continue;
        n_alive--; /* with the last one the request is gone */
        end_choice_without_token(c, &q->choices[i], reason, now_us);
    }
}

void core_cancel(struct core *c, uint64_t id, enum core_reason reason, uint64_t now_us)
{
    struct request *q = id_map_get(&c->requests, id);

    if (q)
        core_end_request(c, q, reason, now_us);
}

struct sequence *core_choice(struct core *c, uint64_t id, int32_t choice)
{
    struct request *q = id_map_get(&c->requests, id);
    struct sequence *s = q && choice >= 0 && choice < q->n ? &q->choices[choice] : NULL;

    return s && s->state != SEQ_ENDED ? s : NULL;
}

void core_stop(struct core *c, uint64_t id, int32_t choice, uint64_t now_us)
{
    struct sequence *s = core_choice(c, id, choice);

    if (s)
        end_choice_without_token(c, s, CORE_REASON_STOP, now_us);
}

uint64_t core_expire(struct core *c, uint64_t now_us)
{
    for (const struct heap_node *n; (n = heap_top(&c->deadlines));) {
        struct request *q = request_of_deadline(n);

        if (q->deadline_us > now_us)
            return q->deadline_us;
        core_end_request(c, q, CORE_REASON_DEADLINE, now_us);
    }
    return 0;
}

void core_stats(const struct core *c, struct core_stats *out)
{
    *out = c->stats;
    out->blocks_total = c->options.n_blocks;
    out->blocks_used = blocks_n_used(c->blocks);
    out->blocks_cached = c->blocks->n_cached;
    out->blocks_free = c->blocks->n_free;
    out->blocks_pinned = c->cache->n_pinned;
    for (int t = TIER_HOST; t < N_TIERS; t++)
        out->tiers[t] = (struct core_tier){.total = c->options.tier_blocks[t],
                                           .cached = c->tiers[t] ? c->tiers[t]->n_cached : 0,
                                           .stored = c->n_stored[t],
                                           .loaded = c->n_loaded[t]};
    out->seqs_running = core_n_running(c);
    out->seqs_waiting = (int32_t)(c->n_alive - core_n_running(c));
    out->requests_running = c->n_requests_running;
    out->requests_waiting = c->n_requests - c->n_requests_running;
    out->queued_tokens = c->n_queued_tokens;
    out->clients = c->fair.n_active;
    out->steps = c->committed;
}
