/* test_core_speculation.c - drafts that the core proposes by itself: for whom, how many, and that
 * they are those that pay. */
#include <string.h>

#include "engine/core/core_impl.h"
#include "tests/sim/core_verify.h"
#include "tests/unit/core_rig.h"
#include "tests/unit/run_suite.h"

enum { N = 60 };

static void set_up(void)
{
    rig_defaults();
    rig.options.speculate = true;
    rig_start();
}

/* Steps until nothing is left, with at most two in flight, as the engine has them. */
static int run(void)
{
    int in_flight = 0, n = 0;

    for (int i = 0; in_flight > 0 || core_busy(rig.core); i++) {
        ck_assert_int_lt(i, 10000);
        if (in_flight < BACKEND_IN_FLIGHT && rig_next()) {
            in_flight++;
            n++;
        } else {
            ck_assert_int_gt(in_flight, 0);
            rig_commit();
            in_flight--;
        }
    }
    return n;
}

static void check_same(uint64_t a, uint64_t b)
{
    ck_assert_int_eq(rig_count(a, CORE_TOKEN), N);
    ck_assert_int_eq(rig_count(b, CORE_TOKEN), N);
    for (int32_t i = 0; i < N; i++)
        ck_assert_int_eq(rig_token(a, 0, i), rig_token(b, 0, i));
}

/* The same prompt again: the cache has what follows, block by block, and in far fewer steps the
 * same comes. The text itself repeats nothing: the first time there is no draft. */
TEST(the_cache_knows_the_answer)
{
    uint64_t first = rig_ask_for(1, 10, N), again;
    int n_first = run(), n_again;

    ck_assert_uint_eq(rig_stats().draft_tokens, 0);
    ck_assert_int_eq(n_first, N); /* the prompt and N - 1 decodes */
    again = rig_ask_for(1, 10, N);
    n_again = run();
    check_same(first, again);
    ck_assert_int_lt(n_again, N / 2);
    ck_assert_uint_eq(rig_stats().accepted_tokens, rig_stats().draft_tokens);
    ck_assert_int_gt(rig_finished(again)->usage.accepted_tokens, N / 2);
}

/* Another client's answer, and one of another salt, are nobody's drafts. */
TEST(others_answers_are_not_proposed)
{
    struct core_request r;

    rig_ask_for(1, 10, N);
    run();
    rig_ask_of(2, 1, 10, N);
    run();
    r = rig_request(1, 10, N);
    r.cache_salt = (struct text){"x", 1};
    rig_ask(&r);
    run();
    ck_assert_uint_eq(rig_stats().draft_tokens, 0);
}

/* None without the option, and none where the sampling needs history. */
TEST(not_for_everybody)
{
    struct core_request r = rig_request(1, 10, N);

    rig.sampling.presence_penalty = 1;
    rig_ask(&r);
    run();
    r = rig_request(1, 10, N);
    rig.sampling.presence_penalty = 1;
    rig_ask(&r);
    run();
    ck_assert_uint_eq(rig_stats().draft_tokens, 0);
    rig.options.speculate = false;
    rig_restart();
    for (int i = 0; i < 2; i++) {
        rig_ask_for(1, 10, N);
        run();
    }
    ck_assert_uint_eq(rig_stats().draft_tokens, 0);
}

/* With masks the core proposes only when it is asked. */
TEST(masks_come_first)
{
    int32_t tokens[CORE_MAX_DRAFTS];
    uint32_t mask[40];
    struct core_request r;
    uint64_t id;

    rig.options.mask_words = 40;
    rig_restart();
    memset(mask, 0xff, sizeof(mask));
    rig_ask_for(1, 10, N);
    run();
    r = rig_request(1, 10, N);
    r.masks = true;
    id = rig_ask(&r);
    /* Nothing is known of it yet. */
    ck_assert_int_eq(core_propose(rig.core, id, 0, tokens, CORE_MAX_DRAFTS), 0);
    ck_assert(core_set_mask(rig.core, id, 0, mask, 1));
    rig_step();
    ck_assert_int_eq(rig_count(id, CORE_TOKEN), 1);
    ck_assert(core_set_mask(rig.core, id, 0, mask, 1));
    ck_assert_int_gt(core_propose(rig.core, id, 0, tokens, CORE_MAX_DRAFTS), 0);
    ck_assert_int_eq(core_propose(rig.core, id, 1, tokens, CORE_MAX_DRAFTS), 0);
    ck_assert_int_eq(rig_next()->n_drafted, 0);
    rig_commit();
    core_cancel(rig.core, id, CORE_REASON_CANCELLED, rig.now_us);
    rig_look();
}

