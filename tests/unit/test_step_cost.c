/* test_step_cost.c - what a step takes, by what others took. */
#include <math.h>
#include <stdlib.h>

#include "engine/step_cost.h"
#include "tests/unit/run_suite.h"

static struct step_cost cost;

static void set_up(void)
{
    cost = (struct step_cost){.row_us = 0};
}

static void learn(int n, int32_t n_decodes, double us)
{
    while (n-- > 0)
        step_cost_learn(&cost, n_decodes, 0, us);
}

/* Nothing seen, nothing known. */
TEST(nothing_is_foreseen_of_nothing)
{
    cost.row_us = 10;
    ck_assert_double_eq(step_cost_us(&cost, 1, 0), 0);
    ck_assert_double_eq(step_cost_us(&cost, 200, 300), 0);
    ck_assert_double_eq(step_cost_us(&cost, 0, 0), 0);
}

/* Between two points seen, and above them, there is a line; below the first it goes to nothing. */
TEST(points_make_a_line)
{
    learn(1, 4, 400);
    ck_assert_double_eq_tol(step_cost_us(&cost, 1, 0), 100, 1e-6);
    ck_assert_double_eq_tol(step_cost_us(&cost, 8, 0), 800, 1e-6); /* as far as is known */
    learn(1, 64, 1000);
    ck_assert_double_eq_tol(step_cost_us(&cost, 34, 0), 700, 1e-6);
    ck_assert_double_eq_tol(step_cost_us(&cost, 124, 0), 1600, 1e-6);
    learn(1, INT32_MAX, 2000);
    ck_assert_double_le(step_cost_us(&cost, INT32_MAX, 0), 2000);
}

/* Prompts add for each row, at most as much as a decode where nothing is known of them; alone they
 * take as long as a decode at least. */
TEST(prompts_add)
{
    learn(1, 1, 100);
    learn(1, 2, 110);
    ck_assert_double_eq_tol(step_cost_us(&cost, 1, 3), 400, 1e-6);
    cost.row_us = 7;
    ck_assert_double_eq_tol(step_cost_us(&cost, 2, 10), 180, 1e-6);
    ck_assert_double_eq_tol(step_cost_us(&cost, 0, 10), 100, 1e-6);
    ck_assert_double_eq_tol(step_cost_us(&cost, 0, 100), 700, 1e-6);
}

/* What is the same for every size comes to be known of each: steps of other sizes scale. */
TEST(points_follow)
{
    learn(1, 16, 5000);
    learn(40, 24, 2400);
    ck_assert_double_eq_tol(step_cost_us(&cost, 16, 0), 1600, 1);
    learn(40, 16, 4000);
    ck_assert_double_eq_tol(step_cost_us(&cost, 16, 0), 4000, 1);
}

/* Now and then a step takes ten times as long, and now and then the next one seems to take nothing:
 * that changes little. */
TEST(one_step_changes_little)
{
    for (int i = 0; i < 300; i++)
        learn(1, 1, i % 5 == 0 ? 1000 : i % 5 == 1 ? 1 : 100);
    ck_assert_double_ge(step_cost_us(&cost, 1, 0), 75);
    ck_assert_double_le(step_cost_us(&cost, 1, 0), 130);
}

/* More rows never take less, nor longer than one by one, whatever some step says. */
TEST(costs_grow_and_pay)
{
    double last = 0;

    learn(1, 1, 100);
    learn(1, 2, 90000); /* held up */
    learn(1, 8, 50);
    learn(1, 100, 900);
    for (int32_t n = 1; n < 300; n++) {
        const double us = step_cost_us(&cost, n, 0);

        ck_assert_double_ge(us, last);
        ck_assert_double_le(us, 100.0 * n);
        last = us;
    }
}

/* A device: what a step of decodes takes, and each prompt row more. */
static double device_us(int32_t n_decodes, int32_t n_rows, double base, double decode, double row)
{
    return base + n_decodes * decode + n_rows * row;
}

/* Steps with prompts come to the bound and stay there, from too few rows and from too many; without
 * decodes to twice the bound. */
TEST(steps_come_to_the_bound)
{
    static const double rows[] = {2, 20, 300};

    for (int k = 0; k < 3; k++) {
        for (int32_t n_decodes = 0; n_decodes <= 64; n_decodes += 32) {
            const double bound = n_decodes > 0 ? 50e3 : 100e3;
            double us = 0;
            int32_t n;

            cost = (struct step_cost){.max_step_us = 50e3};
            ck_assert_int_eq(step_cost_rows(&cost, n_decodes), 512);
            if (n_decodes > 0)
                learn(10, n_decodes, device_us(n_decodes, 0, 3000, 100, 0));
            for (int i = 0; i < 60; i++) {
                n = step_cost_rows(&cost, n_decodes);
                us = device_us(n_decodes, n, n_decodes > 0 ? 3000 : 0, 100, rows[k]);
                step_cost_learn(&cost, n_decodes, n, us);
            }
            ck_assert_double_ge(us, 0.9 * bound);
            ck_assert_double_le(us, 1.1 * bound);
        }
    }
}

