/* test_core.c - requests, events, steps in flight: what the core promises its caller. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/sim/core_verify.h"
#include "tests/unit/core_rig.h"
#include "tests/unit/run_suite.h"

/* A request is told its tokens, the last with the reason, then its end with the usage. */
TEST(tokens_then_finished)
{
    struct core_request r = rig_request(1, 5, 3);
    uint64_t id = rig_ask(&r);
    const struct core_event *e;

    rig_run();
    ck_assert_int_eq(rig.n_events, 4);
    for (int32_t i = 0; i < 3; i++) {
        ck_assert_int_eq(rig.events[i].type, CORE_TOKEN);
        ck_assert_int_eq(rig.events[i].reason, i == 2 ? CORE_REASON_LENGTH : CORE_REASON_NONE);
    }
    e = rig_finished(id);
    ck_assert_ptr_eq(e, &rig.events[3]);
    ck_assert_int_eq(e->reason, CORE_REASON_LENGTH);
    ck_assert_int_eq(e->usage.prompt_tokens, 5);
    ck_assert_int_eq(e->usage.completion_tokens, 3);
    ck_assert_uint_eq(e->usage.arrival_us, 1000);
    ck_assert_uint_eq(e->usage.start_us, 2000);
    ck_assert_uint_eq(e->usage.first_us, 2000);
    ck_assert_uint_eq(e->usage.end_us, 4000);
    ck_assert_int_eq(rig_stats().blocks_used, 0);
    ck_assert(!core_busy(rig.core));
    ck_assert_ptr_null(rig_next());
}

/* The step after a prefill names the row that samples the first token; with that committed the
 * next one that was not submitted ahead has the token itself. */
TEST(decode_names_the_row_before)
{
    struct core_request r = rig_request(1, 5, 10);
    const struct batch *b;
    uint64_t id = rig_ask(&r);

    b = rig_next();
    ck_assert_int_eq(b->n_decodes, 0);
    ck_assert_int_eq(b->n_tokens, 5);
    ck_assert_int_eq(b->n_updates, 1);
    ck_assert_int_eq(batch_rows(b)[0].row, 4);
    b = rig_next();
    ck_assert_int_eq(b->n_decodes, 1);
    ck_assert_int_eq(batch_tokens(b)[0], ~0);
    ck_assert_int_eq(batch_positions(b)[0], 5);
    ck_assert_uint_eq(batch_rows(b)[0].counter, 1);
    ck_assert_ptr_null(rig_next()); /* two are in flight */
    rig_commit();
    rig_commit();
    b = rig_next();
    ck_assert_int_eq(batch_tokens(b)[0], rig_token(id, 0, 1));
}

/* No step is made for a token that max_tokens forbids. */
TEST(no_step_past_max_tokens)
{
    struct core_request r = rig_request(1, 5, 1);

    rig_ask(&r);
    ck_assert_ptr_nonnull(rig_next());
    ck_assert_ptr_null(rig_next());
    rig_commit();
    ck_assert_uint_eq(rig_stats().steps, 1);
    ck_assert(!core_busy(rig.core));
}

/* A sampled stop id ends the choice; the row already in flight is discarded, and the blocks are
 * given back when that step is committed, not before. */
TEST(stop_discards_the_row_in_flight)
{
    struct core_request r = rig_request(1, 5, 10);
    int32_t ids[SAMPLING_MAX_STOP_IDS];
    uint64_t id;

    rig.backend_options.n_ids = SAMPLING_MAX_STOP_IDS; /* whatever is sampled is a stop id */
    rig_restart();
    for (int32_t i = 0; i < SAMPLING_MAX_STOP_IDS; i++)
        ids[i] = 100 + i;
    rig.sampling.stop_ids = ids;
    rig.sampling.n_stop_ids = SAMPLING_MAX_STOP_IDS;
    id = rig_ask(&r);
    rig_next();
    rig_next();
    rig_commit();
    ck_assert_int_eq(rig_finished(id)->reason, CORE_REASON_STOP);
    ck_assert_int_eq(rig_count(id, CORE_TOKEN), 1);
    ck_assert_int_eq(rig_stats().blocks_used, 2);
    ck_assert(core_busy(rig.core));
    rig_commit();
    ck_assert_int_eq(rig.n_events, 2);
    ck_assert_int_eq(rig_stats().blocks_used, 0);
}