/* What a format forces is drafted where that speeds up the sequences of a step together: drafts of
 * one make the step a quarter longer, which pays where it is alone, not where eight wait for it. */
TEST(one_of_many_gains_too_little)
{
    struct step_cost cost = {.row_us = 1};
    struct core_request r;
    uint32_t mask[40];
    uint64_t id;

    rig.options.mask_words = 40;
    rig.options.max_seqs = 16;
    rig_restart();
    for (int i = 0; i < 3; i++) {
        step_cost_learn(&cost, 1, 0, 100);
        step_cost_learn(&cost, 8, 0, 100);
        step_cost_learn_drafts(&cost, 1 + 3, 125); /* as are few rows more */
        step_cost_learn_drafts(&cost, 1 + 4, 125);
        step_cost_learn_drafts(&cost, 8 + 4, 125);
    }
    core_set_cost(rig.core, &cost);
    memset(mask, 0xff, sizeof(mask));
    r = rig_request(1, 10, N);
    r.masks = true;
    id = rig_ask(&r);
    ck_assert(core_set_mask(rig.core, id, 0, mask, 1));
    rig_step();
    ck_assert_int_eq(core_certain(rig.core, id, 0, 4), 4);
    for (int i = 0; i < 7; i++)
        rig_ask_for(2, 10, N);
    for (int i = 0; rig.core->n_decoding < 8; i++) {
        ck_assert_int_lt(i, 10);
        ck_assert(core_set_mask(rig.core, id, 0, mask, 1));
        rig_step();
    }
    ck_assert_int_eq(core_certain(rig.core, id, 0, 4), 0);
    for (int i = 0; i < 60; i++)
        step_cost_learn_drafts(&cost, 8 + 4, 100);
    core_set_cost(rig.core, &cost);
    ck_assert_int_eq(core_certain(rig.core, id, 0, 4), 4);
    core_cancel(rig.core, id, CORE_REASON_CANCELLED, rig.now_us);
    run();
}

/* A prompt of another has the step's time to itself. */
TEST(not_beside_prompts)
{
    rig.options.max_batch_tokens = 8;
    rig_restart();
    rig_ask_for(1, 10, N);
    run();
    rig_ask_for(1, 10, N);
    rig_steps(2);
    rig_ask_for(2, 60, 2); /* is computed in ten steps or so */
    for (int i = 0; i < 6; i++) {
        rig_step();
        if (rig.core->n_prefilling == 0)
            break;
        ck_assert_int_eq(rig_next()->n_drafted, 0);
        rig_commit();
    }
    run();
}

/* What steps cost decides: rows that cost as much as tokens give no drafts, those that cost nothing
 * as many as may be. What is known of the cost fades, and then it is tried again. */
TEST(drafts_pay)
{
    struct step_cost cost = {.row_us = 1};
    uint64_t before;

    rig_ask_for(1, 10, N);
    run();
    for (int i = 0; i < 40; i++)
        step_cost_learn(&cost, 1, 0, 100);
    for (int rows = 2; rows <= 16; rows *= 2)
        for (int i = 0; i < 3; i++)
            step_cost_learn_drafts(&cost, rows, 100 * rows);
    core_set_cost(rig.core, &cost);
    rig_ask_for(1, 10, N);
    run();
    ck_assert_uint_eq(rig_stats().draft_tokens, 0);
    for (int i = 0; i < 200; i++)
        step_cost_learn(&cost, 1, 0, 100);
    core_set_cost(rig.core, &cost);
    rig_ask_for(1, 10, N);
    run();
    before = rig_stats().draft_tokens;
    ck_assert_uint_gt(before, 0);
    for (int rows = 2; rows <= 16; rows *= 2)
        for (int i = 0; i < 30; i++)
            step_cost_learn_drafts(&cost, rows, 100);
    core_set_cost(rig.core, &cost);
    rig_ask_for(1, 10, N);
    run();
    ck_assert_uint_gt(rig_stats().draft_tokens - before, N / 2);
}

RUN_TESTS("core_speculation", set_up, rig_end)
