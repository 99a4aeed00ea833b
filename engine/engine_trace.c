/* engine_trace.c - the trace, while one is on: collects records of requests and steps, hands them
 * to the daemon's loop as events, and ends with a report. On the engine thread. */
#include "engine/engine_private.h"

#include <stdlib.h>
#include <string.h>

#include "engine/util/clock.h"

enum { HAND_OVER = 256 }; /* records of one event, while more come */

void engine_begin_trace(struct engine *g, struct job *j)
{
    if (g->trace) {
        job_fail(j, &g->out, ENGINE_E_UNAVAILABLE, NULL,
                 "another trace is on; there can be one at a time");
        return;
    }
    g->trace = calloc(1, sizeof(*g->trace));
    if (!g->trace) {
        job_fail(j, &g->out, ENGINE_E_INTERNAL, NULL, "out of memory");
        return;
    }
    g->trace_job = j;
    g->trace_begin_us = clock_us();
    g->trace_end_us = g->trace_begin_us + (uint64_t)j->request.query.duration_ms * 1000;
    core_set_trace(g->core, g->trace);
}

/* Pushes the records as one event; without memory they are dropped. */
static void hand_over(struct engine *g)
{
    struct trace *t = g->trace;
    const size_t n = (size_t)t->n, bytes = n * sizeof(*t->records);
    struct engine_event *ev = n ? malloc(sizeof(*ev) + bytes) : NULL;

    t->n = 0;
    if (!ev) {
        t->dropped += n;
        return;
    }
    memcpy(ev + 1, t->records, bytes);
    *ev = (struct engine_event){.type = ENGINE_TRACE,
                                .request = g->trace_job->request.id,
                                .records = (const struct trace_record *)(ev + 1),
                                .n_records = n,
                                .bytes = sizeof(*ev) + bytes};
    event_list_push(&g->out, ev);
}

void engine_end_trace(struct engine *g)
{
    struct job *j = g->trace_job;
    struct inspect_report *report = calloc(1, sizeof(*report));

    hand_over(g);
    core_set_trace(g->core, NULL);
    if (report) {
        report->kind = INSPECT_TRACE;
        report->took_us = clock_us() - g->trace_begin_us;
        report->dropped = g->trace->dropped;
        j->terminal.report = report;
        j->terminal.bytes += sizeof(*report);
        job_end(j, ENGINE_REPORT, &g->out);
    } else {
        job_fail(j, &g->out, ENGINE_E_INTERNAL, NULL, "out of memory");
    }
    free(g->trace);
    g->trace = NULL;
    g->trace_job = NULL;
}

void engine_flush_trace(struct engine *g, bool all)
{
    if (clock_us() >= g->trace_end_us)
        engine_end_trace(g);
    else if (g->trace->n >= HAND_OVER || (all && g->trace->n > 0))
        hand_over(g);
}
