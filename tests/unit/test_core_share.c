/* test_core_share.c - what one client gets while another wants all: slots, blocks, turns. */
#include <stdio.h>
#include <stdlib.h>

#include "engine/core/core_impl.h"
#include "tests/unit/core_rig.h"
#include "tests/unit/run_suite.h"

static void run_until_finished(uint64_t id)
{
    while (!rig_finished(id)) {
        rig.n_events = 0; /* a flood tells more than is kept */
        rig_step();
    }
}

static uint64_t latency_us(uint64_t id)
{
    run_until_finished(id);
    return rig_finished(id)->usage.end_us - rig_finished(id)->usage.arrival_us;
}

/* Two hundred requests of one client, more than can run, of long prompts and long answers. */
static void flood(uint64_t client)
{
    for (int32_t i = 0; i < 200; i++) {
        struct core_request r = rig_request(100 + i, 20 + i % 40, 60 + i % 30);

        r.client = client;
        ck_assert_int_eq(core_admit(rig.core, &r, rig.now_us), CORE_OK);
    }
    rig_steps(30);
}

/* One request among another client's two hundred takes at most twice as long as alone, at any
 * length, and whether it comes before the others have settled or after. */
TEST(one_among_two_hundred)
{
    static const int32_t lengths[][2] = {{4, 3}, {8, 20}, {60, 4}, {30, 100}};

    for (int k = 0; k < 4; k++) {
        int32_t n_prompt = lengths[k][0], n = lengths[k][1];
        uint64_t alone, among;

        rig.options.n_blocks = 400;
        rig_restart();
        alone = latency_us(rig_ask_of(2, 1, n_prompt, n));
        rig_restart();
        flood(1);
        among = latency_us(rig_ask_of(2, 1, n_prompt, n));
        printf("%d + %d tokens: alone %d steps, among two hundred %d\n", n_prompt, n,
               (int)(alone / 1000), (int)(among / 1000));
        ck_assert_msg(among <= 2 * alone, "%d + %d tokens: %d us, alone %d us", n_prompt, n,
                      (int)among, (int)alone);
    }
}

/* The same where not slots but blocks are what the flood has taken. */
TEST(one_among_two_hundred_without_blocks)
{
    uint64_t alone, among;

    rig.options.n_blocks = 64;
    rig.options.max_seqs = 64;
    rig_restart();
    alone = latency_us(rig_ask_of(2, 1, 40, 40));
    rig_restart();
    flood(1);
    ck_assert_int_lt(rig_stats().blocks_free + rig_stats().blocks_cached, 20);
    among = latency_us(rig_ask_of(2, 1, 40, 40));
    printf("without blocks: alone %d steps, among two hundred %d\n", (int)(alone / 1000),
           (int)(among / 1000));
    ck_assert_msg(among <= 2 * alone, "%d us, alone %d us", (int)among, (int)alone);
}

/* Small requests of one client, one after another, do not wait for blocks that another client's
 * many choices have taken: none of them waits longer than a few steps for its first token. */
TEST(small_requests_get_blocks)
{
    uint64_t most = 0;

    rig.options.n_blocks = 256;
    rig.options.max_seqs = 64;
    rig_restart();
    for (int32_t i = 0; i < 8; i++) {
        struct core_request r = rig_request(i, 40, 200);

        r.n = 16;
        rig_ask(&r);
    }
    for (int i = 0; i < 60; i++) {
        rig.n_events = 0;
        rig_step();
    }
    for (int32_t i = 0; i < 100; i++) {
        const uint64_t us = latency_us(rig_ask_of(2, 50 + i, 5, 3));

        most = us > most ? us : most;
    }
    printf("small requests without blocks: %d steps at most\n", (int)(most / 1000));
    ck_assert_uint_le(most, 6000);
}

/* Small requests of a client go ahead of its large one that does not fit, but not for ever: after
 * 64 of them the queue waits for it. */
TEST(what_fits_goes_ahead_up_to_a_bound)
{
    uint64_t large, first = 0;
    int32_t n_passed = 0;

    rig.options.n_blocks = 40;
    rig_restart();
    rig_ask_of(1, 1, 60, 100); /* holds 15 to 40 blocks, for 100 steps */
    rig_steps(2);
    large = rig_ask_of(1, 2, 120, 4);
    for (int32_t i = 0; i < 200 && !rig_finished(large); i++) {
        const uint64_t id = rig_ask_of(1, 100 + i, 3, 1);

        first = first ? first : id;
        rig_step();
        n_passed += rig_finished(id) && !rig_finished(large);
    }
    printf("%d requests went ahead of one that did not fit\n", n_passed);
    ck_assert_ptr_nonnull(rig_finished(first));
    ck_assert_int_ge(n_passed, 60);
    ck_assert_int_le(n_passed, 64);
    rig_run();
    ck_assert_ptr_nonnull(rig_finished(large));
}

/* However often a sequence is preempted, its client is charged each of its tokens once. */
TEST(preempted_sequences_are_charged_once)
{
    double before[2];

    for (int k = 0; k < 2; k++) {
        rig.options.n_blocks = k == 0 ? 64 : 14;
        rig_restart();
        for (int32_t i = 0; i < 3; i++)
            rig_ask_of(1, i, 8, 30);
        rig_ask_as(2, CORE_LOW, 9, 4, 1); /* keeps the account active */
        while (rig.core->n_requests > 0) {
            const struct request *q = CONTAINER_OF(rig.core->all.next, struct request, in_core);

            if (q->client_id == 1)
                before[k] = q->user->vtime;
            rig_step();
        }
        ck_assert(k == 0 || rig_stats().preemptions > 0);
    }
    ck_assert_double_eq_tol(before[0], before[1], 3);
}

