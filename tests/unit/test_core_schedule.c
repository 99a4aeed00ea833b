/* test_core_schedule.c - what runs when: sharing, chunks, turns, fairness, preemption.
 *
 * How many rows prompts take is in test_core_rows.c. */
#include <stdio.h>
#include <stdlib.h>

#include "tests/sim/core_verify.h"
#include "tests/sim/rng.h"
#include "tests/unit/core_rig.h"
#include "tests/unit/cpu_time.h"
#include "tests/unit/run_suite.h"

/* Position in the log of the request's first token. */
static int32_t first_token_at(uint64_t id)
{
    for (int32_t i = 0; i < rig.n_events; i++)
        if (rig.events[i].request == id && rig.events[i].type == CORE_TOKEN)
            return i;
    ck_abort_msg("request %d was told no token", (int)id);
    return -1;
}

static int32_t cached(uint64_t id)
{
    ck_assert_ptr_nonnull(rig_finished(id));
    return rig_finished(id)->usage.cached_tokens;
}

/* What one request computed the next finds; of a prompt found whole the last block is computed. */
TEST(second_finds_what_first_computed)
{
    uint64_t a = rig_ask_for(1, 20, 2), b, c;

    rig_run();
    b = rig_ask_for(1, 22, 2);
    rig_run();
    c = rig_ask_for(1, 20, 2);
    rig_run();
    ck_assert_int_eq(cached(a), 0);
    ck_assert_int_eq(cached(b), 20);
    ck_assert_int_eq(cached(c), 16);
    ck_assert_uint_eq(rig_stats().queried_tokens, 62);
    ck_assert_uint_eq(rig_stats().hit_tokens, 36);
    ck_assert_uint_eq(rig_stats().prompt_tokens, 20 + 2 + 4);
}

/* The next turn of a conversation finds prompt and answer. */
TEST(answers_are_found_too)
{
    uint64_t a = rig_ask_for(1, 6, 11), b;
    struct core_request r;
    int32_t prompt[20];

    rig_run();
    r = rig_request(1, 6, 1);
    for (int32_t i = 0; i < 20; i++)
        prompt[i] = i < 6 ? r.prompt[i] : i < 17 ? rig_token(a, 0, i - 6) : 7;
    r.prompt = prompt;
    r.n_prompt = 20;
    b = rig_ask(&r);
    rig_run();
    ck_assert_int_eq(cached(b), 16); /* the KV of 6 + 10 tokens was written */
}

/* Two requests with the same beginning at the same time compute it once; an unrelated one that
 * came later passes the one that waits. */
TEST(same_beginning_is_computed_once)
{
    uint64_t a = rig_ask_for(1, 20, 3), b = rig_ask_for(1, 21, 3), c = rig_ask_for(2, 5, 3);
    const struct batch *batch = rig_next();

    ck_assert_int_eq(batch->n_seqs, 2);
    ck_assert_int_eq(batch->n_tokens, 25);
    batch = rig_next(); /* not before it is committed */
    ck_assert_int_eq(batch->n_tokens, 2);
    rig_commit();
    batch = rig_next();
    ck_assert_int_eq(batch->n_seqs, 3);
    ck_assert_int_eq(batch->n_tokens, 3);
    rig_commit();
    rig_commit();
    rig_run();
    ck_assert_int_eq(cached(b), 20);
    ck_assert_int_eq(cached(c), 0);
    ck_assert_uint_eq(rig_stats().prompt_tokens, 20 + 1 + 5);
    ck_assert_int_eq(cached(a), 0);
}

/* Also while the first is still between two chunks: nothing of it is computed twice. */
TEST(waits_between_chunks)
{
    uint64_t b;

    rig_ask_for(1, 100, 2);
    rig_step();
    b = rig_ask_for(1, 101, 2);
    ck_assert_int_eq(rig_stats().seqs_running, 1);
    rig_run();
    ck_assert_int_eq(cached(b), 100);
    ck_assert_uint_eq(rig_stats().prompt_tokens, 101);
}

/* A sequence that waits for a prefix goes on when the one computing it is cancelled, with what was
 * computed so far. */
TEST(waits_until_the_writer_is_gone)
{
    uint64_t a = rig_ask_for(1, 100, 2), b = rig_ask_for(1, 101, 2);

    rig_step();
    rig_next();
    core_cancel(rig.core, a, CORE_REASON_CANCELLED, rig.now_us);
    rig_look();
    rig_commit();
    rig_run();
    ck_assert_int_eq(cached(b), 64);
    ck_assert_int_eq(rig_count(b, CORE_TOKEN), 2);
}

