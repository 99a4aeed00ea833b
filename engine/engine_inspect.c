/* engine_inspect.c - answers the queries of inspect.h on the engine thread: the core's reports, and
 * the requests that are still in the tokenizer pool. */
#include "engine/engine_private.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "engine/util/clock.h"
#include "engine/util/must.h"

/* Appends the generate requests that have not reached the core: all of them, or the one that is to
 * be explained. */
static int add_encoding(struct engine *g, const struct inspect_query *q, struct inspect_report *r)
{
    const bool explain = q->kind == INSPECT_EXPLAIN_REQUEST;
    struct inspect_request *list;
    const struct job *j;
    size_t at = 0;

    pthread_mutex_lock(&g->lock);
    list =
        reallocarray(r->requests, (size_t)r->n_requests + g->status.n_encoding + 1, sizeof(*list));
    if (list)
        r->requests = list;
    while (list && (j = id_map_next(&g->jobs, &at))) {
        const struct engine_request *request = &j->request;

        if (j->phase == JOB_IN_ENGINE || !engine_computes(request->kind) ||
            (explain && request->id != q->request) || (!q->all && request->client != q->viewer))
            continue;
        r->total++;
        if (!explain && r->n_requests == q->limit)
            continue;
        list[r->n_requests++] = (struct inspect_request){
            .id = request->id,
            .client = request->client,
            .state = INSPECT_ENCODING,
            .priority = request->priority,
            .n = request->n,
            .max_tokens = request->max_tokens,
            .arrival_us = j->arrival_us,
        };
    }
    pthread_mutex_unlock(&g->lock);
    if (explain && r->n_requests) {
        r->found = true;
        r->why = INSPECT_WHY_ENCODING;
    }
    return list ? 0 : -ENOMEM;
}

static void refuse(struct engine *g, struct job *j, int r)
{
    const size_t block_len = (size_t)g->options.backend_options.block_len;
    const size_t n = j->prompt.n, n_blocks = n / block_len;
    const char *const field = job_input(j);
    struct core_stats stats;

    core_stats(g->core, &stats);
    switch (r) {
    case CORE_INSPECT_DENIED:
        job_fail(j, &g->out, ENGINE_E_DENIED, NULL,
                 "the cache belongs to other users; only administrators may do that");
        break;
    case CORE_INSPECT_NO_CACHE:
        job_fail(j, &g->out, ENGINE_E_UNSUPPORTED, NULL,
                 "there is no prefix cache: cache.prefix_cache is off");
        break;
    case CORE_INSPECT_SHORT:
        job_fail(j, &g->out, ENGINE_E_INVALID, field,
                 "%s: %zu tokens do not fill a block of %zu, so nothing can be pinned", field, n,
                 block_len);
        break;
    case CORE_INSPECT_PIN_LIMIT:
        job_fail(j, &g->out, ENGINE_E_INVALID, field,
                 "%s: its %zu blocks and the %d already pinned exceed the limit of %d; unpin "
                 "another prompt, or raise cache.kv_memory",
                 field, n_blocks, stats.blocks_pinned, core_pin_limit(g->core));
        break;
    case CORE_INSPECT_PIN_BUSY:
        job_fail(j, &g->out, ENGINE_E_UNAVAILABLE, field,
                 "%s: a running or queued request may need the %zu blocks to be pinned; try "
                 "again once it has ended",
                 field, n_blocks);
        break;
    case CORE_INSPECT_ABSENT: /* though they have just been computed */
        job_fail(j, &g->out, ENGINE_E_UNAVAILABLE, NULL,
                 "the cache was cleared while the prompt was computed; try again");
        break;
    case -E2BIG:
        job_fail(j, &g->out, ENGINE_E_TOO_LONG, field,
                 "%s: %zu tokens do not fit into a sequence of %d", field, n,
                 g->status.max_seq_len);
        break;
    default:
        job_fail(j, &g->out, ENGINE_E_INTERNAL, NULL, "out of memory");
    }
}

