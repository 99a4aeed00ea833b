/* engine_inspect.c - answers the queries of inspect.h on the engine thread: the core's reports, and
 * the requests that are still in the tokenizer pool. */
#include "engine/core/core_inspect.h"
#include "engine/engine_private.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "engine/util/must.h"

static bool is_seen_encoding(const struct job *j, const struct inspect_query *q)
{
    return j->phase != JOB_IN_ENGINE && j->request.kind == ENGINE_GENERATE &&
           (q->all || j->request.client == q->viewer);
}

static struct inspect_request encoding_request(const struct job *j)
{
    return (struct inspect_request){
        .id = j->id,
        .client = j->request.client,
        .state = INSPECT_ENCODING,
        .priority = j->request.priority,
        .n = j->request.n,
        .max_tokens = j->request.max_tokens,
        .arrival_us = j->arrival_us,
    };
}

/* Appends the generate requests that have not reached the core. */
static int add_encoding(struct engine *g, const struct inspect_query *q, struct inspect_report *r)
{
    struct job *j;
    size_t at = 0;
    int32_t room;

    pthread_mutex_lock(&g->lock);
    room = q->limit - r->n_requests;
    if ((size_t)room > g->n_encoding)
        room = (int32_t)g->n_encoding;
    if (room > 0) {
        size_t n = (size_t)r->n_requests + (size_t)room;
        struct inspect_request *bigger = reallocarray(r->requests, n, sizeof(*bigger));

        if (!bigger) {
            pthread_mutex_unlock(&g->lock);
            return -ENOMEM;
        }
        r->requests = bigger;
    }
    while ((j = id_map_next(&g->jobs, &at))) {
        if (!is_seen_encoding(j, q))
            continue;
        r->total++;
        if (room-- > 0)
            r->requests[r->n_requests++] = encoding_request(j);
    }
    pthread_mutex_unlock(&g->lock);
    return 0;
}

/* Explains a request that is not in the core: it may be on its way there. */
static int explain_encoding(struct engine *g, const struct inspect_query *q,
                            struct inspect_report *r)
{
    const struct job *j;

    r->requests = calloc(1, sizeof(*r->requests));
    if (!r->requests)
        return -ENOMEM;
    pthread_mutex_lock(&g->lock);
    j = id_map_get(&g->jobs, q->request);
    if (j && is_seen_encoding(j, q)) {
        r->requests[0] = encoding_request(j);
        r->found = true;
        r->why = INSPECT_WHY_ENCODING;
        r->n_requests = r->total = 1;
    }
    pthread_mutex_unlock(&g->lock);
    return 0;
}

static void send_report(struct engine *g, struct job *j, struct inspect_report *r)
{
    j->terminal->type = ENGINE_REPORT;
    j->terminal->report = r;
    event_list_push(&g->out, j->terminal);
    j->terminal = NULL;
    job_free(j);
}