/* A request of higher class does not wait for a lower one's prefill that may take long. */
TEST(high_does_not_wait_for_low)
{
    uint64_t high;

    rig_ask_as(1, CORE_LOW, 1, 110, 2);
    rig_step();
    high = rig_ask_as(1, CORE_HIGH, 1, 111, 2);
    rig_step();
    ck_assert_int_eq(rig_stats().seqs_running, 2);
    rig_run();
    ck_assert_int_eq(cached(high), 32);
}

/* The choices of a request share the full blocks of its prompt, also without a prefix cache. */
TEST(choices_share_the_prompt)
{
    for (int with_cache = 0; with_cache < 2; with_cache++) {
        struct core_request r;
        uint64_t id;

        rig.options.prefix_cache = with_cache;
        rig_restart();
        r = rig_request(1, 22, 4);
        r.n = 4;
        id = rig_ask(&r);
        rig_steps(2);
        ck_assert_int_eq(rig_stats().seqs_running, 4);
        ck_assert_int_eq(rig_stats().blocks_used, 5 + 4);
        rig_run();
        ck_assert_uint_eq(rig_stats().prompt_tokens, 22 + 3 * 2);
        ck_assert_int_eq(cached(id), 0);
        ck_assert_int_eq(rig_count(id, CORE_TOKEN), 16);
    }
}

/* Without a prefix cache nothing outlives a request. */
TEST(no_cache_no_memory)
{
    uint64_t b;

    rig.options.prefix_cache = false;
    rig_restart();
    rig_ask_for(1, 20, 2);
    rig_run();
    ck_assert_int_eq(rig_stats().blocks_free, 64);
    b = rig_ask_for(1, 20, 2);
    rig_run();
    ck_assert_int_eq(cached(b), 0);
}

/* By default clients do not share; with share_all they do, and a salt narrows even then. */
TEST(scope_and_salt)
{
    for (int share_all = 0; share_all < 2; share_all++) {
        struct core_request r;
        uint64_t other, salted, same_salt;

        rig.options.share_all = share_all;
        rig_restart();
        rig_ask_of(1, 1, 20, 1);
        rig_run();
        other = rig_ask_of(2, 1, 21, 1);
        rig_run();
        r = rig_request(1, 21, 1);
        r.cache_salt = (struct text){"s", 1};
        salted = rig_ask(&r);
        rig_run();
        r = rig_request(1, 21, 1);
        r.cache_salt = (struct text){"s", 1};
        same_salt = rig_ask(&r);
        rig_run();
        ck_assert_int_eq(cached(other), share_all ? 20 : 0);
        ck_assert_int_eq(cached(salted), 0);
        ck_assert_int_eq(cached(same_salt), 20);
    }
}

/* A long prompt goes in chunks, and who decodes has a token in every step meanwhile. */
TEST(long_prompt_never_stalls_decodes)
{
    uint64_t a = rig_ask_for(1, 4, 60);

    rig_step();
    rig_ask_for(2, 190, 1);
    for (int i = 0; i < 6; i++) {
        const struct batch *b = rig_next();

        ck_assert_int_eq(b->n_decodes, 1);
        ck_assert_int_eq(b->n_tokens, 32);
        rig_commit();
        ck_assert_int_eq(rig_count(a, CORE_TOKEN), i + 2);
    }
}

/* With more decodes than rows they take turns, and a prompt has its rows too. */
TEST(decodes_take_turns)
{
    uint64_t ids[7], late;
    int32_t before[7];

    rig.options.max_batch_tokens = 3;
    rig_restart();
    for (int32_t i = 0; i < 7; i++)
        ids[i] = rig_ask_for(i, 3, 60);
    rig_steps(30);
    for (int i = 0; i < 7; i++)
        before[i] = rig_count(ids[i], CORE_TOKEN);
    rig_steps(35);
    for (int i = 0; i < 7; i++)
        ck_assert_int_eq(rig_count(ids[i], CORE_TOKEN) - before[i], 15);
    late = rig_ask_for(7, 12, 1);
    rig_steps(12);
    ck_assert_int_eq(rig_count(late, CORE_TOKEN), 1);
    for (int i = 0; i < 7; i++)
        ck_assert_int_ge(rig_count(ids[i], CORE_TOKEN) - before[i], 15 + 3);
}

/* Even one row a step is shared between decodes and prompts. */
TEST(one_row_a_step)
{
    uint64_t a, b;

    rig.options.max_batch_tokens = 1;
    rig_restart();
    a = rig_ask_for(1, 2, 50);
    rig_steps(2);
    b = rig_ask_for(2, 10, 1);
    rig_steps(21);
    ck_assert_int_eq(rig_count(b, CORE_TOKEN), 1);
    ck_assert_int_ge(rig_count(a, CORE_TOKEN), 9);
}

