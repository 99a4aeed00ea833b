/* test_pace.c - the pace of prompts beside decodes, on a device whose costs are known. */
#include <check.h>
#include <math.h>
#include <stdlib.h>

#include "engine/pace.h"
#include "tests/unit/run_suite.h"

/* Steps of so many decodes, each with as many prompt rows as may be; the last one's microseconds.
 */
static double run(struct pace *p, int n, int32_t n_decodes, double decode_us, double row_us)
{
    double us = 0;

    for (int i = 0; i < n; i++) {
        us = decode_us + row_us * p->rows;
        pace_learn(p, n_decodes, p->rows, us);
    }
    return us;
}

/* With no bound prompts may take the whole step, whatever it costs. */
START_TEST(no_bound_is_no_bound)
{
    struct pace p;

    pace_init(&p, 0, 8192);
    ck_assert_double_gt(run(&p, 50, 100, 1e4, 1e3), 1e6);
    pace_learn(&p, 0, 8192, 1e9);
    ck_assert_int_eq(p.rows, 8192);
    ck_assert_int_eq(p.alone_rows, 8192);
}
END_TEST

/* The step comes to the bound and stays there; from too few rows at first, and from too many. */
START_TEST(steps_come_to_the_bound)
{
    static const double row_us[] = {2.5, 24, 150};

    for (int i = 0; i < 3; i++) {
        struct pace p;
        double us;

        pace_init(&p, 50e3, 1 << 20);
        pace_learn(&p, 0, 2048, row_us[i] * 2048 + 3000);
        (void)run(&p, 100, 64, 10e3, row_us[i]);
        us = run(&p, 20, 64, 10e3, row_us[i]);
        ck_assert_msg(us > 40e3 && us < 58e3, "row_us %g: %g", row_us[i], us);
    }
}
END_TEST

/* Where nothing can be cut any more, a few rows go on, and what fits is not cut. */
START_TEST(rows_stay_within_their_limits)
{
    struct pace p;

    pace_init(&p, 50e3, 2048);
    (void)run(&p, 100, 64, 1e3, 1.0);
    ck_assert_int_eq(p.rows, 2048);
    (void)run(&p, 100, 64, 1e3, 1e6);
    ck_assert_int_eq(p.rows, 16);
    pace_init(&p, 50e3, 4);
    (void)run(&p, 100, 64, 1e3, 1e6);
    ck_assert_int_eq(p.rows, 4);
}
END_TEST

/* A device that takes long for decodes alone may take three times as long, not one row a step. */
START_TEST(slow_devices_stretch)
{
    struct pace p;
    double us;

    pace_init(&p, 50e3, 2048);
    for (int i = 0; i < 20; i++)
        pace_learn(&p, 4, 0, 400e3);
    pace_learn(&p, 0, 200, 200 * 20e3);
    (void)run(&p, 60, 4, 400e3, 20e3);
    us = run(&p, 1, 4, 400e3, 20e3);
    ck_assert_msg(us > 800e3 && us < 1500e3, "%g", us);
}
END_TEST

/* Steps of prompts alone come to twice the bound, at once where rows grow dear step by step,
 * as those of a long prompt do, and soon grow where they become cheap again. */
START_TEST(prompts_alone_are_bounded)
{
    struct pace p;
    double us = 0;
    int n;

    pace_init(&p, 50e3, 8192);
    ck_assert_int_le(p.alone_rows, 512);
    for (double row_us = 20; row_us < 700; row_us *= 1.1) {
        us = row_us * p.alone_rows;
        ck_assert_msg(us < 1.3 * 100e3, "a row %g: %g", row_us, us);
        pace_learn(&p, 0, p.alone_rows, us);
    }
    ck_assert_double_gt(us, 0.7 * 100e3);
    for (n = 0; p.alone_rows < 8192; n++) {
        ck_assert_int_lt(n, 12);
        pace_learn(&p, 0, p.alone_rows, 10.0 * p.alone_rows);
    }
}
END_TEST

/* However dear, prompts alone go on by what fills a tile, or all where a step has less. */
START_TEST(prompts_alone_have_the_fewest_rows)
{
    static const int32_t max_rows[] = {2048, 100};

    for (int i = 0; i < 2; i++) {
        struct pace p;

        pace_init(&p, 50e3, max_rows[i]);
        for (int k = 0; k < 5; k++)
            pace_learn(&p, 0, p.alone_rows, 1e5 * p.alone_rows);
        ck_assert_int_eq(p.alone_rows, i == 0 ? 128 : 100);
    }
}
END_TEST

