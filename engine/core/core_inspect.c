/* core_inspect.c - what runs, what waits and what each request holds; see core_inspect.h. */
#include "engine/core/core_inspect.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "engine/core/core_impl.h"
#include "engine/util/must.h"

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
    int rank;
    double vtime; /* RANK_WAITS: its user's, when what is before it has run */
    int32_t place;
};

enum { RANK_RUNS, RANK_BETWEEN, RANK_WAITS };

static const struct {
    int progress;
    enum inspect_state told;
} states[] = {
    [SEQ_ENDED] = {0, INSPECT_ENDING},        [SEQ_WAITING] = {1, INSPECT_WAITING},
    [SEQ_WAITING_PREFIX] = {2, INSPECT_HELD}, [SEQ_PREEMPTED] = {3, INSPECT_PREEMPTED},
    [SEQ_LOADING] = {2, INSPECT_HELD},        [SEQ_PREFILL] = {4, INSPECT_PREFILL},
    [SEQ_DECODE] = {5, INSPECT_DECODE},
};

static struct row row_of(const struct request *q)
{
    struct row row = {.request = q, .furthest = &q->choices[0]};

    for (int32_t i = 1; i < q->n; i++)
        if (states[q->choices[i].state].progress > states[row.furthest->state].progress)
            row.furthest = &q->choices[i];
    if (row.furthest->state == SEQ_WAITING)
        row.rank = RANK_WAITS;
    else if (!sequence_runs(row.furthest))
        row.rank = RANK_BETWEEN;
    return row;
}

static int compare(uint64_t a, uint64_t b)
{
    return (a > b) - (a < b);
}

/* Waiting requests by client and class, in the order in which the client's own are served. */
static int by_client_order(const void *x, const void *y)
{
    const struct row *a = x, *b = y;
    int d = a->rank - b->rank;

    if (d || a->rank != RANK_WAITS)
        return d ? d : compare(a->furthest->order, b->furthest->order);
    d = compare(a->request->client_id, b->request->client_id);
    if (!d)
        d = (int)b->request->priority - (int)a->request->priority;
    if (!d)
        d = (int)b->furthest->item.front - (int)a->furthest->item.front;
    return d ? d : compare(a->furthest->order, b->furthest->order);
}

static int by_vtime(const void *x, const void *y)
{
    const struct row *a = x, *b = y;
    int d = (int)b->request->priority - (int)a->request->priority;

    if (!d)
        d = (a->vtime > b->vtime) - (a->vtime < b->vtime);
    return d ? d : compare(a->furthest->order, b->furthest->order);
}

/* All requests: running ones by arrival, then those between running and waiting, then waiting ones
 * in the order of admission if each is charged what it has to compute now. The caller frees them.
 */
static struct row *sorted_rows(const struct core *c)
{
    struct row *rows = calloc((size_t)c->n_requests + 1, sizeof(*rows));
    int32_t n = 0, first;

    if (!rows)
        return NULL;
    for (const struct list *l = c->all.next; l != &c->all; l = l->next)
        rows[n++] = row_of(CONTAINER_OF(l, struct request, in_core));
    qsort(rows, (size_t)n, sizeof(*rows), by_client_order);
    for (first = 0; first < n && rows[first].rank != RANK_WAITS; first++)
        ;
    for (int32_t i = first; i < n; i++) {
        const struct row *before = i > first ? &rows[i - 1] : NULL;

        rows[i].vtime = rows[i].request->user->vtime;
        if (before && before->request->user == rows[i].request->user)
            rows[i].vtime =
                before->vtime + fair_vtime_of(rows[i].request->user,
                                              c->fair.row_us * sequence_n_tokens(before->furthest));
    }
    qsort(rows + first, (size_t)(n - first), sizeof(*rows), by_vtime);
    for (int32_t i = first; i < n; i++)
        rows[i].place = i - first + 1;
    return rows;
}

/* ---- one request */

/* block_refs, zeroed. */
static int32_t *clear_refs(struct core *c)
{
    return memset(c->block_refs, 0, (size_t)c->options.n_blocks * sizeof(*c->block_refs));
}

/* Counts each block once though several choices hold it. block_refs is zero before and after. */
static void count_blocks(struct core *c, const struct request *q, struct inspect_request *out)
{
    int32_t *refs = c->block_refs;

    for (int32_t i = 0; i < q->n; i++)
        for (int32_t b = 0; b < q->choices[i].n_table; b++)
            refs[q->choices[i].table[b]]++;
    for (int32_t i = 0; i < q->n; i++) {
        for (int32_t b = 0; b < q->choices[i].n_table; b++) {
            int32_t id = q->choices[i].table[b];

            if (refs[id] == 0)
                continue;
            out->blocks++;
            out->shared += blocks_refs(c->blocks, id) > refs[id];
            refs[id] = 0;
        }
    }
}