/* A decode that was left out of a step gives its token itself, not a row of a step long past. */
TEST(skipped_decode_gives_its_token)
{
    uint64_t a;

    rig.options.max_batch_tokens = 1;
    rig_restart();
    a = rig_ask_for(1, 1, 5);
    rig_next();
    rig_ask_for(2, 1, 5);
    ck_assert_int_eq(batch_tokens(rig_next())[0], ~0);
    rig_commit();
    ck_assert_int_eq(batch_tokens(rig_next())[0], 2000); /* the other's prompt */
    rig_commit();
    ck_assert_int_eq(batch_tokens(rig_next())[0], rig_token(a, 0, 1));
}

/* A prompt is admitted when the whole of it fits beside what runs; until then it waits. */
TEST(admission_needs_room_for_the_prompt)
{
    uint64_t a, b;

    rig.options.n_blocks = 10;
    rig_restart();
    a = rig_ask_for(1, 20, 10);
    rig_step();
    b = rig_ask_for(2, 20, 2); /* 5 blocks and one to begin with, 4 are there */
    rig_step();
    ck_assert_int_eq(rig_stats().seqs_running, 1);
    ck_assert_int_eq(rig_stats().requests_waiting, 1);
    rig_run();
    ck_assert_int_lt(rig_finished(a) - rig.events, first_token_at(b));
    ck_assert_uint_eq(rig_stats().preemptions, 0);
}

/* Waiting requests run by class, whatever came first. */
TEST(higher_class_first)
{
    uint64_t low, normal, high;

    rig.options.max_seqs = 1;
    rig_restart();
    low = rig_ask_as(1, CORE_LOW, 1, 5, 2);
    normal = rig_ask_of(1, 2, 5, 2);
    high = rig_ask_as(1, CORE_HIGH, 3, 5, 2);
    rig_run();
    ck_assert_int_lt(first_token_at(high), first_token_at(normal));
    ck_assert_int_lt(first_token_at(normal), first_token_at(low));
}

/* One client's flood does not keep another waiting: from when both wait they are served as many
 * tokens, give or take what runs at once. */
TEST(fair_between_clients)
{
    enum { N = 60, LONGEST = 38, RUNNING = 2 };
    uint64_t ids[2][N];
    int32_t sizes[2][N], served[2] = {0, 0};
    struct rng rng = {3};

    rig.options.max_seqs = RUNNING;
    rig_restart();
    for (int k = 0; k < 2; k++) {
        for (int i = 0; i < N; i++) {
            int32_t n_prompt = rng_range(&rng, 4, k ? 30 : 8), n = rng_range(&rng, 1, 8);

            ids[k][i] = rig_ask_of((uint64_t)k, k * 100 + i, n_prompt, n);
            sizes[k][i] = n_prompt + n;
        }
    }
    rig_steps(60);
    for (int k = 0; k < 2; k++)
        for (int i = 0; i < N; i++)
            served[k] += rig_finished(ids[k][i]) ? sizes[k][i] : 0;
    ck_assert_int_gt(served[0], 4 * LONGEST);
    ck_assert_int_le(abs(served[0] - served[1]), 2 * RUNNING * LONGEST);
}

/* When blocks run out the newest of the lowest class goes, is told the right tokens all the same,
 * and comes back before others of its client. */
TEST(newest_of_lowest_class_is_preempted)
{
    uint64_t low_old, low_new, normal, later;

    rig.options.n_blocks = 12;
    rig.options.max_seqs = 3;
    rig_restart();
    low_old = rig_ask_as(1, CORE_LOW, 1, 7, 17);
    low_new = rig_ask_as(1, CORE_LOW, 2, 7, 17);
    normal = rig_ask_of(1, 3, 7, 17);
    rig_steps(3);
    later = rig_ask_as(1, CORE_LOW, 4, 7, 17);
    rig_run();
    ck_assert_uint_ge(rig_stats().preemptions, 1);
    ck_assert_int_eq(rig_finished(low_old)->usage.preemptions, 0);
    ck_assert_int_eq(rig_finished(normal)->usage.preemptions, 0);
    ck_assert_int_ge(rig_finished(low_new)->usage.preemptions, 1);
    ck_assert_int_eq(rig_count(low_new, CORE_TOKEN), 17);
    ck_assert(rig_finished(low_new) < rig_finished(later));
    /* the same request alone */
    {
        uint64_t alone = rig_ask_as(9, CORE_LOW, 2, 7, 17);

        rig_run();
        for (int32_t i = 0; i < 17; i++)
            ck_assert_int_eq(rig_token(low_new, 0, i), rig_token(alone, 0, i));
    }
}