/* Stop ids are banned until min_tokens were sampled. */
TEST(bans_stops_until_min_tokens)
{
    struct core_request r = rig_request(1, 5, 4);

    rig.sampling.min_tokens = 2;
    rig_ask(&r);
    for (int i = 0; i < 4; i++) {
        const struct batch *b = rig_next();

        ck_assert_int_eq(batch_rows(b)[0].ban_stops, i < 2);
        rig_commit();
    }
}

/* prompt + max_tokens may be max_seq_len, not one more. */
TEST(refuses_what_is_too_long)
{
    struct core_request r = rig_request(1, 200, 57);

    ck_assert_int_eq(core_admit(rig.core, &r, 1), CORE_E_TOO_LONG);
    r.max_tokens = INT32_MAX;
    ck_assert_int_eq(core_admit(rig.core, &r, 1), CORE_E_TOO_LONG);
    r.max_tokens = 56;
    ck_assert_int_eq(core_admit(rig.core, &r, 1), CORE_OK);
}

/* What needs more slots than the pool has is refused; what needs all of them runs. */
TEST(refuses_what_never_fits)
{
    struct core_request r;
    uint64_t id;

    rig.options.n_blocks = 5;
    rig_restart();
    r = rig_request(1, 10, 12); /* the last token needs no slot: 21 */
    ck_assert_int_eq(core_admit(rig.core, &r, 1), CORE_E_NEVER_FITS);
    r.max_tokens = 11;
    id = rig_ask(&r);
    rig_run();
    ck_assert_int_eq(rig_finished(id)->usage.completion_tokens, 11);
}

/* Options that cannot be are refused, not believed. */
TEST(refuses_impossible_options)
{
    struct core *c;
    struct core_options o = rig.options;

    o.block_len = 12;
    ck_assert_int_eq(core_new(&c, &o), -EINVAL);
    o = rig.options;
    o.max_seqs = 0;
    ck_assert_int_eq(core_new(&c, &o), -EINVAL);
    o = rig.options;
    o.n_blocks = INT32_MAX;
    ck_assert_int_eq(core_new(&c, &o), -EINVAL);
}

/* Cancel tells each choice and the end at once; blocks come back with the step in flight. */
TEST(cancel_is_told_at_once)
{
    struct core_request r = rig_request(1, 5, 10);
    uint64_t id;

    r.n = 2;
    id = rig_ask(&r);
    rig_next();
    core_cancel(rig.core, id, CORE_REASON_CANCELLED, rig.now_us);
    rig_look();
    ck_assert_int_eq(rig_count(id, CORE_CHOICE_DONE), 2);
    ck_assert_int_eq(rig_finished(id)->reason, CORE_REASON_CANCELLED);
    ck_assert_int_gt(rig_stats().blocks_used, 0);
    rig_commit();
    ck_assert_int_eq(rig_stats().blocks_used, 0);
    ck_assert_int_eq(rig.n_events, 3);
    core_cancel(rig.core, id, CORE_REASON_CANCELLED, rig.now_us); /* unknown now: nothing */
    core_stop(rig.core, id, 0, rig.now_us);
    rig_look();
    ck_assert_int_eq(rig.n_events, 3);
}

