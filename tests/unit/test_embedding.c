/* test_embedding.c - the embedding that sums of hidden states become. */
#include <math.h>
#include <stdlib.h>

#include "engine/engine_private.h"
#include "tests/unit/run_suite.h"

enum { DIM = 3 };

static struct embedding *y;
static const struct embedder last = {.pooling = POOLING_LAST}, mean = {.pooling = POOLING_MEAN};

static void set_up(void)
{
    y = embedding_new(DIM);
    ck_assert_ptr_nonnull(y);
}

static void tear_down(void)
{
    free(y);
}

static void add(int32_t position, float a, float b, float c)
{
    const float sum[DIM] = {a, b, c};

    embedding_add(y, &(struct core_event){
                         .type = CORE_SUM, .sum = sum, .sum_dim = DIM, .position = position});
}

static void expect(const struct embedder *how, int32_t n_tokens, const double *values, int32_t n)
{
    float *got = embedding_take(y, how, n_tokens, n);

    ck_assert_ptr_nonnull(got);
    for (int32_t i = 0; i < n; i++)
        ck_assert_double_eq_tol(got[i], values[i], 1e-6);
    free(got);
}

/* A mean is of all tokens of all sums. */
TEST(sums_add_up_to_a_mean)
{
    add(0, 1, 2, 3);
    add(2, 3, 6, -3);
    expect(&mean, 4, (double[]){1, 2, 0}, 3);
}

/* A sum from the first token on takes the place of those before: the sequence was preempted. */
TEST(sums_begin_anew)
{
    add(0, 100, 100, 100);
    add(2, 100, 100, 100);
    add(0, 1, 2, 3);
    add(1, 1, 2, 3);
    expect(&mean, 2, (double[]){1, 2, 3}, 3);
}

/* One state is not divided by the number of tokens. */
TEST(last_token_as_it_is)
{
    add(0, 4, -2, 0);
    expect(&last, 7, (double[]){4, -2, 0}, 3);
}

/* The values that are asked for have length 1, not those of which they are the first. */
TEST(first_values_have_length_one)
{
    const struct embedder how = {.pooling = POOLING_MEAN, .normalize = true};

    add(0, 3, 4, 12);
    expect(&how, 9, (double[]){3 / 13.0, 4 / 13.0, 12 / 13.0}, 3);
    expect(&how, 9, (double[]){0.6, 0.8}, 2);
    expect(&how, 9, (double[]){1}, 1);
}

/* What has no direction stays zero. */
TEST(zero_has_no_length)
{
    const struct embedder how = {.pooling = POOLING_LAST, .normalize = true};

    add(0, 0, 0, 5);
    expect(&how, 1, (double[]){0, 0}, 2);
}

/* Sums of many tokens keep the bits of small ones. */
TEST(many_sums_are_exact)
{
    add(0, 16777216, 1, 0);
    for (int i = 1; i <= 1000; i++)
        add(i, 1, 1, 0);
    add(1001, -16777216, 0, 0);
    expect(&mean, 1, (double[]){1000, 1001, 0}, 3);
}

RUN_TESTS("embedding", set_up, tear_down)