/* Preempted too often, a sequence is no victim any more: the other one goes. */
TEST(often_preempted_is_spared)
{
    uint64_t old, new;

    rig.options.n_blocks = 8;
    rig.options.max_preemptions = 0;
    rig_restart();
    old = rig_ask_for(1, 8, 20);
    new = rig_ask_for(2, 8, 20);
    rig_run();
    /* all are exempt at once: then the newest goes, never the oldest */
    ck_assert_int_eq(rig_finished(old)->usage.preemptions, 0);
    ck_assert_int_ge(rig_finished(new)->usage.preemptions, 1);
}

/* A token in flight while its sequence is preempted is kept, and the history that the sampler is
 * told on the way back holds it. */
TEST(preempted_in_flight_keeps_its_token)
{
    struct core_request r;
    uint64_t a, b;
    bool reloaded = false;

    rig.options.n_blocks = 6;
    rig_restart();
    a = rig_ask_for(1, 7, 14);
    r = rig_request(2, 7, 14);
    rig.sampling.repetition_penalty = 1.2f;
    b = rig_ask(&r);
    rig_next();
    while (core_busy(rig.core)) { /* two steps in flight wherever there are two */
        const struct batch *next = rig_next();

        for (int32_t i = 0; next && i < next->n_updates; i++) {
            const struct sampler_update *u = &batch_updates(next)[i];
            int32_t n_told = rig_count(b, CORE_TOKEN);

            if (u->n_history <= 7)
                continue;
            reloaded = true;
            ck_assert_int_eq(u->n_prompt, 7);
            ck_assert_int_eq(u->n_history, 7 + n_told);
            ck_assert_int_eq(batch_history(next, u)[6 + n_told], rig_token(b, 0, n_told - 1));
        }
        rig_commit();
        if (core_busy(rig.core) && !next && rig_stats().seqs_running == 0)
            rig_next();
    }
    ck_assert(reloaded);
    ck_assert_int_eq(rig_count(a, CORE_TOKEN), 14);
    ck_assert_int_eq(rig_count(b, CORE_TOKEN), 14);
}

/* Where that is asked for, what was sampled before a preemption is computed again a token a step,
 * the prompt in chunks, and nobody finds blocks of the former: the backend sees to it. */
TEST(replay_computes_as_before)
{
    uint64_t a, b, c;
    int n_silent = 0;

    rig.options.n_blocks = 8;
    rig.options.replay = rig.backend_options.replay = true;
    rig_restart();
    a = rig_ask_for(1, 8, 20);
    b = rig_ask_for(2, 8, 20);
    while (core_busy(rig.core)) {
        const struct batch *batch = rig_next();

        for (int32_t i = 0; i < batch->n_decodes; i++)
            n_silent += batch->n_rows <= i || batch_rows(batch)[i].row > i;
        rig_commit();
    }
    ck_assert_int_ge(rig_finished(b)->usage.preemptions, 1);
    ck_assert_int_gt(n_silent, 0);
    ck_assert_int_eq(rig_count(b, CORE_TOKEN), 20);
    c = rig_ask_for(2, 8, 20); /* alone, with the prompt's blocks alone to be found */
    rig_run();
    ck_assert_int_le(rig_finished(c)->usage.cached_tokens, 8);
    for (int32_t i = 0; i < 20; i++)
        ck_assert_int_eq(rig_token(b, 0, i), rig_token(c, 0, i));
    ck_assert_int_eq(rig_count(a, CORE_TOKEN), 20);
}

/* Of what was computed the ends of chains are reused first: beginnings are worth more. */
TEST(tails_are_reused_first)
{
    uint64_t again;

    rig.options.n_blocks = 12;
    rig_restart();
    rig_ask_for(1, 40, 1);
    rig_run();
    rig_ask_for(2, 24, 1); /* takes the 2 that are free and the last 4 of the first */
    rig_run();
    again = rig_ask_for(1, 40, 1);
    rig_run();
    ck_assert_int_eq(cached(again), 24);
}

/* Ten thousand waiting requests cost a step nothing that one would not. */
TEST(a_long_queue_is_not_slow)
{
    double us;

    rig.options.max_seqs = 4;
    rig_restart();
    for (int32_t i = 0; i < 10000; i++) {
        struct core_request r = rig_request(i % 2 ? i : 1, 40, 2);

        r.client = (uint64_t)i % 10;
        ck_assert_int_eq(core_admit(rig.core, &r, 1), CORE_OK);
    }
    us = -cpu_ms();
    for (int i = 0; i < 1000; i++)
        rig_step_unverified();
    us += cpu_ms(); /* of a thousand steps, in ms: of one, in us */
    printf("a step with 10,000 waiting: %.1f us\n", us);
    ck_assert_msg(us < 1000, "a step takes %.0f us", us); /* a walk of the queue would be slower */
}

RUN_TESTS("core_schedule", rig_set_up, rig_end)
