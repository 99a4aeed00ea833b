/* run_suite.h - how each check program ends: all of its suite is run, and the exit status says
 * whether all is well. CK_VERBOSITY and its like of the environment hold. */
#ifndef NVLLM_TESTS_RUN_SUITE_H
#define NVLLM_TESTS_RUN_SUITE_H

#include <check.h>
#include <stdlib.h>

/* Takes the suite. */
static inline int run_suite(Suite *suite)
{
    SRunner *runner = srunner_create(suite);
    int n_failed;

    srunner_run_all(runner, CK_ENV);
    n_failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return n_failed ? EXIT_FAILURE : EXIT_SUCCESS;
}

#endif
