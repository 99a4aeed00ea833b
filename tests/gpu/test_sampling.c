/* test_sampling.c - how often ids are drawn: a hundred thousand draws of the sampler's kernels for
 * each setting against the distribution that engine/sampling.h defines, computed here in double. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/gpu/sampler_rig.h"
#include "tests/unit/run_suite.h"

enum {
    ROWS = RIG_MAX_ROWS,
    RUNS = 200, /* of ROWS draws each: 102,400 */
    DRAWS = ROWS * RUNS,
    SMALL = 1000,
    LARGE = 151936, /* Qwen's */
    LARGE_ROWS = 128,
};

static const double rare = 10.0; /* ids expected less often are counted as one */

/* Normal quantile of one in a million: some thirty tests of it fail for no reason once in ten
 * thousand changes of the generator; with the seeds here it is the same each time. */
static const double quantile = 4.753;

/* The probability of each id, for the first row. */
static double *reference(const struct rig *g)
{
    int n;
    struct candidate *c = rig_candidates(g, 0, &n);
    double *p = host_new((size_t)g->m.vocab_size, sizeof(*p)), left = 0.0;

    for (int i = 0; i < n; i++)
        left += c[i].weight;
    for (int i = 0; i < n; i++)
        p[c[i].id] = c[i].weight / left;
    free(c);
    return p;
}

/* Pearson's statistic as a normal deviate (Wilson and Hilferty); how many classes it has. An id
 * that cannot be drawn and was is infinitely far off. */
static double deviate(const int32_t *counts, const double *p, int vocab, int draws, int *classes)
{
    double x2 = 0.0, rare_expected = 0.0, rare_count = 0.0, df;

    *classes = 0;
    for (int i = 0; i < vocab; i++) {
        const double expected = p[i] * draws, d = counts[i] - expected;

        if (expected <= 0.0 && counts[i] > 0)
            return INFINITY;
        if (expected < rare) {
            rare_expected += expected;
            rare_count += counts[i];
            continue;
        }
        x2 += d * d / expected;
        ++*classes;
    }
    if (rare_expected >= rare) {
        x2 += (rare_count - rare_expected) * (rare_count - rare_expected) / rare_expected;
        ++*classes;
    }
    if (*classes < 2)
        return 0.0;
    df = *classes - 1;
    return (cbrt(x2 / df) - (1.0 - 2.0 / (9.0 * df))) / sqrt(2.0 / (9.0 * df));
}

/* All rows alike but for their seeds. */
static void rig_alike(struct rig *g, int vocab, int rows, float spread, const struct sampling *s)
{
    rig_init(g, vocab, rows, spread);
    for (int i = 0; i < rows; i++) {
        memcpy((float *)g->logits.host + i * g->m.logits_stride, g->logits.host,
               (size_t)vocab * sizeof(float));
        g->sampling[i] = *s;
        g->sampling[i].n_logprobs = -1;
        g->sampling[i].seed = s->seed + (uint64_t)i;
    }
    array_to_device(&g->logits);
}

/* Rows times runs draws: each run is the next position of every row's sequence. */
static int32_t *draw(struct rig *g, int runs)
{
    int32_t *counts = host_new((size_t)g->m.vocab_size, sizeof(*counts));

    for (int run = 0; run < runs; run++) {
        const int32_t *ids;

        for (int i = 0; i < g->n_rows; i++)
            g->rows[i].counter = (uint32_t)run;
        ids = rig_run(g);
        for (int i = 0; i < g->n_rows; i++) {
            ck_assert(ids[i] >= 0 && ids[i] < g->m.vocab_size);
            counts[ids[i]]++;
        }
    }
    return counts;
}

static void check_fit(const char *name, int vocab, float spread, const struct sampling *s)
{
    const int rows = vocab == LARGE ? LARGE_ROWS : ROWS, runs = DRAWS / rows;
    struct rig g;
    double off;
    int classes;

    rig_alike(&g, vocab, rows, spread, s);
    off = deviate(draw(&g, runs), reference(&g), vocab, rows * runs, &classes);
    printf("%-28s draws=%d classes=%d deviate=%.2f\n", name, rows * runs, classes, off);
    ck_assert_msg(fabs(off) < quantile, "%s: deviate %g of %d classes", name, off, classes);
}

#define NO_PENALTY .repetition_penalty = 1.0f
#define PLAIN      .top_p = 1.0f, NO_PENALTY

static const float temperatures[] = {0.3f, 0.6f, 1.0f, 1.7f};

/* Temperatures from sharp to flat, for a small vocabulary and for Qwen's. */
TEST(temperature_fits, .n = N(temperatures))
{
    const struct sampling s = {.temperature = temperatures[_i], PLAIN, .seed = 1000 * (uint64_t)_i};
    char name[64];

    snprintf(name, sizeof(name), "temperature=%.1f", (double)temperatures[_i]);
    check_fit(name, SMALL, 2.0f, &s);
    if (_i % 2)
        check_fit(name, LARGE, 3.0f, &s);
}
END_TEST

