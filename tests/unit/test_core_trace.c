/* test_core_trace.c - what the core records of requests for a trace, and the times of tokens. */
#include <stdlib.h>

#include "engine/trace.h"
#include "tests/unit/core_rig.h"
#include "tests/unit/run_suite.h"

static struct trace *trace;

static void set_up(void)
{
    trace = calloc(1, sizeof(*trace));
    ck_assert_ptr_nonnull(trace);
    rig_set_up();
}

static void tear_down(void)
{
    core_set_trace(rig.core, NULL);
    rig_end();
    free(trace);
}

/* The n-th record of a request, or NULL. */
static const struct trace_record *record_of(uint64_t request, int n)
{
    for (int32_t i = 0; i < trace->n; i++)
        if (trace->records[i].request == request && n-- == 0)
            return &trace->records[i];
    return NULL;
}

/* A request waits, begins, has its first token and ends, in this order and when the steps do. */
TEST(life_of_a_request)
{
    const struct trace_record *r;
    struct core_request q = rig_request(1, 20, 3);
    const uint64_t id = q.id, queued_us = rig.now_us;

    core_set_trace(rig.core, trace);
    q.arrival_us = queued_us - 400;
    rig_ask(&q);
    rig_run();
    r = record_of(id, 0);
    ck_assert(r->kind == TRACE_QUEUED && r->at_us == queued_us && r->took_us == 400);
    ck_assert_uint_eq(rig_finished(id)->usage.arrival_us, queued_us - 400);
    r = record_of(id, 1);
    ck_assert(r->kind == TRACE_STARTED && r->at_us == rig_finished(id)->usage.start_us);
    r = record_of(id, 2);
    ck_assert(r->kind == TRACE_FIRST_TOKEN && r->at_us == rig_finished(id)->usage.first_us);
    r = record_of(id, 3);
    ck_assert(r->kind == TRACE_ENDED && r->at_us == rig_finished(id)->usage.end_us);
    ck_assert_int_eq(r->reason, CORE_REASON_LENGTH);
    ck_assert_int_eq(r->since, TRACE_FIRST_TOKEN);
    ck_assert_ptr_null(record_of(id, 4));
}

/* A trace that begins late has what has happened to the requests in progress. */
TEST(requests_in_progress_come_first)
{
    struct core_request q = rig_request(1, 4, 10);
    const uint64_t decodes = q.id, queued_us = rig.now_us;
    uint64_t waits;

    q.arrival_us = queued_us - 400;
    rig_ask(&q);
    rig_steps(3);
    waits = rig_ask_for(2, 4, 10);
    core_set_trace(rig.core, trace);
    ck_assert_int_eq(trace->n, 4);
    ck_assert_int_eq(record_of(decodes, 0)->kind, TRACE_QUEUED);
    ck_assert_uint_eq(record_of(decodes, 0)->at_us, queued_us);
    ck_assert_uint_eq(record_of(decodes, 0)->took_us, 400); /* it arrived before it was admitted */
    ck_assert_int_eq(record_of(decodes, 1)->kind, TRACE_STARTED);
    ck_assert_int_eq(record_of(decodes, 2)->kind, TRACE_FIRST_TOKEN);
    ck_assert_int_eq(record_of(waits, 0)->kind, TRACE_QUEUED);
    core_cancel(rig.core, waits, CORE_REASON_CANCELLED, rig.now_us);
    rig_look();
    ck_assert_int_eq(record_of(waits, 1)->kind, TRACE_ENDED);
    ck_assert_int_eq(record_of(waits, 1)->since, TRACE_QUEUED);
    ck_assert_int_eq(record_of(waits, 1)->reason, CORE_REASON_CANCELLED);
    core_set_trace(rig.core, NULL);
    rig_run();
    ck_assert_int_eq(trace->n, 5); /* nothing more */
}

/* Each preemption is recorded once, with its choice. */
TEST(preemptions)
{
    int32_t n = 0;

    rig_end();
    rig_defaults();
    rig.options.n_blocks = 12;
    rig_start();
    core_set_trace(rig.core, trace);
    rig_ask_for(1, 8, 20);
    rig_ask_for(2, 8, 20);
    rig_run();
    for (int32_t i = 0; i < trace->n; i++)
        n += trace->records[i].kind == TRACE_PREEMPTED;
    ck_assert_int_gt(n, 0);
    ck_assert_uint_eq((uint64_t)n, rig_stats().preemptions);
}

/* What there is no room for is counted, and nothing is written past the end. */
TEST(full_buffer_drops)
{
    trace->n = TRACE_ROOM - 1;
    core_set_trace(rig.core, trace);
    rig_ask_for(1, 4, 2);
    rig_run();
    ck_assert_int_eq(trace->n, TRACE_ROOM);
    ck_assert_uint_eq(trace->dropped, 3);
}

/* A token says when the one before it was committed; the first says that it is. */
TEST(times_between_tokens)
{
    uint64_t last_us = 0;
    int n = 0;

    rig_ask_for(1, 4, 6);
    for (int32_t seen = 0; rig_stats().requests_running + rig_stats().requests_waiting > 0;) {
        rig_step();
        for (; seen < rig.n_events; seen++) {
            if (rig.events[seen].type != CORE_TOKEN)
                continue;
            ck_assert_uint_eq(rig.events[seen].last_us, last_us);
            last_us = rig.now_us;
            n++;
        }
    }
    ck_assert_int_eq(n, 6);
}

RUN_TESTS("core_trace", set_up, tear_down)