/* A choice whose text is complete ends alone; the others go on. */
TEST(stop_ends_one_choice)
{
    struct core_request r = rig_request(1, 5, 6);
    uint64_t id;

    r.n = 3;
    id = rig_ask(&r);
    rig_steps(2);
    core_stop(rig.core, id, 1, rig.now_us);
    core_stop(rig.core, id, 1, rig.now_us); /* again: nothing */
    core_stop(rig.core, id, 3, rig.now_us); /* no such choice: nothing */
    rig_run();
    ck_assert_int_eq(rig_count(id, CORE_CHOICE_DONE), 1);
    ck_assert_int_eq(rig_count(id, CORE_FINISHED), 1);
    ck_assert_int_eq(rig_finished(id)->reason, CORE_REASON_LENGTH);
    ck_assert_int_lt(rig_finished(id)->usage.completion_tokens, 18);
    ck_assert_int_ge(rig_finished(id)->usage.completion_tokens, 12);
}

/* Deadlines end what waits and what runs, in order, and the next one is told. */
TEST(deadlines_cover_waiting_and_running)
{
    struct core_request r;
    uint64_t runs, waits, endless;

    rig.options.max_seqs = 1;
    rig_restart();
    r = rig_request(1, 5, 50);
    r.deadline_us = 9000;
    runs = rig_ask(&r);
    r = rig_request(2, 5, 50);
    r.deadline_us = 5000;
    waits = rig_ask(&r);
    r = rig_request(3, 5, 5);
    endless = rig_ask(&r);
    rig_step();
    ck_assert_uint_eq(core_expire(rig.core, 4999), 5000);
    rig_look();
    ck_assert_ptr_null(rig_finished(waits));
    ck_assert_uint_eq(core_expire(rig.core, 5000), 9000);
    rig_look();
    ck_assert_int_eq(rig_finished(waits)->reason, CORE_REASON_DEADLINE);
    ck_assert_uint_eq(rig_finished(waits)->usage.start_us, 0);
    ck_assert_uint_eq(core_expire(rig.core, 9001), 0);
    rig_look();
    ck_assert_int_eq(rig_finished(runs)->reason, CORE_REASON_DEADLINE);
    rig_run();
    ck_assert_int_eq(rig_finished(endless)->reason, CORE_REASON_LENGTH);
}

/* NaN in one row ends that request alone, and what it computed is not found again. */
TEST(numerics_end_one_request)
{
    struct core_request r = rig_request(1, 9, 5);
    struct step_result result;
    int32_t ids[2];
    uint64_t bad = rig_ask(&r), good, again;

    r = rig_request(2, 9, 5);
    good = rig_ask(&r);
    ck_assert_int_eq(rig_next()->n_rows, 2);
    ck_assert_ptr_null(sim_backend_wait(rig.backend, &result));
    ids[0] = BATCH_NUMERICS;
    ids[1] = result.ids[1];
    result.ids = ids;
    core_commit(rig.core, &result, rig.now_us);
    rig_look();
    ck_assert_int_eq(rig_finished(bad)->reason, CORE_REASON_NUMERICS);
    ck_assert_int_eq(rig_count(bad, CORE_CHOICE_DONE), 1);
    rig_run();
    ck_assert_int_eq(rig_finished(good)->usage.completion_tokens, 5);
    r = rig_request(1, 9, 5);
    again = rig_ask(&r);
    rig_run();
    ck_assert_int_eq(rig_finished(again)->usage.cached_tokens, 0);
}

/* Logprobs are told where asked for, and only there. */
TEST(logprobs_where_asked_for)
{
    struct core_request r = rig_request(1, 5, 2);

    rig.sampling.n_logprobs = 3;
    rig_ask(&r);
    rig_run();
    ck_assert_int_eq(rig.events[0].logprobs.n_top, 3);
    ck_assert_int_eq(rig.events[0].logprobs.top_ids[2], 2);
    ck_assert(rig.events[0].logprobs.logprob != 0);
    r = rig_request(1, 5, 2);
    rig_ask(&r);
    rig_run();
    ck_assert_int_eq(rig.events[3].logprobs.n_top, 0);
}

/* The sampler is told a sequence's tokens when it needs them, and not otherwise; each choice has
 * its own seed. What the request pointed to may be gone by then. */
