/* test_exposition.c - metrics as text, in both formats; and the histograms behind them. */
#include "daemon/exposition.h"

#include <string.h>

#include "tests/unit/run_suite.h"

static struct exposition x;

static void teardown(void)
{
    exposition_deinit(&x);
}

static void expect(const char *text)
{
    ck_assert(!x.failed);
    ck_assert_msg(x.len == strlen(text) && memcmp(x.data, text, x.len) == 0, "%.*s", (int)x.len,
                  x.data);
}

/* A value at a bound is within it; what is over all of them has a place of its own. */
TEST(values_find_their_bucket)
{
    const struct histogram_bounds *b = engine_histogram_bounds(HISTOGRAM_STEP_TOKENS);
    struct histogram h = {0};

    histogram_add(&h, b, 0);
    histogram_add(&h, b, 1);
    histogram_add(&h, b, 2);
    histogram_add(&h, b, 3);
    histogram_add(&h, b, b->at[b->n - 1]);
    histogram_add(&h, b, UINT32_MAX);
    ck_assert_uint_eq(h.counts[0], 2);
    ck_assert_uint_eq(h.counts[1], 1);
    ck_assert_uint_eq(h.counts[2], 1);
    ck_assert_uint_eq(h.counts[b->n - 1], 1);
    ck_assert_uint_eq(h.counts[b->n], 1);
    ck_assert_uint_eq(h.sum, 6 + b->at[b->n - 1] + UINT32_MAX);
}

/* Bounds ascend, and there is room for them. */
TEST(bounds_ascend, .n = N_ENGINE_HISTOGRAMS)
{
    const struct histogram_bounds *b = engine_histogram_bounds((enum engine_histogram)_i);

    ck_assert(b->n > 5 && b->n <= HISTOGRAM_MAX_BOUNDS);
    for (int32_t i = 1; i < b->n; i++)
        ck_assert_uint_lt(b->at[i - 1], b->at[i]);
}

static void write_each_kind(void)
{
    static const struct histogram_bounds bounds = {3, {500, 1000000, 2500000}};
    const struct histogram h = {.counts = {1, 0, 2, 3}, .sum = 7000001};

    exposition_family(&x, "a_requests", EXPOSITION_COUNTER, "Ended.");
    exposition_count(&x, "outcome=\"stop\"", 18446744073709551615u);
    exposition_family(&x, "a_ratio", EXPOSITION_GAUGE, "A share.");
    exposition_real(&x, "", 0.25);
    exposition_family(&x, "a_build", EXPOSITION_INFO, "What it is.");
    exposition_count(&x, "version=\"1\"", 1);
    exposition_family(&x, "a_seconds", EXPOSITION_HISTOGRAM, "How long.");
    exposition_histogram(&x, &h, &bounds, 1e-6);
    exposition_end(&x);
}

#define HISTOGRAM_TEXT                                                                             \
    "# HELP a_seconds How long.\n# TYPE a_seconds histogram\n"                                     \
    "a_seconds_bucket{le=\"0.0005\"} 1\na_seconds_bucket{le=\"1.0\"} 1\n"                          \
    "a_seconds_bucket{le=\"2.5\"} 3\na_seconds_bucket{le=\"+Inf\"} 6\n"                            \
    "a_seconds_sum 7.000001\na_seconds_count 6\n# EOF\n"

/* In OpenMetrics a family's name is without the suffix of its samples. */
TEST(openmetrics)
{
    x.openmetrics = true;
    write_each_kind();
    expect("# HELP a_requests Ended.\n# TYPE a_requests counter\n"
           "a_requests_total{outcome=\"stop\"} 18446744073709551615\n"
           "# HELP a_ratio A share.\n# TYPE a_ratio gauge\na_ratio 0.25\n"
           "# HELP a_build What it is.\n# TYPE a_build info\na_build_info{version=\"1\"} "
           "1\n" HISTOGRAM_TEXT);
}

/* In the older format it is with it, and information is a gauge. */
TEST(prometheus_text)
{
    write_each_kind();
    expect("# HELP a_requests_total Ended.\n# TYPE a_requests_total counter\n"
           "a_requests_total{outcome=\"stop\"} 18446744073709551615\n"
           "# HELP a_ratio A share.\n# TYPE a_ratio gauge\na_ratio 0.25\n"
           "# HELP a_build_info What it is.\n# TYPE a_build_info gauge\n"
           "a_build_info{version=\"1\"} 1\n" HISTOGRAM_TEXT);
}

/* Quotes, backslashes and newlines cannot end a label; what is too long is cut. */
TEST(labels_are_escaped)
{
    char buf[16];

    ck_assert_str_eq(exposition_escape(buf, sizeof(buf), "a\"b\\c\nd"), "a\\\"b\\\\c\\nd");
    ck_assert_str_eq(exposition_escape(buf, 6, "abcdefgh"), "abcd");
    ck_assert_str_eq(exposition_escape(buf, 6, "\"\"\"\"\""), "\\\"\\\"");
    ck_assert_str_eq(exposition_escape(buf, sizeof(buf), ""), "");
}

/* A line that is too long to be built makes the text a failure, and not a wrong one. */
TEST(what_cannot_be_written_is_no_text)
{
    static char help[2000];

    memset(help, 'x', sizeof(help) - 1);
    exposition_family(&x, "a", EXPOSITION_GAUGE, help);
    ck_assert(x.failed);
    exposition_end(&x);
    ck_assert(x.failed);
}

RUN_TESTS("exposition", NULL, teardown)