/* Each small request pushes out at most one of the flood, which all the same is told all its tokens
 * and ends. */
TEST(yields_are_few)
{
    uint64_t ids[12];

    for (int32_t i = 0; i < 12; i++)
        ids[i] = rig_ask_of(1, i, 20, 100);
    for (int32_t i = 0; i < 10; i++) {
        uint64_t id = rig_ask_of(2, 50 + i, 8, 4);

        while (!rig_finished(id))
            rig_step();
    }
    ck_assert_uint_ge(rig.core->n_yields, 1);
    ck_assert_uint_le(rig.core->n_yields, 10);
    rig_run();
    for (int32_t i = 0; i < 12; i++)
        ck_assert_int_eq(rig_count(ids[i], CORE_TOKEN), 100);
}

/* Two clients that both want all share the slots, and do not take them from each other again and
 * again. */
TEST(two_floods_settle)
{
    rig.options.n_blocks = 400;
    rig_restart();
    flood(1);
    flood(2);
    ck_assert_uint_le(rig.core->n_yields, 4);
    for (int i = 0; i < 400; i++) {
        rig.n_events = 0;
        rig_step();
    }
    ck_assert_uint_le(rig.core->n_yields, 4 + 400 / 60 * 4); /* less than one for each that ends */
}

/* Who has three times the usual share has three times the slots. */
TEST(shares_weigh)
{
    struct fair_share *shares = calloc(1, sizeof(*shares));
    const struct request *last;

    ck_assert_ptr_nonnull(shares);
    *shares = (struct fair_share){.client = 2, .share = 3 * FAIR_USUAL_SHARE};
    rig.options.n_blocks = 400;
    rig_restart();
    core_set_shares(rig.core, shares, 1);
    flood(1);
    flood(2);
    for (int i = 0; i < 60; i++) {
        rig.n_events = 0;
        rig_step();
    }
    last = CONTAINER_OF(rig.core->all.prev, struct request, in_core);
    ck_assert_uint_eq(last->client_id, 2);
    ck_assert_int_ge(last->user->n_running, 5);
    ck_assert_int_le(last->user->n_running, 7);
}

/* A client alone has all, and one that was served more before has to wait. */
TEST(nobody_yields_for_nothing)
{
    flood(1);
    ck_assert_uint_eq(rig.core->n_yields, 0);
    rig_restart();
    for (int32_t i = 0; i < 8; i++)
        rig_ask_of(1, i, 4, 200);
    rig_ask_as(2, CORE_LOW, 20, 4, 4); /* of lower class */
    rig_steps(50);
    ck_assert_uint_eq(rig.core->n_yields, 0);
    rig_run();
}

/* However often it was preempted, one of lower class goes before one of higher. */
TEST(class_before_all_else)
{
    uint64_t low, normal[2];

    rig.options.n_blocks = 14;
    rig.options.max_preemptions = 0; /* all are used up at once: the lowest class goes still */
    rig_restart();
    normal[0] = rig_ask_of(1, 1, 8, 20);
    low = rig_ask_as(1, CORE_LOW, 3, 8, 20);
    rig_step();
    normal[1] = rig_ask_of(1, 2, 8, 20);
    rig_run();
    ck_assert_int_eq(rig_finished(normal[0])->usage.preemptions, 0);
    ck_assert_int_eq(rig_finished(normal[1])->usage.preemptions, 0);
    ck_assert_int_ge(rig_finished(low)->usage.preemptions, 1);
}

/* When blocks run out the client that has most of them gives way, though another's is newer. */
TEST(who_has_most_blocks_gives_way)
{
    uint64_t first, big, small;

    rig.options.n_blocks = 30;
    rig_restart();
    first = rig_ask_of(1, 1, 40, 40);
    big = rig_ask_of(1, 2, 40, 30);
    rig_steps(3);
    small = rig_ask_of(2, 3, 4, 30);
    rig_run();
    ck_assert_int_eq(rig_finished(small)->usage.preemptions, 0);
    ck_assert_int_eq(rig_finished(first)->usage.preemptions, 0);
    ck_assert_int_ge(rig_finished(big)->usage.preemptions, 1);
}

/* A long prompt keeps another client's short one waiting for a step, not for all its chunks. */
TEST(long_prompt_lets_others_begin)
{
    uint64_t id;

    rig.options.n_blocks = 128;
    rig_restart();
    rig_ask_of(1, 1, 240, 2); /* eight steps */
    rig_step();
    id = rig_ask_of(2, 2, 20, 1);
    rig_steps(2);
    ck_assert_ptr_nonnull(rig_finished(id));
    rig_run();
}

/* What is counted for a client is what it has. */
TEST(use_is_counted)
{
    struct core_request r = rig_request(1, 20, 4);
    const struct fair_user *use;

    r.n = 12;
    rig_ask(&r);
    use = CONTAINER_OF(rig.core->all.next, struct request, in_core)->user;
    ck_assert_int_eq(use->n_waiting, 12);
    rig_steps(2);
    ck_assert_int_eq(use->n_running, 8);
    ck_assert_int_eq(use->n_waiting, 4);
    ck_assert_int_eq(use->n_blocks, rig_stats().blocks_used);
    rig_run(); /* leaving asserts that all is zero */
}

RUN_TESTS("core_share", rig_set_up, rig_end)
