/* test_ctl_bench.c - what nvllmctl bench stands on: Python's random numbers, and quantiles. */
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/ctl/bench.h"
#include "tests/unit/run_suite.h"

/* The words are those of random.getrandbits(32) after random.seed(). */
TEST(words_are_pythons)
{
    static const struct {
        uint64_t seed;
        uint32_t words[3];
    } known[] = {
        {0, {3626764237u, 1654615998u, 3255389356u}},
        {12345678901234567890u, {2199100970u, 3695432519u, 4002396509u}},
    };
    struct random r;

    for (size_t i = 0; i < N(known); i++) {
        random_seed(&r, known[i].seed);
        for (int k = 0; k < 3; k++)
            ck_assert_uint_eq(random_u32(&r), known[i].words[k]);
    }
}

/* The published workload: 256 lists of randint(0, 10000), each as long as randint(100, 1024), then
 * 256 times randint(100, 1024). */
TEST(published_workload_is_drawn)
{
    static const uint32_t prompts[] = {964, 724, 484, 508, 316},
                          outputs[] = {845, 312, 607, 843, 500};
    static const uint32_t first_ids[] = {6311, 6890, 663, 4242, 8376};
    uint32_t total = 0, n, id;
    struct random r;

    random_seed(&r, 0);
    for (int i = 0; i < 256; i++) {
        n = random_int(&r, 100, 1024);
        total += n;
        if (i < 5)
            ck_assert_uint_eq(n, prompts[i]);
        for (uint32_t k = 0; k < n; k++) {
            id = random_int(&r, 0, 10000);
            if (i == 0 && k < 5)
                ck_assert_uint_eq(id, first_ids[k]);
        }
    }
    ck_assert_uint_eq(total, 142827);
    total = 0;
    for (int i = 0; i < 256; i++) {
        n = random_int(&r, 100, 1024);
        total += n;
        if (i < 5)
            ck_assert_uint_eq(n, outputs[i]);
    }
    ck_assert_uint_eq(total, 133966);
}

/* Both ends of a range come, nothing outside of it, and a range of one number is that number. */
TEST(ranges_are_closed)
{
    bool seen[3] = {false};
    struct random r;

    random_seed(&r, 7);
    for (int i = 0; i < 200; i++) {
        uint32_t n = random_int(&r, 5, 7);

        ck_assert(n >= 5 && n <= 7);
        seen[n - 5] = true;
    }
    ck_assert(seen[0] && seen[1] && seen[2]);
    ck_assert_uint_eq(random_int(&r, 9, 9), 9);
    ck_assert_uint_le(random_int(&r, 0, UINT32_MAX), UINT32_MAX); /* 33 bits are drawn */
    for (int i = 0; i < 1000; i++) {
        double share = random_share(&r);

        ck_assert(share > 0 && share <= 1);
    }
}

static int compare(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

    return x < y ? -1 : x > y;
}

/* Quantiles are those of the sorted times, to within 1 %, from nanoseconds to hours. */
TEST(quantiles_are_near)
{
    enum { N = 5000 };
    static struct quantiles q;
    static uint64_t times[N];
    static const double shares[] = {0.001, 0.5, 0.9, 0.99};
    struct random r;

    random_seed(&r, 3);
    for (int i = 0; i < N; i++) {
        times[i] = (uint64_t)random_u32(&r) << random_int(&r, 0, 12) >> random_int(&r, 0, 31);
        quantiles_add(&q, times[i]);
    }
    qsort(times, N, sizeof(times[0]), compare);
    for (size_t i = 0; i < N(shares); i++) {
        double want = (double)times[(int)(shares[i] * N + 0.5) - 1] / 1e6;

        ck_assert_double_le(quantiles_ms(&q, shares[i]), want * 1.01 + 1e-9);
        ck_assert_double_ge(quantiles_ms(&q, shares[i]), want * 0.99 - 1e-9);
    }
    ck_assert_double_eq(quantiles_ms(&q, 1), (double)times[N - 1] / 1e6);
}

/* Where times are close together quantiles are not those of a bucket's edge. */
TEST(quantiles_of_like_times)
{
    enum { N = 4000, FIRST = 2570000 }; /* ns, of some buckets */
    static struct quantiles q;

    for (int i = 0; i < N; i++)
        quantiles_add(&q, FIRST + (uint64_t)(i * 7919 % N) * 10);
    for (int share = 5; share < 100; share += 5) {
        const double want = (FIRST + share * N / 10.0) / 1e6;

        ck_assert_double_eq_tol(quantiles_ms(&q, share / 100.0), want, want * 0.001);
    }
}

/* No times, the shortest and the longest there can be are no trouble. */
TEST(quantiles_at_the_edges)
{
    static struct quantiles none, ends;

    ck_assert_double_eq(quantiles_ms(&none, 0.5), 0);
    ck_assert_double_eq(quantiles_mean_ms(&none), 0);
    quantiles_add(&ends, 0);
    quantiles_add(&ends, UINT64_MAX);
    ck_assert_double_eq(quantiles_ms(&ends, 0.5), 0);
    ck_assert_double_eq(quantiles_ms(&ends, 1), (double)UINT64_MAX / 1e6);
}

/* A range of times has a line, its bar is as long as its share, and one that is there is seen. */
TEST(histogram_is_drawn)
{
    static struct quantiles q;
    char *text = NULL;
    size_t n;
    FILE *to = open_memstream(&text, &n);

    for (int i = 0; i < 1000; i++)
        quantiles_add(&q, 3000000);
    for (int i = 0; i < 500; i++)
        quantiles_add(&q, 30000000);
    quantiles_add(&q, 90000000);
    quantiles_draw(&q, to, 20);
    fclose(to);
    ck_assert_str_eq(text, "  <        5 ms       1000  ####################\n"
                           "  <       10 ms          0  \n"
                           "  <       20 ms          0  \n"
                           "  <       50 ms        500  ##########\n"
                           "  <      100 ms          1  .\n");
    free(text);
}

RUN_TESTS("ctl_bench", NULL, NULL)