TEST(loads_history_where_needed)
{
    struct core_request r = rig_request(1, 5, 2);
    const struct batch *b;

    rig.sampling.presence_penalty = 1;
    rig.sampling.seed = 40;
    r.n = 2;
    rig_ask(&r);
    memset(&rig.sampling, 0xff, sizeof(rig.sampling));
    r = rig_request(2, 6, 2);
    rig_ask(&r);
    b = rig_next();
    ck_assert_int_eq(b->n_updates, 2); /* choice 1 waits for the block of choice 0 */
    ck_assert_int_eq(batch_updates(b)[0].n_history, 5);
    ck_assert_int_eq(batch_updates(b)[0].n_prompt, 5);
    ck_assert_int_eq(batch_history(b, batch_updates(b))[4], 1004);
    ck_assert_uint_eq(batch_updates(b)[0].sampling.seed, 40);
    ck_assert_int_eq(batch_updates(b)[1].n_history, 0);
    rig_commit();
    b = rig_next();
    ck_assert_int_eq(b->n_updates, 1);
    ck_assert_uint_eq(batch_updates(b)[0].sampling.seed, 41);
    rig_commit();
    rig_run();
}

/* Events are told once, also when two calls of the core lie between. */
TEST(events_are_told_once)
{
    struct core_request r = rig_request(1, 5, 5);
    uint64_t id = r.id;
    int32_t n;

    ck_assert_int_eq(core_admit(rig.core, &r, 1), CORE_OK);
    core_events(rig.core, &n);
    ck_assert_int_eq(n, 0);
    core_stop(rig.core, id, 0, 2);
    core_cancel(rig.core, id, CORE_REASON_CANCELLED, 2);
    core_events(rig.core, &n);
    ck_assert_int_eq(n, 2);
    core_events(rig.core, &n);
    ck_assert_int_eq(n, 0);
}

/* A core goes with requests under way and steps in flight, and leaks nothing. */
TEST(freed_in_the_middle)
{
    for (int32_t i = 0; i < 20; i++) {
        struct core_request r = rig_request(i / 2, 20, 20);

        r.n = 2;
        rig_ask(&r);
    }
    rig_step();
    rig_next();
    rig_next();
}

/* An id that is in use is the caller's bug. */
TEST(id_twice_aborts, .signal = SIGABRT)
{
    struct core_request r = rig_request(1, 5, 5);

    rig_ask(&r);
    core_admit(rig.core, &r, 1);
}

static size_t resident_bytes(void)
{
    FILE *f = fopen("/proc/self/statm", "re");
    size_t all, resident;

    ck_assert_ptr_nonnull(f);
    ck_assert_int_eq(fscanf(f, "%zu %zu", &all, &resident), 2);
    fclose(f);
    return resident * (size_t)sysconf(_SC_PAGESIZE);
}

/* Requests that wait take no memory for the answers they may get, also where the heap has grown
 * and shrunk before, as it has in a daemon that runs long: 500 answers of 40,000 tokens. */
TEST(waiting_takes_no_memory_for_answers)
{
    enum { N = 32, BYTES = 8 << 20, N_REQUESTS = 500 };
    void *held[N], *pin = NULL;
    size_t before;

    for (int round = 0; round < 2; round++) { /* in the second from the heap, not mapped */
        for (int i = 0; i < N; i++)
            ck_assert_ptr_nonnull(held[i] = malloc(BYTES));
        if (round == 1)
            ck_assert_ptr_nonnull(pin = malloc(100)); /* keeps what is below it */
        for (int i = 0; i < N; i++)
            free(held[i]);
    }
    rig.options.block_len = 4096;
    rig.options.n_blocks = 16;
    rig.options.max_seq_len = 50000;
    rig_restart();
    before = resident_bytes();
    for (int i = 0; i < N_REQUESTS; i++) {
        struct core_request r = rig_request(1, 5, 40000);

        rig_ask(&r);
    }
    ck_assert_uint_lt(resident_bytes(), before + (size_t)N_REQUESTS * 40000);
    free(pin);
}

RUN_TESTS("core", rig_set_up, rig_end)