/* The cost of a short first prompt, most of it not its rows', does not stay. */
START_TEST(a_wrong_idea_does_not_last)
{
    struct pace p;
    double us;

    pace_init(&p, 50e3, 8192);
    p.row_us = 5e3; /* as bad as can be */
    for (int i = 0; i < 5; i++)
        pace_learn(&p, 64, p.rows, 10e3 + 24.0 * p.rows);
    (void)run(&p, 60, 64, 10e3, 24);
    us = run(&p, 1, 64, 10e3, 24);
    ck_assert_msg(us > 35e3 && us < 60e3, "%g", us);
}
END_TEST

/* One step that something held up does not change what the next ones may do. */
START_TEST(one_long_step_is_forgotten)
{
    struct pace p;
    int32_t before;

    pace_init(&p, 50e3, 8192);
    pace_learn(&p, 0, 2048, 24.0 * 2048);
    (void)run(&p, 100, 64, 10e3, 24);
    before = p.rows;
    pace_learn(&p, 64, p.rows, 2e6);
    (void)run(&p, 10, 64, 10e3, 24);
    ck_assert_int_ge(p.rows * 10, before * 7);
    ck_assert_int_le(p.rows * 10, before * 14);
}
END_TEST

/* Steps of a steady load, the next one planned before the last one is over: the mean time of the
 * second half of them, and at *n_over how many of these took 1.15 times as long as they may. */
static double run_steadily(struct pace *p, int n, double decode_us, double row_us, int *n_over)
{
    double sum = 0, us;
    int32_t rows = p->rows, next = p->rows;

    *n_over = 0;
    for (int i = 0; i < n; i++) {
        us = decode_us + row_us * rows;
        sum += i >= n / 2 ? us : 0;
        *n_over += i >= n / 2 && us > 1.15 * fmax(50e3, 3 * decode_us);
        pace_learn(p, 200, rows, us);
        rows = next;
        next = p->rows;
    }
    return sum / (n - n / 2);
}

/* Under a load that never pauses two steps that something held up do not lift the bound. */
START_TEST(two_long_steps_are_forgotten)
{
    static const int32_t max_rows[] = {2048, 16384};
    static const double first_us[] = {300e3, 1e6};

    for (int i = 0; i < 4; i++) {
        struct pace p;
        double us;
        int n_over;

        pace_init(&p, 50e3, max_rows[i % 2]);
        (void)run_steadily(&p, 300, 10e3, 30, &n_over);
        pace_learn(&p, 200, p.rows, first_us[i / 2]);
        pace_learn(&p, 200, p.rows, first_us[i / 2]);
        us = run_steadily(&p, 400, 10e3, 30, &n_over);
        ck_assert_msg(us > 40e3 && us < 55e3, "%d: %g", i, us);
        ck_assert_int_eq(n_over, 0);
    }
}
END_TEST

/* Rows that cost four times as much for a while, and then what they did, are no more again. */
START_TEST(dear_rows_are_forgotten)
{
    static const int32_t max_rows[] = {2048, 16384};

    for (int i = 0; i < 2; i++) {
        for (int n = 1; n <= 100; n++) {
            struct pace p;
            double us;
            int n_over;

            pace_init(&p, 50e3, max_rows[i]);
            (void)run_steadily(&p, 300, 10e3, 30, &n_over);
            (void)run_steadily(&p, n, 10e3, 120, &n_over);
            us = run_steadily(&p, 400, 10e3, 30, &n_over);
            ck_assert_msg(us > 40e3 && us < 55e3, "%d steps, %d: %g", n, i, us);
            ck_assert_int_eq(n_over, 0);
        }
    }
}
END_TEST

/* Where decodes become long under a load that never pauses, steps stretch with them; where they
 * become short again, the bound is what it was. */
START_TEST(steps_stretch_and_shrink_with_decodes)
{
    static const double decode_us[] = {10e3, 40e3, 10e3, 200e3, 10e3, 80e3, 20e3, 10e3};
    struct pace p;

    pace_init(&p, 50e3, 16384);
    for (int i = 0; i < 8; i++) {
        int n_over;
        double us = run_steadily(&p, 800, decode_us[i], 30, &n_over);
        double bound = fmax(50e3, 3 * decode_us[i]);

        ck_assert_msg(us > 0.75 * bound && us < 1.1 * bound, "%d: %g", i, us);
        ck_assert_int_eq(n_over, 0);
    }
}
END_TEST

