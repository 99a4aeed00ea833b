/* test_core_time.c - each user's share of the time that steps take; a step takes what the core was
 * told. */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>

#include "engine/core/core_impl.h"
#include "tests/unit/core_rig.h"
#include "tests/unit/run_suite.h"

enum { MANY = 200 };

static struct step_cost cost;
static double over_us[BACKEND_IN_FLIGHT]; /* when the steps in flight are over */
static double last_us;                    /* the last one submitted */

static void set_cost(double base_us, double decode_us, double row_us)
{
    cost = (struct step_cost){.row_us = row_us};
    for (int k = 0; k < STEP_COST_POINTS; k++) {
        cost.decodes[k].n = 1 << k;
        cost.decodes[k].us = base_us + decode_us * (1 << k);
    }
}

static void set_up(void)
{
    rig_defaults();
    rig.options.max_seqs = 256;
    rig.options.block_len = 16;
    rig.options.max_seq_len = 512;
    rig.options.n_blocks = 256 * 32;
    rig.options.max_batch_tokens = 2048;
}

static void start(void)
{
    rig_start();
    core_set_cost(rig.core, &cost);
    last_us = 0;
}

/* What a newcomer waits at most: two steps in flight, each of 16 one-decode steps, and one row. */
static double in_flight_ms(void)
{
    return (2 * 16 + 1) * step_cost_us(&cost, 1, 0) / 1e3;
}

/* Two steps in flight, as the engine has them: the next is planned when the one before the last is
 * over. */
static void turn(void)
{
    const struct batch *batch;

    rig.now_us -= 1000; /* which rig_next() adds */
    batch = rig_next();
    if (batch) {
        const double begin = last_us > (double)rig.now_us ? last_us : (double)rig.now_us;

        last_us = begin + step_cost_us(&cost, batch->n_decodes, batch->n_tokens - batch->n_decodes);
        over_us[batch->step % BACKEND_IN_FLIGHT] = last_us;
    }
    if (core_in_flight(rig.core) == BACKEND_IN_FLIGHT || (!batch && core_in_flight(rig.core) > 0)) {
        const double over = over_us[(rig.core->committed + 1) % BACKEND_IN_FLIGHT];

        rig.now_us = over > (double)rig.now_us ? (uint64_t)over : rig.now_us;
        rig_commit();
    }
    rig.n_events = 0;
}

static void turns(int n)
{
    while (n-- > 0)
        turn();
}

static uint64_t ask(uint64_t client, int32_t text, int32_t n_prompt, int32_t max_tokens)
{
    struct core_request r = rig_request(text, n_prompt, max_tokens);

    r.client = client;
    return rig_ask(&r);
}

static void flood(uint64_t client)
{
    for (int32_t i = 0; i < MANY; i++)
        ask(client, 100 + (int32_t)client * 1000 + i, 10 + i % 20, 100 + i % 100);
}

static const struct request *find(uint64_t id)
{
    return id_map_get(&rig.core->requests, id);
}

/* Milliseconds from now to the end of a request. */
static double latency_ms(uint64_t id)
{
    const double from = (double)rig.now_us;

    while (find(id))
        turn();
    return ((double)rig.now_us - from) / 1e3;
}

static double alone_ms(int32_t n_prompt, int32_t n)
{
    double ms;

    start();
    ms = latency_ms(ask(2, 1, n_prompt, n));
    rig_end();
    return ms;
}

/* Where it is known that there is more than one client. */
static void start_among_several(void)
{
    start();
    (void)latency_ms(ask(2, 9, 8, 1));
}

/* Tokens a second of all that is told. */
static double rate(int n_turns)
{
    const uint64_t tokens = rig_stats().output_tokens, from = rig.now_us;

    turns(n_turns);
    return (double)(rig_stats().output_tokens - tokens) * 1e6 / (double)(rig.now_us - from);
}

/* Rows of the present step by client. */
static int32_t rows_of(uint64_t client)
{
    const struct step *st = &rig.core->steps[rig.core->planned % BACKEND_IN_FLIGHT];
    int32_t n = 0;

    for (int32_t i = 0; i < st->n_entries; i++)
        n += st->entries[i].sequence->request->client_id == client ? st->entries[i].n : 0;
    return n;
}