static void refuse(struct engine *g, struct job *j, int r)
{
    int32_t block_len = g->options.backend_options.block_len, limit = core_pin_limit(g->core);
    enum engine_error error = ENGINE_E_INVALID;
    const char *field = "prompt";
    struct core_stats stats;
    struct err why;

    core_stats(g->core, &stats);
    switch (r) {
    case CORE_INSPECT_DENIED:
        error = ENGINE_E_DENIED;
        field = NULL;
        err_set(&why, 0, "the cache belongs to others; only an admin may do that");
        break;
    case CORE_INSPECT_NO_CACHE:
        error = ENGINE_E_UNSUPPORTED;
        field = NULL;
        err_set(&why, 0, "there is no prefix cache: cache.prefix_cache is off");
        break;
    case CORE_INSPECT_SHORT:
        err_set(&why, 0, "prompt: %zu tokens do not fill a block of %d, so nothing can be pinned",
                j->prompt.n, block_len);
        break;
    case CORE_INSPECT_PIN_LIMIT:
        err_set(&why, 0,
                "prompt: its %zu blocks and the %d already pinned exceed the limit of %d; unpin "
                "another prompt, or raise cache.kv_memory",
                j->prompt.n / (size_t)block_len, stats.blocks_pinned, limit);
        break;
    case CORE_INSPECT_PIN_BUSY:
        error = ENGINE_E_UNAVAILABLE;
        err_set(&why, 0,
                "prompt: a running or queued request may need the %zu blocks to be pinned; try "
                "again once it has ended",
                j->prompt.n / (size_t)block_len);
        break;
    case CORE_INSPECT_ABSENT: /* though they have just been computed */
        error = ENGINE_E_UNAVAILABLE;
        field = NULL;
        err_set(&why, 0, "the cache was cleared while the prompt was computed; try again");
        break;
    case -E2BIG:
        error = ENGINE_E_TOO_LONG;
        err_set(&why, 0, "prompt: %zu tokens do not fit into a sequence of %d", j->prompt.n,
                g->max_seq_len);
        break;
    default:
        error = ENGINE_E_INTERNAL;
        field = NULL;
        err_set(&why, 0, "out of memory");
    }
    engine_close(g, j);
    job_fail(j, error, field, why.text, &g->out);
}

/* Makes the core compute the full blocks of a prompt, to be pinned then. */
static int compute(struct engine *g, struct job *j)
{
    static const struct sampling greedy = {.top_p = 1, .repetition_penalty = 1, .n_logprobs = -1};
    int32_t block_len = g->options.backend_options.block_len;
    struct core_request cr = {
        .id = j->id,
        .client = j->query.client,
        .priority = CORE_NORMAL,
        .n_prompt = (int32_t)j->prompt.n / block_len * block_len,
        .max_tokens = 1,
        .n = 1,
        .prompt = j->prompt.ids,
        .sampling = &greedy,
        .cache_salt = j->query.cache_salt,
    };
    int r = core_admit(g->core, &cr, engine_now_us());

    return r > 0 ? -E2BIG : r;
}

void engine_pin_computed(struct engine *g, struct job *j, const struct core_event *finished)
{
    struct inspect_report *report = NULL;
    int r;

    if (finished->reason == CORE_REASON_NO_MEMORY) {
        refuse(g, j, -ENOMEM);
        return;
    }
    if (finished->reason == CORE_REASON_CANCELLED || finished->reason == CORE_REASON_NUMERICS) {
        bool cancelled = finished->reason == CORE_REASON_CANCELLED;

        engine_close(g, j);
        job_fail(j, cancelled ? ENGINE_E_CANCELLED : ENGINE_E_INTERNAL, NULL,
                 cancelled ? "cancelled" : "the model's output for this prompt is not finite",
                 &g->out);
        return;
    }
    r = core_inspect(&report, g->core, &j->query, j->prompt.ids, (int32_t)j->prompt.n,
                     engine_now_us());
    if (r != CORE_INSPECT_OK) {
        refuse(g, j, r);
        return;
    }
    report->cached_tokens = finished->usage.cached_tokens;
    engine_close(g, j);
    send_report(g, j, report);
}

void engine_answer(struct engine *g, struct job *j)
{
    struct inspect_report *report = NULL;
    int r = core_inspect(&report, g->core, &j->query, j->prompt.ids, (int32_t)j->prompt.n,
                         engine_now_us());

    if (r == CORE_INSPECT_ABSENT) {
        r = compute(g, j);
        if (r == 0)
            return;
    } else if (r == 0 && j->query.kind == INSPECT_REQUESTS) {
        r = add_encoding(g, &j->query, report);
    } else if (r == 0 && j->query.kind == INSPECT_EXPLAIN_REQUEST && !report->found) {
        r = explain_encoding(g, &j->query, report);
    }
    if (r != 0) {
        inspect_report_free(report);
        refuse(g, j, r);
        return;
    }
    engine_close(g, j);
    send_report(g, j, report);
}
