/* core_inspect.c - what runs, what waits and what each request holds; see core.h. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "engine/core/core_impl.h"

void inspect_report_free(struct inspect_report *r)
{
    if (!r)
        return;
    free(r->requests);
    free(r->clients);
    free(r->map);
    free(r->prefixes);
    free(r);
}

/* ---- order */

/* A request on its way into a report. */
struct row {
    const struct request *request;
    const struct sequence *furthest; /* of its choices */
    uint64_t key[4];                 /* decides the order; begins with a rank */
    int32_t place;
};

enum { RANK_RUNS, RANK_BETWEEN, RANK_WAITS };

static const struct {
    int progress;
    enum inspect_state told;
    enum inspect_why why; /* 0: depends on the others */
} states[] = {
    [SEQ_ENDED] = {0, INSPECT_ENDING, 0},
    [SEQ_WAITING] = {1, INSPECT_WAITING, 0},
    [SEQ_WAITING_PREFIX] = {2, INSPECT_WAITING_PREFIX, INSPECT_WHY_PREFIX},
    [SEQ_LOADING] = {2, INSPECT_WAITING_PREFIX, INSPECT_WHY_LOADING},
    [SEQ_PREEMPTED] = {3, INSPECT_PREEMPTED, INSPECT_WHY_BLOCKS},
    [SEQ_PREFILL] = {4, INSPECT_PREFILL, INSPECT_WHY_RUNS},
    [SEQ_DECODE] = {5, INSPECT_DECODE, INSPECT_WHY_RUNS},
};

static const struct sequence *furthest_of(const struct request *q)
{
    const struct sequence *s = &q->choices[0];

    for (int32_t i = 1; i < q->n; i++)
        if (states[q->choices[i].state].progress > states[s->state].progress)
            s = &q->choices[i];
    return s;
}

static int by_key(const void *x, const void *y)
{
    const struct row *a = x, *b = y;
    int i = 0;

    while (i < 3 && a->key[i] == b->key[i])
        i++;
    return (a->key[i] > b->key[i]) - (a->key[i] < b->key[i]);
}

/* All requests: running ones by arrival, then those between running and waiting, then waiting ones
 * in the order of admission if each is charged what it has to compute now. The caller frees. */
static struct row *sorted_rows(const struct core *c)
{
    struct row *rows = calloc((size_t)c->n_requests + 1, sizeof(*rows)), *row = rows;
    int32_t n_waiting = 0;

    if (!rows)
        return NULL;
    LIST_EACH (const struct request, q, in_core, &c->all) {
        const struct sequence *s = furthest_of(q);
        const uint64_t rank = sequence_runs(s) ? RANK_RUNS : RANK_BETWEEN;

        if (s->state != SEQ_WAITING)
            *row++ = (struct row){q, s, {rank, 0, 0, s->order}, 0};
    }
    FAIR_EACH (u, &c->fair) {
        double vtime = u->vtime; /* when what is before has run */

        for (int k = CORE_N_PRIORITIES - 1; k >= 0; k--) {
            SEQUENCE_EACH (s, &u->waiting[k]) {
                if (furthest_of(s->request) != s)
                    continue;
                *row++ = (struct row){s->request,
                                      s,
                                      {RANK_WAITS, (uint64_t)(CORE_HIGH - s->request->priority),
                                       (uint64_t)(vtime * 1e3), s->order},
                                      0};
                vtime += fair_vtime_of(u, c->fair.row_us * sequence_n_tokens(s));
            }
        }
    }
    must(row == rows + c->n_requests);
    qsort(rows, (size_t)c->n_requests, sizeof(*rows), by_key);
    for (row = rows; row < rows + c->n_requests; row++)
        if (row->key[0] == RANK_WAITS)
            row->place = ++n_waiting;
    return rows;
}

/* ---- who holds blocks; block_refs is zero between two counts */

static void add_refs(struct core *c, const struct sequence *s)
{
    if (core_is_offloaded(s))
        return;
    for (int32_t b = 0; b < s->n_table; b++)
        c->block_refs[s->table[b]]++;
}

/* Takes out again what add_refs() has added. Counts each block once, and into *shared those that
 * others hold too. */
static int32_t count_refs(struct core *c, const struct sequence *s, int32_t *shared)
{
    int32_t n = 0;

    if (core_is_offloaded(s))
        return 0;
    for (int32_t b = 0; b < s->n_table; b++) {
        int32_t *refs = &c->block_refs[s->table[b]];

        n += *refs > 0;
        *shared += *refs > 0 && blocks_refs(c->blocks, s->table[b]) > *refs;
        *refs = 0;
    }
    return n;
}

