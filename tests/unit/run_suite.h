/* run_suite.h - how a check program is made: tests that register themselves, and the run of all of
 * them. One source file a program includes this. CK_VERBOSITY and its like of the environment hold;
 * CK_RUN_CASE names the one test to run. */
#ifndef NVLLM_TESTS_UNIT_RUN_SUITE_H
#define NVLLM_TESTS_UNIT_RUN_SUITE_H

#include <check.h>
#include <signal.h>
#include <stdbool.h>
#include <stdlib.h>

#define N(a) ((int)(sizeof(a) / sizeof((a)[0])))

struct test {
    const TTest *test;
    struct test *next;
    /* Options of TEST(): */
    int n;           /* runs with _i from 0 to n - 1; 0: one run */
    int signal;      /* which must end the test; 0: none */
    int timeout;     /* seconds; 0: 120, as a busy machine and sanitizers are slow */
    bool no_fixture; /* runs without the program's set_up and tear_down */
};

static struct test *first_test, **last_test = &first_test;

static inline void register_test(struct test *t)
{
    *last_test = t;
    last_test = &t->next;
}

/* TEST(a_sentence) { ... } or TEST(a_sentence, .n = N(cases)) { ... }: runs in the file's order. */
#define TEST(name, ...)                                                                            \
    static const TTest *name;                                                                      \
    __attribute__((constructor)) static void name##_register(void)                                 \
    {                                                                                              \
        static struct test registered = {__VA_ARGS__};                                             \
                                                                                                   \
        registered.test = name;                                                                    \
        register_test(&registered);                                                                \
    }                                                                                              \
    START_TEST(name)

/* Takes the suite. Each test is a process of its own where `fork` says so. */
static inline int run_suite_as(Suite *suite, enum fork_status fork, enum print_output output)
{
    SRunner *runner = srunner_create(suite);
    int n_failed;

    srunner_set_fork_status(runner, fork);
    srunner_run_all(runner, output);
    n_failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return n_failed ? EXIT_FAILURE : EXIT_SUCCESS;
}

static inline int run_suite(Suite *suite)
{
    return run_suite_as(suite, CK_FORK_GETENV, CK_ENV);
}

static inline Suite *suite_of_tests(const char *name, void (*set_up)(void), void (*tear_down)(void))
{
    Suite *suite = suite_create(name);

    for (struct test *t = first_test; t; t = t->next) {
        TCase *one = tcase_create(t->test->name);

        if (!t->no_fixture)
            tcase_add_checked_fixture(one, set_up, tear_down);
        tcase_set_timeout(one, t->timeout ? t->timeout : 120);
        tcase_add_loop_test_raise_signal(one, t->test, t->signal, 0, t->n ? t->n : 1);
        suite_add_tcase(suite, one);
    }
    return suite;
}

/* Every TEST() runs, between set_up and tear_down, which may be NULL. */
static inline int run_tests(const char *name, void (*set_up)(void), void (*tear_down)(void))
{
    return run_suite(suite_of_tests(name, set_up, tear_down));
}

/* The same in one process, as a device wants it, with a line for the number of checks. */
static inline int run_tests_here(const char *name, void (*set_up)(void), void (*tear_down)(void))
{
    return run_suite_as(suite_of_tests(name, set_up, tear_down), CK_NOFORK, CK_NORMAL);
}

#define MAIN_OF(run, name, set_up, tear_down)                                                      \
    int main(void)                                                                                 \
    {                                                                                              \
        return run(name, set_up, tear_down);                                                       \
    }

/* The main() of a program that does no more than that. */
#define RUN_TESTS(name, set_up, tear_down)      MAIN_OF(run_tests, name, set_up, tear_down)
#define RUN_TESTS_HERE(name, set_up, tear_down) MAIN_OF(run_tests_here, name, set_up, tear_down)

#endif