/* What a row costs, and what a step costs by itself: as on a CPU, on a GPU, and between. */
static const double costs[][3] = {{0, 115, 60}, {60e3, 10e3, 8e3}, {500, 30, 10}, {5000, 10, 20}};
enum { N_COSTS = sizeof(costs) / sizeof(*costs) };

/* One request among another client's two hundred takes at most twice as long as alone after the
 * steps that were in flight, whether it comes before the others have settled or after, and whatever
 * rows cost; the others have half of the time. */
START_TEST(one_among_two_hundred)
{
    for (int k = 0; k < N_COSTS * 3; k++) {
        const int32_t n_prompt = k % 3 == 2 ? 380 : 8, n = 100;
        const double *us = costs[k / 3];
        double alone, among, before, beside;
        uint64_t id;

        set_cost(us[0], us[1], us[2]);
        alone = alone_ms(n_prompt, n);
        start_among_several();
        flood(1);
        turns(k % 3 == 0 ? 3 : 60);
        before = rate(40);
        id = ask(2, 2, n_prompt, n);
        beside = (double)rig_stats().output_tokens;
        among = latency_ms(id);
        beside = ((double)rig_stats().output_tokens - beside - n) / among * 1e3;
        printf("a step %g us, %g a token: %d tokens %.1f ms alone, %.1f among %d others (%.2f "
               "times); these %.0f tokens a second, %.0f beside it\n",
               us[0], us[1], n, alone, among, MANY, among / alone, before, beside);
        ck_assert_msg(among <= 2 * alone + in_flight_ms(), "%g ms, alone %g ms", among, alone);
        ck_assert_double_gt(beside, 0.45 * before);
        rig_end();
    }
}
END_TEST

/* Where many rows take hardly longer than one, all run in each step. */
START_TEST(cheap_rows_all_run)
{
    set_cost(5000, 5, 5);
    start();
    ask(2, 1, 8, 200);
    turns(20);
    flood(1);
    turns(30);
    for (int i = 0; i < 64; i++) {
        turn();
        ck_assert_int_eq(rows_of(1), MANY);
        ck_assert_int_eq(rows_of(2), 1);
    }
    rig_end();
}
END_TEST

/* A client alone has whole steps; once there was a second one they are short, so that one that
 * comes does not wait long. */
START_TEST(steps_are_short_among_several)
{
    set_cost(0, 115, 60);
    start();
    flood(1);
    turns(100);
    ck_assert_int_gt(rows_of(1), 150);
    ask(2, 2, 8, 1);
    turns(50);
    ck_assert_ptr_null(find(rig.last_id));
    for (int i = 0; i < 50; i++) {
        turn();
        ck_assert_int_gt(rows_of(1), 8);
        ck_assert_double_le(rig.core->steps[rig.core->planned % BACKEND_IN_FLIGHT].n_decodes, 16);
    }
    rig_end();
}
END_TEST

/* Two with a request each, and a third with many: the two take about three times as long. */
START_TEST(each_of_three_has_its_share)
{
    uint64_t a, b;
    double alone, first, second;

    set_cost(0, 115, 60);
    alone = alone_ms(8, 100);
    start_among_several();
    flood(1);
    turns(50);
    a = ask(2, 2, 8, 100);
    b = ask(3, 3, 8, 100);
    first = latency_ms(a);
    second = first + latency_ms(b);
    printf("two of three: %.1f and %.1f ms, alone %.1f\n", first, second, alone);
    ck_assert_double_le(first, 3 * alone + in_flight_ms());
    ck_assert_double_le(second, 3 * alone + in_flight_ms());
    rig_end();
}
END_TEST

/* However many requests each of three clients has, each has a third of the time. */
START_TEST(three_users_have_a_third_each)
{
    int32_t n[4] = {0};

    set_cost(0, 115, 60);
    start();
    flood(1);
    for (int32_t i = 0; i < 4; i++)
        ask(3, 10 + i, 8, 120);
    ask(2, 2, 8, 200);
    turns(60);
    for (int i = 0; i < 120; i++) {
        turn();
        for (uint64_t client = 1; client <= 3; client++)
            n[client] += rows_of(client);
    }
    ck_assert_int_ge(n[2], 114);
    ck_assert_msg(n[3] * 10 > n[1] * 7 && n[3] * 7 < n[1] * 10, "%d and %d rows", n[3], n[1]);
    rig_end();
}
END_TEST