/* The client's next sequence with a slot, from *slot on; NULL: no more. */
static const struct sequence *next_with_slot(const struct core *c, uint64_t client, int32_t *slot)
{
    while (*slot < c->options.max_seqs) {
        const struct sequence *s = c->slots[(*slot)++];

        if (s && s->request->client_id == client)
            return s;
    }
    return NULL;
}

/* ---- requests */

static bool may_see(const struct inspect_query *q, uint64_t client)
{
    return q->all || q->viewer == client;
}

/* Appends an entry; there is room. */
static void add_request(struct core *c, const struct inspect_query *query, const struct row *row,
                        struct inspect_report *report)
{
    const struct request *q = row->request;
    struct inspect_request *out = &report->requests[report->n_requests++];

    *out = (struct inspect_request){
        .id = q->id,
        .client = q->client_id,
        .state = states[row->furthest->state].told,
        .priority = q->priority,
        .place = row->place,
        .n = q->n,
        .prompt_tokens = q->n_prompt,
        .cached_tokens = q->usage.cached_tokens,
        .max_tokens = q->max_tokens,
        .preemptions = q->usage.preemptions,
        .draft_tokens = q->usage.draft_tokens,
        .accepted_tokens = q->usage.accepted_tokens,
        .model_draft_tokens = q->usage.model_draft_tokens,
        .model_accepted_tokens = q->usage.model_accepted_tokens,
        .arrival_us = q->usage.arrival_us,
        .start_us = q->usage.start_us,
        .first_us = q->usage.first_us,
    };
    if (row->furthest->state == SEQ_WAITING && row->furthest->n_preempted > 0)
        out->state = INSPECT_PREEMPTED;
    for (int32_t i = 0; i < q->n; i++) {
        const struct sequence *s = &q->choices[i];
        int32_t computed = s->n_table > 0 ? s->n_written : 0;

        if (s->n_generated > 0 || s->n_written > q->n_prompt)
            computed = q->n_prompt;
        out->generated_tokens += s->n_generated;
        if (computed > out->computed_tokens)
            out->computed_tokens = computed;
        add_refs(c, s);
    }
    for (int32_t i = 0; i < q->n; i++)
        out->blocks += count_refs(c, &q->choices[i], &out->shared);
    if (!query->all && c->options.share_all)
        out->shared = 0; /* who shares is not the viewer's to know */
}

/* ---- why a request waits */

/* Whether another client's request waits before this one. */
static bool others_first(const struct row *rows, const struct row *row)
{
    for (; rows < row; rows++)
        if (rows->key[0] == RANK_WAITS && rows->request->user != row->request->user)
            return true;
    return false;
}

static enum inspect_why why_of(struct core *c, const struct row *rows, const struct row *row,
                               const struct inspect_report *r)
{
    const struct fair_user *u = row->request->user;

    if (row->furthest->state == SEQ_WAITING_PREFIX && row->furthest->prefix_blocks == ALL_BLOCKS)
        return INSPECT_WHY_OFFLOADED;
    if (states[row->furthest->state].why)
        return states[row->furthest->state].why;
    if (u->n_running >= fair_part(&c->fair, u, c->options.max_seqs) && others_first(rows, row))
        return INSPECT_WHY_SHARE;
    if (c->n_free_slots == 0)
        return INSPECT_WHY_SEQS;
    if (r->blocks_needed > r->blocks_available)
        return INSPECT_WHY_BLOCKS;
    return others_first(rows, row) ? INSPECT_WHY_SHARE : INSPECT_WHY_STEP;
}

static void explain(struct core *c, const struct row *rows, const struct row *row,
                    struct inspect_report *out)
{
    out->found = true;
    if (!sequence_runs(row->furthest))
        core_needs(c, row->furthest, &out->blocks_needed, &out->blocks_available);
    out->why = why_of(c, rows, row, out);
}

static bool is_listed(const struct inspect_query *q, const struct row *row)
{
    if (q->kind == INSPECT_BLOCKS && row->key[0] == RANK_WAITS) /* holds none */
        return false;
    if (q->kind == INSPECT_EXPLAIN_REQUEST && row->request->id != q->request)
        return false;
    return may_see(q, row->request->client_id);
}

static int list_requests(struct core *c, const struct inspect_query *q, const struct row *rows,
                         struct inspect_report *out)
{
    const bool explains = q->kind == INSPECT_EXPLAIN_REQUEST;
    const int32_t room = min_i32(explains ? 1 : q->limit, c->n_requests);

    out->requests = calloc((size_t)room + 1, sizeof(*out->requests));
    if (!out->requests)
        return -ENOMEM;
    for (const struct row *row = rows; row < rows + c->n_requests; row++) {
        if (!is_listed(q, row))
            continue;
        out->total++;
        if (out->n_requests < room)
            add_request(c, q, row, out);
        if (explains)
            explain(c, rows, row, out);
    }
    return 0;
}

