/* test_cpu_experts.c - which experts a row goes to, with what weight, and where its copies are. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/cpu/cpu_experts.h"
#include "tests/unit/run_suite.h"

enum { MAX_EXPERTS = 128, ROWS = 300, MAX_ROWS = 96 };

static uint64_t random_state = 1;

static uint32_t random_below(uint32_t n)
{
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)((random_state >> 32) * n >> 32);
}

/* The weights are the softmax over all experts or over the chosen ones, in ascending order of
 * experts; of equal scores the first are chosen. */
TEST(largest_scores_are_chosen, .n = 2)
{
    static const float scores[] = {1, 3, -2, 3, 0, 3};
    const double of_chosen = 2 + exp(-2), of_all = 3 + exp(-2) + exp(-5) + exp(-3);
    struct pick picks[3];

    route(picks, 2, scores, 6, _i, cpu_ops_best());
    ck_assert(picks[0].expert == 1 && picks[1].expert == 3);
    ck_assert_double_eq_tol((double)picks[1].weight, _i ? 0.5 : 1 / of_all, 1e-7);
    route(picks, 3, (const float[]){3, 1, -2, 3, 0, 1}, 6, _i, cpu_ops_best());
    ck_assert(picks[0].expert == 0 && picks[1].expert == 1 && picks[2].expert == 3);
    ck_assert_double_eq_tol((double)picks[1].weight,
                            exp(-2) / (_i ? of_chosen : of_chosen + exp(-5) + exp(-3) + exp(-2)),
                            1e-7);
}

/* Scores of any size and sign, with many that are equal: what is chosen is not below what is not,
 * and renormalized weights add up to one. */
TEST(random_scores, .n = 500)
{
    const int n = 1 + (int)random_below(MAX_EXPERTS), k = 1 + (int)random_below((uint32_t)n);
    float scores[MAX_EXPERTS], least = INFINITY;
    struct pick picks[MAX_EXPERTS];
    bool is_chosen[MAX_EXPERTS] = {false};
    double sum = 0.0;

    for (int i = 0; i < n; i++)
        scores[i] = (float)((int)random_below(40) - 20) * (_i % 3 == 0 ? 1e30f : 0.3f);
    route(picks, k, scores, n, true, cpu_ops_best());
    for (int i = 0; i < k; i++) {
        ck_assert(picks[i].expert >= 0 && picks[i].expert < n);
        ck_assert(i == 0 || picks[i].expert > picks[i - 1].expert);
        is_chosen[picks[i].expert] = true;
        least = fminf(least, scores[picks[i].expert]);
        sum += (double)picks[i].weight;
    }
    for (int i = 0; i < n; i++)
        ck_assert(is_chosen[i] || scores[i] <= least);
    ck_assert_double_eq_tol(sum, 1.0, 1e-5);
}

/* NaN or Inf among the scores: experts that exist, all weights NaN. */
TEST(no_numbers, .n = 4)
{
    const float bad[] = {NAN, INFINITY, -INFINITY, NAN};
    float scores[5] = {0.5f, 1, 2, 3, 4};
    struct pick picks[5];

    for (int at = 0; at < 5; at++) {
        for (int i = 0; i < 5; i++)
            scores[i] = i == at || _i == 3 ? bad[_i] : (float)i;
        for (int k = 1; k <= 5; k++) {
            route(picks, k, scores, 5, at % 2, cpu_ops_best());
            for (int i = 0; i < k; i++)
                ck_assert(picks[i].expert == i && isnan(picks[i].weight));
        }
    }
}

/* Each row and expert has a place of its own, those of one expert side by side; groups cover all
 * places, each with rows of its expert. _i: all rows of one expert, of a few, of any. */
TEST(places, .n = 3)
{
    static const uint32_t n_used[] = {1, 3, MAX_EXPERTS};
    struct row_group all[MAX_EXPERTS + ROWS / MAX_ROWS];
    struct row_groups groups = {.all = all, .n_experts = MAX_EXPERTS};
    int expert_at[ROWS], scratch[MAX_EXPERTS], at = 0;
    struct pick picks[ROWS];

    for (int n = 1; n <= ROWS; n++) {
        for (int i = 0; i < n; i++)
            picks[i] = (struct pick){.expert = MAX_EXPERTS - 1 - (int)random_below(n_used[_i])};
        memset(expert_at, 0xff, sizeof(expert_at));
        row_groups_of_picks(&groups, MAX_ROWS, picks, n, scratch);
        for (int i = 0; i < n; i++) {
            ck_assert(picks[i].at >= 0 && picks[i].at < n && expert_at[picks[i].at] < 0);
            expert_at[picks[i].at] = picks[i].expert;
        }
        at = 0;
        ck_assert_int_le(groups.n, N(all));
        for (int g = 0; g < groups.n; g++) {
            ck_assert(all[g].row == at && all[g].n_rows > 0 && all[g].n_rows <= MAX_ROWS);
            ck_assert(g == 0 || all[g].expert > all[g - 1].expert ||
                      (all[g].expert == all[g - 1].expert && all[g - 1].n_rows == MAX_ROWS));
            for (int i = 0; i < all[g].n_rows; i++)
                ck_assert_int_eq(expert_at[at + i], all[g].expert);
            at += all[g].n_rows;
        }
        ck_assert_int_eq(at, n);
    }
}

RUN_TESTS("cpu_experts", NULL, NULL)
