/* test_pace.c - the pace of prompts beside decodes, on a device whose costs are known. */
#include <check.h>
#include <stdlib.h>

#include "engine/pace.h"

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
    ck_assert_int_eq(p.rows, 8192);
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

int main(void)
{
    Suite *suite = suite_create("pace");
    TCase *t = tcase_create("pace");
    SRunner *runner = srunner_create(suite);
    int failed;

    tcase_add_test(t, no_bound_is_no_bound);
    tcase_add_test(t, steps_come_to_the_bound);
    tcase_add_test(t, rows_stay_within_their_limits);
    tcase_add_test(t, slow_devices_stretch);
    tcase_add_test(t, a_wrong_idea_does_not_last);
    tcase_add_test(t, one_long_step_is_forgotten);
    suite_add_tcase(suite, t);
    srunner_run_all(runner, CK_NORMAL);
    failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