/* ---- blocks */

static int by_client(const void *x, const void *y)
{
    const struct inspect_client_blocks *a = x, *b = y;

    return (a->client > b->client) - (a->client < b->client);
}

/* One entry for each client that may be seen, in order. */
static int list_clients(struct core *c, const struct inspect_query *q, struct inspect_report *out)
{
    const struct sequence *s;
    int32_t n = 0, unused = 0;

    out->clients = calloc((size_t)c->fair.n_active + 1, sizeof(*out->clients));
    if (!out->clients)
        return -ENOMEM;
    FAIR_EACH (u, &c->fair)
        if (may_see(q, u->id))
            out->clients[n++] = (struct inspect_client_blocks){u->id, 0, (int32_t)u->n_joined};
    qsort(out->clients, (size_t)n, sizeof(*out->clients), by_client);
    out->n_clients = n < q->limit ? n : q->limit;
    for (int32_t i = 0; i < out->n_clients; i++) {
        struct inspect_client_blocks *k = &out->clients[i];

        for (int32_t slot = 0; (s = next_with_slot(c, k->client, &slot));)
            add_refs(c, s);
        for (int32_t slot = 0; (s = next_with_slot(c, k->client, &slot));)
            k->used += count_refs(c, s, &unused);
    }
    return 0;
}

/* The letter of a block in the map. A viewer who may not see all gets the blocks of its own
 * sequences, which block_refs counts, and its own cache, and of the rest only which are free. A
 * cache that all clients share is nobody's own. */
static uint8_t letter_of(const struct core *c, const struct inspect_query *q, int32_t block_id)
{
    const struct node *node = blocks_node(c->blocks, block_id);
    int32_t refs = blocks_refs(c->blocks, block_id);
    int32_t seen = q->all ? refs : c->block_refs[block_id];
    bool pinned = refs == 1 && node && node->n_pins > 0;

    if (seen > 1)
        return 's';
    if (seen == 1 && !(q->all && pinned))
        return 'u';
    if (refs == 0 && !node)
        return 'f';
    if (!q->all &&
        (c->options.share_all || !node || !prefix_cache_is_in_reach(node, q->viewer, false)))
        return 'o';
    return refs == 0 ? 'c' : pinned ? 'p' : 'o';
}

static int list_blocks(struct core *c, const struct inspect_query *q, struct inspect_report *out)
{
    const int32_t n = c->options.n_blocks;
    const struct sequence *s;

    for (int32_t i = 0; i < n; i++) {
        const struct node *node = blocks_node(c->blocks, i);

        out->pinned_blocks += blocks_refs(c->blocks, i) == 1 && node && node->n_pins > 0;
    }
    if (!q->map)
        return 0;
    out->map = malloc((size_t)n);
    if (!out->map)
        return -ENOMEM;
    for (int32_t slot = 0; (s = next_with_slot(c, q->viewer, &slot));)
        add_refs(c, s);
    for (; out->n_map < n; out->n_map++)
        out->map[out->n_map] = letter_of(c, q, out->n_map);
    return 0;
}

/* ---- all */

static int answer(struct core *c, const struct inspect_query *q, struct inspect_report *out)
{
    struct row *rows = sorted_rows(c);
    int rc;

    if (!rows)
        return -ENOMEM;
    memset(c->block_refs, 0, (size_t)c->options.n_blocks * sizeof(*c->block_refs));
    rc = list_requests(c, q, rows, out);
    free(rows);
    if (rc == 0 && q->kind == INSPECT_BLOCKS)
        rc = list_clients(c, q, out);
    if (rc == 0 && q->kind == INSPECT_BLOCKS)
        rc = list_blocks(c, q, out);
    return rc;
}

int core_inspect(struct inspect_report **out, struct core *c, const struct inspect_query *q,
                 const int32_t *prompt, int32_t n_prompt, uint64_t now_us)
{
    const bool of_requests = q->kind == INSPECT_REQUESTS || q->kind == INSPECT_BLOCKS;
    struct inspect_report *r = calloc(1, sizeof(*r));
    int rc;

    if (!r)
        return -ENOMEM;
    must(!of_requests || (q->limit >= 1 && q->limit <= INSPECT_MAX_ENTRIES));
    r->kind = q->kind;
    r->now_us = now_us;
    r->next_id = -1;
    rc = of_requests || q->kind == INSPECT_EXPLAIN_REQUEST
             ? answer(c, q, r)
             : core_cache_answer(c, q, prompt, n_prompt, r);
    if (rc != 0) {
        inspect_report_free(r);
        return rc;
    }
    core_stats(c, &r->stats);
    *out = r;
    return 0;
}