static void fill_request(struct core *c, const struct row *row, struct inspect_request *out)
{
    const struct request *q = row->request;
    bool preempted = row->furthest->state == SEQ_WAITING && row->furthest->n_preempted > 0;

    *out = (struct inspect_request){
        .id = q->id,
        .client = q->client_id,
        .state = preempted ? INSPECT_PREEMPTED : states[row->furthest->state].told,
        .priority = q->priority,
        .place = row->place,
        .n = q->n,
        .prompt_tokens = q->n_prompt,
        .cached_tokens = q->usage.cached_tokens,
        .max_tokens = q->max_tokens,
        .preemptions = q->usage.preemptions,
        .arrival_us = q->usage.arrival_us,
        .start_us = q->usage.start_us,
        .first_us = q->usage.first_us,
    };
    for (int32_t i = 0; i < q->n; i++) {
        const struct sequence *s = &q->choices[i];
        int32_t computed = s->n_generated > 0 || s->n_written > q->n_prompt ? q->n_prompt
                           : s->n_table > 0                                 ? s->n_written
                                                                            : 0;

        out->generated_tokens += s->n_generated;
        if (computed > out->computed_tokens)
            out->computed_tokens = computed;
    }
    count_blocks(c, q, out);
}

static bool may_see(const struct inspect_query *q, uint64_t client)
{
    return q->all || q->viewer == client;
}

static int fill_requests(struct core *c, const struct inspect_query *q, const struct row *rows,
                         bool holders_only, struct inspect_report *out)
{
    int32_t room = q->limit < c->n_requests ? q->limit : c->n_requests;

    out->requests = calloc((size_t)room + 1, sizeof(*out->requests));
    if (!out->requests)
        return -ENOMEM;
    clear_refs(c);
    for (int32_t i = 0; i < c->n_requests; i++) {
        if (!may_see(q, rows[i].request->client_id) || (holders_only && rows[i].rank == RANK_WAITS))
            continue;
        out->total++;
        if (out->n_requests == room)
            continue;
        fill_request(c, &rows[i], &out->requests[out->n_requests]);
        if (!q->all && c->options.share_all)
            out->requests[out->n_requests].shared = 0; /* who shares is not the viewer's to know */
        out->n_requests++;
    }
    return 0;
}

/* ---- blocks */

static int by_client(const void *x, const void *y)
{
    const struct inspect_client_blocks *a = x, *b = y;

    return compare(a->client, b->client);
}

/* One entry for each client that may be seen, in order. */
static int list_clients(const struct core *c, const struct inspect_query *q,
                        struct inspect_report *out)
{
    struct inspect_client_blocks *k = calloc((size_t)c->n_requests + 1, sizeof(*k));
    int32_t n = 0, n_clients = 0;

    if (!k)
        return -ENOMEM;
    for (const struct list *l = c->all.next; l != &c->all; l = l->next) {
        const struct request *r = CONTAINER_OF(l, struct request, in_core);

        if (may_see(q, r->client_id))
            k[n++].client = r->client_id;
    }
    qsort(k, (size_t)n, sizeof(*k), by_client);
    for (int32_t i = 0; i < n; i++) {
        if (i == 0 || k[n_clients - 1].client != k[i].client)
            k[n_clients++] = k[i];
        k[n_clients - 1].requests++;
    }
    out->clients = k;
    out->n_clients = n_clients;
    return 0;
}

/* Counts each block once a client: block_refs holds the number of the client that a block was
 * counted for last. */
static void count_client_blocks(struct core *c, struct inspect_report *out)
{
    clear_refs(c);
    for (int32_t k = 0; k < out->n_clients; k++) {
        for (int32_t i = 0; i < c->options.max_seqs; i++) {
            const struct sequence *s = c->slots[i];

            if (!s || s->request->client_id != out->clients[k].client)
                continue;
            for (int32_t b = 0; b < s->n_table; b++) {
                out->clients[k].used += c->block_refs[s->table[b]] != k + 1;
                c->block_refs[s->table[b]] = k + 1;
            }
        }
    }
}

/* Into block_refs: how many of the viewer's sequences hold each block. */
static void count_own(struct core *c, uint64_t viewer)
{
    clear_refs(c);
    for (int32_t i = 0; i < c->options.max_seqs; i++) {
        const struct sequence *s = c->slots[i];

        for (int32_t b = 0; s && s->request->client_id == viewer && b < s->n_table; b++)
            c->block_refs[s->table[b]]++;
    }
}

/* The letter of a block in the map. A viewer who may not see all gets the blocks of its own
 * sequences and its own cache, and of the rest only which are free. A cache that all clients share
 * is nobody's own. */
static uint8_t letter_of(const struct core *c, const struct inspect_query *q, int32_t block_id)
{
    int32_t refs = blocks_refs(c->blocks, block_id);
    int32_t seen = q->all ? refs : c->block_refs[block_id];
    bool pinned = refs == 1 && prefix_cache_is_pinned(c->cache, block_id);

    if (seen > 1)
        return 's';
    if (seen == 1 && !(q->all && pinned))
        return 'u';
    if (refs == 0 && !blocks_node(c->blocks, block_id))
        return 'f';
    if (!q->all && (c->options.share_all || !prefix_cache_is_of(c->cache, block_id, q->viewer)))
        return 'o';
    return refs == 0 ? 'c' : pinned ? 'p' : 'o';
}

