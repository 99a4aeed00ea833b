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

/* Begins a step, where one may begin and fewer than two are in flight, as the engine has them; else
 * ends one. Returns how many have begun. */
static int advance(int *in_flight, bool may_begin)
{
    if (may_begin && *in_flight < BACKEND_IN_FLIGHT && rig_next()) {
        ++*in_flight;
        return 1;
    }
    ck_assert_int_gt(*in_flight, 0);
    rig_commit();
    --*in_flight;
    return 0;
}

/* Steps until nothing is left. */
static int run(void)
{
    int in_flight = 0, n = 0;

    for (int i = 0; in_flight > 0 || core_busy(rig.core); i++) {
        ck_assert_int_lt(i, 10000);
        n += advance(&in_flight, true);
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
    ck_assert_int_eq(core_n_forced_drafts(rig.core, id, 0, 4), 4);
    for (int i = 0; i < 7; i++)
        rig_ask_for(2, 10, N);
    for (int i = 0; rig.core->n_decoding < 8; i++) {
        ck_assert_int_lt(i, 10);
        ck_assert(core_set_mask(rig.core, id, 0, mask, 1));
        rig_step();
    }
    ck_assert_int_eq(core_n_forced_drafts(rig.core, id, 0, 4), 0);
    for (int i = 0; i < 60; i++)
        step_cost_learn_drafts(&cost, 8 + 4, 100);
    core_set_cost(rig.core, &cost);
    ck_assert_int_eq(core_n_forced_drafts(rig.core, id, 0, 4), 4);
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

/* ---- a draft model */

/* A request whose answer the cache does not have. */
static uint64_t ask_anew(char salt)
{
    struct core_request r = rig_request(1, 10, N);

    r.cache_salt = (struct text){&salt, 1};
    return rig_ask(&r);
}

static int32_t n_asked; /* for how many sequences the model was asked in the last run */

/* As run(), with a draft model that proposes the tokens of `answer`, or what they are not. */
static int run_with_model(uint64_t answer, bool right)
{
    struct core_draft_request requests[8];
    int32_t drafts[CORE_MAX_DRAFTS];
    int in_flight = 0, n = 0;

    n_asked = 0;
    while (in_flight > 0 || core_busy(rig.core)) {
        const int32_t n_requests = core_draft_requests(rig.core, requests);

        for (int32_t i = 0; i < n_requests && in_flight == 0; i++, n_asked++) {
            ck_assert_int_eq(requests[i].n_tokens, 10 + (int32_t)requests[i].counter);
            ck_assert_int_ge(requests[i].n_drafts, 1);
            for (int32_t k = 0; k < requests[i].n_drafts; k++)
                drafts[k] = rig_token(answer, 0, (int32_t)requests[i].counter + k) + !right;
            ck_assert_int_eq(core_set_model_drafts(rig.core, requests[i].request,
                                                   requests[i].choice, drafts, requests[i].n_drafts,
                                                   requests[i].n_tokens),
                             requests[i].n_drafts);
        }
        n += advance(&in_flight, n_requests == 0 || in_flight == 0);
    }
    return n;
}

static void restart_with_model(void)
{
    rig.options.draft_seqs = 4;
    rig.options.draft_len = 2 * N;
    rig_restart();
}

/* Where nothing is known the model is asked: its right drafts save steps, and are counted apart. */
TEST(a_model_drafts_where_nothing_is_known)
{
    uint64_t first, again;

    restart_with_model();
    first = ask_anew('a');
    run();
    ck_assert_uint_eq(rig_stats().draft_tokens, 0);
    again = ask_anew('b');
    ck_assert_int_lt(run_with_model(first, true), N / 2);
    check_same(first, again);
    ck_assert_uint_gt(rig_stats().model_accepted_tokens, N / 2);
    ck_assert_uint_eq(rig_stats().model_draft_tokens, rig_stats().draft_tokens);
    ck_assert_uint_eq(rig_stats().model_accepted_tokens, rig_stats().model_draft_tokens);
    ck_assert_int_eq(rig_finished(again)->usage.model_accepted_tokens,
                     rig_finished(again)->usage.accepted_tokens);
}

/* A model that is wrong is asked a few times, in the next sequence fewer; the tokens are the same.
 */
TEST(a_wrong_model_is_left_alone)
{
    int32_t asked;
    uint64_t first, again;

    restart_with_model();
    first = ask_anew('a');
    run();
    again = ask_anew('b');
    run_with_model(first, false);
    check_same(first, again);
    ck_assert_uint_gt(rig_stats().model_draft_tokens, 0);
    ck_assert_uint_eq(rig_stats().accepted_tokens, 0);
    asked = n_asked;
    ck_assert_int_lt(asked, N / 2);
    for (char salt = 'c'; salt < 'm'; salt++) {
        ask_anew(salt);
        run_with_model(first, false);
    }
    ck_assert_int_lt(n_asked, asked);
}

/* One that takes as long as the model does not pay, however right it is. */
TEST(a_slow_model_is_not_asked)
{
    struct step_cost cost = {.row_us = 1};
    uint64_t first;

    restart_with_model();
    first = ask_anew('a');
    run();
    for (int i = 0; i < 40; i++)
        step_cost_learn(&cost, 1, 0, 100);
    for (int i = 0; i < 10; i++)
        step_cost_learn_model(&cost, 100);
    core_set_cost(rig.core, &cost);
    ask_anew('b');
    run_with_model(first, true);
    ck_assert_int_eq(n_asked, 0);
    for (int i = 0; i < 100; i++)
        step_cost_learn_model(&cost, 10);
    core_set_cost(rig.core, &cost);
    ask_anew('c');
    run_with_model(first, true);
    ck_assert_int_gt(n_asked, 0);
}

static void check_no_draft_requests(int n_steps)
{
    struct core_draft_request requests[8];

    for (int i = 0; i < n_steps; i++) {
        rig_step();
        ck_assert_int_eq(core_draft_requests(rig.core, requests), 0);
    }
}

/* Nobody waits for a model that it cannot have: one with penalties, one whose text is too long for
 * it, more sequences than it may be asked for, texts that it does not hold beside each other. */
TEST(nobody_waits_for_the_model)
{
    enum { TOKENS = 30 };
    struct core_request r;

    restart_with_model();
    r = rig_request(3, 10, 4 * N);
    rig.sampling.presence_penalty = 1;
    rig_ask(&r);
    rig.sampling.presence_penalty = 0;
    ask_anew('b');
    check_no_draft_requests(N);
    rig_run();
    r = rig_request(4, 2 * N, N);
    rig_ask(&r);
    ask_anew('c');
    check_no_draft_requests(N / 2);
    rig_run();
    for (int i = 0; i < 5; i++)
        rig_ask_for(10 + i, 10, TOKENS);
    while (rig.core->n_decoding < 5)
        rig_step();
    check_no_draft_requests(TOKENS / 2);
    rig_run();
    for (int i = 0; i < 2; i++)
        rig_ask_for(20 + i, N + 10, TOKENS);
    while (rig.core->n_decoding < 2)
        rig_step();
    check_no_draft_requests(TOKENS / 2);
    rig_run();
}

/* How often a text waits for a model that never has drafts, but reads a token more each time; or
 * cannot read it. */
static int count_waits(bool reads)
{
    struct core_draft_request requests[8];
    int in_flight = 0, n_waits = 0;

    restart_with_model();
    rig_ask_for(1, 10, N);
    while (in_flight > 0 || core_busy(rig.core)) {
        const int32_t n = core_draft_requests(rig.core, requests);

        if (n > 0 && in_flight == 0)
            core_set_model_drafts(rig.core, 1, 0, NULL, 0, reads ? 1 + n_waits : -1);
        n_waits += n > 0 && in_flight == 0;
        advance(&in_flight, n == 0 || in_flight == 0);
    }
    return n_waits;
}

/* A model that reads a long text bit by bit is asked until it has; one that cannot read it seldom.
 */
TEST(a_text_that_the_model_reads)
{
    const int n = count_waits(false);

    ck_assert_int_gt(n, 0);
    ck_assert_int_lt(n, N / 10);
    ck_assert_int_gt(count_waits(true), N - 5);
}

RUN_TESTS("core_speculation", set_up, rig_end)
