/* engine_inspect.c - the engine thread's answers to inspect.h's questions: what the core tells, and
 * what is still in the tokenizer pool. */
#include "engine/core_inspect.h"
#include "engine/engine_private.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "engine/must.h"

/* Generate requests that the core does not know yet, behind all others. */
static int add_encoding(struct engine *g, const struct inspect_query *q, struct inspect_report *r)
{
    struct ticket *k;
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
    while ((k = id_map_next(&g->tickets.by_id, &at))) {
        const struct job *j = k->job;

        if (!j || j->kind != JOB_GENERATE || (!q->all && j->request.client != q->viewer))
            continue;
        r->total++;
        if (room-- > 0)
            r->requests[r->n_requests++] = (struct inspect_request){
                .id = j->id,
                .client = j->request.client,
                .state = INSPECT_ENCODING,
                .priority = j->request.priority,
                .n = j->request.n,
                .max_tokens = j->request.max_tokens,
                .arrival_us = j->arrival_us,
            };
    }
    pthread_mutex_unlock(&g->lock);
    return 0;
}

static void tell_report(struct engine *g, struct job *j, struct inspect_report *r)
{
    j->terminal->type = ENGINE_REPORT;
    j->terminal->report = r;
    event_list_push(&g->out, j->terminal);
    j->terminal = NULL;
    job_free(j);
}

void engine_answer(struct engine *g, struct job *j)
{
    struct inspect_report *report = NULL;
    int r;

    engine_close(g, j->id);
    if (j->query.kind > INSPECT_CACHE) {
        job_fail(j, ENGINE_E_UNSUPPORTED, NULL, "the engine cannot answer this", &g->out);
        return;
    }
    r = core_inspect(&report, g->core, &j->query, engine_now_us());
    if (r == 0 && j->query.kind == INSPECT_REQUESTS)
        r = add_encoding(g, &j->query, report);
    if (r == 0) {
        tell_report(g, j, report);
        return;
    }
    inspect_report_free(report);
    job_fail(j, ENGINE_E_INTERNAL, NULL, "out of memory", &g->out);
}
