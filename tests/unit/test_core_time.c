/* test_core_time.c - each user's share of the time that steps take; a step takes what the core was
 * told. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/core/core_impl.h"
#include "tests/unit/core_rig.h"
#include "tests/unit/run_suite.h"

enum { MANY = 200 };

static struct step_cost cost;
static double over_us[BACKEND_IN_FLIGHT]; /* when the steps in flight are over */
static double last_us;                    /* the last one submitted */
static uint64_t mask_us;                  /* that each mask takes */
static uint32_t any_token[40];

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
    rig.options.mask_words = N(any_token);
    memset(any_token, 0xff, sizeof(any_token));
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

/* The masks that follow from what has just been told: the step in flight waits for them. */
static void make_masks(void)
{
    LIST_EACH (struct request, q, in_core, &rig.core->all) {
        if (!q->masks || q->choices[0].masks)
            continue;
        ck_assert(core_set_mask(rig.core, q->id, 0, any_token, 1));
        if (q->choices[0].n_generated == 0) /* known before */
            continue;
        core_add_mask_time(rig.core, q->id, mask_us);
        rig.now_us += mask_us;
    }
    if (core_in_flight(rig.core) > 0 && last_us < (double)rig.now_us)
        last_us = over_us[rig.core->planned % BACKEND_IN_FLIGHT] = (double)rig.now_us;
}

/* Two steps in flight, as the engine has them: the next is planned when the one before the last is
 * over. */
static void step_once(void)
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
    make_masks();
    rig.n_events = 0;
}

static void step_times(int n)
{
    while (n-- > 0)
        step_once();
}

static void flood(uint64_t client)
{
    for (int32_t i = 0; i < MANY; i++)
        rig_ask_of(client, 100 + (int32_t)client * 1000 + i, 10 + i % 20, 100 + i % 100);
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
        step_once();
    return ((double)rig.now_us - from) / 1e3;
}

static double alone_ms(int32_t n_prompt, int32_t n)
{
    double ms;

    start();
    ms = latency_ms(rig_ask_of(2, 1, n_prompt, n));
    rig_end();
    return ms;
}

/* Where it is known that there is more than one client. */
static void start_among_several(void)
{
    start();
    (void)latency_ms(rig_ask_of(2, 9, 8, 1));
}

/* Tokens a second of all that is told. */
static double rate(int n)
{
    const uint64_t tokens = rig_stats().output_tokens, from = rig.now_us;

    step_times(n);
    return (double)(rig_stats().output_tokens - tokens) * 1e6 / (double)(rig.now_us - from);
}

/* Rows of the present step by client. */
static int32_t rows_of(uint64_t client)
{
    const struct step *st = &rig.core->steps[rig.core->planned % BACKEND_IN_FLIGHT];
    int32_t n = 0;

    for (int32_t i = 0; i < st->head.n_seqs; i++)
        n += st->entries[i].sequence->request->client_id == client ? st->entries[i].n : 0;
    return n;
}

/* What a row costs, and what a step costs by itself: as on a CPU, on a GPU, and between. */
static const double costs[][3] = {{0, 115, 60}, {60e3, 10e3, 8e3}, {500, 30, 10}, {5000, 10, 20}};
enum { N_COSTS = N(costs) };

/* One request among another client's two hundred takes at most twice as long as alone after the
 * steps that were in flight, whether it comes before the others have settled or after, and whatever
 * rows cost; the others have half of the time. */
TEST(one_among_two_hundred, .timeout = 300)
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
        step_times(k % 3 == 0 ? 3 : 60);
        before = rate(40);
        id = rig_ask_of(2, 2, n_prompt, n);
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

/* Where many rows take hardly longer than one, all run in each step. */
TEST(cheap_rows_all_run, .timeout = 300)
{
    set_cost(5000, 5, 5);
    start();
    rig_ask_of(2, 1, 8, 200);
    step_times(20);
    flood(1);
    step_times(30);
    for (int i = 0; i < 64; i++) {
        step_once();
        ck_assert_int_eq(rows_of(1), MANY);
        ck_assert_int_eq(rows_of(2), 1);
    }
    rig_end();
}

/* A client alone has whole steps; once there was a second one they are short, so that one that
 * comes does not wait long. */
TEST(steps_are_short_among_several, .timeout = 300)
{
    set_cost(0, 115, 60);
    start();
    flood(1);
    step_times(100);
    ck_assert_int_gt(rows_of(1), 150);
    rig_ask_of(2, 2, 8, 1);
    step_times(50);
    ck_assert_ptr_null(find(rig.last_id));
    for (int i = 0; i < 50; i++) {
        step_once();
        ck_assert_int_gt(rows_of(1), 8);
        ck_assert_double_le(rig.core->steps[rig.core->planned % BACKEND_IN_FLIGHT].head.n_decodes,
                            16);
    }
    rig_end();
}