/* Long decodes after rows so dear that a step took the fewest: prompts get more again. */
START_TEST(the_fewest_rows_are_not_for_ever)
{
    struct pace p;
    double us;
    int n_over;

    pace_init(&p, 50e3, 16384);
    (void)run_steadily(&p, 200, 10e3, 20e3, &n_over);
    us = run_steadily(&p, 1500, 60e3, 30, &n_over);
    ck_assert_msg(us > 140e3 && us < 190e3, "%g", us);
    ck_assert_int_eq(n_over, 0);
}
END_TEST

/* Steps of decodes alone, now longer and now shorter, tell nothing of rows. */
START_TEST(decodes_alone_leave_rows_alone)
{
    struct pace p;
    double us;
    int n_over;

    pace_init(&p, 50e3, 16384);
    (void)run_steadily(&p, 300, 10e3, 30, &n_over);
    for (int i = 0; i < 20000; i++) {
        pace_learn(&p, 200, 0, i % 3 == 0 ? 9e3 : 11e3);
        ck_assert_double_gt(p.row_us, 20);
        ck_assert_double_lt(p.row_us, 45);
    }
    us = run_steadily(&p, 20, 10e3, 30, &n_over);
    ck_assert_msg(us > 40e3 && us < 55e3, "%g", us);
}
END_TEST

/* What a row cost in steps of prompts alone, too little or too much, does not lift the bound. */
START_TEST(rows_alone_do_not_lift_the_bound)
{
    static const double row_us[] = {3, 15, 30, 60, 300};

    for (int i = 0; i < 5; i++) {
        struct pace p;
        double us;
        int n_over;

        pace_init(&p, 50e3, 16384);
        pace_learn(&p, 0, 2048, 2048 * row_us[i]);
        us = run_steadily(&p, 600, 10e3, 30, &n_over);
        ck_assert_msg(us > 40e3 && us < 55e3, "%g: %g", row_us[i], us);
        ck_assert_int_eq(n_over, 0);
    }
}
END_TEST

/* What decodes cost comes to be known beside prompts too, with a bound and without: from steps with
 * hardly a row. */
START_TEST(costs_are_learnt)
{
    static const double bounds[] = {0, 50e3};

    for (int i = 0; i < 2; i++) {
        struct pace p;

        pace_init(&p, bounds[i], 2048);
        pace_learn(&p, 0, 1000, 60e3);
        for (int k = 0; k < 60; k++) {
            pace_learn(&p, 1, 0, 200);
            pace_learn(&p, 16, k % 4 == 0 ? 2 : 0, 1600 + (k % 4 == 0 ? 120 : 0));
            pace_learn(&p, 16, 500, 1600 + 500 * 60);
        }
        ck_assert_double_eq_tol(step_cost_us(&p.cost, 1, 0), 200, 20);
        ck_assert_double_eq_tol(step_cost_us(&p.cost, 16, 0), 1600, 160);
        ck_assert_double_eq_tol(step_cost_us(&p.cost, 16, 100), 7600, 760);
    }
}
END_TEST

/* Where each second step is looked at late, so that the next seems to take nothing, the costs are
 * still those of the device. */
START_TEST(late_looks_even_out)
{
    struct pace p;

    pace_init(&p, 50e3, 2048);
    for (int i = 0; i < 300; i++)
        pace_learn(&p, 1, 0, i % 2 ? 30 : 570);
    ck_assert_double_eq_tol(step_cost_us(&p.cost, 1, 0), 300, 15);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("pace");
    TCase *t = tcase_create("pace");

    tcase_add_test(t, no_bound_is_no_bound);
    tcase_add_test(t, steps_come_to_the_bound);
    tcase_add_test(t, rows_stay_within_their_limits);
    tcase_add_test(t, slow_devices_stretch);
    tcase_add_test(t, prompts_alone_are_bounded);
    tcase_add_test(t, prompts_alone_have_the_fewest_rows);
    tcase_add_test(t, a_wrong_idea_does_not_last);
    tcase_add_test(t, one_long_step_is_forgotten);
    tcase_add_test(t, two_long_steps_are_forgotten);
    tcase_add_test(t, dear_rows_are_forgotten);
    tcase_add_test(t, steps_stretch_and_shrink_with_decodes);
    tcase_add_test(t, the_fewest_rows_are_not_for_ever);
    tcase_add_test(t, decodes_alone_leave_rows_alone);
    tcase_add_test(t, rows_alone_do_not_lift_the_bound);
    tcase_add_test(t, costs_are_learnt);
    tcase_add_test(t, late_looks_even_out);
    suite_add_tcase(suite, t);
    return run_suite(suite);
}