/* The other client's share bounds what it may add. */
START_TEST(shares_weigh_time)
{
    static const int32_t weights[] = {50, 100, 300};
    static const double most[] = {1.5, 2, 4};
    double last = 0;

    set_cost(0, 115, 60);
    for (int k = 0; k < 3; k++) {
        struct fair_share *shares = calloc(1, sizeof(*shares));
        double alone = alone_ms(8, 200), among;

        ck_assert_ptr_nonnull(shares);
        *shares = (struct fair_share){.client = 1, .share = weights[k]};
        start_among_several();
        core_set_shares(rig.core, shares, 1);
        flood(1);
        turns(50);
        among = latency_ms(ask(2, 2, 8, 200));
        printf("others' share %d: %.2f times\n", weights[k], among / alone);
        ck_assert_double_le(among, most[k] * alone + in_flight_ms());
        ck_assert_double_gt(among, last * 1.1);
        last = among;
        rig_end();
    }
}
END_TEST

/* However often small requests come, the many end. */
START_TEST(the_many_end)
{
    int32_t text = 5000;
    uint64_t id = 0;

    set_cost(0, 115, 60);
    start();
    for (int32_t i = 0; i < MANY / 4; i++)
        ask(1, 1000 + i, 10 + i % 20, 100 + i % 100);
    for (int i = 0; rig.core->n_requests > 1 || !find(id); i++) {
        ck_assert_int_lt(i, 200000);
        if (!find(id))
            id = ask(2, text++, 4, 30);
        turn();
    }
    rig_end();
}
END_TEST

/* Newcomers in every plan leave a client with some requests its sixth of the time. */
START_TEST(newcomers_without_end)
{
    for (int32_t n_tokens = 1; n_tokens <= 3; n_tokens++) {
        int32_t text = 5000, n = 0;
        double ms;

        set_cost(0, 115, 60);
        start();
        for (int32_t i = 0; i < 8; i++)
            ask(1, i, 8, 300);
        while (rig_stats().seqs_waiting > 0)
            turn();
        ms = -(double)rig.now_us / 1e3;
        for (int i = 0; i < 300; i++) {
            ask(2 + (uint64_t)i % 5, text++, 4, n_tokens);
            turn();
            n += rows_of(1);
        }
        ms += (double)rig.now_us / 1e3;
        printf("%d tokens each: %.1f of %.1f ms\n", n_tokens, n * 0.115, ms);
        ck_assert_double_gt(n * 0.115, 0.9 * ms / 6);
        rig_end();
    }
}
END_TEST

/* A lower priority does not shorten the steps of a higher one. */
START_TEST(priority_before_time)
{
    int32_t n = 0;

    set_cost(0, 115, 60);
    start();
    for (int32_t i = 0; i < 20; i++) {
        struct core_request r = rig_request(i, 8, 100);

        r.priority = CORE_HIGH;
        rig_ask(&r);
    }
    ask(2, 50, 8, 100);
    turns(20);
    for (int i = 0; i < 20; i++) {
        turn();
        n += rows_of(1);
    }
    ck_assert_int_ge(n, 15 * 20);
    rig_end();
}
END_TEST

int main(void)
{
    Suite *s = suite_create("core_time");
    TCase *t = tcase_create("core_time");

    tcase_add_checked_fixture(t, set_up, NULL);
    tcase_set_timeout(t, 300);
    tcase_add_test(t, one_among_two_hundred);
    tcase_add_test(t, cheap_rows_all_run);
    tcase_add_test(t, steps_are_short_among_several);
    tcase_add_test(t, each_of_three_has_its_share);
    tcase_add_test(t, three_users_have_a_third_each);
    tcase_add_test(t, shares_weigh_time);
    tcase_add_test(t, the_many_end);
    tcase_add_test(t, newcomers_without_end);
    tcase_add_test(t, priority_before_time);
    suite_add_tcase(s, t);
    return run_suite(s);
}