static const struct {
    const char *name;
    int vocab;
    struct sampling s;
} filters[] = {
    {"top_k=2", SMALL, {.temperature = 1.0f, PLAIN, .top_k = 2}},
    {"top_k=20", SMALL, {.temperature = 1.0f, PLAIN, .top_k = 20}},
    {"top_k=300", SMALL, {.temperature = 1.5f, PLAIN, .top_k = 300}},
    {"top_k=50, large", LARGE, {.temperature = 0.8f, PLAIN, .top_k = 50}},
    {"top_p=0.3", SMALL, {.temperature = 1.0f, NO_PENALTY, .top_p = 0.3f}},
    {"top_p=0.8", SMALL, {.temperature = 1.0f, NO_PENALTY, .top_p = 0.8f}},
    {"top_p=0.99", SMALL, {.temperature = 1.3f, NO_PENALTY, .top_p = 0.99f}},
    {"top_p=0.9, large", LARGE, {.temperature = 0.6f, NO_PENALTY, .top_p = 0.9f}},
    {"min_p=0.5", SMALL, {.temperature = 1.0f, PLAIN, .min_p = 0.5f}},
    {"min_p=0.05", SMALL, {.temperature = 1.0f, PLAIN, .min_p = 0.05f}},
    {"min_p=0.01, large", LARGE, {.temperature = 0.7f, PLAIN, .min_p = 0.01f}},
    {"top_k=20 top_p=0.95", SMALL, {.temperature = 0.6f, NO_PENALTY, .top_k = 20, .top_p = 0.95f}},
    {"top_k=100 top_p=0.9 min_p=0.02",
     SMALL,
     {.temperature = 1.2f, NO_PENALTY, .top_k = 100, .top_p = 0.9f, .min_p = 0.02f}},
    {"the same, large",
     LARGE,
     {.temperature = 0.9f, NO_PENALTY, .top_k = 1500, .top_p = 0.95f, .min_p = 0.005f}},
};

/* Each filter alone, several settings, and all of them at once. */
TEST(filters_fit, .n = N(filters))
{
    struct sampling s = filters[_i].s;

    s.seed = 100000 * ((uint64_t)_i + 1);
    check_fit(filters[_i].name, filters[_i].vocab, 2.0f, &s);
}
END_TEST

static const struct logit_bias bias[] = {{3, 4.0f}, {17, -100.0f}, {500, 2.5f}};
static const struct sampling penalties[] = {
    {.temperature = 1.0f, .top_p = 1.0f, .repetition_penalty = 1.3f},
    {.temperature = 1.0f, .top_p = 1.0f, .repetition_penalty = 0.8f},
    {.temperature = 1.0f, PLAIN, .presence_penalty = 1.5f},
    {.temperature = 1.0f, PLAIN, .frequency_penalty = -0.4f},
    {.temperature = 1.0f, PLAIN, .n_bias = 3, .bias = bias},
    {.temperature = 0.8f,
     .top_k = 60,
     .top_p = 0.9f,
     .repetition_penalty = 1.1f,
     .presence_penalty = 0.5f,
     .frequency_penalty = 0.2f,
     .n_bias = 3,
     .bias = bias},
};

/* Penalties and bias change the distribution as defined, alone and before filters. */
TEST(penalties_fit, .n = N(penalties))
{
    struct sampling s = penalties[_i];
    char name[64];

    snprintf(name, sizeof(name), "penalties, setting %d", _i);
    s.seed = 10000000 * ((uint64_t)_i + 1);
    check_fit(name, SMALL, 2.0f, &s);
}
END_TEST

/* The statistic tells a temperature that is 5 % off, and one id too many behind a top_k. */
TEST(a_wrong_distribution_is_told)
{
    struct sampling s = {.temperature = 1.0f, PLAIN, .seed = 5};
    int32_t *counts;
    struct rig g;
    int classes;

    rig_alike(&g, SMALL, ROWS, 2.0f, &s);
    counts = draw(&g, RUNS);
    g.sampling[0].temperature = 1.05f;
    ck_assert_double_gt(deviate(counts, reference(&g), SMALL, DRAWS, &classes), quantile);
    for (int i = 0; i < ROWS; i++) {
        g.sampling[i].temperature = 1.0f;
        g.sampling[i].top_k = 21;
    }
    counts = draw(&g, RUNS);
    g.sampling[0].top_k = 20;
    ck_assert_double_gt(deviate(counts, reference(&g), SMALL, DRAWS, &classes), quantile);
}
END_TEST

/* The same seeds draw the same ids, again and in a batch of another size. */
TEST(seeds_repeat)
{
    const struct sampling s = {.temperature = 1.0f,
                               .repetition_penalty = 1.0f,
                               .top_p = 0.9f,
                               .seed = 77};
    int32_t first[ROWS];
    struct rig g;

    rig_alike(&g, SMALL, ROWS, 2.0f, &s);
    rig_run(&g);
    memcpy(first, g.results.host, sizeof(first));
    rig_run(&g);
    ck_assert_mem_eq(first, g.results.host, sizeof(first));
    g.n_rows = 5;
    for (int i = 0; i < 5; i++) /* rows of the batch, other states than before */
        g.updates[i].state = g.rows[i].state = i;
    rig_run(&g);
    ck_assert_mem_eq(first, g.results.host, 5 * sizeof(*first));
    for (int i = 0; i < 5; i++)
        g.sampling[i].seed += 1000000;
    rig_run(&g);
    ck_assert_mem_ne(first, g.results.host, 5 * sizeof(*first));
}
END_TEST

RUN_TESTS_HERE("sampling", device_set_up, device_tear_down)