/* Makes the core compute the full blocks of a prompt, to be pinned then. */
static int compute(struct engine *g, struct job *j)
{
    static const struct sampling greedy = {.top_p = 1, .repetition_penalty = 1, .n_logprobs = -1};
    int32_t block_len = g->options.backend_options.block_len;
    struct core_request cr = {
        .id = j->request.id,
        .client = j->request.query.client,
        .priority = CORE_NORMAL,
        .n_prompt = (int32_t)j->prompt.n / block_len * block_len,
        .max_tokens = 1,
        .n = 1,
        .prompt = j->prompt.ids,
        .sampling = &greedy,
        .cache_salt = j->request.query.cache_salt,
        .arrival_us = j->arrival_us,
    };
    int r = core_admit(g->core, &cr, clock_us());

    return r > 0 ? -E2BIG : r;
}

void engine_answer(struct engine *g, struct job *j, const struct core_event *computed)
{
    const struct inspect_query *q = &j->request.query;
    struct inspect_report *report = NULL;
    int r;

    switch (computed ? computed->reason : CORE_REASON_NONE) {
    case CORE_REASON_CANCELLED:
        job_fail(j, &g->out, ENGINE_E_CANCELLED, NULL, "cancelled");
        return;
    case CORE_REASON_NUMERICS:
        job_fail(j, &g->out, ENGINE_E_INTERNAL, NULL,
                 "the model's output for this prompt is not finite");
        return;
    case CORE_REASON_NO_MEMORY:
        r = -ENOMEM;
        break;
    default:
        r = core_inspect(&report, g->core, q, j->prompt.ids, (int32_t)j->prompt.n, clock_us());
    }
    if (g->disk && q->kind == INSPECT_CACHE_CLEAR)
        engine_forget_cleared(g);
    if (r == CORE_INSPECT_ABSENT && !computed) {
        r = compute(g, j);
        if (r == 0)
            return;
    }
    if (r == 0 &&
        (q->kind == INSPECT_REQUESTS || (q->kind == INSPECT_EXPLAIN_REQUEST && !report->found)))
        r = add_encoding(g, q, report);
    if (r != 0) {
        inspect_report_free(report);
        refuse(g, j, r);
        return;
    }
    if (computed)
        report->cached_tokens = computed->usage.cached_tokens;
    j->terminal.report = report;
    j->terminal.bytes += sizeof(*report) + (size_t)report->n_requests * sizeof(*report->requests) +
                         (size_t)report->n_clients * sizeof(*report->clients) +
                         (size_t)report->n_map +
                         (size_t)report->n_prefixes * sizeof(*report->prefixes);
    job_end(j, ENGINE_REPORT, &g->out);
}

static int answer(struct engine *g, struct job *j, struct err *e)
{
    const struct inspect_query *q = &j->request.query;
    int r = 1;

    if (q->kind == INSPECT_SLEEP || q->kind == INSPECT_WAKE)
        return engine_answer_sleep(g, j, e);
    if (q->kind == INSPECT_TRACE) {
        engine_begin_trace(g, j);
        return 1;
    }
    if (q->kind == INSPECT_CACHE_PIN && !q->unpin) /* it may be computed */
        r = engine_wake_for(g, j, e);
    if (r > 0)
        engine_answer(g, j, NULL);
    return r;
}

int engine_answer_next(struct engine *g, struct err *e)
{
    enum { REST = 9 };
    const bool busy = g->in_flight > 0;
    uint64_t began_us, ended_us;
    enum inspect_kind kind;
    struct job *j;
    int r;

    if (list_empty(&g->inspects.works))
        return 0;
    began_us = clock_us();
    if (busy && began_us < g->inspect_us)
        return 0;
    j = CONTAINER_OF(work_queue_take(&g->inspects), struct job, work);
    kind = j->request.query.kind;
    if (g->restoring && (kind == INSPECT_CACHE_CLEAR || kind == INSPECT_SLEEP)) {
        work_queue_add(&g->inspects, &j->work, j->request.client); /* not all is known yet */
        return 0;
    }
    r = answer(g, j, e);
    ended_us = clock_us();
    if (busy && kind != INSPECT_SLEEP && kind != INSPECT_WAKE && kind != INSPECT_CACHE_PIN)
        g->inspect_us = ended_us + (ended_us - began_us) * REST;
    return r < 0 ? r : 1;
}