/* Two with a request each, and a third with many: the two take about three times as long. */
TEST(each_of_three_has_its_share, .timeout = 300)
{
    uint64_t a, b;
    double alone, first, second;

    set_cost(0, 115, 60);
    alone = alone_ms(8, 100);
    start_among_several();
    flood(1);
    step_times(50);
    a = rig_ask_of(2, 2, 8, 100);
    b = rig_ask_of(3, 3, 8, 100);
    first = latency_ms(a);
    second = first + latency_ms(b);
    printf("two of three: %.1f and %.1f ms, alone %.1f\n", first, second, alone);
    ck_assert_double_le(first, 3 * alone + in_flight_ms());
    ck_assert_double_le(second, 3 * alone + in_flight_ms());
    rig_end();
}

/* However many requests each of three clients has, each has a third of the time. */
TEST(three_users_have_a_third_each, .timeout = 300)
{
    int32_t n[4] = {0};

    set_cost(0, 115, 60);
    start();
    flood(1);
    for (int32_t i = 0; i < 4; i++)
        rig_ask_of(3, 10 + i, 8, 120);
    rig_ask_of(2, 2, 8, 200);
    step_times(60);
    for (int i = 0; i < 120; i++) {
        step_once();
        for (uint64_t client = 1; client <= 3; client++)
            n[client] += rows_of(client);
    }
    ck_assert_int_ge(n[2], 114);
    ck_assert_msg(n[3] * 10 > n[1] * 7 && n[3] * 7 < n[1] * 10, "%d and %d rows", n[3], n[1]);
    rig_end();
}

static void flood_with_masks(uint64_t client, int32_t n)
{
    for (int32_t i = 0; i < n; i++) {
        struct core_request r = rig_request(100 + (int32_t)client * 1000 + i, 8, 400);

        r.client = client;
        r.masks = true;
        rig_ask(&r);
    }
    make_masks();
}

/* However long another client's masks take, a request has half of the time after the steps that
 * were in flight, and the masks of three rows. */
TEST(beside_slow_masks, .timeout = 300)
{
    static const struct {
        double cost[3];
        uint64_t mask_us;
    } cases[] = {{{4000, 30, 10}, 50},    {{4000, 30, 10}, 300},    {{4000, 30, 10}, 2700},
                 {{4000, 30, 10}, 26000}, {{4000, 30, 10}, 300000}, {{700, 5, 2}, 26000}};
    const int32_t n = 300;

    for (size_t k = 0; k < N(cases); k++) {
        const double *us = cases[k].cost;
        double alone, among;

        set_cost(us[0], us[1], us[2]);
        mask_us = cases[k].mask_us;
        alone = alone_ms(8, n);
        start_among_several();
        flood_with_masks(1, 32);
        step_times(60);
        among = latency_ms(rig_ask_of(2, 2, 8, n));
        printf("a step %g us: 32 masks of %d us: %.2f times as long as alone\n", us[0],
               (int)mask_us, among / alone);
        ck_assert_double_le(among, 2 * alone + in_flight_ms() + 3e-3 * (double)mask_us);
        ck_assert_int_eq(rig.core->n_requests, 32); /* they are still there */
        rig_end();
    }
}

/* Rows with masks of the present step. */
static int32_t n_masked_rows(void)
{
    const struct step *st = &rig.core->steps[rig.core->planned % BACKEND_IN_FLIGHT];
    int32_t n = 0;

    for (int32_t i = 0; i < st->head.n_seqs; i++)
        n += st->entries[i].wanted && st->entries[i].sequence->request->masks;
    return n;
}

/* Many prompts whose ends are sampled from, and so have masks, do not all end in one step. */
TEST(prompts_with_masks_end_one_after_another, .timeout = 300)
{
    set_cost(4000, 30, 10);
    mask_us = 2700;
    start_among_several();
    flood_with_masks(1, 1);
    rig_ask_of(2, 2, 8, 400);
    step_times(20);
    flood_with_masks(1, 32);
    for (int i = 0; i < 60; i++) {
        step_once();
        ck_assert_int_le(n_masked_rows(), 3);
    }
    rig_end();
}

/* One of slow masks goes on beside prompts of its own client that never end, and though another
 * client comes first by what it was charged. */
TEST(slow_masks_go_on_beside_prompts, .timeout = 300)
{
    int32_t text = 50000, n = 0;

    set_cost(0, 115, 60);
    mask_us = 26000;
    start_among_several();
    flood_with_masks(1, 1);
    rig_ask_of(2, 2, 8, 400);
    for (int i = 0; i < 300; i++) {
        rig_ask_of(1, text++, 30, 1);
        step_once();
        n += n_masked_rows();
    }
    printf("%d rows with masks beside prompts\n", n);
    ck_assert_int_ge(n, 3);
    rig_end();
}

