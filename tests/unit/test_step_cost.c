/* test_step_cost.c - what a step takes, by what others took. */
#include <check.h>
#include <stdlib.h>

#include "engine/core/step_cost.h"
#include "tests/unit/run_suite.h"

static struct step_cost cost;

static void set_up(void)
{
    cost = (struct step_cost){.row_us = 0};
}

static void learn(int n, int32_t n_decodes, double us)
{
    while (n-- > 0)
        step_cost_learn(&cost, n_decodes, us);
}

/* Nothing seen, nothing known. */
START_TEST(nothing_is_foreseen_of_nothing)
{
    cost.row_us = 10;
    ck_assert_double_eq(step_cost_us(&cost, 1, 0), 0);
    ck_assert_double_eq(step_cost_us(&cost, 200, 300), 0);
    ck_assert_double_eq(step_cost_us(&cost, 0, 0), 0);
}
END_TEST

/* Between two points seen, and above them, there is a line; below the first it goes to nothing. */
START_TEST(points_make_a_line)
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
END_TEST

/* Prompts add for each row, at most as much as a decode where nothing is known of them; alone they
 * take as long as a decode at least. */
START_TEST(prompts_add)
{
    learn(1, 1, 100);
    learn(1, 2, 110);
    ck_assert_double_eq_tol(step_cost_us(&cost, 1, 3), 400, 1e-6);
    cost.row_us = 7;
    ck_assert_double_eq_tol(step_cost_us(&cost, 2, 10), 180, 1e-6);
    ck_assert_double_eq_tol(step_cost_us(&cost, 0, 10), 100, 1e-6);
    ck_assert_double_eq_tol(step_cost_us(&cost, 0, 100), 700, 1e-6);
}
END_TEST

/* What is the same for every size comes to be known of each: steps of other sizes scale. */
START_TEST(points_follow)
{
    learn(1, 16, 5000);
    learn(40, 24, 2400);
    ck_assert_double_eq_tol(step_cost_us(&cost, 16, 0), 1600, 1);
    learn(40, 16, 4000);
    ck_assert_double_eq_tol(step_cost_us(&cost, 16, 0), 4000, 1);
}
END_TEST

/* Now and then a step takes ten times as long, and now and then the next one seems to take nothing:
 * that changes little. */
START_TEST(one_step_changes_little)
{
    for (int i = 0; i < 300; i++)
        learn(1, 1, i % 5 == 0 ? 1000 : i % 5 == 1 ? 1 : 100);
    ck_assert_double_ge(step_cost_us(&cost, 1, 0), 75);
    ck_assert_double_le(step_cost_us(&cost, 1, 0), 130);
}
END_TEST

/* More rows never take less, nor longer than one by one, whatever some step says. */
START_TEST(costs_grow_and_pay)
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
END_TEST

/* The most decodes for a time are found, and one at least. */
START_TEST(decodes_for_a_time)
{
    learn(1, 1, 1010);
    learn(1, 1024, 1000 + 10240);
    ck_assert_int_eq(step_cost_decodes(&cost, 2001, 256), 100);
    ck_assert_int_eq(step_cost_decodes(&cost, 2001, 50), 50);
    ck_assert_int_eq(step_cost_decodes(&cost, 5, 50), 1);
    ck_assert_int_eq(step_cost_decodes(&cost, 1e12, INT32_MAX), INT32_MAX);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("step_cost");
    TCase *t = tcase_create("step_cost");

    tcase_add_checked_fixture(t, set_up, NULL);
    tcase_add_test(t, nothing_is_foreseen_of_nothing);
    tcase_add_test(t, points_make_a_line);
    tcase_add_test(t, prompts_add);
    tcase_add_test(t, points_follow);
    tcase_add_test(t, one_step_changes_little);
    tcase_add_test(t, costs_grow_and_pay);
    tcase_add_test(t, decodes_for_a_time);
    suite_add_tcase(s, t);
    return run_suite(s);
}
