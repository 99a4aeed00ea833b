/* run_suite.h - how each check program ends: all of its suite is run, and the exit status says
 * whether all is well. CK_VERBOSITY and its like of the environment hold. */
#ifndef NVLLM_TESTS_UNIT_RUN_SUITE_H
#define NVLLM_TESTS_UNIT_RUN_SUITE_H

#include <check.h>
#include <stdlib.h>

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

/* All in this process, as a device wants it. */
static inline int run_suite_here(Suite *suite)
{
    return run_suite_as(suite, CK_NOFORK, CK_NORMAL);
}

#endif