/* A burst after a time of single streams: prompts whose answers begin one by one. No step takes
 * much more than the bound although nothing was recorded of so many decodes, and what these and
 * rows take is about right at the end. */
TEST(a_burst_after_single_streams_keeps_the_bound)
{
    double longest = 0;

    cost.max_step_us = 50e3;
    step_cost_learn(&cost, 0, 448, device_us(0, 448, 5000, 65, 21.5));
    learn(128, 1, device_us(1, 0, 5300, 65, 21.5));
    for (int i = 0; i < 128; i++) {
        const int32_t n = step_cost_rows(&cost, i);
        const double us = device_us(i, n, 5300, 65, 21.5);

        if (i > 0)
            longest = fmax(longest, us);
        step_cost_learn(&cost, i, n, us);
    }
    ck_assert_double_le(longest, 1.1 * 50e3);
    ck_assert_double_ge(step_cost_us(&cost, 127, 0), 0.4 * device_us(127, 0, 5300, 65, 21.5));
    ck_assert_double_le(step_cost_us(&cost, 127, 0), 2 * device_us(127, 0, 5300, 65, 21.5));
    ck_assert_double_ge(cost.row_us, 0.8 * 21.5);
    ck_assert_double_le(cost.row_us, 1.4 * 21.5);
}

/* Where the first step of so many decodes has prompts and is held up, the bound is met again as
 * soon as a step has shown what they take. */
TEST(a_held_up_first_step_does_not_last)
{
    double us = 0;

    cost.max_step_us = 50e3;
    cost.row_us = 20;
    learn(2, 2, 5000);
    step_cost_learn(&cost, 64, 500, 5e6);
    for (int i = 0; i < 150; i++) {
        const int32_t n = step_cost_rows(&cost, 64);

        us = device_us(64, n, 5000, 100, 20);
        step_cost_learn(&cost, 64, n, us);
    }
    ck_assert_double_le(us, 1.1 * 50e3);
    ck_assert_double_eq_tol(step_cost_us(&cost, 64, 0), device_us(64, 0, 5000, 100, 20), 500);
}

/* After 64 steps with prompts one with a single row shows what decodes take, the first time as
 * later; where it showed nothing that is not repeated at once. */
TEST(decodes_are_looked_at)
{
    cost.max_step_us = 50e3;
    learn(1, 1, 5000);
    for (int look = 0; look < 4; look++) {
        for (int i = 0; i < 64; i++) {
            ck_assert_int_gt(step_cost_rows(&cost, 8), 1);
            step_cost_skip(&cost); /* shows nothing, but puts off nothing, either */
            step_cost_learn(&cost, 8, 1000, device_us(8, 1000, 5000, 100, 20));
        }
        ck_assert_int_eq(step_cost_rows(&cost, 8), 1);
        if (look % 2 == 0) {
            step_cost_skip(&cost);
            continue;
        }
        step_cost_learn(&cost, 8, 1, device_us(8, 1, 5000, 100, 20));
        ck_assert_double_eq_tol(step_cost_us(&cost, 8, 0), device_us(8, 0, 5000, 100, 20), 10);
    }
}

/* One step of each hundred is held up, the first of all among them: it is the bound of nearly all
 * others that is met. */
TEST(hold_ups_do_not_last)
{
    int too_long = 0;

    cost.max_step_us = 50e3;
    for (int i = 0; i < 20000; i++) {
        const int32_t n_decodes = i / 1000 % 2 ? 1 + i % 128 : 8;
        const int32_t n = i < 2 ? 400 : step_cost_rows(&cost, n_decodes);
        const double us = device_us(n_decodes, n, 5300, 65, 21.5);

        too_long += us > 1.2 * 50e3;
        step_cost_learn(&cost, i < 1 ? 0 : n_decodes, n, i % 100 == 1 ? us + 1e6 : us);
    }
    ck_assert_int_le(too_long, 100);
}

/* However dear they are, some rows go on; where decodes alone take long, a step may take three
 * times as long as they do. */