/* A prompt of slow masks begins to answer beside many decodes of its own client, and though another
 * client comes first by what it was charged. */
TEST(slow_masks_begin_beside_decodes, .timeout = 300)
{
    const struct request *q;
    int n = 0;

    set_cost(4000, 30, 10);
    mask_us = 26000;
    start_among_several();
    flood_with_masks(1, 1);
    step_times(10);
    rig_ask_of(2, 2, 8, 500);
    for (int32_t i = 0; i < 30; i++)
        rig_ask_of(1, 5000 + i, 8, 500);
    step_times(40);
    flood_with_masks(1, 2);
    q = find(rig.last_id);
    for (; q->choices[0].n_generated == 0; n++) {
        ck_assert_int_lt(n, 60);
        step_once();
    }
    printf("a prompt of slow masks began after %d steps beside decodes\n", n);
    rig_end();
}

/* Masks that are made while the device computes cost their client nothing; where they take longer
 * than all that it computes, the time is shared. */
TEST(masks_are_charged_where_they_delay, .timeout = 300)
{
    static const uint64_t us[] = {0, 50, 115, 2000};
    int32_t n[N(us)][2] = {0};

    set_cost(0, 115, 60);
    for (size_t k = 0; k < N(us); k++) {
        start_among_several();
        mask_us = us[k];
        flood_with_masks(1, 32);
        for (int32_t i = 0; i < 32; i++)
            rig_ask_of(2, 5000 + i, 8, 400);
        step_times(100);
        for (int i = 0; i < 300; i++) {
            step_once();
            n[k][0] += rows_of(1);
            n[k][1] += rows_of(2);
        }
        printf("masks of %d us: %d rows with, %d without\n", (int)us[k], n[k][0], n[k][1]);
        rig_end();
    }
    for (int k = 0; k < 3; k++)
        ck_assert_int_le(abs(n[k][0] - n[k][1]), n[k][1] / 50);
    ck_assert_int_lt(n[3][0], n[3][1] / 4);
    ck_assert_int_gt(n[3][0], 100);
}

/* The other client's share bounds what it may add. */
TEST(shares_weigh_time, .timeout = 300)
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
        step_times(50);
        among = latency_ms(rig_ask_of(2, 2, 8, 200));
        printf("others' share %d: %.2f times\n", weights[k], among / alone);
        ck_assert_double_le(among, most[k] * alone + in_flight_ms());
        ck_assert_double_gt(among, last * 1.1);
        last = among;
        rig_end();
    }
}

/* However often small requests come, the many end. */
TEST(the_many_end, .timeout = 300)
{
    int32_t text = 5000;
    uint64_t id = 0;

    set_cost(0, 115, 60);
    start();
    for (int32_t i = 0; i < MANY / 4; i++)
        rig_ask_of(1, 1000 + i, 10 + i % 20, 100 + i % 100);
    for (int i = 0; rig.core->n_requests > 1 || !find(id); i++) {
        ck_assert_int_lt(i, 200000);
        if (!find(id))
            id = rig_ask_of(2, text++, 4, 30);
        step_once();
    }
    rig_end();
}

/* Newcomers in every plan leave a client with some requests its sixth of the time. */
TEST(newcomers_without_end, .timeout = 300)
{
    for (int32_t n_tokens = 1; n_tokens <= 3; n_tokens++) {
        int32_t text = 5000, n = 0;
        double ms;

        set_cost(0, 115, 60);
        start();
        for (int32_t i = 0; i < 8; i++)
            rig_ask_of(1, i, 8, 300);
        while (rig_stats().seqs_waiting > 0)
            step_once();
        ms = -(double)rig.now_us / 1e3;
        for (int i = 0; i < 300; i++) {
            rig_ask_of(2 + (uint64_t)i % 5, text++, 4, n_tokens);
            step_once();
            n += rows_of(1);
        }
        ms += (double)rig.now_us / 1e3;
        printf("%d tokens each: %.1f of %.1f ms\n", n_tokens, n * 0.115, ms);
        ck_assert_double_gt(n * 0.115, 0.9 * ms / 6);
        rig_end();
    }
}

/* A lower priority does not shorten the steps of a higher one. */
TEST(priority_before_time, .timeout = 300)
{
    int32_t n = 0;

    set_cost(0, 115, 60);
    start();
    for (int32_t i = 0; i < 20; i++) {
        struct core_request r = rig_request(i, 8, 100);

        r.priority = CORE_HIGH;
        rig_ask(&r);
    }
    rig_ask_of(2, 50, 8, 100);
    step_times(20);
    for (int i = 0; i < 20; i++) {
        step_once();
        n += rows_of(1);
    }
    ck_assert_int_ge(n, 15 * 20);
    rig_end();
}

RUN_TESTS("core_time", set_up, NULL)
