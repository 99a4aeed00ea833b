/* test_lookup.c - what may come next in a text, by what came before. */
#include <stdlib.h>
#include <string.h>

#include "engine/core/sequence.h"
#include "tests/unit/run_suite.h"

enum { MAX_PROMPT = 20000, MAX_TOKENS = 1000 };

static struct request *request;
static struct sequence *text;
static struct lookup *lookup;
static int32_t prompt[MAX_PROMPT];

/* The text is the prompt [n] so far. */
static void begin(int32_t n)
{
    static const struct sampling greedy = {.repetition_penalty = 1.0f};
    const struct core_request r = {
        .n_prompt = n, .max_tokens = MAX_TOKENS, .n = 1, .prompt = prompt, .sampling = &greedy};

    request = request_new(&r, 1, 0);
    lookup = lookup_new(n, MAX_TOKENS);
    ck_assert(request && lookup);
    text = &request->choices[0];
}

static void tear_down(void)
{
    free(lookup);
    request_free(request);
    lookup = NULL;
    request = NULL;
}

static void tell(int32_t token)
{
    ck_assert(sequence_append(text, token));
    lookup_add_token(lookup, text);
    lookup_predict(lookup, text);
}

static void tell_all(const int32_t *tokens, int32_t n)
{
    for (int32_t i = 0; i < n; i++)
        tell(tokens[i]);
}

static void count_up(int32_t from, int32_t n)
{
    for (int32_t i = 0; i < n; i++)
        prompt[i] = from + i;
}

static void check(int32_t first, int32_t n)
{
    ck_assert_int_eq(lookup->n_predicted, n);
    for (int32_t i = 0; i < n; i++)
        ck_assert_int_eq(lookup->predicted[i], first + i);
}

/* Behind three tokens that have been there, what followed is predicted; behind two it is not. */
TEST(what_followed_is_predicted)
{
    count_up(100, 50);
    begin(50);
    tell(110);
    tell(111);
    check(0, 0);
    tell(112);
    check(113, CORE_MAX_DRAFTS);
    tell(113);
    check(114, CORE_MAX_DRAFTS);
}

/* A token that was not predicted ends it; three others begin it again. */
TEST(a_wrong_prediction_ends)
{
    const int32_t tokens[] = {110, 111, 112, 113, 999, 115, 116};

    count_up(100, 50);
    begin(50);
    tell_all(tokens, 7);
    check(0, 0);
    tell(117);
    check(118, CORE_MAX_DRAFTS);
}

/* One that was wrong behind a long copy does not: a token has been replaced. A second one does. */
TEST(a_replaced_token_is_passed)
{
    count_up(100, 60);
    begin(60);
    for (int32_t i = 0; i < 25; i++)
        tell(100 + i);
    tell(999);
    check(126, CORE_MAX_DRAFTS);
    tell(126);
    check(127, CORE_MAX_DRAFTS);
    tell(998);
    check(0, 0);
}

/* Of several places the last one counts. */
TEST(the_last_place_counts)
{
    const int32_t tokens[] = {1, 2, 3, 50, 1, 2, 3, 60, 1, 2, 3};

    prompt[0] = 7;
    begin(1);
    tell_all(tokens, 11);
    ck_assert_int_eq(lookup->predicted[0], 60);
    ck_assert_int_eq(lookup->predicted[1], 1);
}

/* A text that runs in a circle is predicted to go on so, beyond what there is of it. */
TEST(circles_go_on, .n = 7)
{
    const int32_t period = _i + 1;

    prompt[0] = 500;
    begin(1);
    for (int32_t i = 0; i < 4 * period + 4; i++)
        tell(i % period);
    ck_assert_int_eq(lookup->n_predicted, CORE_MAX_DRAFTS);
    for (int32_t i = 0; i < CORE_MAX_DRAFTS; i++)
        ck_assert_int_eq(lookup->predicted[i], (4 * period + 4 + i) % period);
}

/* The acceptance rate follows what came, without drafts. */
TEST(acceptance_follows_what_comes)
{
    double before = 0.5;

    count_up(0, 500);
    begin(500);
    for (int32_t i = 0; i < 40; i++) {
        tell(i);
        ck_assert_double_ge(lookup->acceptance, before);
        before = lookup->acceptance;
    }
    ck_assert_double_gt(before, 0.95);
    for (int32_t i = 0; i < 30; i++) { /* matches that go on differently */
        const int32_t at = 100 + 10 * i;

        tell(at);
        tell(at + 1);
        tell(at + 2);
        tell(900 + i);
    }
    ck_assert_double_lt(lookup->acceptance, 0.1);
}

/* What is predicted always follows the same tokens somewhere, however full the index is. */
TEST(no_prediction_without_a_place)
{
    int n_predicted = 0;

    srand(3);
    for (int32_t i = 0; i < MAX_PROMPT; i++)
        prompt[i] = rand() % 40;
    begin(MAX_PROMPT);
    for (int32_t i = 0; i < MAX_TOKENS; i++) {
        const int32_t n = sequence_n_tokens(text) + 1;

        tell(rand() % 40);
        if (lookup->n_predicted == 0)
            continue;
        n_predicted++;
        ck_assert(lookup->at >= LOOKUP_MATCH && lookup->at < n);
        for (int32_t k = 1; k <= LOOKUP_MATCH; k++)
            ck_assert_int_eq(sequence_token(text, lookup->at - k), sequence_token(text, n - k));
    }
    ck_assert_int_gt(n_predicted, 100);
}

/* A long prompt is indexed a part at a time: the first tokens of the answer have no prediction. */
TEST(long_prompts_are_indexed_bit_by_bit)
{
    count_up(0, MAX_PROMPT);
    begin(MAX_PROMPT);
    for (int32_t i = 0; i < 4; i++) {
        tell(15000 + i);
        check(0, 0);
    }
    tell(15004);
    check(15005, CORE_MAX_DRAFTS);
}

RUN_TESTS("lookup", NULL, tear_down)