static int draw_map(struct core *c, const struct inspect_query *q, struct inspect_report *out)
{
    int32_t n = c->options.n_blocks;

    out->map = malloc((size_t)n);
    if (!out->map)
        return -ENOMEM;
    if (!q->all)
        count_own(c, q->viewer);
    for (int32_t i = 0; i < n; i++)
        out->map[i] = letter_of(c, q, i);
    out->n_map = n;
    return 0;
}

static int fill_blocks(struct core *c, const struct inspect_query *q, const struct row *rows,
                       struct inspect_report *out)
{
    int rc = fill_requests(c, q, rows, true, out);

    if (rc == 0)
        rc = list_clients(c, q, out);
    if (rc < 0)
        return rc;
    if (out->n_clients > q->limit)
        out->n_clients = q->limit;
    count_client_blocks(c, out);
    for (int32_t i = 0; i < c->options.n_blocks; i++)
        out->pinned_blocks += blocks_refs(c->blocks, i) == 1 && prefix_cache_is_pinned(c->cache, i);
    return q->map ? draw_map(c, q, out) : 0;
}

/* ---- why a request waits */

/* Whether another client's request waits before this one. */
static bool others_first(const struct row *rows, const struct row *row)
{
    for (; rows < row; rows++)
        if (rows->rank == RANK_WAITS && rows->request->user != row->request->user)
            return true;
    return false;
}

static enum inspect_why why_of(struct core *c, const struct row *rows, const struct row *row,
                               const struct inspect_report *r)
{
    const struct fair_user *u = row->request->user;

    switch (row->furthest->state) {
    case SEQ_PREFILL:
    case SEQ_DECODE:
        return INSPECT_WHY_RUNS;
    case SEQ_PREEMPTED:
        return INSPECT_WHY_BLOCKS;
    case SEQ_WAITING_PREFIX:
    case SEQ_LOADING:
        return INSPECT_WHY_PREFIX;
    case SEQ_WAITING:
    case SEQ_ENDED:
        break;
    }
    if (u->n_running >= fair_part(&c->fair, u, c->options.max_seqs) && others_first(rows, row))
        return INSPECT_WHY_SHARE;
    if (c->n_free_slots == 0)
        return INSPECT_WHY_SEQS;
    if (r->blocks_needed > r->blocks_available)
        return INSPECT_WHY_BLOCKS;
    return others_first(rows, row) ? INSPECT_WHY_SHARE : INSPECT_WHY_STEP;
}

static int explain_request(struct core *c, const struct inspect_query *q, const struct row *rows,
                           struct inspect_report *out)
{
    const struct row *row = NULL;

    for (int32_t i = 0; i < c->n_requests && !row; i++)
        if (rows[i].request->id == q->request && may_see(q, rows[i].request->client_id))
            row = &rows[i];
    if (!row)
        return 0;
    out->requests = calloc(1, sizeof(*out->requests));
    if (!out->requests)
        return -ENOMEM;
    clear_refs(c);
    fill_request(c, row, &out->requests[0]);
    out->n_requests = out->total = 1;
    out->found = true;
    if (!sequence_runs(row->furthest))
        core_needs(c, row->furthest, &out->blocks_needed, &out->blocks_available);
    out->why = why_of(c, rows, row, out);
    return 0;
}

/* ---- all */

static int answer(struct core *c, const struct inspect_query *q, struct inspect_report *out)
{
    struct row *rows = sorted_rows(c);
    int rc;

    if (!rows)
        return -ENOMEM;
    if (q->kind == INSPECT_REQUESTS)
        rc = fill_requests(c, q, rows, false, out);
    else if (q->kind == INSPECT_BLOCKS)
        rc = fill_blocks(c, q, rows, out);
    else
        rc = explain_request(c, q, rows, out);
    free(rows);
    return rc;
}

int core_inspect(struct inspect_report **out, struct core *c, const struct inspect_query *q,
                 const int32_t *prompt, int32_t n_prompt, uint64_t now_us)
{
    struct inspect_report *r = calloc(1, sizeof(*r));
    int rc;

    if (!r)
        return -ENOMEM;
    r->kind = q->kind;
    r->now_us = now_us;
    r->next_id = -1;
    switch (q->kind) {
    case INSPECT_REQUESTS:
    case INSPECT_BLOCKS:
        must(q->limit >= 1 && q->limit <= INSPECT_MAX_ENTRIES);
        rc = answer(c, q, r);
        break;
    case INSPECT_EXPLAIN_REQUEST:
        rc = answer(c, q, r);
        break;
    default:
        rc = core_cache_answer(c, q, prompt, n_prompt, r);
    }
    if (rc != 0) {
        inspect_report_free(r);
        return rc;
    }
    core_stats(c, &r->stats);
    *out = r;
    return 0;
}