TEST(prompts_go_on)
{
    cost = (struct step_cost){.max_step_us = 50e3, .row_us = 10e3};
    ck_assert_int_eq(step_cost_rows(&cost, 0), 128);
    learn(1, 4, 45e3);
    ck_assert_int_eq(step_cost_rows(&cost, 4), 16);
    cost.row_us = 100;
    learn(40, 4, 100e3);
    ck_assert_int_ge(step_cost_rows(&cost, 4), 1900);
    ck_assert_int_le(step_cost_rows(&cost, 4), 2100);
    cost.max_step_us = 0;
    ck_assert_int_eq(step_cost_rows(&cost, 4), INT32_MAX);
}

/* The cost of a short first prompt, most of it not its rows', does not stay; nor does one step that
 * something held up, nor rows that were dear for a while. */
TEST(a_wrong_idea_does_not_last)
{
    cost.max_step_us = 50e3;
    learn(8, 32, 6000);
    step_cost_learn(&cost, 0, 2, 4000);
    for (int i = 0; i < 40; i++)
        step_cost_learn(&cost, 32, 500, 6000 + 500 * 20);
    ck_assert_double_le(cost.row_us, 22);
    step_cost_learn(&cost, 32, 500, 500e3);
    ck_assert_double_le(cost.row_us, 25);
    for (int i = 0; i < 20; i++)
        step_cost_learn(&cost, 32, 500, 6000 + 500 * 80);
    ck_assert_double_ge(cost.row_us, 70);
    for (int i = 0; i < 40; i++)
        step_cost_learn(&cost, 32, 500, 6000 + 500 * 20);
    ck_assert_double_le(cost.row_us, 22);
    ck_assert_double_ge(cost.row_us, 18);
}

/* Decodes that become dearer or cheaper under a load of prompts are followed: prompts get fewer
 * rows until they hardly count, which shows what decodes take. */
TEST(decodes_are_learnt_beside_prompts)
{
    for (int k = 0; k < 2; k++) {
        const double now = k ? 5e3 : 80e3;
        double us = 0;

        cost = (struct step_cost){.max_step_us = 50e3, .row_us = 50};
        learn(20, 32, k ? 80e3 : 5e3);
        for (int i = 0; i < 2000; i++) {
            const int32_t n = step_cost_rows(&cost, 32);

            us = now + n * 50.0;
            step_cost_learn(&cost, 32, n, us);
        }
        ck_assert_double_le(us, fmax(50e3, 3 * now) * 1.1);
    }
}

/* Where each second step is committed late, so that the next seems to take nothing, the costs are
 * right all the same. */
TEST(late_commits_even_out)
{
    for (int i = 0; i < 400; i++)
        learn(1, 32, i % 2 ? 1900 : 100);
    ck_assert_double_ge(step_cost_us(&cost, 32, 0), 850);
    ck_assert_double_le(step_cost_us(&cost, 32, 0), 1150);
}

/* Steps with drafts are apart, by their rows; the first of a size is not learned. Where nothing is
 * known they take as long as the decodes, and what is known fades while there are none. */
TEST(drafts_have_points_of_their_own)
{
    learn(3, 1, 100);
    ck_assert_double_eq(step_cost_draft_us(&cost, 1, 8), 100);
    step_cost_learn_drafts(&cost, 9, 5000);
    ck_assert_double_eq(step_cost_draft_us(&cost, 1, 8), 100);
    step_cost_learn_drafts(&cost, 9, 300);
    ck_assert_double_eq(step_cost_draft_us(&cost, 1, 8), 300);
    ck_assert_double_eq(step_cost_draft_us(&cost, 1, 15), 300);
    ck_assert_double_eq(step_cost_draft_us(&cost, 1, 7), 100);
    ck_assert_double_eq(step_cost_us(&cost, 9, 0), 900); /* of what decodes showed */
    step_cost_learn_drafts(&cost, 9, 1e9);
    ck_assert_double_lt(step_cost_draft_us(&cost, 1, 8), 340);
    learn(300, 1, 100);
    ck_assert_double_eq_tol(step_cost_draft_us(&cost, 1, 8), 100, 5);
}

/* What a draft model takes is unknown until it has been seen a few times, and then the shortest of
 * them; later it follows what comes, a little at a time. */
TEST(a_draft_model_is_known_after_five_steps)
{
    static const double times_us[] = {90000, 400, 100, 300, 200};

    for (int i = 0; i < 5; i++) {
        ck_assert_double_eq(step_cost_model_us(&cost), 0);
        step_cost_learn_model(&cost, times_us[i]);
    }
    ck_assert_double_eq(step_cost_model_us(&cost), 100);
    step_cost_learn_model(&cost, 1e9);
    ck_assert_double_lt(step_cost_model_us(&cost), 120);
    for (int i = 0; i < 100; i++)
        step_cost_learn_model(&cost, 50);
    ck_assert_double_eq_tol(step_cost_model_us(&cost), 50, 1);
}

RUN_TESTS("step_cost", set_up, NULL)
