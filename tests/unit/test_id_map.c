/* test_id_map.c - the map against a plain array. */
#include <stdbool.h>
#include <stdlib.h>

#include "engine/util/id_map.h"
#include "tests/unit/run_suite.h"

/* A value is found until it is taken, whatever grows, collides and moves. */
TEST(agrees_with_a_plain_array)
{
    enum { N = 500 };
    static char value[N];
    struct id_map m = {0};
    bool in[N] = {false};
    uint64_t x = 88172645463325252u;
    size_t n = 0;

    for (int step = 0; step < 200000; step++) {
        uint64_t k;

        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        k = x % N;
        if (in[k]) {
            ck_assert_ptr_eq(id_map_get(&m, k << 40), &value[k]);
            ck_assert_ptr_eq(id_map_take(&m, k << 40), &value[k]);
            n--;
        } else {
            ck_assert_ptr_null(id_map_get(&m, k << 40));
            ck_assert_ptr_null(id_map_take(&m, k << 40));
            ck_assert_int_eq(id_map_put(&m, k << 40, &value[k]), 0);
            n++;
        }
        in[k] = !in[k];
        ck_assert_uint_eq(m.n, n);
    }
    for (uint64_t k = 0; k < N; k++)
        ck_assert_ptr_eq(id_map_get(&m, k << 40), in[k] ? &value[k] : NULL);
    id_map_deinit(&m);
}

/* Iteration visits every value once. */
TEST(walk_meets_each_value_once)
{
    struct id_map m = {0};
    int seen[100] = {0};
    size_t at = 0;

    ck_assert_ptr_null(id_map_next(&m, &at));
    ck_assert_ptr_null(id_map_get(&m, 0));
    for (uint64_t k = 0; k < 100; k++)
        ck_assert_int_eq(id_map_put(&m, k, &seen[k]), 0);
    at = 0;
    for (int *v; (v = id_map_next(&m, &at));)
        (*v)++;
    for (int k = 0; k < 100; k++)
        ck_assert_int_eq(seen[k], 1);
    id_map_deinit(&m);
}

RUN_TESTS("id_map", NULL, NULL)
